package metrics

import (
	"cmp"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// knativeHead has the names that dashboards for Knative after 1.18 know: those of
// OpenTelemetry's conventions, as its Prometheus exporter writes them.
//
// server.address and server.port of http.server.* are the Host that a client sent,
// and are left out. network.protocol.version of http.client.* would be what the
// user container spoke, which an observation does not tell.
type knativeHead struct {
	server     *tagVector[serverSeries]
	client     *tagVector[clientSeries]
	invocation *vector[histogram] // by status
}

// serverSeries is what is known of requests, as they came.
type serverSeries struct{ duration, in, out histogram }

// clientSeries is what is known of requests, as they went to the user container.
type clientSeries struct{ duration, in histogram }

// Scopes of OpenTelemetry: who would have recorded it.
const (
	scopeHTTP    = "go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	scopeVersion = "0.69.0"
	scopeKnative = "knative.dev/serving/pkg/queue"
	scopeRuntime = "go.opentelemetry.io/contrib/instrumentation/runtime"
)

func newKnativeHead(fs *families, o *Options, tags *routeTags) *knativeHead {
	durations := newBuckets(1e6, 5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000,
		1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000)
	sizes := newBuckets(1, 0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000)

	codes := dim("http_response_status_code", statuses...)
	outcomes := slices.Concat(codes, dim("error_type", reasons...)) // of the user container
	const label = "kn_route_tag"
	var words [firstNamed]string
	for i := range words {
		words[i] = header.Tag(i).String()
	}
	method := dim("http_request_method", otelMethods...)
	asServer := pairs("otel_scope_name", scopeHTTP, "otel_scope_version", scopeVersion, "network_protocol_name", "http")
	asClient := slices.Concat(asServer, pairs("server_address", "127.0.0.1", "server_port", strconv.Itoa(o.UserPort), "url_scheme", "http"))
	k := &knativeHead{
		server: &tagVector[serverSeries]{
			tags: tags, label: label, words: words,
			construct: func(l []*dto.LabelPair) *serverSeries {
				return &serverSeries{newHistogram(durations, l), newHistogram(sizes, l), newHistogram(sizes, l)}
			},
			fixed: asServer, dims: []dimension{method, dim("url_scheme", "http", "https"), dim("network_protocol_version", otelVersions...), codes},
		},
		client: &tagVector[clientSeries]{
			tags: tags, label: label, words: words,
			construct: func(l []*dto.LabelPair) *clientSeries {
				return &clientSeries{newHistogram(durations, l), newHistogram(sizes, l)}
			},
			fixed: asClient, dims: []dimension{method, outcomes},
		},
		invocation: newVector(func(l []*dto.LabelPair) *histogram {
			h := newHistogram(durations, l)
			return &h
		}, pairs("otel_scope_name", scopeKnative), codes),
	}

	labels := []string{"http_request_method", "url_scheme", "network_protocol_name", "network_protocol_version",
		"http_response_status_code", "kn_route_tag", "otel_scope_name", "otel_scope_version"}
	show(fs.add(KnativeHead, Histogram, "http_server_request_duration_seconds", "How long requests took.", labels...),
		k.server.each, func(s *serverSeries) *histogram { return &s.duration })
	show(fs.add(KnativeHead, Histogram, "http_server_request_body_size_bytes", "How long their bodies were.", labels...),
		k.server.each, func(s *serverSeries) *histogram { return &s.in })
	show(fs.add(KnativeHead, Histogram, "http_server_response_body_size_bytes", "How long the bodies of the responses were.", labels...),
		k.server.each, func(s *serverSeries) *histogram { return &s.out })

	labels = []string{"http_request_method", "server_address", "server_port", "url_scheme", "network_protocol_name",
		"http_response_status_code", "error_type", "kn_route_tag", "otel_scope_name", "otel_scope_version"}
	show(fs.add(KnativeHead, Histogram, "http_client_request_duration_seconds",
		"From the slot until the user container began to respond, or, with error_type, until it was clear that it would not.", labels...),
		k.client.each, func(s *clientSeries) *histogram { return &s.duration })
	show(fs.add(KnativeHead, Histogram, "http_client_request_body_size_bytes", "How long the bodies of requests to the user container were.", labels...),
		k.client.each, func(s *clientSeries) *histogram { return &s.in })

	show(fs.add(KnativeHead, Histogram, "kn_serving_invocation_duration_seconds", "From the slot to the end of the exchange with the user container.",
		"http_response_status_code", "otel_scope_name"), k.invocation.each, same)
	if load, limit := o.Gauges.Load, o.Gauges.Limit; load != nil && limit != nil {
		f := fs.add(KnativeHead, Gauge, "kn_serving_queue_depth", "Requests that run or wait now; absent without a limit on concurrency.", "otel_scope_name")
		scope := pairs("otel_scope_name", scopeKnative)
		f.series = func(add func(*dto.Metric)) {
			if most, _ := limit(); most > 0 {
				running, waiting := load()
				add(f.sample(scope, float64(running+waiting)))
			}
		}
	}
	showTarget(fs, o)
	showOTelRuntime(fs)
	return k
}

func (k *knativeHead) observe(o *queue.Observation, tag int) {
	method, version, code := method(o.Method), protocol(o.Major, o.Minor), status(o.Status)
	scheme := 0
	if o.TLS {
		scheme = 1
	}
	s := k.server.at(tag, method, scheme, version, code)
	s.duration.observe(o.End.Sub(o.Start).Microseconds())
	s.in.observe(o.In)
	s.out.observe(o.Out)
	if o.Slot.IsZero() {
		return
	}

	until, outcome := o.FirstByte, code
	if until.IsZero() {
		until, outcome = o.End, len(statuses)+reason(o.Why)
	}
	c := k.client.at(tag, method, outcome)
	c.duration.observe(until.Sub(o.Slot).Microseconds())
	c.in.observe(o.In)
	k.invocation.at(code).observe(o.End.Sub(o.Slot).Microseconds())
}

// showTarget adds target_info, OpenTelemetry's resource.
func showTarget(fs *families, o *Options) {
	f := fs.add(KnativeHead, Gauge, "target_info", "1, with who we are.",
		"container_name", "k8s_namespace_name", "k8s_pod_name", "service_instance_id", "service_name", "service_version",
		"kn_service_name", "kn_configuration_name", "kn_revision_name")
	labels := pairs("container_name", "queue-proxy", "k8s_namespace_name", o.Namespace, "k8s_pod_name", o.Pod, "service_instance_id", o.Pod,
		"service_name", cmp.Or(o.Service, o.Configuration, o.Revision, o.Pod), "service_version", cmp.Or(o.Commit, "unknown"),
		"kn_service_name", o.Service, "kn_configuration_name", o.Configuration, "kn_revision_name", o.Revision)
	f.series = func(add func(*dto.Metric)) { add(f.sample(labels, 1)) }
}

// showOTelRuntime adds the families of OpenTelemetry's instrumentation of the Go
// runtime. Those of client_golang's default collectors stand beside them.
func showOTelRuntime(fs *families) {
	const total, released, stacks = "/memory/classes/total:bytes", "/memory/classes/heap/released:bytes", "/memory/classes/heap/stacks:bytes"
	scope := pairs("otel_scope_name", scopeRuntime)
	add := func(kind Kind, name, help string) *family {
		return fs.add(KnativeHead, kind, name, help, "otel_scope_name")
	}
	used := fs.add(KnativeHead, Gauge, "go_memory_used_bytes", "Memory that the Go runtime uses.", "go_memory_type", "otel_scope_name")
	showReadings(fs, []reading{
		{used, pairs("go_memory_type", "stack", "otel_scope_name", scopeRuntime), stacks, nil},
		{used, pairs("go_memory_type", "other", "otel_scope_name", scopeRuntime), total, []string{released, stacks}},
		{add(Gauge, "go_memory_limit_bytes", "GOMEMLIMIT, or four fifths of the container's memory; absent without either."), scope, "/gc/gomemlimit:bytes", nil},
		{add(Counter, "go_memory_allocated_bytes_total", "Memory that was allocated for objects."), scope, "/gc/heap/allocs:bytes", nil},
		{add(Counter, "go_memory_allocations_total", "Objects that were allocated."), scope, "/gc/heap/allocs:objects", nil},
		{add(Gauge, "go_memory_gc_goal_bytes", "Heap at which the garbage collector ends its next run."), scope, "/gc/heap/goal:bytes", nil},
		{add(Gauge, "go_goroutine_count", "Goroutines."), scope, "/sched/goroutines:goroutines", nil},
		{add(Gauge, "go_processor_limit", "Threads that may run Go code at once."), scope, "/sched/gomaxprocs:threads", nil},
		{add(Gauge, "go_config_gogc_percent", "GOGC."), scope, "/gc/gogc:percent", nil},
	})
}
