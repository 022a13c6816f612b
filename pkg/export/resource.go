package export

import (
	"strings"
	"unicode/utf8"
)

// ScopeName is the instrumentation scope of what we send.
const ScopeName = "github.com/queue-proxy/queue-proxy"

// A Resource says who sends: attributes of every span and metric.
type Resource struct {
	Namespace, Service, Configuration, Revision string // of Knative; "" off it
	Pod, PodIP                                  string
	Version                                     string // of this program; "": unknown

	ServiceName string            // by which others know us; "": derived
	Attributes  map[string]string // more of them, which win over all but ServiceName
}

// Name returns service.name.
func (r *Resource) Name() string {
	for _, name := range []string{r.ServiceName, r.Attributes["service.name"], r.Service, r.Configuration, r.Revision, r.Pod} {
		if name != "" {
			return name
		}
	}
	return "queue-proxy"
}

// All returns what OpenTelemetry knows of us, by the names that Knative uses.
func (r *Resource) All() map[string]string {
	version := Text(r.Version)
	if version == "" {
		version = "unknown"
	}
	a := map[string]string{
		"container.name":         "queue-proxy",
		"service.version":        version,
		"telemetry.sdk.name":     "queue-proxy",
		"telemetry.sdk.language": "go",
		"telemetry.sdk.version":  version,
	}
	for name, value := range map[string]string{
		"k8s.namespace.name":    r.Namespace,
		"k8s.pod.name":          r.Pod,
		"service.instance.id":   r.Pod,
		"kn.service.name":       r.Service,
		"kn.configuration.name": r.Configuration,
		"kn.revision.name":      r.Revision,
	} {
		if value != "" {
			a[name] = Text(value)
		}
	}
	for name, value := range r.Attributes {
		a[Text(name)] = Text(value)
	}
	a["service.name"] = Text(r.Name())
	return a
}

// MaxText is how much of a string an export shows, in bytes.
const MaxText = 512

// Text returns a client's string as an export may keep it: not too long, in memory of
// its own, and in UTF-8, without which a collector refuses the whole batch.
func Text(s string) string {
	if len(s) > MaxText {
		n := MaxText
		for n > MaxText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.Clone(strings.ToValidUTF8(s, "\ufffd"))
}
