package tracing

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// aMember is a member of a tracestate (W3C Trace Context 3.3.1.2).
var aMember = regexp.MustCompile(`^(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]$`)

// FuzzState compares with an expression of the members, whose keys must differ.
func FuzzState(f *testing.F) {
	f.Add("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
	f.Add("a=1, ,b@c=2\t,a=3")
	f.Add("a= x ,b=")
	f.Add("a=1,b=2")
	f.Add(" a=1 ,, \tb=2 3\t,")
	f.Add("a=1,a=2")
	f.Add("1a=1")
	f.Add("1a@b=1,x/y_z-*@s=2")
	f.Add("a@1=1")
	f.Add("a@b@c=1")
	f.Add("a==1")
	f.Add("a=,b")
	f.Add("a= 1")
	f.Add("_a=\x7f")
	f.Add(strings.Repeat("a", 256) + "=1")
	f.Add(strings.Repeat("a", 257) + "=1")
	f.Add(strings.Repeat("a", 241) + "@" + strings.Repeat("b", 14) + "=1")
	f.Add(strings.Repeat("a", 242) + "@b=1")
	f.Add("a@" + strings.Repeat("b", 15) + "=1")
	f.Add("a=" + strings.Repeat("1", 256))
	f.Add("a=" + strings.Repeat("1", 257))
	f.Add("a=" + strings.Repeat("1", 255) + ",b=" + strings.Repeat("1", 255))
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
		if got := shownState(s); got != strings.Join(want, ",") {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	})
}

// FuzzExporterConfig holds any settings to what an exporter needs: an endpoint that can
// be asked, and a rate that is one.
func FuzzExporterConfig(f *testing.F) {
	f.Add("grpc", "c:4317", 0.1, "", "", "", "", "", 0.0)
	f.Add("", "", 2.0, "zipkin", "http://z:9411/api/v2/spans", "", "", "traceidratio", 0.5)
	f.Add("", "", math.NaN(), "", "", "https://u:p@c:4318/x?y#z", "http/json", "parentbased_always_off", 0.0)
	f.Add("", "", -1.0, "", "", "[::1]", "http/protobuf", "", 1.0)
	f.Fuzz(func(t *testing.T, knative, endpoint string, rate float64, backend, zipkin, base, protocol, sampler string, arg float64) {
		if protocol != "" && !slices.Contains([]Exporter{OTLP, OTLPJSON, OTLPGRPC}, Exporter(protocol)) || !(arg >= 0 && arg <= 1) {
			return // config falls back
		}
		c := ExporterConfig{
			Protocol: knative, Endpoint: endpoint, SamplingRate: rate, Backend: backend, ZipkinEndpoint: zipkin, SampleRate: rate,
			Collector: Collector{BaseEndpoint: base, Protocol: protocol}, Sampler: sampler, SamplerArg: &arg,
		}
		o, _ := c.Options()
		if !(o.Sampling.Rate >= 0 && o.Sampling.Rate <= 1) && o.Exporter != None {
			t.Errorf("%+v: got the rate %v", c, o.Sampling.Rate)
		}
		switch o.Exporter {
		case None, Stdout:
		case OTLP, OTLPJSON, OTLPGRPC, Zipkin:
			send, release, err := newSender(&transport{exporter: o.Exporter, endpoint: o.Endpoint, timeout: time.Second, signal: traceSignal})
			if err != nil || send == nil {
				t.Fatalf("%+v: got an exporter to %q, which cannot be: %v", c, o.Endpoint, err)
			}
			release()
			target, err := resolve(o.Endpoint)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := resolve(target.String()); err != nil || again.String() != target.String() {
				t.Errorf("%q: got %v (%v), want %v again", o.Endpoint, again, err, target)
			}
		default:
			t.Errorf("%+v: got the exporter %q", c, o.Exporter)
		}
	})
}

// exportResponse is Export...ServiceResponse of opentelemetry-proto, as far as it
// matters; its Go package would bring a gateway.
var exportResponse = &descriptorpb.FileDescriptorProto{
	Name: proto.String("response.proto"), Syntax: proto.String("proto3"),
	MessageType: []*descriptorpb.DescriptorProto{
		{Name: proto.String("Partial"), Field: []*descriptorpb.FieldDescriptorProto{
			{Name: proto.String("rejected"), Number: proto.Int32(1), Type: descriptorpb.FieldDescriptorProto_TYPE_INT64.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()},
			{Name: proto.String("message"), Number: proto.Int32(2), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()},
		}},
		{Name: proto.String("Response"), Field: []*descriptorpb.FieldDescriptorProto{
			{Name: proto.String("partial"), Number: proto.Int32(1), Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String(".Partial"), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()},
		}},
	},
}

// FuzzRejected reads a collector's answer as protobuf's own parser does.
func FuzzRejected(f *testing.F) {
	f.Add([]byte("\x0a\x02\x08\x05"))
	f.Add([]byte("\x0a\x04\x12\x02no\x0a\x02\x08\x07"))
	f.Add([]byte("\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte("\x0a\x02\x08\x05\x0a\x03\x12\x01x"))
	file, err := protodesc.NewFile(exportResponse, nil)
	if err != nil {
		f.Fatal(err)
	}
	response := file.Messages().ByName("Response")
	partial := response.Fields().ByName("partial")
	rejected := partial.Message().Fields().ByName("rejected")
	f.Fuzz(func(t *testing.T, answer []byte) {
		got := rejectedProto(answer)
		m := dynamicpb.NewMessage(response)
		if proto.Unmarshal(answer, m) != nil || hasGroup(answer) {
			if got < 0 {
				t.Errorf("%x: got %d refused, want no fewer than none", answer, got)
			}
			return
		}
		want := min(max(m.Get(partial).Message().Get(rejected).Int(), 0), math.MaxInt32)
		if int64(got) != want {
			t.Errorf("%x: got %d refused, want %d", answer, got, want)
		}
	})
}

// hasGroup reports whether a message, or one in its first field, has a group (wire
// type 3), which nobody sends.
func hasGroup(m []byte) bool {
	for len(m) > 0 {
		number, kind, n := protowire.ConsumeTag(m)
		if n < 0 {
			return false
		}
		if kind == protowire.StartGroupType {
			return true
		}
		m = m[n:]
		if n = protowire.ConsumeFieldValue(number, kind, m); n < 0 {
			return false
		}
		if kind == protowire.BytesType && number == 1 {
			if inner, _ := protowire.ConsumeBytes(m); hasGroup(inner) {
				return true
			}
		}
		m = m[n:]
	}
	return false
}
