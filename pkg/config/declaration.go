// Package config reads the settings of a queue-proxy from its environment, once.
//
// [Load] reads the variables of this project and all variables that the control planes of Knative have
// set for a queue-proxy. Each control plane can start the process, because no variable is required, an
// empty value is the same as an unset variable, and unknown variables are ignored (docs/promises.md
// 3.9). All errors are reported together, with one line for each value. If a value for telemetry is not
// allowed, the default is used and [Config.Warnings] returns a message. The warnings also report
// unknown variables whose names are similar to the name of a setting.
//
// The package envconfig decodes the variables ([origin.Decode]). After that, other names of the
// variables are read, and the defaults that depend on other settings are derived ([Config.derive]).
//
// A setting is one field of a section of [Config]. The type of the field defines the syntax of the
// value, and the tags of the field define the rest. The tests of this package generate
// docs/configuration.md and config/queue-proxy.env from the tags (go test ./pkg/config -update).
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

// A Config contains the value of each setting. It does not change after [Load] returns, so multiple
// goroutines can read it.
//
// Use [Default] or [Read] to create a Config, because the zero Config has no ports. The types of the
// sections are exported because envconfig ignores unexported fields.
type Config struct {
	Identity  `section:"Identity" note:"On Knative, the control plane sets these variables. On Kubernetes, they are optional."`
	Ports     `section:"Ports" note:"Ports must be unique. Values set by Kubernetes, such as 'METRICS_PORT=tcp://10.0.0.1:80', are ignored with a warning."`
	Queueing  `section:"Concurrency"`
	Timeouts  `section:"Timeouts" note:"If a timeout expires before the response begins, the response is 504. If it expires later, the response is aborted. The time in the queue is included. 0 disables a timeout."`
	Readiness `section:"Readiness" note:"See [probes](probes.md)."`
	Traffic   `section:"Traffic"`
	Shutdown  `section:"Shutdown" note:"See [shutdown](shutdown.md). 'terminationGracePeriodSeconds' must be greater than the deadline."`
	Limits    `section:"Limits"`
	TLS       `section:"TLS" note:"TLS is enabled when the directory contains 'tls.crt' and 'tls.key'. The metrics port has the same variables with another prefix, such as 'METRICS_PROMETHEUS_TLS_MIN_VERSION'. See [tls](tls.md)."`
	Logging   `section:"Logging" note:"If the configuration is invalid, the defaults are used with a warning." soft:"true"`
	Signals   `section:"Metrics and request log" note:"If a value is invalid, the default is used with a warning." soft:"true"`
	Telemetry `section:"Telemetry" note:"If a value is invalid, the default is used with a warning. Variables such as 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT' override the endpoint, the protocol and the headers for one signal. See [metrics](metrics.md), [request log](request-log.md) and [tracing](tracing.md)." soft:"true"`

	serving  bool // a SERVING_* variable is set
	ownFiles bool // the environment belongs to this process, and the files that it names can be checked
	warnings []string
}

// Identity identifies the pod and its Knative objects.
type Identity struct {
	OnKnative     Bool `envconfig:"ON_KNATIVE" derived:"true if a 'SERVING_' variable is set" desc:"Whether a Knative control plane created the pod. Some defaults depend on this setting."`
	Namespace     Text `envconfig:"SERVING_NAMESPACE" desc:"Namespace of the pod, a label of statistics, metrics and logs."`
	Service       Text `envconfig:"SERVING_SERVICE" desc:"Knative Service, a label of metrics and logs."`
	Configuration Text `envconfig:"SERVING_CONFIGURATION" desc:"Knative Configuration, a label of statistics, metrics and logs."`
	Revision      Text `envconfig:"SERVING_REVISION" desc:"Knative Revision, a label of statistics, metrics and logs."`
	Pod           Text `envconfig:"SERVING_POD" also:"POD_NAME,HOSTNAME" desc:"Name of the pod, for the autoscaler."`
	PodIP         Text `envconfig:"SERVING_POD_IP" desc:"IP address of the pod, for the request log and traces."`
}

// Ports are the ports of the sidecar and the user container. All ports are different, except that
// TLSPort can be equal to UserPort. In this case, TLS is not served.
type Ports struct {
	UserPort       Port `envconfig:"USER_PORT" also:"PORT" default:"8080" desc:"Port of the user container on the loopback address."`
	Port           Port `envconfig:"QUEUE_SERVING_PORT" default:"8012" desc:"Port for HTTP/1.1 and HTTP/2 requests without TLS."`
	TLSPort        Port `envconfig:"QUEUE_SERVING_TLS_PORT" default:"8112" desc:"Port for requests over TLS, if there is a certificate."`
	AdminPort      Port `envconfig:"ADMIN_PORT" default:"8022" desc:"Port for preStop hooks. Knative pods use 8022."`
	AutoscalerPort Port `envconfig:"AUTOSCALER_PORT" default:"9090" desc:"Port for statistics. The Knative autoscaler uses 9090."`
	MetricsPort    Port `envconfig:"METRICS_PORT" also:"METRICS_PROMETHEUS_PORT" derived:"the Prometheus port in 'OBSERVABILITY_CONFIG', otherwise 9091" desc:"Port for Prometheus metrics."`
	StatusPort     Port `envconfig:"STATUS_PORT" also:"PROFILING_PORT" default:"8008" desc:"Port of the status page and the profiler, on the loopback address."`
}

// Queueing limits the concurrent and the queued requests (docs/promises.md 3.1). The maximum of
// QueueDepth is 10 times the maximum of Concurrency and fits in a 32-bit int.
type Queueing struct {
	Concurrency      Number[int]             `envconfig:"CONTAINER_CONCURRENCY" default:"0" min:"0" max:"1000000" desc:"Maximum number of concurrent requests in the user container. 0 means no limit, or 1000 if the limit is adaptive."`
	ConcurrencyMode  Choice[ConcurrencyMode] `envconfig:"CONCURRENCY_MODE" default:"fixed" oneof:"fixed,adaptive" desc:"'adaptive' adjusts the limit to the capacity of the user container. See [limits](limits.md)."`
	ConcurrencyMin   Number[int]             `envconfig:"CONCURRENCY_MIN" default:"1" min:"1" max:"1000000" desc:"Lower bound of an adaptive limit."`
	ConcurrencyStart Number[int]             `envconfig:"CONCURRENCY_START" default:"4" min:"1" max:"1000000" desc:"Initial value of an adaptive limit."`
	QueueDepth       Number[int]             `envconfig:"QUEUE_DEPTH" derived:"10 × 'CONTAINER_CONCURRENCY', or 10000 if the limit is adaptive and 'CONTAINER_CONCURRENCY' is 0" min:"0" max:"10000000" desc:"Maximum number of queued requests. Further requests get 503. 0 disables queuing."`
	QueueTimeout     Duration                `envconfig:"QUEUE_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"Maximum time in the queue, after which a request gets 503. 0 disables the timeout."`
}

// Timeouts limit the duration of a request (docs/promises.md 3.1, 3.2, 3.7). 0 disables a timeout.
type Timeouts struct {
	RequestTimeout       Duration                    `envconfig:"REVISION_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"Maximum duration of a request."`
	RequestTimeoutScope  Choice[RequestTimeoutScope] `envconfig:"REVISION_TIMEOUT_SCOPE" derived:"'first-byte' on Knative without 'OBSERVABILITY_CONFIG' (before 1.19), otherwise 'request'" oneof:"request,first-byte" desc:"Whether 'REVISION_TIMEOUT_SECONDS' limits the whole request or the time to the first byte."`
	ResponseStartTimeout Duration                    `envconfig:"REVISION_RESPONSE_START_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"Maximum time until the first byte of the response."`
	IdleTimeout          Duration                    `envconfig:"REVISION_IDLE_TIMEOUT_SECONDS" default:"0" unit:"seconds" desc:"Maximum time without data in either direction. It is the only timeout for upgraded connections."`
	ClientGoneGrace      Duration                    `envconfig:"CLIENT_GONE_GRACE" default:"10s" desc:"Maximum time that a request holds the slot after the client disconnects or receives 504. 0 releases the slot immediately, as in Knative."`
	ConnectRetry         Duration                    `envconfig:"CONNECT_RETRY" default:"500ms" desc:"Maximum time to retry a connection that the user container refuses. If the time expires, the response is 502."`
}

// Readiness configures the readiness probes of the user container (docs/promises.md, section 2).
type Readiness struct {
	ProbeArray      ProbeArray `envconfig:"ENABLE_MULTI_CONTAINER_PROBES" default:"false" desc:"Whether 'SERVING_READINESS_PROBE' is an array with one probe for each container."`
	Probes          Probes     `envconfig:"SERVING_READINESS_PROBE" derived:"no probe on Knative, otherwise a TCP probe of 'USER_PORT'" desc:"Readiness probe of the user container. 'exec' probes are not supported. This setting selects the defaults of Knative unless 'ON_KNATIVE=false' is set."`
	AutoDetectHTTP2 Bool       `envconfig:"ENABLE_HTTP2_AUTO_DETECTION" default:"false" desc:"Whether 'httpGet' probes try HTTP/2 without TLS before HTTP/1.1."`
}

// Traffic configures how requests are forwarded and counted.
type Traffic struct {
	FullDuplex        Bool           `envconfig:"ENABLE_HTTP_FULL_DUPLEX" default:"false" desc:"Whether an HTTP/1.1 response can begin before the request is complete."`
	ServerTiming      Bool           `envconfig:"SERVER_TIMING" default:"false" desc:"Add a 'Server-Timing' field with the times in the queue and in the user container."`
	ExcludePaths      Paths          `envconfig:"EXCLUDE_PATHS" desc:"Paths of requests that are not included in the scaling statistics, the metrics and the request log. They are compared without decoding."`
	ExcludeUserAgents Prefixes       `envconfig:"EXCLUDE_USER_AGENTS" desc:"Prefixes of 'User-Agent', with the same effect as 'EXCLUDE_PATHS'."`
	StatsFormat       Choice[string] `envconfig:"STATS_FORMAT" default:"protobuf" oneof:"protobuf,prometheus" desc:"Default format of the statistics. Knative 0.9 to 0.16 requires 'prometheus'."`
}

// Shutdown configures the drain (docs/promises.md 3.5). DrainQuietPeriod is at most half of
// DrainDeadline. DrainMin is at most DrainDeadline.
type Shutdown struct {
	DrainDeadline    Duration             `envconfig:"DRAIN_DEADLINE" derived:"'REVISION_TIMEOUT_SECONDS' minus 3s on Knative if it is set, otherwise 27s" min:"1ms" desc:"Maximum duration of the drain, after which the remaining requests are aborted."`
	DrainQuietPeriod Duration             `envconfig:"DRAIN_QUIET_PERIOD" derived:"the minimum of 30s and half of 'DRAIN_DEADLINE'" desc:"Minimum time without a new request before the drain ends. The maximum is half of 'DRAIN_DEADLINE'."`
	DrainMin         Duration             `envconfig:"DRAIN_MIN" default:"0s" desc:"Minimum duration of the drain. Use this setting if endpoint changes propagate slowly."`
	DrainStreams     Choice[DrainStreams] `envconfig:"DRAIN_STREAMS" default:"end" oneof:"end,wait" desc:"Whether the drain waits for streams. With 'end', the user container receives SIGTERM after the quiet period and can close them."`
	DrainEndpoint    Bool                 `envconfig:"DRAIN_ENDPOINT" default:"false" desc:"Serve '/drain' on the admin port for the preStop hook of a native sidecar. Each request makes the pod permanently unready."`
}

// Limits configures the maximum sizes of messages, the maximum number of connections, and the timeouts for clients.
type Limits struct {
	MaxHeaderBytes Number[int]   `envconfig:"MAX_HEADER_BYTES" default:"1048576" min:"4096" max:"67108864" desc:"Maximum length in bytes of a header section. Longer requests fail with 431, and longer responses with 502."`
	MaxBodyBytes   Number[int64] `envconfig:"MAX_BODY_BYTES" default:"0" min:"0" max:"9223372036854775807" desc:"Maximum length in bytes of a request body. A longer request gets 413. 0 means no limit."`
	MaxConnections Number[int]   `envconfig:"MAX_CONNECTIONS" default:"0" min:"0" max:"2147483647" desc:"Maximum number of client connections on both request ports. At the limit, a new connection replaces the longest-idle connection, or waits. 0 derives the limit from the memory and [file descriptors](reliability.md#file-descriptors)."`
	HeaderTimeout  Duration      `envconfig:"HEADER_TIMEOUT" default:"60s" min:"1ms" desc:"Maximum time to receive the header section of a request, or the rest of a TLS record (at most 60 s)."`
	BodyTimeout    Duration      `envconfig:"BODY_TIMEOUT" default:"60s" desc:"Maximum time until the next byte of a request body before the response begins, except for gRPC over HTTP/2. 0 means no limit."`
	SendTimeout    Duration      `envconfig:"SEND_TIMEOUT" default:"300s" min:"1ms" desc:"Maximum time to send the next 64 KiB of a response, except on upgraded connections."`
}

// TLS configures TLS for requests. This package does not read the files.
type TLS struct {
	CertDir         Text         `envconfig:"TLS_CERT_DIR" default:"/var/lib/knative/certs" desc:"Directory of the certificate and the private key, which can be created later."`
	TLSMinVersion   TLSVersion   `envconfig:"QUEUE_PROXY_TLS_MIN_VERSION" default:"1.3" desc:"Minimum TLS version."`
	TLSMaxVersion   TLSVersion   `envconfig:"QUEUE_PROXY_TLS_MAX_VERSION" desc:"Maximum TLS version, by default the latest."`
	TLSCipherSuites CipherSuites `envconfig:"QUEUE_PROXY_TLS_CIPHER_SUITES" desc:"Cipher suites of TLS 1.2, by default those of Go. The cipher suites of TLS 1.3 are not configurable."`
	TLSCurves       Curves       `envconfig:"QUEUE_PROXY_TLS_CURVE_PREFERENCES" desc:"Key exchange mechanisms, by default those of Go."`
	TLSClientCA     Text         `envconfig:"QUEUE_PROXY_TLS_CLIENT_CA" desc:"File with CA certificates. Clients must present a certificate of one of the CAs."`
}

// Logging configures the logger, which validates the values (docs/promises.md 3.9).
type Logging struct {
	LoggingConfig Text `envconfig:"SERVING_LOGGING_CONFIG" desc:"Configuration of the logger as JSON, as in the Knative ConfigMap config-logging."`
	LoggingLevel  Word `envconfig:"SERVING_LOGGING_LEVEL" oneof:"debug,info,warn,warning,error,dpanic,panic,fatal" desc:"Minimum level of log messages, which overrides 'SERVING_LOGGING_CONFIG'."`
}

// Signals configures metrics and the request log with settings that Knative does not have.
type Signals struct {
	MetricsNames         Choice[string] `envconfig:"METRICS_NAMES" derived:"'default', or on Knative the names of the control plane" oneof:"default,knative-1.18,knative-1.19,knative-head,all,off" desc:"Names of the metrics. See [metrics](metrics.md)."`
	NativeHistograms     Bool           `envconfig:"METRICS_NATIVE_HISTOGRAMS" default:"false" desc:"Whether the histograms of durations are also native histograms."`
	MergePort            Number[int]    `envconfig:"METRICS_MERGE_PORT" default:"0" min:"0" max:"65535" desc:"Port of the application's metrics, which are added to those of the sidecar. 0 means no port."`
	MergePath            URLPath        `envconfig:"METRICS_MERGE_PATH" default:"/metrics" desc:"Path of the application's metrics."`
	WantRequestLog       Bool           `envconfig:"REQUEST_LOG" default:"false" desc:"Write a [line of JSON](request-log.md) for each request."`
	RequestLogErrorsOnly Bool           `envconfig:"REQUEST_LOG_ERRORS_ONLY" default:"false" desc:"Log only failed requests."`
	RequestLogSlowerThan Duration       `envconfig:"REQUEST_LOG_SLOWER_THAN" default:"0" desc:"Minimum duration of successful requests that are logged. 0 disables the filter."`
	RequestLogSample     Number[int]    `envconfig:"REQUEST_LOG_SAMPLE" default:"1" min:"1" max:"1000000" desc:"Log one in N successful requests, where N is the value."`
}

// Telemetry contains the settings of Knative control planes for the request log, metrics and traces, and
// the settings of OpenTelemetry.
type Telemetry struct {
	Observability      Observability  `envconfig:"OBSERVABILITY_CONFIG" desc:"Configuration of the request log, metrics and traces in Knative 1.19 and later."`
	Profiling          Bool           `envconfig:"ENABLE_PROFILING" default:"false" desc:"Serve the profiler on all addresses of the pod, and record memory allocations."`
	RequestLog         Bool           `envconfig:"SERVING_ENABLE_REQUEST_LOG" default:"false" desc:"Write the request log."`
	ProbeRequestLog    Bool           `envconfig:"SERVING_ENABLE_PROBE_REQUEST_LOG" default:"false" desc:"Include probes in the request log."`
	RequestLogTemplate Text           `envconfig:"SERVING_REQUEST_LOG_TEMPLATE" desc:"Template for a line of the request log, for the Go package text/template."`
	MetricsBackend     Choice[string] `envconfig:"SERVING_REQUEST_METRICS_BACKEND" oneof:"prometheus,opencensus,none" desc:"Metrics backend in Knative releases before 1.19. 'opencensus' is not supported."`
	MetricsHost        Text           `envconfig:"METRICS_PROMETHEUS_HOST" derived:"the Prometheus host in 'OBSERVABILITY_CONFIG', otherwise unset" desc:"Address of the pod on which metrics are served, by default all addresses."`
	MetricsTLS
	TracingBackend    Choice[string] `envconfig:"TRACING_CONFIG_BACKEND" oneof:"none,zipkin" desc:"Trace backend in Knative releases before 1.19."`
	ZipkinEndpoint    Text           `envconfig:"TRACING_CONFIG_ZIPKIN_ENDPOINT" hide:"url" desc:"URL of the Zipkin v2 API."`
	TracingSampleRate Fraction       `envconfig:"TRACING_CONFIG_SAMPLE_RATE" default:"0" desc:"Fraction of requests that are traced."`
	TracingDebug      Bool           `envconfig:"TRACING_CONFIG_DEBUG" default:"false" desc:"Whether all requests are traced."`
	OTel
}

// MetricsTLS configures TLS for the metrics port. TLS is enabled if Cert is set.
type MetricsTLS struct {
	Cert         Text         `envconfig:"METRICS_PROMETHEUS_TLS_CERT" desc:"Certificate file. If this variable is set, the metrics are only served over TLS."`
	Key          Text         `envconfig:"METRICS_PROMETHEUS_TLS_KEY" desc:"Private key file."`
	ClientAuth   Word         `envconfig:"METRICS_PROMETHEUS_TLS_CLIENT_AUTH" oneof:"none,optional,require" desc:"Whether scrapers must present a client certificate."`
	ClientCA     Text         `envconfig:"METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE" desc:"File with CA certificates for scrapers."`
	MinVersion   TLSVersion   `envconfig:"METRICS_PROMETHEUS_TLS_MIN_VERSION" default:"1.3" desc:"Minimum TLS version of the metrics port."`
	MaxVersion   TLSVersion   `envconfig:"METRICS_PROMETHEUS_TLS_MAX_VERSION" desc:"Maximum TLS version of the metrics port."`
	CipherSuites CipherSuites `envconfig:"METRICS_PROMETHEUS_TLS_CIPHER_SUITES" desc:"Cipher suites of the metrics port for TLS 1.2."`
	Curves       Curves       `envconfig:"METRICS_PROMETHEUS_TLS_CURVE_PREFERENCES" desc:"Key exchange mechanisms of the metrics port."`
}

// OTel contains the variables that OpenTelemetry defines. They override Observability.
type OTel struct {
	Disabled           Bool           `envconfig:"OTEL_SDK_DISABLED" default:"false" desc:"Disable the export of metrics and traces."`
	ServiceName        Text           `envconfig:"OTEL_SERVICE_NAME" desc:"Service name in pushed metrics and traces."`
	ResourceAttributes Attributes     `envconfig:"OTEL_RESOURCE_ATTRIBUTES" desc:"Additional resource attributes, in the form 'name=value,...'. The values are never printed."`
	Propagators        Propagators    `envconfig:"OTEL_PROPAGATORS" desc:"Formats of the trace headers that are written."`
	Sampler            Choice[string] `envconfig:"OTEL_TRACES_SAMPLER" oneof:"always_on,always_off,traceidratio,parentbased_always_on,parentbased_always_off,parentbased_traceidratio" desc:"Sampler, which selects the requests to trace."`
	SamplerArg         SamplerArg     `envconfig:"OTEL_TRACES_SAMPLER_ARG" desc:"Argument of the sampler."`
	MetricInterval     Duration       `envconfig:"OTEL_METRIC_EXPORT_INTERVAL" default:"0" unit:"milliseconds" desc:"Interval of metric exports. 0 means the interval of the control plane."`
	Endpoint           Text           `envconfig:"OTEL_EXPORTER_OTLP_ENDPOINT" hide:"url" desc:"URL of the collector."`
	MetricsEndpoint    Text           `envconfig:"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" hide:"url" desc:"URL of the collector for metrics. It overrides 'OTEL_EXPORTER_OTLP_ENDPOINT'."`
	TracesEndpoint     Text           `envconfig:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" hide:"url" desc:"URL of the collector for traces. It overrides 'OTEL_EXPORTER_OTLP_ENDPOINT'."`
	Protocol           Choice[string] `envconfig:"OTEL_EXPORTER_OTLP_PROTOCOL" oneof:"grpc,http/protobuf,http/json" desc:"Protocol of the collector."`
	MetricsProtocol    Choice[string] `envconfig:"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL" oneof:"grpc,http/protobuf,http/json" desc:"Protocol of the collector for metrics."`
	TracesProtocol     Choice[string] `envconfig:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" oneof:"grpc,http/protobuf,http/json" desc:"Protocol of the collector for traces."`
	Headers            Headers        `envconfig:"OTEL_EXPORTER_OTLP_HEADERS" hide:"all" desc:"Header fields for the collector, in the form 'name=value,...'."`
	MetricsHeaders     Headers        `envconfig:"OTEL_EXPORTER_OTLP_METRICS_HEADERS" hide:"all" desc:"Header fields of requests that contain metrics. They replace 'OTEL_EXPORTER_OTLP_HEADERS'."`
	TracesHeaders      Headers        `envconfig:"OTEL_EXPORTER_OTLP_TRACES_HEADERS" hide:"all" desc:"Header fields of requests that contain traces. They replace 'OTEL_EXPORTER_OTLP_HEADERS'."`
	Timeout            Duration       `envconfig:"OTEL_EXPORTER_OTLP_TIMEOUT" default:"10000" unit:"milliseconds" desc:"Maximum duration of one push. 0 means 10 s."`
}

// Names of two ports of the sidecar in a pod, as in Knative.
const (
	AutoscalerPortName = "http-autometric"
	MetricsPortName    = "http-usermetric"
)

// ConcurrencyMode defines how the concurrency limit is determined.
type ConcurrencyMode string

// Values of ConcurrencyMode.
const (
	FixedConcurrency    ConcurrencyMode = "fixed"
	AdaptiveConcurrency ConcurrencyMode = "adaptive" // adjusted to the capacity of the user container
)

// DrainStreams defines whether the drain waits for WebSockets, event streams and gRPC streams
// (docs/promises.md 3.5).
type DrainStreams string

// Values of DrainStreams.
const (
	EndStreams     DrainStreams = "end"  // the user container can end the streams when it receives SIGTERM
	WaitForStreams DrainStreams = "wait" // the drain waits for streams as for other requests
)

// A RequestTimeoutScope is the part of a request to which the request timeout applies.
type RequestTimeoutScope string

// Values of RequestTimeoutScope. WholeRequest is the scope of Knative 1.19 and later. FirstByte is the
// scope of earlier releases.
const (
	WholeRequest RequestTimeoutScope = "request"
	FirstByte    RequestTimeoutScope = "first-byte" // until the first byte of the response
)
