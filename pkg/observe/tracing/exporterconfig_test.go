package tracing

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// show formats options for comparison.
func show(o Options) string {
	if o.Protocol == export.None {
		return "off"
	}
	s := fmt.Sprintf("%s %s rate %v", o.Protocol, o.Endpoint, o.Sampling.Rate)
	if o.Sampling.Follow {
		s += " follow"
	}
	for _, f := range []struct {
		f    Formats
		name string
	}{{inW3C, " w3c"}, {inB3, " b3"}, {inB3Single, " b3single"}} {
		if o.Formats&f.f != 0 {
			s += f.name
		}
	}
	return s
}

func ratio(f float64) *float64 { return &f }

var configured = []struct {
	name   string
	config ExporterConfig
	want   string
	warns  []string // substring of each warning
}{
	{"nothing", ExporterConfig{}, "off", nil},

	{"head, none", ExporterConfig{Settings: export.Settings{Protocol: "none", Collector: export.Collector{Endpoint: "http://c"}}, SamplingRate: 1}, "off", nil},
	{"head, gRPC", ExporterConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "http://c:4317"}, SamplingRate: 0.1}, "grpc http://c:4317 rate 0.1 follow w3c b3", nil},
	{"head, HTTP, all", ExporterConfig{Settings: export.Settings{Protocol: "http/protobuf", Endpoint: "http://c/v1/traces"}, SamplingRate: 1}, "http/protobuf http://c/v1/traces rate 1 w3c b3", nil},
	{"head, stdout, always", ExporterConfig{Settings: export.Settings{Protocol: "stdout"}}, "stdout  rate 1 w3c b3", nil},
	{"head, rate 0", ExporterConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "http://c"}}, "off", []string{"the sampling rate is 0"}},
	{"head, address", ExporterConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "10.0.0.1:4317"}, SamplingRate: 1}, "grpc 10.0.0.1:4317 rate 1 w3c b3", []string{"using http://10.0.0.1:4317"}},
	{"head, name", ExporterConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "c:4317"}, SamplingRate: 1}, "grpc c:4317 rate 1 w3c b3", []string{"using https://c:4317"}},
	{"head, no endpoint", ExporterConfig{Settings: export.Settings{Protocol: "grpc"}, SamplingRate: 1}, "off", []string{"the endpoint is missing"}},
	{"head, bad endpoint", ExporterConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "unix:///x"}, SamplingRate: 1}, "off", []string{"the scheme must be http or https"}},
	{"head, bad protocol", ExporterConfig{Settings: export.Settings{Protocol: "bogus", Endpoint: "http://c"}, SamplingRate: 1}, "off", []string{`"bogus"`}},
	{"head, bad rate", ExporterConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "http://c"}, SamplingRate: 7}, "off", []string{"must be between 0 and 1", "rate is 0"}},
	{"head without tracing settings", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}}, "http/protobuf http://c/x rate 1 follow w3c b3", nil},
	{"head, OTEL overrides", ExporterConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "http://c", Collector: export.Collector{Protocol: "http/json", Endpoint: "http://d/x"}}, SamplingRate: 0.1, SamplerArg: ratio(0.5)},
		"http/json http://d/x rate 0.5 follow w3c b3", nil},
	{"head wins over 1.18", ExporterConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "http://c"}, SamplingRate: 1, Backend: "zipkin", ZipkinEndpoint: "http://z"}, "grpc http://c rate 1 w3c b3", nil},

	{"1.18, none", ExporterConfig{Backend: "none", ZipkinEndpoint: "http://z"}, "off", nil},
	{"1.18, zipkin", ExporterConfig{Backend: "zipkin", ZipkinEndpoint: "http://z:9411/api/v2/spans", SampleRate: 0.1}, "zipkin http://z:9411/api/v2/spans rate 0.1 follow w3c b3", nil},
	{"1.18, zipkin, rate 0 follows the client", ExporterConfig{Backend: "zipkin", ZipkinEndpoint: "http://z"}, "zipkin http://z rate 0 follow w3c b3", nil},
	{"1.18, debug", ExporterConfig{Backend: "zipkin", ZipkinEndpoint: "http://z", Debug: true}, "zipkin http://z rate 1 w3c b3", nil},
	{"1.18, no endpoint", ExporterConfig{Backend: "zipkin", SampleRate: 1}, "off", []string{"the endpoint is missing"}},
	{"1.18, OTEL settings do not affect Zipkin", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://d", Protocol: "grpc"}}, Backend: "zipkin", ZipkinEndpoint: "http://z", SampleRate: 1}, "zipkin http://z rate 1 w3c b3", nil},

	{"OTEL, traces endpoint is unchanged", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c:4318"}}}, "http/protobuf http://c:4318/ rate 1 follow w3c b3", nil},
	{"OTEL, base endpoint", ExporterConfig{Settings: export.Settings{Collector: export.Collector{BaseEndpoint: "http://c:4318/"}}}, "http/protobuf http://c:4318/v1/traces rate 1 follow w3c b3", nil},
	{"OTEL, base endpoint with a path", ExporterConfig{Settings: export.Settings{Collector: export.Collector{BaseEndpoint: "http://c:4318/otlp"}}}, "http/protobuf http://c:4318/otlp/v1/traces rate 1 follow w3c b3", nil},
	{"OTEL, base endpoint and gRPC", ExporterConfig{Settings: export.Settings{Collector: export.Collector{BaseEndpoint: "http://c:4317", Protocol: "grpc"}}}, "grpc http://c:4317 rate 1 follow w3c b3", nil},
	{"OTEL, traces win", ExporterConfig{Settings: export.Settings{Collector: export.Collector{BaseEndpoint: "http://c", Endpoint: "http://d/x", Protocol: "http/json"}}}, "http/json http://d/x rate 1 follow w3c b3", nil},
	{"OTEL, no scheme", ExporterConfig{Settings: export.Settings{Collector: export.Collector{BaseEndpoint: "10.0.0.1:4318"}}}, "http/protobuf http://10.0.0.1:4318/v1/traces rate 1 follow w3c b3", []string{"using http://"}},
	{"OTEL, disabled", ExporterConfig{Settings: export.Settings{Disabled: true, Collector: export.Collector{Endpoint: "http://c"}}}, "off", nil},
	{"OTEL, always_on", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Sampler: "always_on"}, "http/protobuf http://c/x rate 1 w3c b3", nil},
	{"OTEL, always_off", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Sampler: "always_off"}, "off", []string{"rate is 0"}},
	{"OTEL, traceidratio", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Sampler: "traceidratio", SamplerArg: ratio(0.25)}, "http/protobuf http://c/x rate 0.25 w3c b3", nil},
	{"OTEL, parentbased_always_on", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Sampler: "parentbased_always_on"}, "http/protobuf http://c/x rate 1 follow w3c b3", nil},
	{"OTEL, parentbased_always_off", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Sampler: "parentbased_always_off"}, "http/protobuf http://c/x rate 0 follow w3c b3", nil},
	{"OTEL, parentbased_traceidratio", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Sampler: "parentbased_traceidratio", SamplerArg: ratio(0.25)}, "http/protobuf http://c/x rate 0.25 follow w3c b3", nil},
	{"OTEL, ratio without an argument", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Sampler: "traceidratio"}, "http/protobuf http://c/x rate 1 w3c b3", nil},
	{"OTEL, propagators", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Propagators: []string{"tracecontext", "baggage"}}, "http/protobuf http://c/x rate 1 follow w3c", nil},
	{"OTEL, B3 propagators", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Propagators: []string{"b3", "b3multi"}}, "http/protobuf http://c/x rate 1 follow b3 b3single", nil},
	{"OTEL, no propagators", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Propagators: []string{"none"}}, "http/protobuf http://c/x rate 1 follow", nil},
	{"OTEL, other propagators", ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x"}}, Propagators: []string{"tracecontext", "jaeger"}}, "http/protobuf http://c/x rate 1 follow w3c", nil},
}

func TestExporterConfigOptions(t *testing.T) {
	for _, c := range configured {
		t.Run(c.name, func(t *testing.T) {
			o, warnings := c.config.Options()
			harness.Equal(t, show(o), c.want, "options")
			if len(warnings) != len(c.warns) {
				t.Fatalf("warnings: got %q, want %q", warnings, c.warns)
			}
			for i, want := range c.warns {
				harness.Contains(t, warnings[i], want, "warning")
			}
			if o.Protocol != export.None && o.Protocol != export.Stdout {
				tracer, err := New(o)
				harness.NoError(t, err, "New")
				harness.Equal(t, tracer.Close(t.Context()), nil, "Close")
			}
		})
	}
}

func TestExporterConfigCommonSettings(t *testing.T) {
	o, _ := ExporterConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x", Header: http.Header{"X-Tenant": {"7"}}}, Timeout: 3 * time.Second, Resource: export.Resource{ServiceName: "shop", Attributes: map[string]string{"service.name": "lost", "team": "a,b"}}}}.Options()
	if o.Header.Get("X-Tenant") != "7" || o.Timeout != 3*time.Second {
		t.Errorf("got %v, %v, want X-Tenant and 3s", o.Header, o.Timeout)
	}
	if a := attributesOf(o.Resource.OTLP().Attributes); a["service.name"] != "shop" || a["team"] != "a,b" {
		t.Errorf("got attributes %v, want shop and a,b", a)
	}
}
