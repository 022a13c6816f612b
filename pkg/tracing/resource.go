package tracing

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
