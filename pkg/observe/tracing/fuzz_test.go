package tracing

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// aMember matches a member of a tracestate (W3C Trace Context 3.3.1.2).
var aMember = regexp.MustCompile(`^(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]$`)

// FuzzState compares shownState with a regular expression for the members and a check for duplicate
// keys.
func FuzzState(f *testing.F) {
	for _, state := range []string{
		"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "a=1, ,b@c=2\t,a=3", "a= x ,b=", "a=1,b=2", " a=1 ,, \tb=2 3\t,", "a=1,a=2",
		"1a=1", "1a@b=1,x/y_z-*@s=2", "a@1=1", "a@b@c=1", "a==1", "a=,b", "a= 1", "_a=\x7f",
		strings.Repeat("a", 256) + "=1", strings.Repeat("a", 257) + "=1", // keys
		strings.Repeat("a", 241) + "@" + strings.Repeat("b", 14) + "=1", strings.Repeat("a", 242) + "@b=1", "a@" + strings.Repeat("b", 15) + "=1",
		"a=" + strings.Repeat("1", 256), "a=" + strings.Repeat("1", 257), // values
		"a=" + strings.Repeat("1", 255) + ",b=" + strings.Repeat("1", 255), // total length
	} {
		f.Add(state)
	}
	var many []string
	for i := range 33 {
		many = append(many, "k"+strconv.Itoa(i)+"=v")
	}
	f.Add(strings.Join(many, ","))
	f.Add(strings.Join(many[1:], ","))
	f.Fuzz(func(t *testing.T, s string) {
		var want []string
		keys := map[string]bool{}
		good := len(s) <= 512
		for member := range strings.SplitSeq(s, ",") {
			if member = strings.Trim(member, " \t"); member == "" {
				continue
			}
			key, _, _ := strings.Cut(member, "=")
			good = good && aMember.MatchString(member) && !keys[key]
			keys[key] = true
			want = append(want, member)
		}
		if !good || len(want) > 32 {
			want = nil
		}
		harness.Equal(t, shownState(s), strings.Join(want, ","), s)
	})
}

// FuzzExporterConfig checks that every configuration results in a valid endpoint and sampling rate.
func FuzzExporterConfig(f *testing.F) {
	f.Add("grpc", "c:4317", 0.1, "", "", "", "", "", 0.0)
	f.Add("", "", 2.0, "zipkin", "http://z:9411/api/v2/spans", "", "", "traceidratio", 0.5)
	f.Add("", "", math.NaN(), "", "", "https://u:p@c:4318/x?y#z", "http/json", "parentbased_always_off", 0.0)
	f.Add("", "", -1.0, "", "", "[::1]", "http/protobuf", "", 1.0)
	f.Fuzz(func(t *testing.T, knative, endpoint string, rate float64, backend, zipkin, base, protocol, sampler string, arg float64) {
		if protocol != "" && !slices.Contains([]export.Protocol{export.OTLP, export.OTLPJSON, export.OTLPGRPC}, export.Protocol(protocol)) || !(arg >= 0 && arg <= 1) {
			return // package config replaces these values with defaults
		}
		c := ExporterConfig{
			Settings:     export.Settings{Protocol: knative, Endpoint: endpoint, Collector: export.Collector{BaseEndpoint: base, Protocol: protocol}},
			SamplingRate: rate, Backend: backend, ZipkinEndpoint: zipkin, SampleRate: rate, Sampler: sampler, SamplerArg: &arg,
		}
		o, _ := c.Options()
		if !(o.Sampling.Rate >= 0 && o.Sampling.Rate <= 1) && o.Protocol != export.None {
			t.Errorf("%+v: got the rate %v, want 0 to 1", c, o.Sampling.Rate)
		}
		switch o.Protocol {
		case export.None, export.Stdout:
		case export.OTLP, export.OTLPJSON, export.OTLPGRPC, export.Zipkin:
			send, release, err := export.New(export.Target{Protocol: o.Protocol, Endpoint: o.Endpoint, Timeout: time.Second, Signal: export.Traces})
			if err != nil || send == nil {
				t.Fatalf("%+v: got the invalid endpoint %q (%v), want a valid endpoint", c, o.Endpoint, err)
			}
			release()
		default:
			t.Errorf("%+v: got the unknown protocol %q, want a known protocol", c, o.Protocol)
		}
	})
}
