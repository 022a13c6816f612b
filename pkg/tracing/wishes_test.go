package tracing

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// said writes options as a test shows them.
func said(o Options) string {
	if o.Exporter == None {
		return "off"
	}
	s := fmt.Sprintf("%s %s rate %v", o.Exporter, o.Endpoint, o.Sampling.Rate)
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

func TestWishesBecomeOptions(t *testing.T) {
	head := func(protocol, endpoint string, rate any) string {
		return fmt.Sprintf(`{"tracing":{"protocol":%q,"endpoint":%q,"samplingRate":%v},"metrics":{"protocol":"none"}}`, protocol, endpoint, rate)
	}
	for _, c := range []struct {
		name   string
		wishes Wishes
		want   string
		warns  []string // a part of each
	}{
		{"nothing", Wishes{}, "off", nil},

		{"head, none", Wishes{Observability: head("none", "", 1), Endpoint: "http://c"}, "off", nil},
		{"head, gRPC", Wishes{Observability: head("grpc", "http://c:4317", 0.1)}, "grpc http://c:4317 rate 0.1 follow w3c b3", nil},
		{"head, HTTP, all", Wishes{Observability: head("http/protobuf", "http://c/v1/traces", 1)}, "http/protobuf http://c/v1/traces rate 1 w3c b3", nil},
		{"head, stdout, always", Wishes{Observability: head("stdout", "", 0)}, "stdout  rate 1 w3c b3", nil},
		{"head, rate 0", Wishes{Observability: head("grpc", "http://c", 0)}, "off", []string{"sampling rate 0"}},
		{"head, any case", Wishes{Observability: `{"Tracing":{"PROTOCOL":"grpc","Endpoint":"http://c","samplingrate":1}}`}, "grpc http://c rate 1 w3c b3", nil},
		{"head, address", Wishes{Observability: head("grpc", "10.0.0.1:4317", 1)}, "grpc 10.0.0.1:4317 rate 1 w3c b3", []string{"taken for http://10.0.0.1:4317"}},
		{"head, name", Wishes{Observability: head("grpc", "c:4317", 1)}, "grpc c:4317 rate 1 w3c b3", []string{"taken for https://c:4317"}},
		{"head, no endpoint", Wishes{Observability: head("grpc", "", 1)}, "off", []string{"no endpoint"}},
		{"head, bad endpoint", Wishes{Observability: head("grpc", "unix:///x", 1)}, "off", []string{"neither http nor https"}},
		{"head, bad protocol", Wishes{Observability: head("bogus", "http://c", 1)}, "off", []string{`"bogus"`}},
		{"head, bad rate", Wishes{Observability: head("grpc", "http://c", 7)}, "off", []string{"not from 0 to 1", "rate 0"}},
		{"head, a rate that is no number", Wishes{Observability: head("grpc", "http://c", `"a"`)}, "off", []string{"OBSERVABILITY_CONFIG", "rate 0"}},
		{"head, no JSON", Wishes{Observability: `{`}, "off", []string{"OBSERVABILITY_CONFIG"}},
		{"head says nothing of tracing", Wishes{Observability: `{"enableRequestLog":true}`, Endpoint: "http://c/x"}, "http/protobuf http://c/x rate 1 follow w3c b3", nil},
		{"head, OTEL overrides", Wishes{Observability: head("grpc", "http://c", 0.1), Protocol: "http/json", Endpoint: "http://d/x", SamplerArg: "0.5"},
			"http/json http://d/x rate 0.5 follow w3c b3", nil},
		{"head wins over 1.18", Wishes{Observability: head("grpc", "http://c", 1), Backend: "zipkin", ZipkinEndpoint: "http://z"}, "grpc http://c rate 1 w3c b3", nil},

		{"1.18, none", Wishes{Backend: "none", ZipkinEndpoint: "http://z"}, "off", nil},
		{"1.18, zipkin", Wishes{Backend: "zipkin", ZipkinEndpoint: "http://z:9411/api/v2/spans", SampleRate: 0.1}, "zipkin http://z:9411/api/v2/spans rate 0.1 follow w3c b3", nil},
		{"1.18, zipkin, rate 0 follows the client", Wishes{Backend: "zipkin", ZipkinEndpoint: "http://z"}, "zipkin http://z rate 0 follow w3c b3", nil},
		{"1.18, debug", Wishes{Backend: "zipkin", ZipkinEndpoint: "http://z", Debug: true}, "zipkin http://z rate 1 w3c b3", nil},
		{"1.18, no endpoint", Wishes{Backend: "zipkin", SampleRate: 1}, "off", []string{"no endpoint"}},
		{"1.18, OTEL's way is not Zipkin's", Wishes{Backend: "zipkin", ZipkinEndpoint: "http://z", SampleRate: 1, Endpoint: "http://d", Protocol: "grpc"}, "zipkin http://z rate 1 w3c b3", nil},

		{"OTEL, traces endpoint to the letter", Wishes{Endpoint: "http://c:4318"}, "http/protobuf http://c:4318/ rate 1 follow w3c b3", nil},
		{"OTEL, base endpoint", Wishes{BaseEndpoint: "http://c:4318/"}, "http/protobuf http://c:4318/v1/traces rate 1 follow w3c b3", nil},
		{"OTEL, base endpoint with a path", Wishes{BaseEndpoint: "http://c:4318/otlp"}, "http/protobuf http://c:4318/otlp/v1/traces rate 1 follow w3c b3", nil},
		{"OTEL, base endpoint and gRPC", Wishes{BaseEndpoint: "http://c:4317", BaseProtocol: "grpc"}, "grpc http://c:4317 rate 1 follow w3c b3", nil},
		{"OTEL, traces win", Wishes{BaseEndpoint: "http://c", Endpoint: "http://d/x", BaseProtocol: "grpc", Protocol: "http/json"}, "http/json http://d/x rate 1 follow w3c b3", nil},
		{"OTEL, no scheme", Wishes{BaseEndpoint: "10.0.0.1:4318"}, "http/protobuf http://10.0.0.1:4318/v1/traces rate 1 follow w3c b3", []string{"taken for http://"}},
		{"OTEL, disabled", Wishes{Disabled: true, Endpoint: "http://c", Observability: "{"}, "off", nil},
		{"OTEL, always_on", Wishes{Endpoint: "http://c/x", Sampler: "always_on"}, "http/protobuf http://c/x rate 1 w3c b3", nil},
		{"OTEL, always_off", Wishes{Endpoint: "http://c/x", Sampler: "always_off"}, "off", []string{"rate 0"}},
		{"OTEL, traceidratio", Wishes{Endpoint: "http://c/x", Sampler: "traceidratio", SamplerArg: "0.25"}, "http/protobuf http://c/x rate 0.25 w3c b3", nil},
		{"OTEL, parentbased_always_on", Wishes{Endpoint: "http://c/x", Sampler: "parentbased_always_on"}, "http/protobuf http://c/x rate 1 follow w3c b3", nil},
		{"OTEL, parentbased_always_off", Wishes{Endpoint: "http://c/x", Sampler: "parentbased_always_off"}, "http/protobuf http://c/x rate 0 follow w3c b3", nil},
		{"OTEL, parentbased_traceidratio", Wishes{Endpoint: "http://c/x", Sampler: "parentbased_traceidratio", SamplerArg: " 0.25"}, "http/protobuf http://c/x rate 0.25 follow w3c b3", nil},
		{"OTEL, ratio without an argument", Wishes{Endpoint: "http://c/x", Sampler: "traceidratio"}, "http/protobuf http://c/x rate 1 w3c b3", nil},
		{"OTEL, bad sampler and argument", Wishes{Endpoint: "http://c/x", Sampler: "xray", SamplerArg: "2"}, "http/protobuf http://c/x rate 1 follow w3c b3", []string{"ARG", "xray"}},
		{"OTEL, propagators", Wishes{Endpoint: "http://c/x", Propagators: []string{"tracecontext", "baggage"}}, "http/protobuf http://c/x rate 1 follow w3c", nil},
		{"OTEL, B3 propagators", Wishes{Endpoint: "http://c/x", Propagators: []string{"b3", "b3multi"}}, "http/protobuf http://c/x rate 1 follow b3 b3single", nil},
		{"OTEL, no propagators", Wishes{Endpoint: "http://c/x", Propagators: []string{"none"}}, "http/protobuf http://c/x rate 1 follow", nil},
		{"OTEL, other propagators", Wishes{Endpoint: "http://c/x", Propagators: []string{"tracecontext", "jaeger"}}, "http/protobuf http://c/x rate 1 follow w3c", []string{"jaeger"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, warnings := c.wishes.Options()
			if got := said(o); got != c.want {
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
			if o.Exporter != None && o.Exporter != Stdout {
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

func TestHeadersAndAttributesAreRead(t *testing.T) {
	o, warnings := Wishes{
		Endpoint: "http://c/x", Timeout: 3 * time.Second, ServiceName: "shop",
		BaseHeaders: "never=sent", Headers: "Authorization=Basic%20abc%3D, x-tenant = 7,bad name=1,x-bad=%0a",
		ResourceAttributes: "deployment.environment=prod,service.name=lost,team=a%2Cb",
	}.Options()
	if got := o.Header.Get("Authorization") + "|" + o.Header.Get("X-Tenant"); got != "Basic abc=|7" || len(o.Header) != 2 {
		t.Errorf("headers: got %v, want Authorization and X-Tenant", o.Header)
	}
	if len(warnings) != 2 || strings.Contains(strings.Join(warnings, ""), "abc") {
		t.Errorf("warnings: got %q, want two, without values", warnings)
	}
	if o.Timeout != 3*time.Second {
		t.Errorf("timeout: got %v, want 3s", o.Timeout)
	}
	want := map[string]string{"deployment.environment": "prod", "service.name": "lost", "team": "a,b"}
	if !maps.Equal(o.Resource.Attributes, want) {
		t.Errorf("attributes: got %v, want %v", o.Resource.Attributes, want)
	}
	if got := o.Resource.attributes()["service.name"]; got != "shop" {
		t.Errorf("service.name: got %v, want shop", got)
	}

	o, warnings = Wishes{Endpoint: "http://c/x", BaseHeaders: "secret", ResourceAttributes: "a=%zz"}.Options()
	if len(o.Header) != 0 || len(o.Resource.Attributes) != 0 || len(warnings) != 2 || strings.Contains(strings.Join(warnings, ""), "secret") {
		t.Errorf("got %v, %v, %q, want nothing and two warnings without values", o.Header, o.Resource.Attributes, warnings)
	}
}

func TestTheServiceHasTheFirstNameThatIsKnown(t *testing.T) {
	all := Resource{
		ServiceName: "otel", Attributes: map[string]string{"service.name": "attribute"},
		Service: "svc", Configuration: "cfg", Revision: "rev", Pod: "pod",
	}
	var got []string
	for _, forget := range []func(){
		func() {}, func() { all.ServiceName = "" }, func() { all.Attributes = nil }, func() { all.Service = "" },
		func() { all.Configuration = "" }, func() { all.Revision = "" }, func() { all.Pod = "" },
	} {
		forget()
		got = append(got, all.name())
	}
	if want := []string{"otel", "attribute", "svc", "cfg", "rev", "pod", "queue-proxy"}; !slices.Equal(got, want) {
		t.Errorf("names: got %v, want %v", got, want)
	}
	if v := (&Resource{}).attributes()["service.version"]; v != "unknown" {
		t.Errorf("service.version: got %v, want unknown", v)
	}
}
