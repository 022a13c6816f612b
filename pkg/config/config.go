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
	Identity  `section:"Identity" note:"Knative sets these variables. In other pods they are optional."`
	Ports     `section:"Ports" note:"All ports must differ. A value such as 'tcp://10.0.0.1:80', which Kubernetes sets for a Service of this name, is ignored with a warning."`
	Queueing  `section:"Concurrency"`
	Clocks    `section:"Timeouts" note:"A request that exceeds a timeout gets 504, or is aborted if its response has begun. The time in the queue is included."`
	Readiness `section:"Readiness" note:"See [probes](probes.md)."`
	Traffic   `section:"Traffic"`
	Ending    `section:"Shutdown" note:"See [shutdown](shutdown.md). The grace period of the pod must be longer than the deadline."`
	Limits    `section:"Limits"`
	TLS       `section:"TLS" note:"TLS is served if the directory contains 'tls.crt' and 'tls.key'. Cipher suites and key exchanges that are not set are those of Go. See [TLS](tls.md)."`
	Logging   `section:"Logging" note:"If a value is invalid, the logger uses its defaults and logs a warning. If the output is not read, lines are dropped and counted."`
	Signals   `section:"Metrics and request log" note:"If a value is invalid, the default is used with a warning." soft:"true"`
	Telemetry `section:"Telemetry" note:"If a value is invalid, the default is used with a warning. See [metrics](metrics.md), [request log](request-log.md) and [tracing](tracing.md)." soft:"true"`
	Unused    `section:"Without effect" note:"Knative sets or has set these variables. They are ignored."`

	serving  bool // a SERVING_* variable is set
	warnings []string
}

// Identity says who we are.
type Identity struct {
	OnKnative     Bool `envconfig:"ON_KNATIVE" derived:"true when any 'SERVING_*' variable of this page that has an effect is set" desc:"Whether Knative manages the pod. Some defaults depend on it."`
	Namespace     Text `envconfig:"SERVING_NAMESPACE" desc:"Namespace, a label of statistics, metrics and logs."`
	Service       Text `envconfig:"SERVING_SERVICE" desc:"Knative Service, a label of metrics and logs."`
	Configuration Text `envconfig:"SERVING_CONFIGURATION" desc:"Knative Configuration, a label of statistics, metrics and logs."`
	Revision      Text `envconfig:"SERVING_REVISION" desc:"Knative Revision, a label of statistics, metrics and logs."`
	Pod           Text `envconfig:"SERVING_POD" also:"POD_NAME,HOSTNAME" desc:"Name of the pod, which identifies it for the autoscaler."`
	PodIP         Text `envconfig:"SERVING_POD_IP" desc:"Address of the pod, for the request log and traces."`
}

// Ports are those of this process and of the user container. They differ from one
// another; only TLSPort may be UserPort, and then TLS cannot be served.
type Ports struct {
	UserPort       Port `envconfig:"USER_PORT" also:"PORT" default:"8080" desc:"Port of the user container, on the loopback address."`
	Port           Port `envconfig:"QUEUE_SERVING_PORT" default:"8012" desc:"Port for requests over HTTP/1.1 and HTTP/2 without TLS."`
	TLSPort        Port `envconfig:"QUEUE_SERVING_TLS_PORT" default:"8112" desc:"Port for requests over TLS, if there is a certificate."`
	AdminPort      Port `envconfig:"ADMIN_PORT" default:"8022" desc:"Port for preStop hooks. Knative expects 8022."`
	AutoscalerPort Port `envconfig:"AUTOSCALER_PORT" default:"9090" desc:"Port for the statistics of the autoscaler. Knative expects 9090."`
	MetricsPort    Port `envconfig:"METRICS_PORT" also:"METRICS_PROMETHEUS_PORT" derived:"9091, or that of 'requestMetrics.endpoint' in 'OBSERVABILITY_CONFIG' for Prometheus" desc:"Port for Prometheus."`
	StatusPort     Port `envconfig:"STATUS_PORT" also:"PROFILING_PORT" default:"8008" desc:"Port for the status page, on the loopback address only, and for the profiler if the control plane enables it."`
}

// Queueing bounds the requests in the user container (docs/promises.md 3.1). The
// bound of QueueDepth is ten times that of Concurrency, and still fits in an int.
type Queueing struct {
	Concurrency      Number[int]             `envconfig:"CONTAINER_CONCURRENCY" default:"0" min:"0" max:"1000000" desc:"Maximum number of concurrent requests in the user container. 0 is no limit. It is the ceiling of an adaptive limit, for which 0 is 1000."`
	ConcurrencyMode  Choice[ConcurrencyMode] `envconfig:"CONCURRENCY_MODE" default:"fixed" oneof:"fixed,adaptive" desc:"Whether the limit is always 'CONTAINER_CONCURRENCY', or follows the capacity of the user container up to this number. See [limits](limits.md)."`
	ConcurrencyMin   Number[int]             `envconfig:"CONCURRENCY_MIN" default:"1" min:"1" max:"1000000" desc:"Minimum of an adaptive limit."`
	ConcurrencyStart Number[int]             `envconfig:"CONCURRENCY_START" default:"4" min:"1" max:"1000000" desc:"First value of an adaptive limit, for example the settled limit of earlier pods."`
	QueueDepth       Number[int]             `envconfig:"QUEUE_DEPTH" derived:"10 × 'CONTAINER_CONCURRENCY', 10000 without it where the limit is adaptive" min:"0" max:"10000000" desc:"Maximum number of queued requests. They are served in the order of their arrival. Another request gets 503. 0 disables the queue."`
	QueueTimeout     Duration                `envconfig:"QUEUE_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"Maximum time in the queue. Then the request gets 503."`
}

// Clocks bound the time of a request (docs/promises.md 3.2, 3.7).
type Clocks struct {
	RequestTimeout       Duration                    `envconfig:"REVISION_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"Request timeout."`
	RequestTimeoutScope  Choice[RequestTimeoutScope] `envconfig:"REVISION_TIMEOUT_SCOPE" derived:"'first-byte' on Knative before 1.19 (no 'OBSERVABILITY_CONFIG'), else 'request'" oneof:"request,first-byte" desc:"End of the request timeout: the end of the request, or the first byte of its response."`
	ResponseStartTimeout Duration                    `envconfig:"REVISION_RESPONSE_START_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"Maximum time until the first byte of the response."`
	IdleTimeout          Duration                    `envconfig:"REVISION_IDLE_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"Maximum time without data in either direction. It is the only timeout of upgraded connections."`
	ClientGoneGrace      Duration                    `envconfig:"CLIENT_GONE_GRACE" default:"10s" desc:"Maximum time that a request keeps its slot after its client has disconnected or received 504, while the user container works on it. 0 releases the slot immediately, as in Knative."`
	ConnectRetry         Duration                    `envconfig:"CONNECT_RETRY" default:"500ms" desc:"Time for which a refused connection to the user container is tried again, for example during a restart. Then the request gets 502."`
}

// Readiness is how the user container is probed (docs/promises.md, section 2).
type Readiness struct {
	ProbeArray      ProbeArray `envconfig:"ENABLE_MULTI_CONTAINER_PROBES" default:"false" desc:"Whether 'SERVING_READINESS_PROBE' is an array with one probe for each container."`
	Probes          Probes     `envconfig:"SERVING_READINESS_PROBE" derived:"on Knative none, so always ready; elsewhere a TCP connection to 'USER_PORT'" desc:"Readiness probe of the user container. 'exec' is not supported."`
	AutoDetectHTTP2 Bool       `envconfig:"ENABLE_HTTP2_AUTO_DETECTION" default:"false" desc:"Whether 'httpGet' probes try HTTP/2 without TLS first."`
}

// Traffic is how requests are handled.
type Traffic struct {
	FullDuplex        Bool           `envconfig:"ENABLE_HTTP_FULL_DUPLEX" default:"false" desc:"Whether an HTTP/1.1 response can begin before its request is complete."`
	ServerTiming      Bool           `envconfig:"SERVER_TIMING" default:"false" desc:"Whether responses contain the time in the queue and in the application in a Server-Timing field."`
	ExcludePaths      Paths          `envconfig:"EXCLUDE_PATHS" desc:"Paths, as in the request line and not decoded. Their requests are limited, but are not part of statistics, metrics and the request log."`
	ExcludeUserAgents Prefixes       `envconfig:"EXCLUDE_USER_AGENTS" desc:"The same for the beginning of User-Agent."`
	StatsFormat       Choice[string] `envconfig:"STATS_FORMAT" default:"protobuf" oneof:"protobuf,prometheus" desc:"Format of the statistics if the client has no preference. Knative up to 0.16 requires 'prometheus'."`
}

// Ending is the drain (docs/promises.md 3.5). DrainQuietPeriod is at most half of
// DrainDeadline, DrainMin at most all of it.
type Ending struct {
	DrainDeadline    Duration             `envconfig:"DRAIN_DEADLINE" derived:"on Knative 'REVISION_TIMEOUT_SECONDS' less 3s, elsewhere 27s" min:"1ms" desc:"Maximum duration of the drain. Then requests in flight are aborted."`
	DrainQuietPeriod Duration             `envconfig:"DRAIN_QUIET_PERIOD" derived:"30s, but at most half of 'DRAIN_DEADLINE'" desc:"Time without a new request that ends the drain, at most half of the deadline."`
	DrainMin         Duration             `envconfig:"DRAIN_MIN" default:"0s" desc:"Minimum duration of the drain, if clients receive new endpoints slowly."`
	DrainStreams     Choice[DrainStreams] `envconfig:"DRAIN_STREAMS" default:"end" oneof:"end,wait" desc:"Treatment of WebSockets, event streams and gRPC streams after the quiet period. 'end' lets the user container end them on SIGTERM, 'wait' waits for them."`
	DrainEndpoint    Bool                 `envconfig:"DRAIN_ENDPOINT" default:"false" desc:"Whether the admin port serves '/drain', which makes the pod unready permanently. It is the preStop hook of a native sidecar."`
}

// Limits bound what clients send.
type Limits struct {
	MaxHeaderBytes Number[int]   `envconfig:"MAX_HEADER_BYTES" default:"1048576" min:"4096" max:"67108864" desc:"Maximum length of a header section. A longer request gets 431, and a longer response of the user container is replaced by 502."`
	MaxBodyBytes   Number[int64] `envconfig:"MAX_BODY_BYTES" default:"0" min:"0" max:"9223372036854775807" desc:"Maximum length of the body of a request. A longer body gets 413. 0 is no limit."`
	MaxConnections Number[int]   `envconfig:"MAX_CONNECTIONS" default:"0" min:"0" max:"2147483647" desc:"Maximum number of connections of clients. A new connection then closes the connection that has been idle longest, or waits. 0 derives the limit from the memory limit and the limit on open files ([file descriptors](reliability.md#file-descriptors))."`
	HeaderTimeout  Duration      `envconfig:"HEADER_TIMEOUT" default:"60s" min:"1ms" desc:"Maximum time for the header section of a request, or for the rest of a TLS record (at most 60 s)."`
	BodyTimeout    Duration      `envconfig:"BODY_TIMEOUT" default:"60s" desc:"Maximum time that the user container waits for the next byte of a request body before the response has begun. 0 is no limit. gRPC over HTTP/2 is exempt."`
	SendTimeout    Duration      `envconfig:"SEND_TIMEOUT" default:"300s" min:"1ms" desc:"Maximum time to send each piece of a response, of at most 64 KiB. Upgraded connections are exempt."`
}

// TLS is that of the requests' port. The files are not read here.
type TLS struct {
	CertDir         Text         `envconfig:"TLS_CERT_DIR" default:"/var/lib/knative/certs" desc:"Directory of the certificate and the key. The files can be created later."`
	TLSMinVersion   TLSVersion   `envconfig:"QUEUE_PROXY_TLS_MIN_VERSION" default:"1.3" desc:"Minimum version."`
	TLSMaxVersion   TLSVersion   `envconfig:"QUEUE_PROXY_TLS_MAX_VERSION" desc:"Maximum version. The default is the latest."`
	TLSCipherSuites CipherSuites `envconfig:"QUEUE_PROXY_TLS_CIPHER_SUITES" desc:"Cipher suites of TLS 1.2. Those of TLS 1.3 cannot be configured."`
	TLSCurves       Curves       `envconfig:"QUEUE_PROXY_TLS_CURVE_PREFERENCES" desc:"Key exchanges."`
	TLSClientCA     Text         `envconfig:"QUEUE_PROXY_TLS_CLIENT_CA" desc:"File with CA certificates. If it is set, clients must have a certificate of one of these CAs."`
}

// Logging is passed on as text; the logger validates it (docs/promises.md 3.9).
type Logging struct {
	LoggingConfig Text `envconfig:"SERVING_LOGGING_CONFIG" desc:"Configuration of the logger as JSON, as in 'config-logging' of Knative."`
	LoggingLevel  Text `envconfig:"SERVING_LOGGING_LEVEL" desc:"Minimum level. It overrides the level of the configuration."`
}

// Signals are metrics and request log by our own settings.
type Signals struct {
	MetricsNames         Choice[string] `envconfig:"METRICS_NAMES" derived:"on Knative what the control plane asks for, elsewhere 'default'" oneof:"default,knative-1.18,knative-head,all,off" desc:"Set of the [metrics](metrics.md) that are served."`
	MergePort            Number[int]    `envconfig:"METRICS_MERGE_PORT" default:"0" min:"0" max:"65535" desc:"Port of the metrics of the application, which are then part of each scrape of the sidecar. 0 is off."`
	MergePath            Text           `envconfig:"METRICS_MERGE_PATH" default:"/metrics" desc:"Path of the metrics of the application."`
	WantRequestLog       Bool           `envconfig:"REQUEST_LOG" default:"false" desc:"Whether each request is logged as a JSON line on standard output ([request log](request-log.md))."`
	RequestLogErrorsOnly Bool           `envconfig:"REQUEST_LOG_ERRORS_ONLY" default:"false" desc:"Whether only failed requests are logged."`
	RequestLogSlowerThan Duration       `envconfig:"REQUEST_LOG_SLOWER_THAN" default:"0" desc:"Log requests that took at least this long, and failures. 0 is off."`
	RequestLogSample     Number[int]    `envconfig:"REQUEST_LOG_SAMPLE" default:"1" min:"1" max:"1000000" desc:"Log failures and one of this number of other requests."`
}

// Telemetry is what control planes say about request log, metrics and traces.
type Telemetry struct {
	Observability      Observability  `envconfig:"OBSERVABILITY_CONFIG" desc:"Configuration of the request log, metrics and traces by Knative 1.19 and later."`
	Profiling          Bool           `envconfig:"ENABLE_PROFILING" default:"false" desc:"Whether the address of the pod also serves the profiler, with memory profiles."`
	RequestLog         Bool           `envconfig:"SERVING_ENABLE_REQUEST_LOG" default:"false" desc:"Whether requests are logged."`
	ProbeRequestLog    Bool           `envconfig:"SERVING_ENABLE_PROBE_REQUEST_LOG" default:"false" desc:"Whether probes are logged."`
	RequestLogTemplate Text           `envconfig:"SERVING_REQUEST_LOG_TEMPLATE" desc:"Template of a line, in the syntax of text/template of Go."`
	MetricsBackend     Choice[string] `envconfig:"SERVING_REQUEST_METRICS_BACKEND" oneof:"prometheus,opencensus,none" desc:"Backend of request metrics of Knative before 1.19. For opencensus, metrics are not pushed, and a warning is logged."`
	MetricsHost        Text           `envconfig:"METRICS_PROMETHEUS_HOST" derived:"that of 'requestMetrics.endpoint' in 'OBSERVABILITY_CONFIG' for Prometheus; elsewhere none" desc:"Address of the port for metrics. The default is all addresses of the pod. If the pod does not have the address, a warning is logged, and metrics are not served."`
	MetricsTLS
	TracingBackend    Choice[string] `envconfig:"TRACING_CONFIG_BACKEND" oneof:"none,zipkin" desc:"Backend of traces of Knative before 1.19."`
	ZipkinEndpoint    Text           `envconfig:"TRACING_CONFIG_ZIPKIN_ENDPOINT" hide:"url" desc:"URL of the v2 API of Zipkin."`
	TracingSampleRate Fraction       `envconfig:"TRACING_CONFIG_SAMPLE_RATE" default:"0" desc:"Fraction of the requests that are traced."`
	TracingDebug      Bool           `envconfig:"TRACING_CONFIG_DEBUG" default:"false" desc:"Whether each request is traced."`
	OTel
}

// Unused are variables that are accepted and have no effect.
type Unused struct {
	_ struct{} `envconfig:"SYSTEM_NAMESPACE" desc:"Namespace of Knative."`
	_ struct{} `envconfig:"HOST_IP" desc:"Address of the node."`
	_ struct{} `envconfig:"ROOT_CA" desc:"Certificates for extensions."`
	_ struct{} `envconfig:"USER_CONTAINER_NAME" desc:"Name of the user container, until 2019."`
	_ struct{} `envconfig:"ENABLE_VAR_LOG_COLLECTION" desc:"Collection of log files, until 2019."`
	_ struct{} `envconfig:"VAR_LOG_VOLUME_NAME" desc:"Volume of log files, until 2019."`
	_ struct{} `envconfig:"INTERNAL_VOLUME_PATH" desc:"Mount path of this volume, until 2019."`
	_ struct{} `envconfig:"DOWNWARD_API_LABELS_PATH" desc:"File with the labels of the pod, in 2020."`
	_ struct{} `envconfig:"CONCURRENCY_STATE_ENDPOINT" desc:"URL of a container freezer. It is not notified when the pod is idle."`
	_ struct{} `envconfig:"CONCURRENCY_STATE_TOKEN_PATH" desc:"File with the token for this URL."`
	_ struct{} `envconfig:"SERVING_REQUEST_METRICS_REPORTING_PERIOD_SECONDS" desc:"Interval of the export to OpenCensus."`
	_ struct{} `envconfig:"METRICS_COLLECTOR_ADDRESS" desc:"Address of the OpenCensus collector."`
	_ struct{} `envconfig:"METRICS_DOMAIN" desc:"Prefix of the names of OpenCensus metrics."`
	_ struct{} `envconfig:"TRACING_CONFIG_ENABLE" desc:"Tracing in 0.8."`
	_ struct{} `envconfig:"TRACING_CONFIG_STACKDRIVER_PROJECT_ID" desc:"Tracing to Stackdriver, until 2019."`
}

// MetricsTLS is TLS on the port of the metrics, which a certificate turns on.
type MetricsTLS struct {
	Cert         Text         `envconfig:"METRICS_PROMETHEUS_TLS_CERT" desc:"File with the certificate. If it is set, the port supports only TLS."`
	Key          Text         `envconfig:"METRICS_PROMETHEUS_TLS_KEY" desc:"File with the key."`
	ClientAuth   Text         `envconfig:"METRICS_PROMETHEUS_TLS_CLIENT_AUTH" desc:"Client certificates: none, optional or require."`
	ClientCA     Text         `envconfig:"METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE" desc:"File with the CA certificates of clients."`
	MinVersion   TLSVersion   `envconfig:"METRICS_PROMETHEUS_TLS_MIN_VERSION" default:"1.3" desc:"Minimum version."`
	MaxVersion   TLSVersion   `envconfig:"METRICS_PROMETHEUS_TLS_MAX_VERSION" desc:"Maximum version."`
	CipherSuites CipherSuites `envconfig:"METRICS_PROMETHEUS_TLS_CIPHER_SUITES" desc:"Cipher suites of TLS 1.2."`
	Curves       Curves       `envconfig:"METRICS_PROMETHEUS_TLS_CURVE_PREFERENCES" desc:"Key exchanges."`
}

// OTel is what OpenTelemetry's own variables say, which win over Observability.
type OTel struct {
	Disabled           Bool           `envconfig:"OTEL_SDK_DISABLED" default:"false" desc:"Whether the export of metrics and traces is disabled."`
	ServiceName        Text           `envconfig:"OTEL_SERVICE_NAME" desc:"Service name of exported metrics and traces."`
	ResourceAttributes Attributes     `envconfig:"OTEL_RESOURCE_ATTRIBUTES" desc:"More attributes, as 'name=value,...'."`
	Propagators        Propagators    `envconfig:"OTEL_PROPAGATORS" desc:"Formats of trace headers that are written."`
	Sampler            Choice[string] `envconfig:"OTEL_TRACES_SAMPLER" oneof:"always_on,always_off,traceidratio,parentbased_always_on,parentbased_always_off,parentbased_traceidratio" desc:"Sampler of traces."`
	SamplerArg         SamplerArg     `envconfig:"OTEL_TRACES_SAMPLER_ARG" desc:"Argument of the sampler."`
	MetricInterval     Duration       `envconfig:"OTEL_METRIC_EXPORT_INTERVAL" default:"0" unit:"milliseconds" desc:"Interval of the export of metrics. 0 is the value of the control plane."`
	Endpoint           Text           `envconfig:"OTEL_EXPORTER_OTLP_ENDPOINT" hide:"url" desc:"URL of the collector."`
	MetricsEndpoint    Text           `envconfig:"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" hide:"url" desc:"URL for metrics."`
	TracesEndpoint     Text           `envconfig:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" hide:"url" desc:"URL for traces."`
	Protocol           Choice[string] `envconfig:"OTEL_EXPORTER_OTLP_PROTOCOL" oneof:"grpc,http/protobuf,http/json" desc:"Protocol of the collector."`
	MetricsProtocol    Choice[string] `envconfig:"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL" oneof:"grpc,http/protobuf,http/json" desc:"Protocol for metrics."`
	TracesProtocol     Choice[string] `envconfig:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" oneof:"grpc,http/protobuf,http/json" desc:"Protocol for traces."`
	Headers            Headers        `envconfig:"OTEL_EXPORTER_OTLP_HEADERS" hide:"all" desc:"Headers for the collector, as 'name=value,...'. They are never shown."`
	MetricsHeaders     Headers        `envconfig:"OTEL_EXPORTER_OTLP_METRICS_HEADERS" hide:"all" desc:"Headers for metrics."`
	TracesHeaders      Headers        `envconfig:"OTEL_EXPORTER_OTLP_TRACES_HEADERS" hide:"all" desc:"Headers for traces."`
	Timeout            Duration       `envconfig:"OTEL_EXPORTER_OTLP_TIMEOUT" default:"10000" unit:"milliseconds" desc:"Timeout of an export."`
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
