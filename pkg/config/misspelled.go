package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// A variable is reported as misspelled if its name is one edit from the name of a setting, or at most two
// edits from a setting with a long name. The bounds are low, because READ_TIMEOUT, SSL_CERT_DIR and
// QUEUE_SERVING_HOST are two edits from settings and belong to other programs.
const (
	longName      = 20         // minimum length of a long name in characters
	servingPrefix = "SERVING_" // prefix of variables that a Knative control plane sets
)

// warnMisspelled reports each variable whose name is similar to the name of a setting. It does not show
// the value, which may be a secret.
func (in *reading) warnMisspelled() {
	known := knownNames()
	for _, name := range slices.Sorted(maps.Keys(in.values)) {
		if value := in.values[name]; value == "" || known[name] || IsServiceLink(name, value) {
			continue
		}
		if nearest := in.nearest(name); nearest != "" {
			in.warn("%s: unknown variable ignored; did you mean %s?", strings.Trim(strconv.Quote(name), `"`), nearest)
		}
	}
}

// knownNames returns the names of all variables. It computes them only once.
var knownNames = sync.OnceValue(func() map[string]bool {
	known := map[string]bool{}
	for _, f := range new(Config).fields() {
		for _, name := range f.names() {
			known[name] = true
		}
	}
	return known
})

// nearest returns the setting with the most similar name, or "" if no name is similar. Case is
// ignored. Names from the struct tag "also" are not compared, because other programs use similar
// names, such as HOST_NAME.
func (in *reading) nearest(name string) string {
	name = strings.ToUpper(name)
	nearest, lowest := "", 3
	for _, f := range in.fields {
		limit := 1
		if len(f.name) >= longName {
			limit = 2
		}
		if d := message.Distance(name, f.name, limit); d <= limit && d < lowest {
			nearest, lowest = f.name, d
		}
	}
	return nearest
}

// isServing reports whether a variable indicates that a Knative control plane started the process.
func isServing(name string) bool { return strings.HasPrefix(name, servingPrefix) }

// IsServiceLink reports whether a variable looks like one that the kubelet sets for a Service, such
// as FOO_SERVICE_HOST, FOO_SERVICE_PORT_HTTP, FOO_PORT or FOO_PORT_80_TCP_ADDR (Kubernetes
// documentation, Service, environment variables).
func IsServiceLink(name, value string) bool {
	const port = "_PORT_"
	number := ""
	if i := strings.LastIndex(name, port); i >= 0 {
		number = name[i+len(port):]
	}
	return isDockerLink(name, value) || strings.HasSuffix(name, "_SERVICE_HOST") || strings.HasSuffix(name, "_SERVICE_PORT") ||
		strings.Contains(name, "_SERVICE_PORT_") || number != "" && number[0] >= '0' && number[0] <= '9'
}

// isDockerLink reports whether the name ends in PORT and the value is an address such as
// tcp://10.0.0.1:80. The kubelet sets such variables for Services. For example, if a Service is named
// metrics-merge, the kubelet sets METRICS_MERGE_PORT in each pod that starts later.
func isDockerLink(name, value string) bool {
	return strings.HasSuffix(name, "PORT") &&
		(strings.HasPrefix(value, "tcp://") || strings.HasPrefix(value, "udp://") || strings.HasPrefix(value, "sctp://"))
}

// linkedService returns the name of the Service for which the kubelet set a variable such as FOO_BAR_PORT.
func linkedService(variable string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimSuffix(variable, "_PORT")), "_", "-")
}
