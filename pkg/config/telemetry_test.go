package config

import (
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestReadOTelHeadersAndAttributes(t *testing.T) {
	c := read(t,
		"OTEL_EXPORTER_OTLP_HEADERS", "never=sent", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "Authorization=Basic%20abc%3D, x-tenant = 7,bad name=1,x-bad=%0a",
		"OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=prod,team=a%2Cb")
	h := c.OTel.Traces().Header
	if got := h.Get("Authorization") + "|" + h.Get("X-Tenant"); got != "Basic abc=|7" || len(h) != 2 {
		t.Errorf("got headers %v, want Authorization and X-Tenant", h)
	}
	harness.Equal(t, c.OTel.Metrics().Header.Get("Never"), "sent", "header for metrics")
	if got := c.OTel.ResourceAttributes.V; len(got) != 2 || got["deployment.environment"] != "prod" || got["team"] != "a,b" {
		t.Errorf("got attributes %v, want prod and a,b", got)
	}
	want := []string{
		`OTEL_EXPORTER_OTLP_TRACES_HEADERS: "bad name" is not a valid header field and is ignored`,
		`OTEL_EXPORTER_OTLP_TRACES_HEADERS: "x-bad" is not a valid header field and is ignored`,
	}
	harness.Equal(t, c.Warnings(false), want, "warnings")
}

func TestReadInvalidOTelSettingUsesDefault(t *testing.T) {
	for name, c := range map[string]struct{ value, want string }{
		"OTEL_EXPORTER_OTLP_HEADERS": {"s3cret", "entry 1 is not name=value; all header fields are ignored"},
		"OTEL_RESOURCE_ATTRIBUTES":   {"a=%zz", `the value of "a" is not percent-encoded; all attributes are ignored`},
		"OTEL_TRACES_SAMPLER":        {"xray", `"xray": must be one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio; using the default, which is unset`},
		"OTEL_TRACES_SAMPLER_ARG":    {"2", `"2": must be a number from 0 to 1; using the default, which is unset`},
		"OTEL_PROPAGATORS":           {"tracecontext,jaeger", `"jaeger" is not supported; the header fields of this format are forwarded unchanged`},
	} {
		got := read(t, name, c.value)
		harness.Equal(t, got.Warnings(false), []string{name + ": " + c.want}, name, "=", c.value, "warnings")
		if h, a := got.OTel.Traces().Header, got.OTel.ResourceAttributes.V; len(h)+len(a) > 0 || got.OTel.Sampler.V != "" || got.OTel.SamplerArg.V != nil {
			t.Errorf("%s=%s: got %v, %v, %q, %v, want no values", name, c.value, h, a, got.OTel.Sampler.V, got.OTel.SamplerArg.V)
		}
	}
}

// A member with the wrong type does not affect the other members.
func TestReadObservabilityConfigReportsWrongType(t *testing.T) {
	c := read(t, "OBSERVABILITY_CONFIG", `{"Tracing":{"PROTOCOL":"grpc","samplingrate":"a"},"requestMetrics":{"protocol":"none","exportInterval":5000000000},"enableRequestLog":true}`)
	harness.Equal(t, c.Warnings(false), []string{"OBSERVABILITY_CONFIG: tracing.samplingRate: got a string, want a number; the member is ignored"}, "warnings")
	o := &c.Observability.V
	if o.Tracing.Protocol != "grpc" || o.RequestMetrics.Protocol != "none" || o.RequestMetrics.ExportInterval.String() != "5s" || !o.EnableRequestLog {
		t.Errorf("got %+v, want the values of the valid members", o)
	}
}

// The control plane writes the interval as a number of nanoseconds. A user may write a value such as "2s".
func TestObservabilityConfigTypeErrorsUseJSONNames(t *testing.T) {
	for value, want := range map[string]string{
		`{"requestMetrics":{"exportInterval":"2s"}}`: "requestMetrics.exportInterval: got a string, want a number of nanoseconds",
		`{"requestMetrics":{"exportInterval":1.5}}`:  "requestMetrics.exportInterval: got 1.5, want a number of nanoseconds",
		`{"requestMetrics":{"protocol":true}}`:       "requestMetrics.protocol: got a boolean, want a string",
		`{"enableRequestLog":"true"}`:                "enableRequestLog: got a string, want a boolean",
		`{"tracing":[]}`:                             "tracing: got an array, want an object",
		`{"tracing":{"samplingRate":{}}}`:            "tracing.samplingRate: got an object, want a number",
	} {
		harness.Equal(t, read(t, "OBSERVABILITY_CONFIG", value).Warnings(false), []string{"OBSERVABILITY_CONFIG: " + want + "; the member is ignored"}, value)
	}
}

func TestMetricsTLSRejectsInconsistentSettings(t *testing.T) {
	const cert, key, auth, ca = "METRICS_PROMETHEUS_TLS_CERT", "METRICS_PROMETHEUS_TLS_KEY", "METRICS_PROMETHEUS_TLS_CLIENT_AUTH", "METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE"
	for _, c := range []struct {
		vars []EnvVar
		want string
	}{
		{nil, ""},
		{env(cert, "c", key, "k"), ""},
		{env(cert, "c", key, "k", auth, " Require ", ca, "a"), ""},
		{env(cert, "c", key, "k", auth, "optional", ca, "a"), ""},
		{env(cert, "c"), cert + " and " + key + ": must be set together"},
		{env(cert, "c", key, "k", auth, "NONE"), ""},
		{env(cert, "c", key, "k", auth, "Requier"), auth + `: "Requier": must be one of none, optional, require`},
		{env(cert, "c", key, "k", auth, "require"), ca + ": requires " + auth + "=optional or " + auth + "=require"},
		{env(cert, "c", key, "k", ca, "a"), ca + ": requires " + auth + "=optional or " + auth + "=require"},
		{env(auth, "require", ca, "a"), auth + ": requires " + cert},
	} {
		settings := readAll(t, c.vars)
		got := ""
		if err := settings.MetricsTLS.Validate(); err != nil {
			got = err.Error()
		}
		harness.Equal(t, got, c.want, c.vars)
	}
}

// FuzzHeaders verifies that net/http sends all header fields, and that warnings do not contain values.
func FuzzHeaders(f *testing.F) {
	f.Add("authorization=Bearer%20x,bad name=1")
	f.Add("a=b%0Ac,\xff=1")
	f.Fuzz(func(t *testing.T, list string) {
		c := read(t, "OTEL_EXPORTER_OTLP_HEADERS", list)
		for name, values := range c.OTel.Traces().Header {
			if !httpguts.ValidHeaderFieldName(name) || len(values) != 1 || !httpguts.ValidHeaderFieldValue(values[0]) {
				t.Errorf("%q: got field %q: %q, want a valid field", list, name, values)
			}
		}
		for part := range strings.SplitSeq(list, ",") {
			_, value, _ := strings.Cut(part, "=")
			for _, warning := range c.Warnings(false) {
				if len(value) > 30 && strings.Contains(warning, value) {
					t.Errorf("%q: got warning %q, want a warning without the value", list, warning)
				}
			}
		}
	})
}

// FuzzPairs verifies that pairs are the same after they are encoded and parsed again, and that errors do
// not contain values.
func FuzzPairs(f *testing.F) {
	f.Add("a=1,b=%20x, c = y ,,")
	f.Add("authorization=Bearer%20%zz,a")
	f.Add("=x")
	f.Fuzz(func(t *testing.T, s string) {
		pairs, err := parsePairs(s)
		if err != nil {
			for part := range strings.SplitSeq(s, ",") {
				if _, value, ok := strings.Cut(part, "="); ok && len(value) > 30 && strings.Contains(err.Error(), value) {
					t.Errorf("%q: got error %v, want an error without the value", s, err)
				}
			}
			return
		}
		var written []string
		for name, value := range pairs {
			if name == "" || strings.TrimSpace(name) != name || strings.ContainsAny(name, ",=") {
				t.Errorf("%q: got invalid name %q", s, name)
			}
			if !strings.Contains(s, name) {
				t.Errorf("%q: got name %q, want a name from the input", s, name)
			}
			written = append(written, name+" = "+url.PathEscape(value))
		}
		again, err := parsePairs(strings.Join(written, " ,"))
		if err != nil || len(again) != len(pairs) {
			t.Fatalf("%q: got %v (%v), want %v", written, again, err, pairs)
		}
		for name, value := range pairs {
			harness.Equal(t, again[name], value, written, name, "=")
		}
	})
}
