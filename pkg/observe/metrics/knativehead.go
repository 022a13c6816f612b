package metrics

import (
	"cmp"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// knativeHead contains the metrics of Knative's queue-proxy after version 1.18. The names follow the
// OpenTelemetry semantic conventions, in the form of the OpenTelemetry exporter for Prometheus.
//
// Knative renamed two metrics in 1.19.8, 1.20.1 and 1.21.0 (serving#16290). The set knative-1.19 contains the
// previous names.
//
// The attributes server.address and server.port of http.server.* are omitted, because they contain the Host
// field of the client. The attribute network.protocol.version of http.client.* is omitted, because an
// observation does not contain the HTTP version of the connection to the user container.
type knativeHead struct {
	server *tagTable[serverSeries]
	client *tagTable[clientSeries]

	invocations []*table[histogram] // time in the user container, by status; one table for each enabled name
}

// serverSeries contains the series of requests from clients with the same labels.
type serverSeries struct{ duration, in, out histogram }

// clientSeries contains the series of requests to the user container with the same labels.
type clientSeries struct{ duration, in histogram }

// OpenTelemetry scopes, which are the packages that record the metrics in Knative.
const (
	scopeHTTP    = "go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	scopeVersion = "0.69.0"
	scopeKnative = "knative.dev/serving/pkg/queue"
	scopeRuntime = "go.opentelemetry.io/contrib/instrumentation/runtime"
)

// otelDurations returns the default buckets of OpenTelemetry for durations, in seconds.
func otelDurations() []float64 {
	return []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
}

// otelSizes returns the default buckets of OpenTelemetry for sizes, in bytes.
func otelSizes() []float64 {
	return []float64{0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000}
}

func newKnativeHead(r *registry, o *Options, tags *routeTags, names names) *knativeHead {
	serving := r.with("otel_scope_name", scopeKnative)
	k := &knativeHead{
		server: newServerSeries(r.with("otel_scope_name", scopeHTTP, "otel_scope_version", scopeVersion, "network_protocol_name", "http"), tags),
		client: newClientSeries(r.with("otel_scope_name", scopeHTTP, "otel_scope_version", scopeVersion, "network_protocol_name", "http",
			"server_address", "127.0.0.1", "server_port", strconv.Itoa(o.UserPort), "url_scheme", "http"), tags),
	}
	add := func(invocation, depth string) {
		serving.gauge(depth, "Number of running and queued requests. Absent if there is no concurrency limit.", sometimes(o.Gauges.depth))
		k.invocations = append(k.invocations, histogramsOf(serving.histograms(invocation,
			"Time from acquiring a slot to the end of the request.", otelDurations(), "http_response_status_code"), dim(statuses...)))
	}
	if names&names119 != 0 {
		add("kn_queueproxy_app_duration_seconds", "kn_queueproxy_depth")
	}
	if names&namesHead != 0 {
		add("kn_serving_invocation_duration_seconds", "kn_serving_queue_depth")
	}
	// These labels describe the OpenTelemetry resource.
	r.with("container_name", "queue-proxy", "k8s_namespace_name", o.Namespace, "k8s_pod_name", o.Pod, "service_instance_id", o.Pod,
		"service_name", cmp.Or(o.Service, o.Configuration, o.Revision, o.Pod), "service_version", cmp.Or(o.Commit, "unknown"),
		"kn_service_name", o.Service, "kn_configuration_name", o.Configuration, "kn_revision_name", o.Revision,
	).gauge("target_info", "Information about the pod in the labels. The value is always 1.", one)
	addOTelRuntime(r.with("otel_scope_name", scopeRuntime))
	// Knative also exports the default collectors of client_golang. The default registry contains only
	// these collectors, which client_golang registers before main starts. Creating two more collectors
	// would increase the startup time.
	r.MustRegister(prometheus.DefaultRegisterer.(*prometheus.Registry))
	return k
}

// tagWords returns the values of kn_route_tag for requests without a named tag.
func tagWords() (words [firstNamed]string) {
	for i := range words {
		words[i] = observation.Tag(i).String()
	}
	return words
}

func newServerSeries(r *registry, tags *routeTags) *tagTable[serverSeries] {
	labels := []string{"kn_route_tag", "http_request_method", "url_scheme", "network_protocol_version", "http_response_status_code"}
	duration := r.histograms("http_server_request_duration_seconds", "Duration of requests.", otelDurations(), labels...)
	in := r.histograms("http_server_request_body_size_bytes", "Size of request bodies.", otelSizes(), labels...)
	out := r.histograms("http_server_response_body_size_bytes", "Size of response bodies.", otelSizes(), labels...)
	return &tagTable[serverSeries]{
		tags: tags, words: tagWords(),
		child: func(v []string) *serverSeries {
			return &serverSeries{histogram{duration.WithLabelValues(v...)}, histogram{in.WithLabelValues(v...)}, histogram{out.WithLabelValues(v...)}}
		},
		dims: []dimension{dim(otelMethods...), dim("http", "https"), dim(otelVersions...), dim(statuses...)},
		few:  [][]int{otherMethod(), nil, nil, firstsOfClass()},
	}
}

func newClientSeries(r *registry, tags *routeTags) *tagTable[clientSeries] {
	labels := []string{"kn_route_tag", "http_request_method", "http_response_status_code", "error_type"}
	duration := r.histograms("http_client_request_duration_seconds",
		"Time from the slot acquisition to the first byte of the response, or to the failure if error_type is set.", otelDurations(), labels...)
	in := r.histograms("http_client_request_body_size_bytes", "Size of the bodies of requests to the user container.", otelSizes(), labels...)
	outcomes, few := make(dimension, 0, len(statuses)+len(reasons)), firstsOfClass() // status codes, then failure reasons
	for _, code := range statuses {
		outcomes = append(outcomes, []string{code, ""})
	}
	for _, why := range reasons {
		few = append(few, len(outcomes))
		outcomes = append(outcomes, []string{"", why})
	}
	return &tagTable[clientSeries]{
		tags: tags, words: tagWords(),
		child: func(v []string) *clientSeries {
			return &clientSeries{histogram{duration.WithLabelValues(v...)}, histogram{in.WithLabelValues(v...)}}
		},
		dims: []dimension{dim(otelMethods...), outcomes},
		few:  [][]int{otherMethod(), few},
	}
}

func (k *knativeHead) observe(o *observation.Observation, tag int) {
	method, version, code := method(o.Method), protocol(o.Major, o.Minor), status(o.Status)
	s := k.server.at(tag, method, place(o.TLS), version, code)
	s.duration.took(o.End.Sub(o.Start))
	s.in.size(o.In)
	s.out.size(o.Out)
	if o.Slot.IsZero() {
		return
	}

	until, outcome := o.FirstByte, code
	if until.IsZero() {
		until, outcome = o.End, len(statuses)+reason(o.Reason)
	}
	c := k.client.at(tag, method, outcome)
	c.duration.took(until.Sub(o.Slot))
	c.in.size(o.In)
	for _, invocation := range k.invocations {
		invocation.at(code).took(o.End.Sub(o.Slot))
	}
}

// addOTelRuntime adds the metrics that OpenTelemetry's instrumentation of the Go runtime exports. They are
// exported in addition to the default collectors of client_golang.
func addOTelRuntime(r *registry) {
	stack, other := runtimeNumber(runtimeStacks), runtimeNumber(runtimeMemory, runtimeReleased, runtimeStacks)
	r.gauge("go_memory_used_bytes", "Memory of the Go runtime.", func(add func(float64, ...string)) {
		for word, number := range map[string]func() (float64, bool){"stack": stack, "other": other} {
			if v, ok := number(); ok {
				add(v, word)
			}
		}
	}, "go_memory_type")
	r.gauge("go_memory_limit_bytes", "Memory limit of the Go runtime (GOMEMLIMIT), which defaults to 80% of the memory limit of the container. Absent if there is no limit.", sometimes(runtimeNumber(runtimeLimit)))
	r.counter("go_memory_allocated_bytes_total", "Total memory that was allocated for objects.", sometimes(runtimeNumber(runtimeAllocated)))
	r.counter("go_memory_allocations_total", "Number of allocated objects.", sometimes(runtimeNumber("/gc/heap/allocs:objects")))
	r.gauge("go_memory_gc_goal_bytes", "Target size of the heap for the next garbage collection.", sometimes(runtimeNumber("/gc/heap/goal:bytes")))
	r.gauge("go_goroutine_count", "Number of goroutines.", sometimes(runtimeNumber("/sched/goroutines:goroutines")))
	r.gauge("go_processor_limit", "Maximum number of threads that run Go code.", sometimes(runtimeNumber(runtimeMaxProcs)))
	r.gauge("go_config_gogc_percent", "Value of GOGC in percent.", sometimes(runtimeNumber("/gc/gogc:percent")))
}
