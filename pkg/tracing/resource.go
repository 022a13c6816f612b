package tracing

import (
	"fmt"
	"net/url"
	"strings"
)

// A Resource says who sends: attributes of every span and metric.
type Resource struct {
	Namespace, Service, Configuration, Revision string // of Knative; "" off it
	Pod, PodIP                                  string
	Version                                     string // of this program; "": unknown

	ServiceName string            // by which others know us; "": derived
	Attributes  map[string]string // more of them, which win over all but ServiceName
}

// name returns service.name.
func (r *Resource) name() string {
	for _, name := range []string{r.ServiceName, r.Attributes["service.name"], r.Service, r.Configuration, r.Revision, r.Pod} {
		if name != "" {
			return name
		}
	}
	return "queue-proxy"
}

// attributes returns what OpenTelemetry knows of us, by the names that Knative uses.
func (r *Resource) attributes() map[string]any {
	version := text(r.Version)
	if version == "" {
		version = "unknown"
	}
	a := map[string]any{
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
			a[name] = text(value)
		}
	}
	for name, value := range r.Attributes {
		a[text(name)] = text(value)
	}
	a["service.name"] = text(r.name())
	return a
}

// parsePairs reads a list of name=value with percent-encoded values, as in
// OTEL_RESOURCE_ATTRIBUTES and OTEL_EXPORTER_OTLP_HEADERS. The error never shows a
// value, which may be a secret.
func parsePairs(s string) (map[string]string, error) {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, fmt.Errorf("entry %d is not name=value", len(pairs)+1)
		}
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("the value of %q is not percent-encoded", name)
		}
		pairs[name] = value
	}
	return pairs, nil
}
