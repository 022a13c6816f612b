package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// settings returns all settings and their values without the sources, to compare two Configs.
func settings(c *Config) string {
	var all strings.Builder
	bound := *c
	bound.ProbeArray.V = true // ProbeArray only affects the encoding of the probes
	for _, f := range bound.fields() {
		fmt.Fprintf(&all, "%s=%s\n", f.Name(), f)
	}
	return all.String()
}

func env(pairs ...string) []EnvVar {
	var environ []EnvVar
	for i := 0; i < len(pairs); i += 2 {
		environ = append(environ, EnvVar{pairs[i], pairs[i+1]})
	}
	return environ
}

func read(t *testing.T, pairs ...string) *Config {
	t.Helper()
	return readAll(t, env(pairs...))
}

func readAll(t *testing.T, environ []EnvVar) *Config {
	t.Helper()
	c, err := Read(environ)
	harness.NoError(t, err, environ)
	return c
}

func tcp(port int32) []probe.Probe {
	return []probe.Probe{{TCPSocket: &probe.TCPSocketAction{Port: probe.Port{Number: port}}}}
}

func TestReadEmptyEnvironmentReturnsDefaults(t *testing.T) {
	want := map[string]string{
		"ON_KNATIVE": "false", "USER_PORT": "8080", "QUEUE_SERVING_PORT": "8012", "QUEUE_SERVING_TLS_PORT": "8112", "ADMIN_PORT": "8022",
		"AUTOSCALER_PORT": "9090", "METRICS_PORT": "9091", "STATUS_PORT": "8008",
		"CONTAINER_CONCURRENCY": "0", "CONCURRENCY_MODE": "fixed", "CONCURRENCY_MIN": "1", "CONCURRENCY_START": "4", "QUEUE_DEPTH": "0", "QUEUE_TIMEOUT_SECONDS": "0",
		"REVISION_TIMEOUT_SECONDS": "0", "REVISION_TIMEOUT_SCOPE": "request", "REVISION_RESPONSE_START_TIMEOUT_SECONDS": "0",
		"REVISION_IDLE_TIMEOUT_SECONDS": "0", "CLIENT_GONE_GRACE": "10s", "CONNECT_RETRY": "500ms",
		"ENABLE_MULTI_CONTAINER_PROBES": "false", "SERVING_READINESS_PROBE": `{"tcpSocket":{"port":8080}}`, "ENABLE_HTTP2_AUTO_DETECTION": "false",
		"ENABLE_HTTP_FULL_DUPLEX": "false", "SERVER_TIMING": "false", "METRICS_NATIVE_HISTOGRAMS": "false", "STATS_FORMAT": "protobuf",
		"DRAIN_DEADLINE": "27s", "DRAIN_QUIET_PERIOD": "13.5s", "DRAIN_MIN": "0s", "DRAIN_STREAMS": "end", "DRAIN_ENDPOINT": "false",
		"MAX_HEADER_BYTES": "1048576", "MAX_BODY_BYTES": "0", "MAX_CONNECTIONS": "0", "HEADER_TIMEOUT": "1m0s", "BODY_TIMEOUT": "1m0s", "SEND_TIMEOUT": "5m0s",
		"TLS_CERT_DIR": "/var/lib/knative/certs", "QUEUE_PROXY_TLS_MIN_VERSION": "1.3",
		"METRICS_NAMES": "default", "METRICS_MERGE_PORT": "0", "METRICS_MERGE_PATH": "/metrics",
		"REQUEST_LOG": "false", "REQUEST_LOG_ERRORS_ONLY": "false", "REQUEST_LOG_SLOWER_THAN": "0s", "REQUEST_LOG_SAMPLE": "1",
		"ENABLE_PROFILING": "false", "SERVING_ENABLE_REQUEST_LOG": "false", "SERVING_ENABLE_PROBE_REQUEST_LOG": "false",
		"METRICS_PROMETHEUS_TLS_MIN_VERSION": "1.3", "TRACING_CONFIG_SAMPLE_RATE": "0", "TRACING_CONFIG_DEBUG": "false",
		"OTEL_SDK_DISABLED": "false", "OTEL_METRIC_EXPORT_INTERVAL": "0", "OTEL_EXPORTER_OTLP_TIMEOUT": "10000",
	}
	for name, environ := range map[string][]EnvVar{
		"nothing": nil,
		"unknown": env("FOO", "bar", "SERVING_SERVICE_HOST", "10.0.0.1", "QUEUE_SERVING_HOST", "x"),
		"empty":   everyNameEmpty(),
	} {
		c := readAll(t, environ)
		got := map[string]string{}
		for _, f := range c.fields() {
			if value := f.String(); value != "" {
				got[f.Name()] = value
			}
		}
		harness.Equal(t, got, want, name)
		harness.Equal(t, c.Warnings(false), nil, name, "warnings")
	}
}

func everyNameEmpty() []EnvVar {
	var environ []EnvVar
	for _, name := range everyName() {
		environ = append(environ, EnvVar{name, ""})
	}
	return environ
}

// ignoredNames returns the variables that some Knative releases set and that have no effect.
func ignoredNames() []string {
	return []string{
		"SYSTEM_NAMESPACE", "HOST_IP", "ROOT_CA",
		"USER_CONTAINER_NAME", "ENABLE_VAR_LOG_COLLECTION", "VAR_LOG_VOLUME_NAME",
		"INTERNAL_VOLUME_PATH", "DOWNWARD_API_LABELS_PATH", "CONCURRENCY_STATE_ENDPOINT",
		"CONCURRENCY_STATE_TOKEN_PATH", "SERVING_REQUEST_METRICS_REPORTING_PERIOD_SECONDS", "METRICS_COLLECTOR_ADDRESS",
		"METRICS_DOMAIN", "TRACING_CONFIG_ENABLE", "TRACING_CONFIG_STACKDRIVER_PROJECT_ID",
	}
}

// everyName returns the names of all variables, including variables that have no effect.
func everyName() []string {
	names := ignoredNames()
	for _, f := range new(Config).fields() {
		names = append(names, f.names()...)
	}
	return names
}

// The errors of envconfig contain the value of the variable, which can be a secret.
func TestEnvconfigErrorHidesValue(t *testing.T) {
	const secret = "s3cret"
	for _, err := range []error{
		&envconfig.ParseError{KeyName: "USER_PORT", TypeName: "config.Port", Value: secret, Err: errors.New(secret)},
		errors.New(secret),
	} {
		if got := withoutValue(err).Error(); strings.Contains(got, secret) {
			t.Errorf("got error %q, want an error without the value", got)
		}
	}
}

func TestWarningsHideSecretSettings(t *testing.T) {
	const secret = "s3cret"
	c := read(t, "OTEL_EXPORTER_OTLP_HEADERS", secret, "OBSERVABILITY_CONFIG", secret)
	harness.Equal(t, len(c.Warnings(false)), 2, "warnings", c.Warnings(false))
	if got := strings.Join(c.Warnings(false), "\n"); strings.Contains(got, secret) {
		t.Errorf("got warnings %q, want warnings without the value", got)
	}
}

// Load uses envconfig to read the environment of the process. Read reads a list without envconfig.
func TestLoadAndReadReturnSameSettings(t *testing.T) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if slices.Contains(everyName(), name) {
			t.Setenv(name, "")
		}
	}
	environments := append(knativeEnvironments(), environment{"none", nil}, environment{"other names", env(
		"PORT", "3000", "POD_NAME", "p", "HOSTNAME", "h", "METRICS_PROMETHEUS_PORT", "9999", "PROFILING_PORT", "8009")},
		environment{"empty", everyNameEmpty()})
	for _, e := range environments {
		t.Run(e.name, func(t *testing.T) {
			for _, v := range e.vars {
				t.Setenv(v.Name, v.Value)
			}
			got, err := Load()
			harness.NoError(t, err)
			want := readAll(t, e.vars)
			want.ownFiles = true
			harness.Equal(t, *got, *want)
		})
	}
	t.Run("invalid values", func(t *testing.T) {
		t.Setenv("CONTAINER_CONCURRENCY", "-1")
		t.Setenv("ENABLE_HTTP_FULL_DUPLEX", "enabled")
		_, err := Load()
		want := "CONTAINER_CONCURRENCY: \"-1\": must be an integer from 0 to 1000000\n" +
			"ENABLE_HTTP_FULL_DUPLEX: \"enabled\": must be true or false"
		harness.Equal(t, fmt.Sprint(err), want)
	})
}

func versionRange(c *Config) any { return []any{c.TLSMinVersion.V, c.TLSMaxVersion.V} }

var validValues = []struct {
	name, value string
	got         func(*Config) any
	want        any
}{
	{"QUEUE_SERVING_PORT", "8013", func(c *Config) any { return c.Port.V }, 8013},
	{"QUEUE_SERVING_TLS_PORT", "0x1FB1", func(c *Config) any { return c.TLSPort.V }, 8113},
	{"USER_PORT", "3000", func(c *Config) any { return c.UserPort.V }, 3000},
	{"PORT", "3000", func(c *Config) any { return c.UserPort.V }, 3000},
	{"ADMIN_PORT", "1", func(c *Config) any { return c.AdminPort.V }, 1},
	{"AUTOSCALER_PORT", "65535", func(c *Config) any { return c.AutoscalerPort.V }, 65535},
	{"METRICS_PORT", "9999", func(c *Config) any { return c.MetricsPort.V }, 9999},
	{"METRICS_PROMETHEUS_PORT", "9999", func(c *Config) any { return c.MetricsPort.V }, 9999},
	{"STATUS_PORT", "8009", func(c *Config) any { return c.StatusPort.V }, 8009},
	{"PROFILING_PORT", "8009", func(c *Config) any { return c.StatusPort.V }, 8009},

	{"CONTAINER_CONCURRENCY", "7", func(c *Config) any { return []int{c.Concurrency.V, c.QueueDepth.V} }, []int{7, 70}},
	{"CONTAINER_CONCURRENCY", "010", func(c *Config) any { return c.Concurrency.V }, 8},
	{"CONCURRENCY_MODE", "adaptive", func(c *Config) any { return []any{c.ConcurrencyMode.V, c.Concurrency.V, c.QueueDepth.V} }, []any{AdaptiveConcurrency, 0, 10000}},
	{"CONCURRENCY_START", "13", func(c *Config) any { return c.ConcurrencyStart.V }, 13},
	{"CONCURRENCY_MIN", "3", func(c *Config) any { return c.ConcurrencyMin.V }, 3},
	{"QUEUE_DEPTH", "3", func(c *Config) any { return c.QueueDepth.V }, 3},
	{"QUEUE_TIMEOUT_SECONDS", "30", func(c *Config) any { return c.QueueTimeout.V }, 30 * time.Second},
	{"REVISION_TIMEOUT_SECONDS", "300", func(c *Config) any { return c.RequestTimeout.V }, 5 * time.Minute},
	{"REVISION_TIMEOUT_SECONDS", "250ms", func(c *Config) any { return c.RequestTimeout.V }, 250 * time.Millisecond},
	{"REVISION_TIMEOUT_SECONDS", "0", func(c *Config) any { return c.RequestTimeout.V }, time.Duration(0)},
	{"REVISION_TIMEOUT_SCOPE", "first-byte", func(c *Config) any { return c.RequestTimeoutScope.V }, FirstByte},
	{"REVISION_RESPONSE_START_TIMEOUT_SECONDS", "5s", func(c *Config) any { return c.ResponseStartTimeout.V }, 5 * time.Second},
	{"REVISION_IDLE_TIMEOUT_SECONDS", "1m", func(c *Config) any { return c.IdleTimeout.V }, time.Minute},
	{"CONNECT_RETRY", "0", func(c *Config) any { return c.ConnectRetry.V }, time.Duration(0)},

	{"SERVING_READINESS_PROBE", `{"tcpSocket":{"port":9000}}`, func(c *Config) any { return c.Probes.V }, tcp(9000)},
	{"ENABLE_HTTP2_AUTO_DETECTION", "true", func(c *Config) any { return c.AutoDetectHTTP2.V }, true},
	{"ENABLE_HTTP_FULL_DUPLEX", "T", func(c *Config) any { return c.FullDuplex.V }, true},
	{"EXCLUDE_PATHS", "/healthz, /metrics/*,,", func(c *Config) any { return c.ExcludePaths.V }, []string{"/healthz", "/metrics/*"}},
	{"EXCLUDE_USER_AGENTS", "Prometheus/,ELB-HealthChecker", func(c *Config) any { return c.ExcludeUserAgents.V }, []string{"Prometheus/", "ELB-HealthChecker"}},
	{"SERVER_TIMING", "true", func(c *Config) any { return c.ServerTiming.V }, true},
	{"METRICS_NATIVE_HISTOGRAMS", "true", func(c *Config) any { return c.NativeHistograms.V }, true},
	{"STATS_FORMAT", "prometheus", func(c *Config) any { return c.StatsFormat.V }, "prometheus"},

	{"DRAIN_DEADLINE", "90s", func(c *Config) any { return c.DrainDeadline.V }, 90 * time.Second},
	{"DRAIN_QUIET_PERIOD", "5s", func(c *Config) any { return c.DrainQuietPeriod.V }, 5 * time.Second},
	{"DRAIN_MIN", "5s", func(c *Config) any { return c.DrainMin.V }, 5 * time.Second},
	{"DRAIN_STREAMS", "wait", func(c *Config) any { return c.DrainStreams.V }, WaitForStreams},
	{"DRAIN_ENDPOINT", "true", func(c *Config) any { return c.DrainEndpoint.V }, true},

	{"MAX_HEADER_BYTES", "8192", func(c *Config) any { return c.MaxHeaderBytes.V }, 8192},
	{"MAX_BODY_BYTES", "9223372036854775807", func(c *Config) any { return c.MaxBodyBytes.V }, int64(1<<63 - 1)},
	{"MAX_CONNECTIONS", "10_000", func(c *Config) any { return c.MaxConnections.V }, 10000},
	{"HEADER_TIMEOUT", "5s", func(c *Config) any { return c.HeaderTimeout.V }, 5 * time.Second},
	{"BODY_TIMEOUT", "0", func(c *Config) any { return c.BodyTimeout.V }, time.Duration(0)},
	{"SEND_TIMEOUT", "90s", func(c *Config) any { return c.SendTimeout.V }, 90 * time.Second},

	{"TLS_CERT_DIR", "/certs", func(c *Config) any { return c.CertDir.V }, "/certs"},
	{"QUEUE_PROXY_TLS_MIN_VERSION", "1.2", versionRange, []any{uint16(tls.VersionTLS12), uint16(0)}},
	{"QUEUE_PROXY_TLS_MAX_VERSION", "1.3", versionRange, []any{uint16(tls.VersionTLS13), uint16(tls.VersionTLS13)}},
	{"QUEUE_PROXY_TLS_CIPHER_SUITES", "TLS_AES_128_GCM_SHA256, ,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
		func(c *Config) any { return c.TLSCipherSuites.V }, []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}},
	{"QUEUE_PROXY_TLS_CURVE_PREFERENCES", "P-256,CurveP384,X25519,X25519MLKEM768",
		func(c *Config) any { return c.TLSCurves.V }, []tls.CurveID{tls.CurveP256, tls.CurveP384, tls.X25519, tls.X25519MLKEM768}},
	{"QUEUE_PROXY_TLS_CLIENT_CA", "/ca.crt", func(c *Config) any { return c.TLSClientCA.V }, "/ca.crt"},

	{"SERVING_LOGGING_CONFIG", "{broken", func(c *Config) any { return c.LoggingConfig.V }, "{broken"},
	{"SERVING_LOGGING_LEVEL", "loud", func(c *Config) any { return c.LoggingLevel.V }, "loud"},

	{"SERVING_POD", "p", func(c *Config) any { return c.Pod.V }, "p"},
	{"POD_NAME", "p", func(c *Config) any { return c.Pod.V }, "p"},
	{"HOSTNAME", "p", func(c *Config) any { return c.Pod.V }, "p"},
	{"SERVING_POD_IP", "10.0.0.1", func(c *Config) any { return c.PodIP.V }, "10.0.0.1"},
	{"SERVING_SERVICE", "s", func(c *Config) any { return c.Service.V }, "s"},

	{"SERVING_REQUEST_METRICS_BACKEND", "Prometheus", func(c *Config) any { return c.MetricsBackend.V }, "prometheus"},
	{"TRACING_CONFIG_SAMPLE_RATE", "0.1", func(c *Config) any { return c.TracingSampleRate.V }, 0.1},
	{"METRICS_NAMES", "all", func(c *Config) any { return c.MetricsNames.V }, "all"},
	{"SERVING_REQUEST_METRICS_BACKEND", "prometheus", func(c *Config) any { return c.MetricsNames.V }, "knative-1.18"},
	{"OBSERVABILITY_CONFIG", `{"requestMetrics":{"protocol":"prometheus"}}`, func(c *Config) any { return c.MetricsNames.V }, "knative-head"},
	{"SERVING_REVISION", "rev", func(c *Config) any { return c.MetricsNames.V }, "off"},
	{"REQUEST_LOG_SAMPLE", "10", func(c *Config) any { return c.RequestLogSample.V }, 10},
	{"OTEL_METRIC_EXPORT_INTERVAL", "60000", func(c *Config) any { return c.OTel.MetricInterval.V }, time.Minute},
	{"OTEL_PROPAGATORS", "tracecontext,b3", func(c *Config) any { return c.OTel.Propagators.V }, []string{"tracecontext", "b3"}},
	{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", func(c *Config) any { return c.OTel.Protocol.V }, "http/json"},
	{"OBSERVABILITY_CONFIG", `{"a":1}`, func(c *Config) any { return c.Observability.String() }, `{"a":1}`},
	{"OBSERVABILITY_CONFIG", ``, func(c *Config) any { return c.Observability.String() }, ``},
}

func TestReadAcceptsValidValues(t *testing.T) {
	for _, test := range validValues {
		c := read(t, test.name, test.value)
		harness.Equal(t, test.got(c), test.want, test.name, "=", test.value)
	}
}

// Descriptions of allowed values in errors.
const (
	aPort     = "a port from 1 to 65535"
	syntax    = "a duration such as 30s or 250ms"
	aDuration = syntax + ", from 0 to 876000h"
	positive  = syntax + ", from 1ms to 876000h"
	seconds   = "an integer in seconds, or " + aDuration
)

var invalidValues = []struct{ name, value, allowed string }{
	{"QUEUE_SERVING_PORT", "0", aPort},
	{"QUEUE_SERVING_PORT", "65536", aPort},
	{"QUEUE_SERVING_PORT", "http", aPort},
	{"QUEUE_SERVING_TLS_PORT", "-1", aPort},
	{"USER_PORT", " 8080", aPort},
	{"PORT", "8080\n", aPort},
	{"ADMIN_PORT", "8022.0", aPort},
	{"AUTOSCALER_PORT", "99999999999999999999", aPort},
	{"METRICS_PORT", ":9091", aPort},
	{"METRICS_PROMETHEUS_PORT", "x", aPort},
	{"STATUS_PORT", "''", aPort},
	{"CONTAINER_CONCURRENCY", "-1", "an integer from 0 to 1000000"},
	{"CONCURRENCY_MODE", "auto", "one of fixed, adaptive"},
	{"CONCURRENCY_MIN", "0", "an integer from 1 to 1000000"},
	{"CONTAINER_CONCURRENCY", "1.5", "an integer from 0 to 1000000"},
	{"CONTAINER_CONCURRENCY", "1000001", "an integer from 0 to 1000000"},
	{"QUEUE_DEPTH", "-1", "an integer from 0 to 10000000"},
	{"QUEUE_TIMEOUT_SECONDS", "1 s", seconds},
	{"QUEUE_TIMEOUT_SECONDS", "1.5", seconds},
	{"REVISION_TIMEOUT_SECONDS", "1 s", seconds},
	{"REVISION_TIMEOUT_SECONDS", "3153600001", seconds},
	{"REVISION_TIMEOUT_SECONDS", "9223372036854775807", seconds},
	{"REVISION_TIMEOUT_SECONDS", "9223372036854775808", seconds},
	{"REVISION_TIMEOUT_SECONDS", "-5s", seconds},
	{"QUEUE_TIMEOUT_SECONDS", "-1", seconds},
	{"REVISION_RESPONSE_START_TIMEOUT_SECONDS", "five", seconds},
	{"REVISION_IDLE_TIMEOUT_SECONDS", "5 s", seconds},
	{"REVISION_TIMEOUT_SCOPE", "header", "one of request, first-byte"},
	{"CONNECT_RETRY", "500", aDuration},
	{"CONNECT_RETRY", "1 s", aDuration},
	{"CONNECT_RETRY", "876001h", aDuration},
	{"CONNECT_RETRY", "9999999999h", aDuration},
	{"CONNECT_RETRY", "-1s", aDuration},
	{"DRAIN_DEADLINE", "-1s", positive},
	{"ENABLE_MULTI_CONTAINER_PROBES", "enabled", "true or false"},
	{"ENABLE_HTTP2_AUTO_DETECTION", "yes", "true or false"},
	{"ENABLE_HTTP_FULL_DUPLEX", "on", "true or false"},
	{"EXCLUDE_PATHS", "healthz", "a comma-separated list of paths with a leading / and an optional trailing *"},
	{"EXCLUDE_PATHS", "/ok,/a*b", "a comma-separated list of paths with a leading / and an optional trailing *"},
	{"EXCLUDE_PATHS", "*", "a comma-separated list of paths with a leading / and an optional trailing *"},
	{"EXCLUDE_USER_AGENTS", "Prometheus*", "a comma-separated list of User-Agent prefixes without *"},
	{"STATS_FORMAT", "json", "one of protobuf, prometheus"},
	{"DRAIN_QUIET_PERIOD", "30", aDuration},
	{"DRAIN_DEADLINE", "0s", positive},
	{"DRAIN_MIN", "1 s", aDuration},
	{"MAX_HEADER_BYTES", "4095", "an integer from 4096 to 67108864"},
	{"MAX_BODY_BYTES", "1Gi", "an integer greater than or equal to 0"},
	{"MAX_CONNECTIONS", "-1", "an integer from 0 to 2147483647"},
	{"HEADER_TIMEOUT", "0", positive},
	{"SEND_TIMEOUT", "0", positive},
	{"QUEUE_PROXY_TLS_MIN_VERSION", "1.1", "one of 1.2, 1.3"},
	{"QUEUE_PROXY_TLS_MAX_VERSION", "TLS1.3", "one of 1.2, 1.3"},
	{"QUEUE_PROXY_TLS_CIPHER_SUITES", "TLS_AES_128_GCM_SHA256,TLS_RSA_WITH_RC4_128_SHA", "a comma-separated list of secure cipher suites, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"},
	{"QUEUE_PROXY_TLS_CURVE_PREFERENCES", "P-224", "a comma-separated list of X25519MLKEM768, X25519, P-256, CurveP256, P-384, CurveP384, P-521, CurveP521"},
	{"ON_KNATIVE", "maybe", "true or false"},
	{"ADMIN_PORT", "8080", "different from USER_PORT"},
	{"QUEUE_SERVING_PORT", "8112", "different from QUEUE_SERVING_TLS_PORT"},
	{"USER_PORT", "9090", "different from AUTOSCALER_PORT"},
	{"QUEUE_PROXY_TLS_MAX_VERSION", "1.2", "at least QUEUE_PROXY_TLS_MIN_VERSION, which is 1.3"},
	{"DRAIN_MIN", "60s", "at most DRAIN_DEADLINE, which is 27s"},
	{"ADMIN_PORT", "0x1F90", "different from USER_PORT"},
}

func TestReadErrorListsAllowedValues(t *testing.T) {
	for _, test := range invalidValues {
		c, err := Read(env(test.name, test.value))
		want := fmt.Sprintf("%s: %q: must be %s", test.name, test.value, test.allowed)
		if err == nil || err.Error() != want || c != nil {
			t.Errorf("%s=%q:\ngot  %v\nwant %s", test.name, test.value, err, want)
		}
	}
}

func TestReadProbeErrorsNameFields(t *testing.T) {
	_, err := Read(env("SERVING_READINESS_PROBE", `{"httpGet":{"port":70000},"periodSeconds":-1}`))
	if err == nil {
		t.Fatal("got no error, want two lines")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "SERVING_READINESS_PROBE: httpGet.port: Invalid value: 70000: ") ||
		!strings.HasPrefix(lines[1], "SERVING_READINESS_PROBE: periodSeconds: Invalid value: -1: ") {
		t.Errorf("got %q, want a line for httpGet.port and one for periodSeconds", lines)
	}
	for _, value := range []string{" ", "{", "null", "true", `[{"tcpSocket":{"port":1}}]`, `{"exec":{"command":["a"]}}`} {
		if _, err := Read(env("SERVING_READINESS_PROBE", value)); err == nil || !strings.HasPrefix(err.Error(), "SERVING_READINESS_PROBE: ") {
			t.Errorf("%s: got error %v, want an error that contains the name of the variable", value, err)
		}
	}
}

func TestReadReturnsAllErrors(t *testing.T) {
	// Only settings that are arbitrary strings accept this value. Telemetry settings only cause warnings.
	var environ []EnvVar
	var want []string
	for _, f := range new(Config).fields() {
		environ = append(environ, EnvVar{f.Name(), "\x00*"})
		if f.allowed() != "a string" && !f.soft {
			want = append(want, f.Name())
		}
	}
	_, err := Read(environ)
	if err == nil {
		t.Fatal("got no error, want errors for many settings")
	}
	var got []string
	for line := range strings.Lines(err.Error()) {
		name, _, _ := strings.Cut(line, ":")
		got = append(got, name)
	}
	harness.Equal(t, got, want, "variables in the error lines")
}

func TestReadReportsInvalidValueOnce(t *testing.T) {
	_, err := Read(env("DRAIN_DEADLINE", "x", "DRAIN_MIN", "1h", "USER_PORT", "x", "ADMIN_PORT", "8080"))
	want := "USER_PORT: \"x\": must be a port from 1 to 65535\nDRAIN_DEADLINE: \"x\": must be " + positive
	harness.Equal(t, fmt.Sprint(err), want)
}

func TestReadInvalidTelemetryUsesDefault(t *testing.T) {
	bad := map[string]string{
		"METRICS_NAMES": "x", "METRICS_NATIVE_HISTOGRAMS": "x", "METRICS_MERGE_PORT": "65536", "METRICS_MERGE_PATH": "metrics", "REQUEST_LOG": "x", "REQUEST_LOG_ERRORS_ONLY": "x",
		"REQUEST_LOG_SLOWER_THAN": "-1s", "REQUEST_LOG_SAMPLE": "0",
		"ENABLE_PROFILING": "x", "SERVING_ENABLE_REQUEST_LOG": "x", "SERVING_ENABLE_PROBE_REQUEST_LOG": "x",
		"SERVING_REQUEST_METRICS_BACKEND": "stackdriver", "SERVING_REQUEST_METRICS_REPORTING_PERIOD_SECONDS": "-1",
		"METRICS_PROMETHEUS_TLS_MIN_VERSION": "1.0", "METRICS_PROMETHEUS_TLS_MAX_VERSION": "2", "METRICS_PROMETHEUS_TLS_CIPHER_SUITES": "x",
		"METRICS_PROMETHEUS_TLS_CURVE_PREFERENCES": "x",
		"TRACING_CONFIG_BACKEND":                   "stackdriver", "TRACING_CONFIG_SAMPLE_RATE": "NaN", "TRACING_CONFIG_DEBUG": "x",
		"OTEL_SDK_DISABLED": "x", "OTEL_METRIC_EXPORT_INTERVAL": "x", "OTEL_EXPORTER_OTLP_TIMEOUT": "x",
		"OTEL_EXPORTER_OTLP_PROTOCOL": "x", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "x", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "x",
	}
	for _, f := range new(Config).fields() {
		value, ok := bad[f.Name()]
		reported := []string{"SERVING_LOGGING_LEVEL", "METRICS_PROMETHEUS_TLS_CLIENT_AUTH", "OBSERVABILITY_CONFIG", "OTEL_PROPAGATORS", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"} // their warnings have another form
		if f.soft && f.allowed() != "a string" && !slices.Contains(reported, f.Name()) && !ok {
			t.Errorf("%s: no invalid value in this test", f.Name())
		}
		if !ok {
			continue
		}
		c := read(t, f.Name(), value)
		harness.Equal(t, settings(c), settings(readNamespace(t, f.Name())), f.Name(), "=", value)
		warnings := c.Warnings(false)
		if f.Name() != "SERVING_NAMESPACE" && isServing(f.Name()) {
			warnings = warnings[:1] // the second warning is about ON_KNATIVE
		}
		used := cmp.Or(settingOf(t, c, f.Name()).Value, "which is unset")
		if f.Name() == "METRICS_NAMES" {
			used = `"default"`
		}
		want := fmt.Sprintf("%s: %q: must be %s; using the default, %s", f.Name(), value, f.allowed(), used)
		if len(warnings) != 1 || warnings[0] != want {
			t.Errorf("%s=%s: got warnings %q, want %q", f.Name(), value, warnings, want)
		}
	}
}

func TestReadReplacesInvalidMergePath(t *testing.T) {
	for path, valid := range map[string]bool{
		"/": true, "/stats?format=prometheus": true, "/a%20b": true,
		"stats": false, "http://localhost/stats": false, "/stats#b": false, "/%zz": false, "/a\x7f": false,
	} {
		want := path
		if !valid {
			want = "/metrics"
		}
		harness.Equal(t, read(t, "METRICS_MERGE_PATH", path).MergePath.V, want, path)
	}
}

// readNamespace returns the default settings for an environment that contains only the variable with the
// given name. For a variable of a Knative control plane, these are the defaults on Knative.
func readNamespace(t *testing.T, name string) *Config {
	if isServing(name) {
		return read(t, "ON_KNATIVE", "true")
	}
	return Default()
}

func TestReadInvalidObservabilityConfigCountsAsSet(t *testing.T) {
	for _, value := range []string{"{", "null", "[]", "1", `"x"`, " "} {
		c := read(t, "SERVING_NAMESPACE", "n", "OBSERVABILITY_CONFIG", value)
		harness.Equal(t, c.Observability.String(), "{}", value)
		harness.Equal(t, c.RequestTimeoutScope.V, WholeRequest, value, "scope")
		harness.Equal(t, len(c.Warnings(false)), 1, value, "warnings", c.Warnings(false))
	}
}

func TestReadDetectsKnativeFromVariables(t *testing.T) {
	tests := []struct {
		vars     []EnvVar
		want     bool
		warnings int
	}{
		{nil, false, 0},
		{env("SERVING_NAMESPACE", "n"), true, 0},
		{env("SERVING_NAMESPACE", ""), false, 0},
		{env("SERVING_POD", "p"), true, 1}, // a warning, because all releases of Knative also set the namespace
		{env("SERVING_READINESS_PROBE", `{"tcpSocket":{"port":1}}`), true, 1},
		{env("SERVING_READINESS_PROBE", `{"tcpSocket":{"port":1}}`, "ON_KNATIVE", "false"), false, 0},
		{env("SERVING_ENABLE_REQUEST_LOG", "nonsense"), true, 2},
		{env("ON_KNATIVE", "true"), true, 0},
		{env("SERVING_PORT", "tcp://10.0.0.1:80", "SERVING_SERVICE_HOST", "10.0.0.1"), false, 0}, // links of a Service with the name serving
		{env("POD_NAME", "p", "REVISION_TIMEOUT_SECONDS", "5"), false, 0},
	}
	for _, test := range tests {
		c := readAll(t, test.vars)
		harness.Equal(t, c.OnKnative.V, test.want, test.vars)
		harness.Equal(t, len(c.Warnings(false)), test.warnings, test.vars, "warnings", c.Warnings(false))
	}
}

func TestReadDerivesDefaultsFromOtherSettings(t *testing.T) {
	const knative, n = "SERVING_NAMESPACE", "n"
	scope := func(c *Config) any { return c.RequestTimeoutScope.V }
	deadline := func(c *Config) any { return c.DrainDeadline.V }
	quiet := func(c *Config) any { return c.DrainQuietPeriod.V }
	probes := func(c *Config) any { return c.Probes.V }
	tests := []struct {
		vars []EnvVar
		got  func(*Config) any
		want any
	}{
		{env(), scope, WholeRequest},
		{env(knative, n), scope, FirstByte},
		{env(knative, n, "OBSERVABILITY_CONFIG", "{}"), scope, WholeRequest},
		{env(knative, n, "OBSERVABILITY_CONFIG", "{}", "REVISION_TIMEOUT_SCOPE", "first-byte"), scope, FirstByte},
		{env("REVISION_TIMEOUT_SECONDS", "300"), deadline, 27 * time.Second},
		{env(knative, n), deadline, 27 * time.Second},
		{env(knative, n, "REVISION_TIMEOUT_SECONDS", "300"), deadline, 297 * time.Second},
		{env(knative, n, "REVISION_TIMEOUT_SECONDS", "5"), deadline, 2 * time.Second},
		{env(knative, n, "REVISION_TIMEOUT_SECONDS", "4"), deadline, time.Second},
		{env(knative, n, "REVISION_TIMEOUT_SECONDS", "3"), deadline, time.Second},
		{env(knative, n, "REVISION_TIMEOUT_SECONDS", "1"), deadline, 500 * time.Millisecond},
		{env(knative, n, "REVISION_TIMEOUT_SECONDS", "300", "DRAIN_DEADLINE", "10s"), deadline, 10 * time.Second},
		{env("DRAIN_DEADLINE", "10s"), quiet, 5 * time.Second},
		{env("DRAIN_DEADLINE", "5m"), quiet, 30 * time.Second},
		{env("DRAIN_DEADLINE", "5m", "DRAIN_QUIET_PERIOD", "2m"), quiet, 2 * time.Minute},
		{env("DRAIN_DEADLINE", "10s", "DRAIN_QUIET_PERIOD", "30s"), quiet, 5 * time.Second},
		{env(), probes, tcp(8080)},
		{env("PORT", "3000"), probes, tcp(3000)},
		{env("ENABLE_MULTI_CONTAINER_PROBES", "true"), probes, tcp(8080)},
		{env("ENABLE_MULTI_CONTAINER_PROBES", "true", "SERVING_READINESS_PROBE", "[]", "ON_KNATIVE", "false"), probes, []probe.Probe(nil)},
		{env("ENABLE_MULTI_CONTAINER_PROBES", "true", "SERVING_READINESS_PROBE", "[null]", "ON_KNATIVE", "false"), probes, []probe.Probe(nil)},
		{env(knative, n), probes, []probe.Probe(nil)},
	}
	for _, test := range tests {
		c := readAll(t, test.vars)
		harness.Equal(t, test.got(c), test.want, test.vars)
	}
}

func TestReadMainNameTakesPrecedence(t *testing.T) {
	for _, vars := range [][]EnvVar{
		env("USER_PORT", "3000", "PORT", "4000"),
		env("PORT", "4000", "USER_PORT", "3000"),
		env("USER_PORT", "3000", "PORT", "nonsense"),
		env("USER_PORT", "", "PORT", "3000"),
		env("USER_PORT", "1", "USER_PORT", "3000"),
	} {
		c := readAll(t, vars)
		harness.Equal(t, c.UserPort.V, 3000, vars)
	}
	_, err := Read(env("USER_PORT", "nonsense", "PORT", "4000"))
	harness.Equal(t, fmt.Sprint(err), `USER_PORT: "nonsense": must be a port from 1 to 65535`)
}

func TestReadWarnsAboutProbeOfOtherHost(t *testing.T) {
	for host, reported := range map[string]bool{
		"": false, "localhost": false, "127.0.0.1": false, "::1": false, "[::1]": false, "0.0.0.0": false, "10.0.0.5": true, "127.0.0.2": true, "pod.example": true,
	} {
		for field, text := range map[string]string{
			"httpGet":   fmt.Sprintf(`{"httpGet":{"port":8080,"host":%q}}`, host),
			"tcpSocket": fmt.Sprintf(`{"tcpSocket":{"port":8080,"host":%q}}`, host),
		} {
			c := read(t, "SERVING_READINESS_PROBE", text, "SERVING_NAMESPACE", "ns")
			want := []string{fmt.Sprintf("SERVING_READINESS_PROBE: %s.host: %q: the host of a probe must be a loopback address, because requests are sent to port 8080 of the loopback interface; omit the host", field, host)}
			if !reported {
				want = nil
			}
			harness.Equal(t, c.Warnings(false), want, field, host)
		}
	}
}

// A Service with the name "metrics" sets METRICS_PORT in all pods of its namespace.
func TestReadIgnoresServiceLinksForPorts(t *testing.T) {
	c := read(t, "METRICS_PORT", "tcp://10.96.0.1:80", "USER_PORT", "udp://10.96.0.1:53", "PORT", "3000")
	harness.Equal(t, []int{c.MetricsPort.V, c.UserPort.V}, []int{9091, 3000})
	want := []string{
		`USER_PORT: "udp://10.96.0.1:53": ignored, because Kubernetes set it for the Service user`,
		`METRICS_PORT: "tcp://10.96.0.1:80": ignored, because Kubernetes set it for the Service metrics`,
	}
	harness.Equal(t, c.Warnings(false), want, "warnings")
}

// A setting of any type can have the name of a service link.
func TestReadIgnoresServiceLinksForAllSettings(t *testing.T) {
	const link = "tcp://10.0.0.1:80"
	links := 0
	for i, f := range Default().fields() {
		for _, name := range f.names() {
			c, err := Read(env(name, link))
			want := fmt.Sprintf("%s: %q: ignored, because Kubernetes set it for the Service %s", name, link, linkedService(name))
			if ignored := err == nil && slices.Contains(c.Warnings(false), want); ignored != strings.HasSuffix(name, "PORT") {
				t.Errorf("%s: got ignored %t, %v, want a warning only for names of Service links", name, ignored, err)
			} else if ignored {
				links++
				harness.Equal(t, c.fields()[i].String(), f.String(), name)
			}
		}
	}
	if links < 9 {
		t.Errorf("got %d names of Service links, want all ports", links)
	}
}

func TestReadWarnsAboutSettingsWithoutEffect(t *testing.T) {
	tests := []struct {
		vars []EnvVar
		want string
	}{
		{env("QUEUE_DEPTH", "5"), "QUEUE_DEPTH: ignored because CONTAINER_CONCURRENCY is 0"},
		{env("QUEUE_TIMEOUT_SECONDS", "5"), "QUEUE_TIMEOUT_SECONDS: ignored because CONTAINER_CONCURRENCY is 0"},
		{env("QUEUE_PROXY_TLS_CIPHER_SUITES", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"), "QUEUE_PROXY_TLS_CIPHER_SUITES: ignored because QUEUE_PROXY_TLS_MIN_VERSION is 1.3"},
		{env("DRAIN_QUIET_PERIOD", "30s"), `DRAIN_QUIET_PERIOD: "30s": must be at most half of DRAIN_DEADLINE; using 13.5s`},
		{env("USER_PORT", "8112"), `QUEUE_SERVING_TLS_PORT: "8112": the port is also used by USER_PORT; TLS is not served`},
		{env("METRICS_MERGE_PORT", "8081", "METRICS_NAMES", "off"), "METRICS_MERGE_PORT: ignored because METRICS_NAMES is off"},
		{env("METRICS_MERGE_PORT", "8081", "SERVING_NAMESPACE", "n"), "METRICS_MERGE_PORT: ignored because METRICS_NAMES is off"},
		{env("QUEUE_DEPTH", "0", "CONTAINER_CONCURRENCY", "1"), ""},
		{env("REQUEST_LOG", "true", "SERVING_REQUEST_LOG_TEMPLATE", "x", "SERVING_NAMESPACE", "n"),
			"SERVING_REQUEST_LOG_TEMPLATE: ignored because REQUEST_LOG is true, which writes JSON; to use the template, set SERVING_ENABLE_REQUEST_LOG instead of REQUEST_LOG"},
		{env("REQUEST_LOG", "true", "OBSERVABILITY_CONFIG", `{"requestLogTemplate":"x"}`, "SERVING_NAMESPACE", "n"),
			"OBSERVABILITY_CONFIG: requestLogTemplate: ignored because REQUEST_LOG is true, which writes JSON; to use the template, set enableRequestLog instead of REQUEST_LOG"},
		{env("CONCURRENCY_START", "9"), "CONCURRENCY_START: ignored because CONCURRENCY_MODE is fixed"},
		{env("CONCURRENCY_MIN", "2"), "CONCURRENCY_MIN: ignored because CONCURRENCY_MODE is fixed"},
		{env("CONCURRENCY_MIN", "2", "CONCURRENCY_MODE", "adaptive", "QUEUE_DEPTH", "9", "QUEUE_TIMEOUT_SECONDS", "5"), ""},
	}
	for _, test := range tests {
		c := readAll(t, test.vars)
		harness.Equal(t, strings.Join(c.Warnings(false), "\n"), test.want, test.vars)
	}
}

// The certificate can be created after startup. The default directory usually does not exist.
func TestLoadWarnsAboutEmptyCertificateDirectory(t *testing.T) {
	empty, one := t.TempDir(), t.TempDir()
	harness.NoError(t, os.WriteFile(one+"/tls.key", nil, 0o600))
	for _, test := range []struct {
		name, dir, knative string // knative is the value of ON_KNATIVE
		want               []string
	}{
		{"by default", "", "false", nil},
		{"missing directory", empty + "/none", "false", []string{`TLS_CERT_DIR: "` + empty + `/none": tls.crt and tls.key not found; TLS is not served`}},
		{"empty directory", empty, "false", []string{`TLS_CERT_DIR: "` + empty + `": tls.crt and tls.key not found; TLS is not served`}},
		{"only one file", one, "false", nil}, // reported when the certificate is loaded
		{"on Knative", empty, "true", nil},
	} {
		t.Setenv("TLS_CERT_DIR", test.dir)
		t.Setenv("SERVING_NAMESPACE", "n")
		t.Setenv("ON_KNATIVE", test.knative)
		c, err := Load()
		harness.NoError(t, err)
		harness.Equal(t, c.Warnings(false), test.want, test.name, "warnings")
		harness.Equal(t, read(t, "TLS_CERT_DIR", test.dir).Warnings(false), nil, test.name, "warnings of Read, which does not access files")
	}
}

type environment struct {
	name string
	vars []EnvVar
}

// knativeEnvironments returns the variables that control planes of several Knative releases set, in the
// order in which they set them.
func knativeEnvironments() []environment {
	const (
		asked   = `{"tcpSocket":{"port":8080,"host":"127.0.0.1"},"successThreshold":1}`
		logging = `{"level":"info","encoding":"json","outputPaths":["stdout"],"errorOutputPaths":["stderr"]}`
	)
	return []environment{
		{"knative 0.9", env(
			"SERVING_NAMESPACE", "default", "SERVING_SERVICE", "hello", "SERVING_CONFIGURATION", "hello", "SERVING_REVISION", "hello-00001",
			"SERVING_POD", "hello-00001-deployment-1", "SERVING_POD_IP", "10.1.2.3", "QUEUE_SERVING_PORT", "8012", "USER_PORT", "8080",
			"CONTAINER_CONCURRENCY", "0", "REVISION_TIMEOUT_SECONDS", "300", "SERVING_READINESS_PROBE", asked,
			"SERVING_LOGGING_CONFIG", logging, "SERVING_LOGGING_LEVEL", "", "SERVING_REQUEST_LOG_TEMPLATE", "",
			"SERVING_REQUEST_METRICS_BACKEND", "prometheus", "TRACING_CONFIG_BACKEND", "none", "TRACING_CONFIG_ENABLE", "false",
			"TRACING_CONFIG_ZIPKIN_ENDPOINT", "", "TRACING_CONFIG_STACKDRIVER_PROJECT_ID", "", "TRACING_CONFIG_DEBUG", "false",
			"TRACING_CONFIG_SAMPLE_RATE", "0.100000", "USER_CONTAINER_NAME", "user-container", "ENABLE_VAR_LOG_COLLECTION", "false",
			"VAR_LOG_VOLUME_NAME", "knative-var-log", "INTERNAL_VOLUME_PATH", "/var/knative-internal", "SYSTEM_NAMESPACE", "knative-serving")},
		{"knative 1.18", env(
			"SERVING_NAMESPACE", "default", "SERVING_SERVICE", "hello", "SERVING_CONFIGURATION", "hello", "SERVING_REVISION", "hello-00001",
			"QUEUE_SERVING_PORT", "8012", "QUEUE_SERVING_TLS_PORT", "8112", "CONTAINER_CONCURRENCY", "0", "REVISION_TIMEOUT_SECONDS", "300",
			"REVISION_RESPONSE_START_TIMEOUT_SECONDS", "0", "REVISION_IDLE_TIMEOUT_SECONDS", "0", "SERVING_POD", "hello-00001-deployment-1",
			"SERVING_POD_IP", "10.1.2.3", "SERVING_LOGGING_CONFIG", logging, "SERVING_LOGGING_LEVEL", "",
			"SERVING_REQUEST_LOG_TEMPLATE", `{"traceId": "{{index .Request.Header "X-B3-Traceid"}}"}`, "SERVING_ENABLE_REQUEST_LOG", "false",
			"SERVING_REQUEST_METRICS_BACKEND", "prometheus", "SERVING_REQUEST_METRICS_REPORTING_PERIOD_SECONDS", "5",
			"TRACING_CONFIG_BACKEND", "none", "TRACING_CONFIG_ZIPKIN_ENDPOINT", "", "TRACING_CONFIG_DEBUG", "false",
			"TRACING_CONFIG_SAMPLE_RATE", "0.1", "USER_PORT", "8080", "SYSTEM_NAMESPACE", "knative-serving",
			"METRICS_DOMAIN", "knative.dev/internal/serving", "SERVING_READINESS_PROBE", asked, "ENABLE_PROFILING", "false",
			"SERVING_ENABLE_PROBE_REQUEST_LOG", "false", "METRICS_COLLECTOR_ADDRESS", "", "HOST_IP", "10.0.0.9",
			"ENABLE_HTTP2_AUTO_DETECTION", "false", "ENABLE_HTTP_FULL_DUPLEX", "false", "ROOT_CA", "", "ENABLE_MULTI_CONTAINER_PROBES", "false")},
		{"knative head", env(
			"SERVING_NAMESPACE", "default", "SERVING_SERVICE", "hello", "SERVING_CONFIGURATION", "hello", "SERVING_REVISION", "hello-00001",
			"QUEUE_SERVING_PORT", "8013", "QUEUE_SERVING_TLS_PORT", "8112", "CONTAINER_CONCURRENCY", "10", "REVISION_TIMEOUT_SECONDS", "300",
			"REVISION_RESPONSE_START_TIMEOUT_SECONDS", "0", "REVISION_IDLE_TIMEOUT_SECONDS", "0", "SERVING_POD", "hello-00001-deployment-1",
			"SERVING_POD_IP", "10.1.2.3", "SERVING_LOGGING_CONFIG", logging, "SERVING_LOGGING_LEVEL", "info", "USER_PORT", "8080",
			"SYSTEM_NAMESPACE", "knative-serving", "SERVING_READINESS_PROBE", "["+asked+",null]", "HOST_IP", "10.0.0.9",
			"ENABLE_HTTP2_AUTO_DETECTION", "false", "ENABLE_HTTP_FULL_DUPLEX", "true", "ROOT_CA", "", "QUEUE_PROXY_TLS_MIN_VERSION", "",
			"QUEUE_PROXY_TLS_MAX_VERSION", "", "QUEUE_PROXY_TLS_CIPHER_SUITES", "", "QUEUE_PROXY_TLS_CURVE_PREFERENCES", "",
			"ENABLE_MULTI_CONTAINER_PROBES", "true", "OBSERVABILITY_CONFIG",
			`{"tracing":{"protocol":"none"},"metrics":{"protocol":"none"},"runtime":{"profiling":"disabled","exportInterval":15000000000},"requestMetrics":{"protocol":"none"}}`)},
	}
}

func TestReadKnativeEnvironments(t *testing.T) {
	for _, e := range knativeEnvironments() {
		c := readAll(t, e.vars)
		harness.Equal(t, c.Warnings(false), nil, e.name, "warnings")
		if !c.OnKnative.V || c.Namespace.V != "default" || c.Revision.V != "hello-00001" || c.Pod.V != "hello-00001-deployment-1" ||
			c.PodIP.V != "10.1.2.3" || c.UserPort.V != 8080 || c.RequestTimeout.V != 5*time.Minute || len(c.Probes.V) != 1 {
			t.Errorf("%s: got %+v, want the values of the environment", e.name, c)
		}
		for _, v := range e.vars {
			if !slices.Contains(everyName(), v.Name) {
				t.Errorf("%s: no setting %s", e.name, v.Name)
			}
		}
	}
}

// The names must not be similar to the name of a setting. Some of the releases that set these variables
// are not in knativeEnvironments.
func TestReadIgnoresVariablesOfKnativeReleases(t *testing.T) {
	for _, name := range ignoredNames() {
		c := read(t, name, "/etc/podinfo/labels")
		harness.Equal(t, settings(c), settings(Default()), name)
		harness.Equal(t, c.Warnings(false), nil, name, "warnings")
	}
}

// Knative up to 1.18 can request OpenCensus. Only OTLP is supported.
func TestReadWarnsAboutOpenCensus(t *testing.T) {
	c := read(t, "SERVING_REQUEST_METRICS_BACKEND", "opencensus", "METRICS_COLLECTOR_ADDRESS", "collector:55678")
	harness.Equal(t, c.MetricsNames.V, "off", "metrics")
	if got := c.Warnings(false); !slices.ContainsFunc(got, func(w string) bool { return strings.HasPrefix(w, "SERVING_REQUEST_METRICS_BACKEND") }) {
		t.Errorf("got warnings %q, want one about SERVING_REQUEST_METRICS_BACKEND", got)
	}
}

// The minimum timeout in Knative is 1 s, but a duration with a unit can be shorter.
func TestDrainDeadlineIsPositiveForShortTimeouts(t *testing.T) {
	for _, timeout := range []string{"1ns", "1", "3", "300"} {
		c := read(t, "SERVING_NAMESPACE", "n", "REVISION_TIMEOUT_SECONDS", timeout)
		if c.DrainDeadline.V < time.Millisecond {
			t.Errorf("%s: got deadline %v, want at least 1ms", timeout, c.DrainDeadline.V)
		}
	}
}

func TestReadDisablesMergeForOwnPorts(t *testing.T) {
	for value, want := range map[string]int{"9091": 0, "8012": 0, "8080": 8080, "9000": 9000} {
		c := read(t, "METRICS_MERGE_PORT", value)
		harness.Equal(t, c.MergePort.V, want, value)
		harness.Equal(t, len(c.Warnings(false)) > 0, want == 0, value, "warned", c.Warnings(false))
	}
}

func TestReadRejectsConcurrencyMinAboveMaximum(t *testing.T) {
	for _, ceiling := range []string{"7", "0"} {
		_, err := Read(env("CONCURRENCY_MODE", "adaptive", "CONTAINER_CONCURRENCY", ceiling, "CONCURRENCY_MIN", "1001"))
		want := `CONCURRENCY_MIN: "1001": must be at most CONTAINER_CONCURRENCY, which is ` + map[string]string{"7": "7", "0": "1000"}[ceiling]
		harness.Equal(t, fmt.Sprint(err), want, ceiling)
	}
}
