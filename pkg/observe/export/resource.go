package export

import (
	"cmp"
	"maps"
	"slices"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// A Resource describes the sender of telemetry. Each export contains the attributes of the resource.
type Resource struct {
	Namespace, Service, Configuration, Revision string // set by Knative; may be empty
	Pod, PodIP                                  string
	Version                                     string // version of this program; may be empty

	ServiceName string            // configured name; if empty, Name uses other fields
	Attributes  map[string]string // additional attributes; they override all other fields except ServiceName
}

// Name returns the value of service.name.
func (r *Resource) Name() string {
	return cmp.Or(r.ServiceName, r.Attributes["service.name"], r.Service, r.Configuration, r.Revision, r.Pod, "queue-proxy")
}

// all returns all resource attributes with the names that Knative uses.
func (r *Resource) all() map[string]string {
	version := cmp.Or(r.Version, "unknown")
	a := map[string]string{
		"container.name":         "queue-proxy",
		"service.version":        version,
		"telemetry.sdk.name":     "queue-proxy",
		"telemetry.sdk.language": "go",
		"telemetry.sdk.version":  version,
		"k8s.namespace.name":     r.Namespace,
		"k8s.pod.name":           r.Pod,
		"service.instance.id":    r.Pod,
		"kn.service.name":        r.Service,
		"kn.configuration.name":  r.Configuration,
		"kn.revision.name":       r.Revision,
	}
	maps.DeleteFunc(a, func(_, value string) bool { return value == "" })
	for name, value := range r.Attributes {
		a[Text(name)] = value
	}
	a["service.name"] = r.Name()
	return a
}

// OTLP returns the resource as an OTLP message.
func (r *Resource) OTLP() *resourcepb.Resource {
	a := r.all()
	resource := &resourcepb.Resource{}
	for _, name := range slices.Sorted(maps.Keys(a)) {
		resource.Attributes = append(resource.Attributes, StringAttribute(name, Text(a[name])))
	}
	return resource
}

// Scope returns the instrumentation scope of this program.
func (r *Resource) Scope() *commonpb.InstrumentationScope {
	return &commonpb.InstrumentationScope{Name: "github.com/queue-proxy/queue-proxy", Version: Text(r.Version)}
}

// StringAttribute returns an attribute. name and value must be results of [Text].
func StringAttribute(name, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}}
}

// MaxText is the maximum length of a string in an export, in bytes.
const MaxText = 512

// Text returns s as valid UTF-8, truncated to [MaxText] bytes. A collector rejects a batch that contains
// invalid UTF-8. The result may reference s.
func Text(s string) string { return message.Truncate(s, MaxText) }
