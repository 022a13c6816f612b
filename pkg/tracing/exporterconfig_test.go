package tracing

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/export"
)

// show writes options as a test shows them.
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
	}{{W3C, " w3c"}, {B3, " b3"}, {B3Single, " b3single"}} {
		if o.Formats&f.f != 0 {
			s += f.name
		}
	}
	return s
}

func TestSettingsBecomeOptions(t *testing.T) {
	ratio := func(f float64) *float64 { return &f }
	for _, c := range []struct {
		name   string
		config ExporterConfig
		want   string
		warns  []string // a part of each
	}{
		{"nothing", ExporterConfig{}, "off", nil},

		{"head, none", ExporterConfig{Protocol: "none", SamplingRate: 1, Collector: export.Collector{Endpoint: "http://c"}}, "off", nil},
		{"head, gRPC", ExporterConfig{Protocol: "grpc", Endpoint: "http://c:4317", SamplingRate: 0.1}, "grpc http://c:4317 rate 0.1 follow w3c b3", nil},
		{"head, HTTP, all", ExporterConfig{Protocol: "http/protobuf", Endpoint: "http://c/v1/traces", SamplingRate: 1}, "http/protobuf http://c/v1/traces rate 1 w3c b3", nil},
		{"head, stdout, always", ExporterConfig{Protocol: "stdout"}, "stdout  rate 1 w3c b3", nil},
		{"head, rate 0", ExporterConfig{Protocol: "grpc", Endpoint: "http://c"}, "off", []string{"sampling rate 0"}},
		{"head, address", ExporterConfig{Protocol: "grpc", Endpoint: "10.0.0.1:4317", SamplingRate: 1}, "grpc 10.0.0.1:4317 rate 1 w3c b3", []string{"taken for http://10.0.0.1:4317"}},
		{"head, name", ExporterConfig{Protocol: "grpc", Endpoint: "c:4317", SamplingRate: 1}, "grpc c:4317 rate 1 w3c b3", []string{"taken for https://c:4317"}},
		{"head, no endpoint", ExporterConfig{Protocol: "grpc", SamplingRate: 1}, "off", []string{"no endpoint"}},
		{"head, bad endpoint", ExporterConfig{Protocol: "grpc", Endpoint: "unix:///x", SamplingRate: 1}, "off", []string{"neither http nor https"}},
		{"head, bad protocol", ExporterConfig{Protocol: "bogus", Endpoint: "http://c", SamplingRate: 1}, "off", []string{`"bogus"`}},
		{"head, bad rate", ExporterConfig{Protocol: "grpc", Endpoint: "http://c", SamplingRate: 7}, "off", []string{"not from 0 to 1", "rate 0"}},
		{"head says nothing of tracing", ExporterConfig{Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 1 follow w3c b3", nil},
		{"head, OTEL overrides", ExporterConfig{Protocol: "grpc", Endpoint: "http://c", SamplingRate: 0.1, SamplerArg: ratio(0.5), Collector: export.Collector{Protocol: "http/json", Endpoint: "http://d/x"}},
			"http/json http://d/x rate 0.5 follow w3c b3", nil},
		{"head wins over 1.18", ExporterConfig{Protocol: "grpc", Endpoint: "http://c", SamplingRate: 1, Backend: "zipkin", ZipkinEndpoint: "http://z"}, "grpc http://c rate 1 w3c b3", nil},

		{"1.18, none", ExporterConfig{Backend: "none", ZipkinEndpoint: "http://z"}, "off", nil},
		{"1.18, zipkin", ExporterConfig{Backend: "zipkin", ZipkinEndpoint: "http://z:9411/api/v2/spans", SampleRate: 0.1}, "zipkin http://z:9411/api/v2/spans rate 0.1 follow w3c b3", nil},
		{"1.18, zipkin, rate 0 follows the client", ExporterConfig{Backend: "zipkin", ZipkinEndpoint: "http://z"}, "zipkin http://z rate 0 follow w3c b3", nil},
		{"1.18, debug", ExporterConfig{Backend: "zipkin", ZipkinEndpoint: "http://z", Debug: true}, "zipkin http://z rate 1 w3c b3", nil},
		{"1.18, no endpoint", ExporterConfig{Backend: "zipkin", SampleRate: 1}, "off", []string{"no endpoint"}},
		{"1.18, OTEL's way is not Zipkin's", ExporterConfig{Backend: "zipkin", ZipkinEndpoint: "http://z", SampleRate: 1, Collector: export.Collector{Endpoint: "http://d", Protocol: "grpc"}}, "zipkin http://z rate 1 w3c b3", nil},

		{"OTEL, traces endpoint to the letter", ExporterConfig{Collector: export.Collector{Endpoint: "http://c:4318"}}, "http/protobuf http://c:4318/ rate 1 follow w3c b3", nil},
		{"OTEL, base endpoint", ExporterConfig{Collector: export.Collector{BaseEndpoint: "http://c:4318/"}}, "http/protobuf http://c:4318/v1/traces rate 1 follow w3c b3", nil},
		{"OTEL, base endpoint with a path", ExporterConfig{Collector: export.Collector{BaseEndpoint: "http://c:4318/otlp"}}, "http/protobuf http://c:4318/otlp/v1/traces rate 1 follow w3c b3", nil},
		{"OTEL, base endpoint and gRPC", ExporterConfig{Collector: export.Collector{BaseEndpoint: "http://c:4317", Protocol: "grpc"}}, "grpc http://c:4317 rate 1 follow w3c b3", nil},
		{"OTEL, traces win", ExporterConfig{Collector: export.Collector{BaseEndpoint: "http://c", Endpoint: "http://d/x", Protocol: "http/json"}}, "http/json http://d/x rate 1 follow w3c b3", nil},
		{"OTEL, no scheme", ExporterConfig{Collector: export.Collector{BaseEndpoint: "10.0.0.1:4318"}}, "http/protobuf http://10.0.0.1:4318/v1/traces rate 1 follow w3c b3", []string{"taken for http://"}},
		{"OTEL, disabled", ExporterConfig{Disabled: true, Collector: export.Collector{Endpoint: "http://c"}}, "off", nil},
		{"OTEL, always_on", ExporterConfig{Sampler: "always_on", Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 1 w3c b3", nil},
		{"OTEL, always_off", ExporterConfig{Sampler: "always_off", Collector: export.Collector{Endpoint: "http://c/x"}}, "off", []string{"rate 0"}},
		{"OTEL, traceidratio", ExporterConfig{Sampler: "traceidratio", SamplerArg: ratio(0.25), Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 0.25 w3c b3", nil},
		{"OTEL, parentbased_always_on", ExporterConfig{Sampler: "parentbased_always_on", Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 1 follow w3c b3", nil},
		{"OTEL, parentbased_always_off", ExporterConfig{Sampler: "parentbased_always_off", Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 0 follow w3c b3", nil},
		{"OTEL, parentbased_traceidratio", ExporterConfig{Sampler: "parentbased_traceidratio", SamplerArg: ratio(0.25), Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 0.25 follow w3c b3", nil},
		{"OTEL, ratio without an argument", ExporterConfig{Sampler: "traceidratio", Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 1 w3c b3", nil},
		{"OTEL, propagators", ExporterConfig{Propagators: []string{"tracecontext", "baggage"}, Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 1 follow w3c", nil},
		{"OTEL, B3 propagators", ExporterConfig{Propagators: []string{"b3", "b3multi"}, Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 1 follow b3 b3single", nil},
		{"OTEL, no propagators", ExporterConfig{Propagators: []string{"none"}, Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 1 follow", nil},
		{"OTEL, other propagators", ExporterConfig{Propagators: []string{"tracecontext", "jaeger"}, Collector: export.Collector{Endpoint: "http://c/x"}}, "http/protobuf http://c/x rate 1 follow w3c", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, warnings := c.config.Options()
			if got := show(o); got != c.want {
				t.Errorf("options: got %q, want %q", got, c.want)
			}
			if len(warnings) != len(c.warns) {
				t.Fatalf("warnings: got %q, want %q", warnings, c.warns)
			}
			for i, want := range c.warns {
				if !strings.Contains(warnings[i], want) {
					t.Errorf("warning: got %q, want it to contain %q", warnings[i], want)
				}
			}
			if o.Protocol != export.None && o.Protocol != export.Stdout {
				tracer, err := New(o)
				if err != nil {
					t.Fatalf("New: got %v, want no error", err)
				}
				if err := tracer.Close(t.Context()); err != nil {
					t.Errorf("Close: got %v, want no error", err)
				}
			}
		})
	}
}

func TestOptionsTakeWhatIsCommonToBothSignals(t *testing.T) {
	o, _ := ExporterConfig{
		Collector: export.Collector{Endpoint: "http://c/x", Header: http.Header{"X-Tenant": {"7"}}},
		Timeout:   3 * time.Second, ServiceName: "shop", Attributes: map[string]string{"service.name": "lost", "team": "a,b"},
	}.Options()
	if o.Header.Get("X-Tenant") != "7" || o.Timeout != 3*time.Second {
		t.Errorf("got %v, %v, want X-Tenant and 3s", o.Header, o.Timeout)
	}
	if a := attributesOf(o.Resource.OTLP().Attributes); a["service.name"] != "shop" || a["team"] != "a,b" {
		t.Errorf("got attributes %v, want shop and a,b", a)
	}
}
