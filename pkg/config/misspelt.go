package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/spelling"
)

// A name that is so near to one of ours is taken for a misspelt one. The bounds are
// narrow, because each start complains of it: READ_TIMEOUT, SSL_CERT_DIR and STATSD_PORT
// are two letters from ours.
const (
	mostEdits = 2
	longName  = 12 // letters of a name of ours in which two edits may be slips
	shortWord = 4  // letters, between underscores, of which two edits make another word
)

// warnOfMisspelt says of each variable that looks like a misspelt one of ours that it
// has no effect. Its value is not shown, because it may be a secret.
func (in *reading) warnOfMisspelt() {
	known := map[string]bool{}
	for _, s := range in.sections {
		for _, f := range s.fields {
			for _, name := range f.names() {
				known[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.values)) {
		if value := in.values[name]; value == "" || known[name] || isServiceLink(name, value) {
			continue
		}
		if nearest := in.nearest(name); nearest != "" {
			in.warn("%s: unknown, so it is ignored; did you mean %s?", strings.Trim(strconv.Quote(name), `"`), nearest)
		}
	}
}

// nearest returns the variable that somebody who wrote name probably meant, "" if it
// looks like none. Case does not count. Other programs' names for our variables are
// not considered: nobody sets them for us, and HOST_NAME is near to HOSTNAME.
func (in *reading) nearest(name string) string {
	name = strings.ToUpper(name)
	nearest, least := "", mostEdits+1
	for _, f := range in.fields {
		d := spelling.Distance(name, f.name, mostEdits)
		if d < least && (d < mostEdits || areSlips(name, f.name)) {
			nearest, least = f.name, d
		}
	}
	return nearest
}

// servingPrefix begins the variables by which a pod of Knative is known.
const servingPrefix = "SERVING_"

// isServing reports whether a variable says that Knative started us.
func isServing(name string) bool { return strings.HasPrefix(name, servingPrefix) }

// areSlips reports whether two edits between name and one of ours may be slips, and do
// not make another word of a short one.
func areSlips(name, ours string) bool {
	words, our := strings.Split(name, "_"), strings.Split(ours, "_")
	if len(words) == len(our) {
		for i := range our {
			if len(our[i]) <= shortWord && spelling.Distance(words[i], our[i], 1) > 1 {
				return false
			}
		}
	}
	return len(ours) >= longName
}

// isServiceLink reports whether the kubelet has set a variable for a Service: as
// FOO_SERVICE_HOST, FOO_SERVICE_PORT and FOO_SERVICE_PORT_HTTP, or as docker did,
// FOO_PORT=tcp://..., FOO_PORT_80_TCP, FOO_PORT_80_TCP_ADDR and so on (Kubernetes,
// Service, environment variables).
func isServiceLink(name, value string) bool {
	if isDockerLink(name, value) || strings.HasSuffix(name, "_SERVICE_HOST") || strings.HasSuffix(name, "_SERVICE_PORT") || strings.Contains(name, "_SERVICE_PORT_") {
		return true
	}
	_, number, found := strings.Cut(name, "_PORT_")
	return found && number != "" && number[0] >= '0' && number[0] <= '9'
}

// isDockerLink reports whether the kubelet has set a variable to an address such as
// tcp://10.0.0.1:80. A Service with the name metrics-merge sets METRICS_MERGE_PORT in each pod that
// starts later.
func isDockerLink(name, value string) bool {
	return strings.HasSuffix(name, "PORT") &&
		(strings.HasPrefix(value, "tcp://") || strings.HasPrefix(value, "udp://") || strings.HasPrefix(value, "sctp://"))
}
