// Package config reads the settings of a queue-proxy from its environment, once.
//
// [Load] reads the variables of this project and all variables that the control planes of Knative have
// set for a queue-proxy. No variable is required, an empty value is the same as an unset variable, and
// unknown variables are ignored, so that each control plane can start the process (docs/promises.md
// 3.9). All errors are reported together, with one line for each value. If a value for telemetry is not
// allowed, its default is used and [Config.Warnings] contains a message. The warnings also contain
// unknown variables that are similar to a setting.
//
// The package envconfig decodes the variables ([origin.Decode]). After that, other names of the
// variables are read, and the defaults that depend on other settings are derived ([Config.derive]).
//
// A setting is one field of a section of [Config]. Its type defines the syntax of the value. Its tags
// define the rest. The tests of this package generate docs/configuration.md and
// config/queue-proxy.env from the tags (go test ./pkg/config -update).
//
//	envconfig  name of the variable
//	also       other names, which are read in this order if the variable is unset
//	default    value of an unset variable
//	derived    description of a default that depends on other settings
//	desc       description; 'code' is in single quotes
//	min, max   bounds of a number or a duration
//	oneof      allowed words
//	unit       unit of a duration that is an integer
//	hide       the value is a secret ("all") or a URL that can contain secrets ("url")
//	section, note, soft   title of a section, a note, and whether the default is used for a value
//	                      that is not allowed
package config

// A Config is every setting in force. It is not changed after Load and may be read
// by any number of goroutines.
//
// One that is made by hand starts with [Default] or [Read], because the zero Config
// has no ports. Its sections are exported because envconfig skips others.
type Config struct {
	Identity  `section:"Who we are" note:"Knative sets these; elsewhere they are optional labels."`
	Ports     `section:"Ports" note:"All of them must differ. A value such as 'tcp://10.0.0.1:80' is Kubernetes' link to a Service of that name: it is ignored, with a warning."`
	Queueing  `section:"Concurrency" note:"How many requests the user container has at once, and what happens to the rest."`
	Clocks    `section:"Clocks" note:"A request that outlives one of them gets 504 if nothing has been sent to it yet, and is cut visibly if something has. Waiting in the queue counts."`
	Readiness `section:"Readiness" note:"See [probes](probes.md)."`
	Traffic   `section:"Traffic"`
	Ending    `section:"The end of a pod" note:"See [shutdown](shutdown.md). The pod's terminationGracePeriodSeconds must be longer than the deadline."`
	Limits    `section:"Limits"`
	TLS       `section:"TLS" note:"It is served once the directory holds 'tls.crt' and 'tls.key'. See [tls](tls.md)."`
	Logging   `section:"Logging" note:"A bad one never stops us: the logger falls back to its defaults and says so. Nor does an output that nobody reads: it costs lines, and the log says how many."`
	Signals   `section:"What it says" note:"None of these can stop the process: a bad value is reported and falls back to its default." soft:"true"`
	Telemetry `section:"Telemetry" note:"A bad value never stops us: it falls back to its default, with a warning. See [metrics](metrics.md), [request log](request-log.md) and [tracing](tracing.md)." soft:"true"`
	Unused    `section:"Without effect" note:"Knative sets or has set these. We accept them and do nothing with them."`

	serving  bool // a SERVING_* variable is set
	warnings []string
}

// Identity says who we are.
type Identity struct {
	OnKnative     Bool `envconfig:"ON_KNATIVE" derived:"true when any 'SERVING_*' variable of this page that has an effect is set" desc:"Whether a Knative control plane started us, which decides some defaults."`
	Namespace     Text `envconfig:"SERVING_NAMESPACE" desc:"The namespace, a label of statistics, metrics and logs."`
	Service       Text `envconfig:"SERVING_SERVICE" desc:"The Knative Service, a label of metrics and logs."`
	Configuration Text `envconfig:"SERVING_CONFIGURATION" desc:"The Knative Configuration, a label of statistics, metrics and logs."`
	Revision      Text `envconfig:"SERVING_REVISION" desc:"The Knative Revision, a label of statistics, metrics and logs."`
	Pod           Text `envconfig:"SERVING_POD" also:"POD_NAME,HOSTNAME" desc:"The pod's name, by which the autoscaler tells pods apart."`
	PodIP         Text `envconfig:"SERVING_POD_IP" desc:"The pod's address, for the request log and traces."`
}

// Ports are those of this process and of the user container. They differ from one
// another; only TLSPort may be UserPort, and then TLS cannot be served.
type Ports struct {
	UserPort       Port `envconfig:"USER_PORT" also:"PORT" default:"8080" desc:"Where the user container listens, on the loopback address."`
	Port           Port `envconfig:"QUEUE_SERVING_PORT" default:"8012" desc:"Where requests arrive: HTTP/1.1 and HTTP/2 in plain text."`
	TLSPort        Port `envconfig:"QUEUE_SERVING_TLS_PORT" default:"8112" desc:"Where requests arrive over TLS, once there is a certificate."`
	AdminPort      Port `envconfig:"ADMIN_PORT" default:"8022" desc:"Where preStop hooks ask us to drain. Knative's pods expect 8022."`
	AutoscalerPort Port `envconfig:"AUTOSCALER_PORT" default:"9090" desc:"Where the autoscaler reads the statistics. Knative's expects 9090."`
	MetricsPort    Port `envconfig:"METRICS_PORT" also:"METRICS_PROMETHEUS_PORT" derived:"9091, or that of 'requestMetrics.endpoint' in 'OBSERVABILITY_CONFIG' for Prometheus" desc:"Where Prometheus reads the metrics."`
	StatusPort     Port `envconfig:"STATUS_PORT" also:"PROFILING_PORT" default:"8008" desc:"Where the status page is, on the loopback address only, and the profiler, where the control plane asks for it."`
}

// Queueing bounds the requests in the user container (docs/promises.md 3.1). The
// bound of QueueDepth is ten times that of Concurrency, and still fits in an int.
type Queueing struct {
	Concurrency      Number[int]             `envconfig:"CONTAINER_CONCURRENCY" default:"0" min:"0" max:"1000000" desc:"How many requests may be in the user container at once; 0 is any number. The ceiling of an adaptive limit, for which 0 is 1000."`
	ConcurrencyMode  Choice[ConcurrencyMode] `envconfig:"CONCURRENCY_MODE" default:"fixed" oneof:"fixed,adaptive" desc:"Whether that many may be there at all times, or as many as the user container can take, at most that many. See [limits](limits.md)."`
	ConcurrencyMin   Number[int]             `envconfig:"CONCURRENCY_MIN" default:"1" min:"1" max:"1000000" desc:"How many may be there at least, whatever an adaptive limit finds."`
	ConcurrencyStart Number[int]             `envconfig:"CONCURRENCY_START" default:"4" min:"1" max:"1000000" desc:"The first limit of CONCURRENCY_MODE=adaptive, for example the limit that earlier pods settled on."`
	QueueDepth       Number[int]             `envconfig:"QUEUE_DEPTH" derived:"10 × 'CONTAINER_CONCURRENCY', 10000 without it where the limit is adaptive" min:"0" max:"10000000" desc:"How many more may wait, first come first served; one beyond them gets 503. 0 is nobody."`
	QueueTimeout     Duration                `envconfig:"QUEUE_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"How long one may wait before it gets 503."`
}

// Clocks bound the time of a request (docs/promises.md 3.2, 3.7).
type Clocks struct {
	RequestTimeout       Duration                    `envconfig:"REVISION_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"How long a request may take."`
	RequestTimeoutScope  Choice[RequestTimeoutScope] `envconfig:"REVISION_TIMEOUT_SCOPE" derived:"'first-byte' on Knative before 1.19 (no 'OBSERVABILITY_CONFIG'), else 'request'" oneof:"request,first-byte" desc:"What that time covers: all of the request, or until the first byte of its response."`
	ResponseStartTimeout Duration                    `envconfig:"REVISION_RESPONSE_START_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"How long until the first byte of the response."`
	IdleTimeout          Duration                    `envconfig:"REVISION_IDLE_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"How long nothing may move, in either direction. Upgraded connections obey this clock alone."`
	ClientGoneGrace      Duration                    `envconfig:"CLIENT_GONE_GRACE" default:"10s" desc:"How long a request whose client has gone, or has got its 504, keeps its slot while the user container still works on it. 0: not at all, as with Knative."`
	ConnectRetry         Duration                    `envconfig:"CONNECT_RETRY" default:"500ms" desc:"How long we try again while the user container refuses a connection, as one that restarts does, before we answer 502."`
}

// Readiness is how the user container is probed (docs/promises.md, section 2).
type Readiness struct {
	ProbeArray      ProbeArray `envconfig:"ENABLE_MULTI_CONTAINER_PROBES" default:"false" desc:"The probe below is an array, one for each container."`
	Probes          Probes     `envconfig:"SERVING_READINESS_PROBE" derived:"on Knative none, so always ready; elsewhere a TCP connection to 'USER_PORT'" desc:"How to find out whether the user container can serve. 'exec' cannot run in a sidecar."`
	AutoDetectHTTP2 Bool       `envconfig:"ENABLE_HTTP2_AUTO_DETECTION" default:"false" desc:"Find out whether the user container's health endpoint speaks HTTP/2 in plain text."`
}

// Traffic is how requests are handled.
type Traffic struct {
	FullDuplex        Bool           `envconfig:"ENABLE_HTTP_FULL_DUPLEX" default:"false" desc:"Let an HTTP/1.1 response begin while its request is still being sent."`
	ServerTiming      Bool           `envconfig:"SERVER_TIMING" default:"false" desc:"Tell clients in a Server-Timing field how long a request waited in the queue and for the app."`
	ExcludePaths      Paths          `envconfig:"EXCLUDE_PATHS" desc:"Requests for these paths, as they stand in the request line, not decoded, are served and limited, but count neither for scaling nor for metrics nor in the request log."`
	ExcludeUserAgents Prefixes       `envconfig:"EXCLUDE_USER_AGENTS" desc:"The same for requests whose User-Agent begins so."`
	StatsFormat       Choice[string] `envconfig:"STATS_FORMAT" default:"protobuf" oneof:"protobuf,prometheus" desc:"What the autoscaler's port answers to those who do not say what they read. Knative up to 0.16 reads 'prometheus'."`
}

// Ending is the drain (docs/promises.md 3.5). DrainQuietPeriod is at most half of
// DrainDeadline, DrainMin at most all of it.
type Ending struct {
	DrainDeadline    Duration             `envconfig:"DRAIN_DEADLINE" derived:"on Knative 'REVISION_TIMEOUT_SECONDS' less 3s, elsewhere 27s" min:"1ms" desc:"When what is still running is cut, counted from the beginning of the drain."`
	DrainQuietPeriod Duration             `envconfig:"DRAIN_QUIET_PERIOD" derived:"30s, but at most half of 'DRAIN_DEADLINE'" desc:"How long no new request must have come before the drain ends; never more than half of the deadline."`
	DrainMin         Duration             `envconfig:"DRAIN_MIN" default:"0s" desc:"How long the drain takes at least, where endpoints travel slowly."`
	DrainStreams     Choice[DrainStreams] `envconfig:"DRAIN_STREAMS" default:"end" oneof:"end,wait" desc:"What becomes of WebSockets, event streams and gRPC streams that are left after the quiet period: 'end' lets the user container get its SIGTERM and end them, 'wait' waits for them like other requests."`
	DrainEndpoint    Bool                 `envconfig:"DRAIN_ENDPOINT" default:"false" desc:"Serve '/drain' on the admin port: whoever calls it ends this pod's readiness for good. For the preStop hook of a native sidecar."`
}

// Limits bound what clients send.
type Limits struct {
	MaxHeaderBytes Number[int]   `envconfig:"MAX_HEADER_BYTES" default:"1048576" min:"4096" max:"67108864" desc:"Maximum length in bytes of the head of a request, and of the head of a response of the user container. A longer request gets 431, and a longer response is replaced by 502."`
	MaxBodyBytes   Number[int64] `envconfig:"MAX_BODY_BYTES" default:"0" min:"0" max:"9223372036854775807" desc:"How long the body of a request may be; a longer one gets 413. 0 is no limit."`
	MaxConnections Number[int]   `envconfig:"MAX_CONNECTIONS" default:"0" min:"0" max:"2147483647" desc:"Maximum number of open connections of clients on both ports for requests. If it is reached, a new connection closes the connection that has been idle for the longest time, or waits if no connection is idle. 0 derives the limit from the memory limit and the limit on open files. See [file descriptors](reliability.md#file-descriptors)."`
	HeaderTimeout  Duration      `envconfig:"HEADER_TIMEOUT" default:"60s" min:"1ms" desc:"How long a client may take to send the head of a request, or the rest of a TLS record (at most 60 s)."`
	BodyTimeout    Duration      `envconfig:"BODY_TIMEOUT" default:"60s" desc:"How long a client may leave the user container waiting for the next byte of a request's body before the response has begun: a slow sender must not hold a slot for ever. gRPC over HTTP/2 is exempt. 0 is no limit."`
	SendTimeout    Duration      `envconfig:"SEND_TIMEOUT" default:"300s" min:"1ms" desc:"How long a client may leave a piece of a response untaken, of 64 KiB at most, that is there for it: one that does not read must not hold a slot for ever. Upgraded connections are exempt."`
}

// TLS is that of the requests' port. The files are not read here.
type TLS struct {
	CertDir         Text         `envconfig:"TLS_CERT_DIR" default:"/var/lib/knative/certs" desc:"Where the certificate and its key are, or will be."`
	TLSMinVersion   TLSVersion   `envconfig:"QUEUE_PROXY_TLS_MIN_VERSION" default:"1.3" desc:"The least version."`
	TLSMaxVersion   TLSVersion   `envconfig:"QUEUE_PROXY_TLS_MAX_VERSION" desc:"The greatest version; unset is the newest."`
	TLSCipherSuites CipherSuites `envconfig:"QUEUE_PROXY_TLS_CIPHER_SUITES" desc:"The cipher suites; unset is Go's choice. Those of TLS 1.3 cannot be chosen."`
	TLSCurves       Curves       `envconfig:"QUEUE_PROXY_TLS_CURVE_PREFERENCES" desc:"The key exchanges; unset is Go's choice."`
	TLSClientCA     Text         `envconfig:"QUEUE_PROXY_TLS_CLIENT_CA" desc:"A file of CA certificates; clients must then show a certificate that one of them signed."`
}

// Logging is passed on as text; the logger validates it (docs/promises.md 3.9).
type Logging struct {
	LoggingConfig Text `envconfig:"SERVING_LOGGING_CONFIG" desc:"The logger's configuration as JSON, as in Knative's config-logging."`
	LoggingLevel  Text `envconfig:"SERVING_LOGGING_LEVEL" desc:"The least level that is logged; it wins over the configuration's."`
}

// Signals are metrics and request log by our own settings.
type Signals struct {
	MetricsNames         Choice[string] `envconfig:"METRICS_NAMES" derived:"on Knative what the control plane asks for, elsewhere 'default'" oneof:"default,knative-1.18,knative-head,all,off" desc:"Which metrics are served. See the page on [metrics](metrics.md)."`
	MergePort            Number[int]    `envconfig:"METRICS_MERGE_PORT" default:"0" min:"0" max:"65535" desc:"Serve the app's own metrics, from this port of it, behind ours: one scrape for both. 0 is off."`
	MergePath            Text           `envconfig:"METRICS_MERGE_PATH" default:"/metrics" desc:"Where the app has them."`
	WantRequestLog       Bool           `envconfig:"REQUEST_LOG" default:"false" desc:"Write a line of JSON for each request to standard output. See [request log](request-log.md)."`
	RequestLogErrorsOnly Bool           `envconfig:"REQUEST_LOG_ERRORS_ONLY" default:"false" desc:"Write only those that failed."`
	RequestLogSlowerThan Duration       `envconfig:"REQUEST_LOG_SLOWER_THAN" default:"0" desc:"Write those that took so long, and those that failed. 0 is off."`
	RequestLogSample     Number[int]    `envconfig:"REQUEST_LOG_SAMPLE" default:"1" min:"1" max:"1000000" desc:"Write one in so many of those that did not fail."`
}

// Telemetry is what control planes say about request log, metrics and traces.
type Telemetry struct {
	Observability      Observability  `envconfig:"OBSERVABILITY_CONFIG" desc:"What Knative from 1.19 on says about the request log, metrics and traces."`
	Profiling          Bool           `envconfig:"ENABLE_PROFILING" default:"false" desc:"Serve the profiler on the pod's address too, and record what takes memory."`
	RequestLog         Bool           `envconfig:"SERVING_ENABLE_REQUEST_LOG" default:"false" desc:"Write the request log."`
	ProbeRequestLog    Bool           `envconfig:"SERVING_ENABLE_PROBE_REQUEST_LOG" default:"false" desc:"Write probes into it too."`
	RequestLogTemplate Text           `envconfig:"SERVING_REQUEST_LOG_TEMPLATE" desc:"A line of it, in Go's text/template."`
	MetricsBackend     Choice[string] `envconfig:"SERVING_REQUEST_METRICS_BACKEND" oneof:"prometheus,opencensus,none" desc:"Where Knative before 1.19 wants request metrics. To opencensus nothing is pushed, which the log says."`
	MetricsHost        Text           `envconfig:"METRICS_PROMETHEUS_HOST" derived:"that of 'requestMetrics.endpoint' in 'OBSERVABILITY_CONFIG' for Prometheus; elsewhere none" desc:"The address on which metrics are served; unset is all of the pod's. On one that is none of the pod's they are not served, which the log says."`
	MetricsTLS
	TracingBackend    Choice[string] `envconfig:"TRACING_CONFIG_BACKEND" oneof:"none,zipkin" desc:"Where Knative before 1.19 wants traces."`
	ZipkinEndpoint    Text           `envconfig:"TRACING_CONFIG_ZIPKIN_ENDPOINT" hide:"url" desc:"The URL of Zipkin's v2 API."`
	TracingSampleRate Fraction       `envconfig:"TRACING_CONFIG_SAMPLE_RATE" default:"0" desc:"The share of requests that is traced."`
	TracingDebug      Bool           `envconfig:"TRACING_CONFIG_DEBUG" default:"false" desc:"Trace every request."`
	OTel
}

// Unused are variables that are accepted and have no effect.
type Unused struct {
	_ struct{} `envconfig:"SYSTEM_NAMESPACE" desc:"Knative's own namespace."`
	_ struct{} `envconfig:"HOST_IP" desc:"The node's address."`
	_ struct{} `envconfig:"ROOT_CA" desc:"Certificates for extensions."`
	_ struct{} `envconfig:"USER_CONTAINER_NAME" desc:"The user container's name, until 2019."`
	_ struct{} `envconfig:"ENABLE_VAR_LOG_COLLECTION" desc:"Collecting files of logs, until 2019."`
	_ struct{} `envconfig:"VAR_LOG_VOLUME_NAME" desc:"Their volume, until 2019."`
	_ struct{} `envconfig:"INTERNAL_VOLUME_PATH" desc:"Where it was mounted, until 2019."`
	_ struct{} `envconfig:"DOWNWARD_API_LABELS_PATH" desc:"A file of the pod's labels, in 2020."`
	_ struct{} `envconfig:"CONCURRENCY_STATE_ENDPOINT" desc:"Where a container freezer wants to be notified that a pod is idle. It is not notified."`
	_ struct{} `envconfig:"CONCURRENCY_STATE_TOKEN_PATH" desc:"A file of the token for that."`
	_ struct{} `envconfig:"SERVING_REQUEST_METRICS_REPORTING_PERIOD_SECONDS" desc:"How often metrics were pushed to OpenCensus."`
	_ struct{} `envconfig:"METRICS_COLLECTOR_ADDRESS" desc:"Where to."`
	_ struct{} `envconfig:"METRICS_DOMAIN" desc:"What their names began with."`
	_ struct{} `envconfig:"TRACING_CONFIG_ENABLE" desc:"Tracing in 0.8."`
	_ struct{} `envconfig:"TRACING_CONFIG_STACKDRIVER_PROJECT_ID" desc:"Tracing to Stackdriver, until 2019."`
}

// MetricsTLS is TLS on the port of the metrics, which a certificate turns on.
type MetricsTLS struct {
	Cert         Text         `envconfig:"METRICS_PROMETHEUS_TLS_CERT" desc:"A certificate file: metrics are then served over TLS alone."`
	Key          Text         `envconfig:"METRICS_PROMETHEUS_TLS_KEY" desc:"The file of its key."`
	ClientAuth   Text         `envconfig:"METRICS_PROMETHEUS_TLS_CLIENT_AUTH" desc:"Whether scrapers must show a certificate: none, optional or require."`
	ClientCA     Text         `envconfig:"METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE" desc:"The file of CA certificates that sign theirs."`
	MinVersion   TLSVersion   `envconfig:"METRICS_PROMETHEUS_TLS_MIN_VERSION" default:"1.3" desc:"The least version there."`
	MaxVersion   TLSVersion   `envconfig:"METRICS_PROMETHEUS_TLS_MAX_VERSION" desc:"The greatest version there."`
	CipherSuites CipherSuites `envconfig:"METRICS_PROMETHEUS_TLS_CIPHER_SUITES" desc:"The cipher suites there."`
	Curves       Curves       `envconfig:"METRICS_PROMETHEUS_TLS_CURVE_PREFERENCES" desc:"The key exchanges there."`
}

// OTel is what OpenTelemetry's own variables say, which win over Observability.
type OTel struct {
	Disabled           Bool           `envconfig:"OTEL_SDK_DISABLED" default:"false" desc:"Push neither metrics nor traces."`
	ServiceName        Text           `envconfig:"OTEL_SERVICE_NAME" desc:"What we call ourselves in what is pushed."`
	ResourceAttributes Attributes     `envconfig:"OTEL_RESOURCE_ATTRIBUTES" desc:"More attributes, as 'name=value,...'."`
	Propagators        Propagators    `envconfig:"OTEL_PROPAGATORS" desc:"Which trace headers are read and written."`
	Sampler            Choice[string] `envconfig:"OTEL_TRACES_SAMPLER" oneof:"always_on,always_off,traceidratio,parentbased_always_on,parentbased_always_off,parentbased_traceidratio" desc:"Which requests are traced."`
	SamplerArg         SamplerArg     `envconfig:"OTEL_TRACES_SAMPLER_ARG" desc:"The sampler's argument."`
	MetricInterval     Duration       `envconfig:"OTEL_METRIC_EXPORT_INTERVAL" default:"0" unit:"milliseconds" desc:"How often metrics are pushed; 0 is the control plane's choice."`
	Endpoint           Text           `envconfig:"OTEL_EXPORTER_OTLP_ENDPOINT" hide:"url" desc:"The collector's URL."`
	MetricsEndpoint    Text           `envconfig:"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" hide:"url" desc:"Another one for metrics."`
	TracesEndpoint     Text           `envconfig:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" hide:"url" desc:"Another one for traces."`
	Protocol           Choice[string] `envconfig:"OTEL_EXPORTER_OTLP_PROTOCOL" oneof:"grpc,http/protobuf,http/json" desc:"How we speak to it."`
	MetricsProtocol    Choice[string] `envconfig:"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL" oneof:"grpc,http/protobuf,http/json" desc:"How we speak to the one for metrics."`
	TracesProtocol     Choice[string] `envconfig:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" oneof:"grpc,http/protobuf,http/json" desc:"How we speak to the one for traces."`
	Headers            Headers        `envconfig:"OTEL_EXPORTER_OTLP_HEADERS" hide:"all" desc:"Headers for the collector, as 'name=value,...'; they are never shown."`
	MetricsHeaders     Headers        `envconfig:"OTEL_EXPORTER_OTLP_METRICS_HEADERS" hide:"all" desc:"Other ones for metrics."`
	TracesHeaders      Headers        `envconfig:"OTEL_EXPORTER_OTLP_TRACES_HEADERS" hide:"all" desc:"Other ones for traces."`
	Timeout            Duration       `envconfig:"OTEL_EXPORTER_OTLP_TIMEOUT" default:"10000" unit:"milliseconds" desc:"How long one push may take."`
}

// Names of the sidecar's ports for numbers in a pod, as Knative calls them.
const (
	AutoscalerPortName = "http-autometric"
	MetricsPortName    = "http-usermetric"
)

// ConcurrencyMode says how the limit on concurrency is chosen.
type ConcurrencyMode string

// The modes.
const (
	FixedConcurrency    ConcurrencyMode = "fixed"
	AdaptiveConcurrency ConcurrencyMode = "adaptive" // it follows what the user container can take
)

// DrainStreams says whether the drain waits for WebSockets, event streams and gRPC
// streams (docs/promises.md 3.5).
type DrainStreams string

// What may become of streams.
const (
	EndStreams     DrainStreams = "end"  // by the user container, on its SIGTERM
	WaitForStreams DrainStreams = "wait" // as for other requests
)

// A RequestTimeoutScope says what the request timeout covers.
type RequestTimeoutScope string

// What Knative means by it from 1.19 on, and what it meant before.
const (
	WholeRequest RequestTimeoutScope = "request"
	FirstByte    RequestTimeoutScope = "first-byte" // until the first byte of the response
)
