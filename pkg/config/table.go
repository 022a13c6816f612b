package config

import (
	"math"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
)

// The names that other rows, rules and messages speak of. Every other name stands in
// the table alone.
const (
	servingPrefix = "SERVING_" // of the names by which a pod of Knative is known

	knativeName       = "ON_KNATIVE"
	namespaceName     = "SERVING_NAMESPACE"
	userPortName      = "USER_PORT"
	engineName        = "ENGINE"
	fastLaneName      = "FAST_LANE"
	tlsPortName       = "QUEUE_SERVING_TLS_PORT"
	concurrencyName   = "CONTAINER_CONCURRENCY"
	depthName         = "QUEUE_DEPTH"
	queueTimeoutName  = "QUEUE_TIMEOUT_SECONDS"
	timeoutName       = "REVISION_TIMEOUT_SECONDS"
	multiName         = "ENABLE_MULTI_CONTAINER_PROBES"
	readinessName     = "SERVING_READINESS_PROBE"
	quietName         = "DRAIN_QUIET_PERIOD"
	deadlineName      = "DRAIN_DEADLINE"
	drainMinName      = "DRAIN_MIN"
	metricsNamesName  = "METRICS_NAMES"
	mergePortName     = "METRICS_MERGE_PORT"
	certDirName       = "TLS_CERT_DIR"
	tlsMinName        = "QUEUE_PROXY_TLS_MIN_VERSION"
	tlsMaxName        = "QUEUE_PROXY_TLS_MAX_VERSION"
	tlsSuitesName     = "QUEUE_PROXY_TLS_CIPHER_SUITES"
	observabilityName = "OBSERVABILITY_CONFIG"
	backendName       = "SERVING_REQUEST_METRICS_BACKEND"
)

// defaultMetricsPort is Knative's for the metrics of a user container.
const defaultMetricsPort = 9091

// A row is one variable: what people may write, what we take when they write
// nothing, and the value of a Config that it stands for.
type row struct {
	name   string
	also   []string // other programs' names for it, read in this order where name is unset
	kind            // no decode: the variable is accepted and has no effect
	def    string   // what an unset variable means, as text; "" leaves the zero value
	text   string   // one sentence for people
	traits trait

	derive func() // sets the value of an unset variable from those of others
	rule   string // what derive does, for people

	// While the environment is read:
	from string // the name that the value was read from; "" when it was not
	bad  bool   // what was written is not allowed
}

// trait is what is special about a row.
type trait uint8

const (
	soft     trait = 1 << iota // a bad value falls back to the default with a warning (docs/promises.md 3.9)
	secret                     // its value is never shown
	listener                   // a port on which we or the user container listen
)

func (r *row) is(t trait) bool { return r.traits&t != 0 }
func (r *row) unused() bool    { return r.decode == nil }

// names are all the names by which the variable is read, the first first.
func (r *row) names() []string { return append([]string{r.name}, r.also...) }

// shown is the value as it may be seen by people and logs.
func (r *row) shown() string {
	switch value := r.encode(); {
	case value == "":
		return ""
	case r.is(secret):
		return hidden
	case r.show != nil:
		return safe(r.show())
	default:
		return safe(value)
	}
}

// A section is a group of rows with one subject.
type section struct {
	title string
	note  string
	rows  []*row
}

// table is every variable that we know, bound to c: the only place where its name,
// its default, what is allowed and what it means are written. The tables of
// docs/configuration.md and config/queue-proxy.env are made from it.
//
// Rules read the values of rows above them.
func table(c *Config) []section {
	t := &c.Telemetry
	return []section{
		{"Who we are", "Knative sets these; elsewhere they are optional labels.", []*row{
			{name: knativeName, kind: boolean(&c.OnKnative),
				derive: func() { c.OnKnative = c.serving }, rule: "true when any `" + servingPrefix + "*` variable of this page that has an effect is set",
				text: "Whether a Knative control plane started us, which decides some defaults."},
			{name: namespaceName, kind: text(&c.Namespace),
				text: "The namespace, a label of statistics, metrics and logs."},
			{name: "SERVING_SERVICE", kind: text(&c.Service),
				text: "The Knative Service, a label of metrics and logs."},
			{name: "SERVING_CONFIGURATION", kind: text(&c.Configuration),
				text: "The Knative Configuration, a label of statistics, metrics and logs."},
			{name: "SERVING_REVISION", kind: text(&c.Revision),
				text: "The Knative Revision, a label of statistics, metrics and logs."},
			{name: "SERVING_POD", also: []string{"POD_NAME", "HOSTNAME"}, kind: text(&c.Pod),
				text: "The pod's name, by which the autoscaler tells pods apart."},
			{name: "SERVING_POD_IP", kind: text(&c.PodIP),
				text: "The pod's address, for the request log and traces."},
		}},
		{"Ports", "All of them must differ. A value such as `tcp://10.0.0.1:80` is Kubernetes' link to a Service of that name: it is ignored, with a warning.", []*row{
			{name: userPortName, also: []string{"PORT"}, kind: port(&c.UserPort), traits: listener, def: "8080",
				text: "Where the user container listens, on the loopback address."},
			{name: "QUEUE_SERVING_PORT", kind: port(&c.Port), traits: listener, def: "8012",
				text: "Where requests arrive: HTTP/1.1 and HTTP/2 in plain text."},
			{name: tlsPortName, kind: port(&c.TLSPort), traits: listener, def: "8112",
				text: "Where requests arrive over TLS, once there is a certificate."},
			{name: "ADMIN_PORT", kind: port(&c.AdminPort), traits: listener, def: "8022",
				text: "Where preStop hooks ask us to drain. Knative's pods expect 8022."},
			{name: "AUTOSCALER_PORT", kind: port(&c.AutoscalerPort), traits: listener, def: "9090",
				text: "Where the autoscaler reads the statistics. Knative's expects 9090."},
			{name: "METRICS_PORT", also: []string{"METRICS_PROMETHEUS_PORT"}, kind: port(&c.MetricsPort), traits: listener,
				derive: func() {
					if _, c.MetricsPort = metricsEndpoint(c); c.MetricsPort == 0 {
						c.MetricsPort = defaultMetricsPort
					}
				}, rule: "9091, or that of `requestMetrics.endpoint` in `" + observabilityName + "` for Prometheus",
				text: "Where Prometheus reads the metrics."},
			{name: "STATUS_PORT", also: []string{"PROFILING_PORT"}, kind: port(&c.StatusPort), traits: listener, def: "8008",
				text: "Where the status page is, on the loopback address only, and the profiler, where the control plane asks for it."},
		}},
		{"Concurrency", "How many requests the user container has at once, and what happens to the rest.", []*row{
			{name: concurrencyName, kind: number(&c.Concurrency, 0, mostConcurrency), def: "0",
				text: "How many requests may be in the user container at once; 0 is any number."},
			{name: depthName, kind: number(&c.QueueDepth, 0, depthPerSlot*mostConcurrency),
				derive: func() { c.QueueDepth = depthPerSlot * c.Concurrency }, rule: "10 × `" + concurrencyName + "`",
				text: "How many more may wait, first come first served; one beyond them hears 503. 0 is nobody."},
			{name: queueTimeoutName, kind: seconds(&c.QueueTimeout), def: "0",
				text: "How long one may wait before it hears 503."},
		}},
		{"Clocks", "A request that outlives one of them hears 504 if nothing has been sent to it yet, and is cut visibly if something has. Waiting in the queue counts.", []*row{
			{name: timeoutName, kind: seconds(&c.RequestTimeout), def: "0",
				text: "How long a request may take."},
			{name: "REVISION_TIMEOUT_SCOPE", kind: oneOf(&c.RequestTimeoutScope, words(WholeRequest, FirstByte)),
				derive: func() {
					c.RequestTimeoutScope = WholeRequest
					if c.OnKnative && t.Observability == "" {
						c.RequestTimeoutScope = FirstByte
					}
				}, rule: "`first-byte` on Knative before 1.19 (no `" + observabilityName + "`), else `request`",
				text: "What that time covers: all of the request, or until the first byte of its response."},
			{name: "REVISION_RESPONSE_START_TIMEOUT_SECONDS", kind: seconds(&c.ResponseStartTimeout), def: "0",
				text: "How long until the first byte of the response."},
			{name: "REVISION_IDLE_TIMEOUT_SECONDS", kind: seconds(&c.IdleTimeout), def: "0",
				text: "How long nothing may move, in either direction. Upgraded connections obey this clock alone."},
			{name: "CLIENT_GONE_GRACE", kind: duration(&c.ClientGoneGrace, 0), def: "10s",
				text: "How long a request whose client has gone, or has got its 504, keeps its slot while the user container still works on it. 0: not at all, as with Knative."},
			{name: "CONNECT_RETRY", kind: duration(&c.ConnectRetry, 0), def: "500ms",
				text: "How long we try again while the user container refuses a connection, as one that restarts does, before we answer 502."},
		}},
		{"Readiness", "See [probes](probes.md).", []*row{
			{name: multiName, kind: probeArray(c), def: "false",
				text: "The probe below is an array, one for each container."},
			{name: readinessName, kind: probes(c),
				derive: func() {
					c.Probes = nil
					if !c.OnKnative {
						c.Probes = []probe.Probe{tcpProbe(c.UserPort)}
					}
				}, rule: "on Knative none, so always ready; elsewhere a TCP connection to `" + userPortName + "`",
				text: "How to find out whether the user container can serve. `exec` cannot run in a sidecar."},
			{name: "ENABLE_HTTP2_AUTO_DETECTION", kind: boolean(&c.AutoDetectHTTP2), def: "false",
				text: "Find out whether the user container's health endpoint speaks HTTP/2 in plain text."},
		}},
		{"Traffic", "", []*row{
			{name: engineName, also: []string{fastLaneName}, kind: engine(&c.Engine), def: string(OwnEngine),
				text: "What serves HTTP/1: our own engine, or the Go standard library's server, which costs several times as much and reads requests less strictly. For support. HTTP/2 is served by the standard library's in any case."},
			{name: "ENABLE_HTTP_FULL_DUPLEX", kind: boolean(&c.FullDuplex), def: "false",
				text: "Let an HTTP/1.1 response begin while its request is still being sent."},
			{name: "SERVER_TIMING", kind: boolean(&c.ServerTiming), def: "false",
				text: "Tell clients in a Server-Timing field how long a request waited in the queue and for the app."},
			{name: "EXCLUDE_PATHS", kind: paths(&c.ExcludePaths),
				text: "Requests for these paths, as they stand in the request line, not decoded, are served and limited, but count neither for scaling nor for metrics nor in the request log."},
			{name: "EXCLUDE_USER_AGENTS", kind: agents(&c.ExcludeUserAgents),
				text: "The same for requests whose User-Agent begins so."},
			{name: "STATS_FORMAT", kind: oneOf(&c.StatsFormat, words(Protobuf, Prometheus)), def: string(Protobuf),
				text: "What the autoscaler's port answers to those who do not say what they read. Knative up to 0.16 reads `prometheus`."},
		}},
		{"The end of a pod", "See [shutdown](shutdown.md). The pod's terminationGracePeriodSeconds must be longer than the deadline.", []*row{
			{name: deadlineName, kind: duration(&c.DrainDeadline, time.Millisecond),
				derive: func() { c.DrainDeadline = defaultDeadline(c) }, rule: "on Knative `" + timeoutName + "` less 3s, elsewhere 27s",
				text: "When what is still running is cut, counted from the beginning of the drain."},
			{name: quietName, kind: duration(&c.DrainQuietPeriod, 0),
				derive: func() { c.DrainQuietPeriod = min(longestQuiet, c.DrainDeadline/2) }, rule: "30s, but at most half of `" + deadlineName + "`",
				text: "How long no new request must have come before the drain ends; never more than half of the deadline."},
			{name: drainMinName, kind: duration(&c.DrainMin, 0), def: "0s",
				text: "How long the drain takes at least, where endpoints travel slowly."},
			{name: "DRAIN_STREAMS", kind: oneOf(&c.DrainStreams, words(EndStreams, WaitForStreams)), def: string(EndStreams),
				text: "What becomes of WebSockets, event streams and gRPC streams that are left after the quiet period: `end` lets the user container get its SIGTERM and end them, `wait` waits for them like other requests."},
			{name: "DRAIN_ENDPOINT", kind: boolean(&c.DrainEndpoint), def: "false",
				text: "Serve `/drain` on the admin port: whoever calls it ends this pod's readiness for good. For the preStop hook of a native sidecar."},
		}},
		{"Limits", "", []*row{
			{name: "MAX_HEADER_BYTES", kind: number(&c.MaxHeaderBytes, 4<<10, 64<<20), def: "1048576",
				text: "How long the head of a request may be; a longer one hears 431."},
			{name: "MAX_BODY_BYTES", kind: number(&c.MaxBodyBytes, 0, math.MaxInt64), def: "0",
				text: "How long the body of a request may be; a longer one hears 413. 0 is no limit."},
			{name: "MAX_CONNECTIONS", kind: number(&c.MaxConnections, 0, mostConnections), def: "0",
				text: "How many connections may be open at once, over both ports for requests. One more closes the one that has been idle for longest; where all are served it waits. 0 is no limit, as in Knative, where one of ours would cut some fleet of WebSockets short; set it where anybody reaches the port."},
			{name: "HEADER_TIMEOUT", kind: duration(&c.HeaderTimeout, time.Millisecond), def: "60s",
				text: "How long a client may take to send the head of a request."},
			{name: "BODY_TIMEOUT", kind: duration(&c.BodyTimeout, 0), def: "60s",
				text: "How long a client may leave the user container waiting for the next byte of a request's body before the response has begun: a slow sender must not hold a slot for ever. gRPC over HTTP/2 is exempt. 0 is no limit."},
			{name: "SEND_TIMEOUT", kind: duration(&c.SendTimeout, time.Millisecond), def: "300s",
				text: "How long a client may leave a piece of a response untaken, of 64 KiB at most, that is there for it: one that does not read must not hold a slot for ever. Upgraded connections are exempt."},
		}},
		{"TLS", "It is served once the directory holds `tls.crt` and `tls.key`. See [tls](tls.md).", []*row{
			{name: certDirName, kind: text(&c.CertDir), def: "/var/lib/knative/certs",
				text: "Where the certificate and its key are, or will be."},
			{name: tlsMinName, kind: oneOf(&c.TLSMinVersion, tlsVersions()), def: "1.3",
				text: "The least version."},
			{name: tlsMaxName, kind: oneOf(&c.TLSMaxVersion, tlsVersions()),
				text: "The greatest version; unset is the newest."},
			{name: tlsSuitesName, kind: suites(&c.TLSCipherSuites),
				text: "The cipher suites; unset is Go's choice. Those of TLS 1.3 cannot be chosen."},
			{name: "QUEUE_PROXY_TLS_CURVE_PREFERENCES", kind: curves(&c.TLSCurves),
				text: "The key exchanges; unset is Go's choice."},
			{name: "QUEUE_PROXY_TLS_CLIENT_CA", kind: text(&c.TLSClientCA),
				text: "A file of CA certificates; clients must then show a certificate that one of them signed."},
		}},
		{"Logging", "A bad one never stops us: the logger falls back to its defaults and says so. Nor does an output that nobody reads: it costs lines, and the log says how many.", []*row{
			{name: "SERVING_LOGGING_CONFIG", kind: text(&c.LoggingConfig),
				text: "The logger's configuration as JSON, as in Knative's config-logging."},
			{name: "SERVING_LOGGING_LEVEL", kind: text(&c.LoggingLevel),
				text: "The least level that is logged; it wins over the configuration's."},
		}},
		{"What it says", "None of these can stop the process: a bad value is reported and falls back to its default.", []*row{
			{name: metricsNamesName, kind: oneOf(&t.MetricsNames, words("default", "knative-1.18", "knative-head", "all", "off")), traits: soft,
				derive: func() { t.MetricsNames = metricsNames(c) }, rule: "on Knative what the control plane asks for, elsewhere `default`",
				text: "Which metrics are served. See the page on [metrics](metrics.md)."},
			{name: mergePortName, kind: number(&t.MergePort, 0, 65535), traits: soft, def: "0",
				text: "Serve the app's own metrics, from this port of it, behind ours: one scrape for both. 0 is off."},
			{name: "METRICS_MERGE_PATH", kind: text(&t.MergePath), traits: soft, def: "/metrics",
				text: "Where the app has them."},
			{name: "REQUEST_LOG", kind: boolean(&t.WantRequestLog), traits: soft, def: "false",
				text: "Write a line of JSON for each request to standard output. See [request log](request-log.md)."},
			{name: "REQUEST_LOG_ERRORS_ONLY", kind: boolean(&t.RequestLogErrorsOnly), traits: soft, def: "false",
				text: "Write only those that failed."},
			{name: "REQUEST_LOG_SLOWER_THAN", kind: duration(&t.RequestLogSlowerThan, 0), traits: soft, def: "0",
				text: "Write those that took so long, and those that failed. 0 is off."},
			{name: "REQUEST_LOG_SAMPLE", kind: number(&t.RequestLogSample, 1, 1_000_000), traits: soft, def: "1",
				text: "Write one in so many of those that did not fail."},
		}},
		{"Telemetry", "A bad value never stops us: it falls back to its default, with a warning. See [metrics](metrics.md), [request log](request-log.md) and [tracing](tracing.md).", []*row{
			{name: observabilityName, kind: object(&t.Observability), traits: soft,
				text: "What Knative from 1.19 on says about the request log, metrics and traces."},
			{name: "ENABLE_PROFILING", kind: boolean(&t.Profiling), traits: soft, def: "false",
				text: "Serve the profiler on the pod's address too, and record what takes memory."},

			{name: "SERVING_ENABLE_REQUEST_LOG", kind: boolean(&t.RequestLog), traits: soft, def: "false",
				text: "Write the request log."},
			{name: "SERVING_ENABLE_PROBE_REQUEST_LOG", kind: boolean(&t.ProbeRequestLog), traits: soft, def: "false",
				text: "Write probes into it too."},
			{name: "SERVING_REQUEST_LOG_TEMPLATE", kind: text(&t.RequestLogTemplate), traits: soft,
				text: "A line of it, in Go's text/template."},

			{name: backendName, kind: oneOf(&t.MetricsBackend, words("prometheus", "opencensus", "none")), traits: soft,
				text: "Where Knative before 1.19 wants request metrics. To opencensus nothing is pushed, which the log says."},
			{name: "METRICS_PROMETHEUS_HOST", kind: text(&t.MetricsHost), traits: soft,
				derive: func() { t.MetricsHost, _ = metricsEndpoint(c) }, rule: "that of `requestMetrics.endpoint` in `" + observabilityName + "` for Prometheus; elsewhere none",
				text: "The address on which metrics are served; unset is all of the pod's. On one that is none of the pod's they are not served, which the log says."},
			{name: "METRICS_PROMETHEUS_TLS_CERT", kind: text(&t.MetricsTLS.Cert), traits: soft,
				text: "A certificate file: metrics are then served over TLS alone."},
			{name: "METRICS_PROMETHEUS_TLS_KEY", kind: text(&t.MetricsTLS.Key), traits: soft,
				text: "The file of its key."},
			{name: "METRICS_PROMETHEUS_TLS_CLIENT_AUTH", kind: text(&t.MetricsTLS.ClientAuth), traits: soft,
				text: "Whether scrapers must show a certificate: none, optional or require."},
			{name: "METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE", kind: text(&t.MetricsTLS.ClientCA), traits: soft,
				text: "The file of CA certificates that sign theirs."},
			{name: "METRICS_PROMETHEUS_TLS_MIN_VERSION", kind: oneOf(&t.MetricsTLS.MinVersion, tlsVersions()), traits: soft, def: "1.3",
				text: "The least version there."},
			{name: "METRICS_PROMETHEUS_TLS_MAX_VERSION", kind: oneOf(&t.MetricsTLS.MaxVersion, tlsVersions()), traits: soft,
				text: "The greatest version there."},
			{name: "METRICS_PROMETHEUS_TLS_CIPHER_SUITES", kind: suites(&t.MetricsTLS.CipherSuites), traits: soft,
				text: "The cipher suites there."},
			{name: "METRICS_PROMETHEUS_TLS_CURVE_PREFERENCES", kind: curves(&t.MetricsTLS.Curves), traits: soft,
				text: "The key exchanges there."},

			{name: "TRACING_CONFIG_BACKEND", kind: oneOf(&t.TracingBackend, words("none", "zipkin")), traits: soft,
				text: "Where Knative before 1.19 wants traces."},
			{name: "TRACING_CONFIG_ZIPKIN_ENDPOINT", kind: endpoint(&t.ZipkinEndpoint), traits: soft,
				text: "The URL of Zipkin's v2 API."},
			{name: "TRACING_CONFIG_SAMPLE_RATE", kind: fraction(&t.TracingSampleRate), traits: soft, def: "0",
				text: "The share of requests that is traced."},
			{name: "TRACING_CONFIG_DEBUG", kind: boolean(&t.TracingDebug), traits: soft, def: "false",
				text: "Trace every request."},

			{name: "OTEL_SDK_DISABLED", kind: boolean(&t.OTel.Disabled), traits: soft, def: "false",
				text: "Push neither metrics nor traces."},
			{name: "OTEL_SERVICE_NAME", kind: text(&t.OTel.ServiceName), traits: soft,
				text: "What we call ourselves in what is pushed."},
			{name: "OTEL_RESOURCE_ATTRIBUTES", kind: text(&t.OTel.ResourceAttributes), traits: soft,
				text: "More attributes, as `name=value,...`."},
			{name: "OTEL_PROPAGATORS", kind: anything(&t.OTel.Propagators), traits: soft,
				text: "Which trace headers are read and written."},
			{name: "OTEL_TRACES_SAMPLER", kind: text(&t.OTel.Sampler), traits: soft,
				text: "Which requests are traced."},
			{name: "OTEL_TRACES_SAMPLER_ARG", kind: text(&t.OTel.SamplerArg), traits: soft,
				text: "The sampler's argument."},
			{name: "OTEL_METRIC_EXPORT_INTERVAL", kind: milliseconds(&t.OTel.MetricInterval), traits: soft, def: "0",
				text: "How often metrics are pushed; 0 is the control plane's choice."},
			{name: "OTEL_EXPORTER_OTLP_ENDPOINT", kind: endpoint(&t.OTel.Endpoint), traits: soft,
				text: "The collector's URL."},
			{name: "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", kind: endpoint(&t.OTel.MetricsEndpoint), traits: soft,
				text: "Another one for metrics."},
			{name: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", kind: endpoint(&t.OTel.TracesEndpoint), traits: soft,
				text: "Another one for traces."},
			{name: "OTEL_EXPORTER_OTLP_PROTOCOL", kind: oneOf(&t.OTel.Protocol, otlpProtocols()), traits: soft,
				text: "How we speak to it."},
			{name: "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", kind: oneOf(&t.OTel.MetricsProtocol, otlpProtocols()), traits: soft,
				text: "How we speak to the one for metrics."},
			{name: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", kind: oneOf(&t.OTel.TracesProtocol, otlpProtocols()), traits: soft,
				text: "How we speak to the one for traces."},
			{name: "OTEL_EXPORTER_OTLP_HEADERS", kind: text(&t.OTel.Headers), traits: soft | secret,
				text: "Headers for the collector, as `name=value,...`; they are never shown."},
			{name: "OTEL_EXPORTER_OTLP_METRICS_HEADERS", kind: text(&t.OTel.MetricsHeaders), traits: soft | secret,
				text: "Other ones for metrics."},
			{name: "OTEL_EXPORTER_OTLP_TRACES_HEADERS", kind: text(&t.OTel.TracesHeaders), traits: soft | secret,
				text: "Other ones for traces."},
			{name: "OTEL_EXPORTER_OTLP_TIMEOUT", kind: milliseconds(&t.OTel.Timeout), traits: soft, def: "10000",
				text: "How long one push may take."},
		}},
		{"Without effect", "Knative sets or has set these. We accept them and do nothing with them.", []*row{
			{name: "SYSTEM_NAMESPACE", text: "Knative's own namespace."},
			{name: "HOST_IP", text: "The node's address."},
			{name: "ROOT_CA", text: "Certificates for extensions."},
			{name: "USER_CONTAINER_NAME", text: "The user container's name, until 2019."},
			{name: "ENABLE_VAR_LOG_COLLECTION", text: "Collecting files of logs, until 2019."},
			{name: "VAR_LOG_VOLUME_NAME", text: "Their volume, until 2019."},
			{name: "INTERNAL_VOLUME_PATH", text: "Where it was mounted, until 2019."},
			{name: "DOWNWARD_API_LABELS_PATH", text: "A file of the pod's labels, in 2020."},
			{name: "CONCURRENCY_STATE_ENDPOINT", text: "Where a container freezer wants to be told that a pod is idle. It is not told."},
			{name: "CONCURRENCY_STATE_TOKEN_PATH", text: "A file of the token for that."},
			{name: "SERVING_REQUEST_METRICS_REPORTING_PERIOD_SECONDS", text: "How often metrics were pushed to OpenCensus."},
			{name: "METRICS_COLLECTOR_ADDRESS", text: "Where to."},
			{name: "METRICS_DOMAIN", text: "What their names began with."},
			{name: "TRACING_CONFIG_ENABLE", text: "Tracing in 0.8."},
			{name: "TRACING_CONFIG_STACKDRIVER_PROJECT_ID", text: "Tracing to Stackdriver, until 2019."},
		}},
	}
}

// Bounds and factors of the table.
const (
	depthPerSlot    = 10            // Knative's queue, docs/promises.md 3.1
	mostConcurrency = 1_000_000     // far beyond any user container, and the depth still fits in an int
	mostConnections = math.MaxInt32 // more than there are file descriptors

	longestQuiet  = 30 * time.Second // Knative's, docs/promises.md 3.5
	graceDeadline = 27 * time.Second // Kubernetes' default grace of 30 s less afterDrain
	afterDrain    = 3 * time.Second  // what the end of the process may take after the drain
)

// defaultDeadline is docs/promises.md 3.5. Knative makes the grace period as long as
// the request timeout; one of less than four seconds leaves the drain what it can.
func defaultDeadline(c *Config) time.Duration {
	if !c.OnKnative || c.RequestTimeout == 0 {
		return graceDeadline
	}
	return max(c.RequestTimeout-afterDrain, min(c.RequestTimeout/2, time.Second), time.Millisecond)
}

// tcpProbe asks by connecting to a port, as soon and as often as an aggressive probe
// does (docs/promises.md 2.1).
func tcpProbe(port int) probe.Probe {
	return probe.Probe{TCPSocket: &probe.TCPSocketAction{Port: probe.Port{Number: int32(port)}}}
}

// otlpProtocols are OpenTelemetry's.
func otlpProtocols() []name[string] {
	return words("grpc", "http/protobuf", "http/json")
}

// rowsOf are all rows of a table that have an effect, in its order.
func rowsOf(sections []section) []*row {
	var rows []*row
	for _, s := range sections {
		for _, r := range s.rows {
			if !r.unused() {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// isServing reports whether a variable says that Knative started us.
func isServing(name string) bool { return strings.HasPrefix(name, servingPrefix) }
