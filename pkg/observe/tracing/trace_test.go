package tracing

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opencensus.io/trace"
	"go.uber.org/goleak"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Package proxy uses a trace through this interface.
var _ proxy.Trace = (*Trace)(nil)

// exchange implements the methods of transport.Exchange that a Trace calls.
type exchange struct {
	transport.Exchange
	r *http.Request
}

func (x *exchange) Request() *http.Request { return x.r }

func (x *exchange) Header(name string) string { return strings.Trim(x.r.Header.Get(name), " \t") }

func (x *exchange) Line() transport.Line {
	return transport.Line{
		Method: x.r.Method, Target: x.r.RequestURI, Host: x.r.Host, Major: x.r.ProtoMajor, Minor: x.r.ProtoMinor,
		Remote: x.r.RemoteAddr, TLS: x.r.TLS != nil,
	}
}

func (x *exchange) Repeats(name string) bool { return len(x.r.Header[name]) > 1 }

// carrying returns a request with the given header.
func carrying(h http.Header) *exchange {
	return &exchange{r: &http.Request{Method: http.MethodGet, Header: h}}
}

// observe returns the observation of a successful request.
func observe(r *http.Request) *observation.Observation {
	x := &exchange{r: r}
	now := time.Now()
	return &observation.Observation{
		Exchange: x, Line: x.Line(), Start: now, Slot: now, End: now, Phase: observation.Streaming,
		Result: transport.Result{Status: 200, Begun: true, In: 3, Out: 5, FirstByte: now},
	}
}

// finish enters the phases of a request and ends the trace.
func finish(r *Trace, o *observation.Observation) {
	if !o.Slot.IsZero() {
		r.Enter(observation.Dialling)
	}
	if !o.FirstByte.IsZero() {
		r.Enter(observation.Streaming)
	}
	r.End(o)
}

// A recorder stores all spans of a tracer.
type recorder struct{ spans []*trace.SpanData }

// exportSpan stores a span with its attributes.
func (r *recorder) exportSpan(of *record) {
	stored := of.span // the record is reused
	s := &stored
	s.Annotations = slices.Clone(s.Annotations)
	s.Attributes = map[string]any{}
	for _, a := range of.attributes {
		s.Attributes[a.name] = [...]any{stringKind: a.text, trueKind: true, intKind: a.number}[a.kind]
	}
	r.spans = append(r.spans, s)
}

// recordSpans stores all further spans of the tracer.
func recordSpans(tracer *Tracer) *recorder {
	r := &recorder{}
	tracer.sink = r
	return r
}

// spansOf returns the spans of a request. Child spans precede the request span.
func spansOf(tracer *Tracer, x transport.Request, o *observation.Observation) []*trace.SpanData {
	r := recordSpans(tracer)
	finish(tracer.Begin(x), o)
	return r.spans
}

func get(target string) *observation.Observation {
	return observe(httptest.NewRequest(http.MethodGet, target, nil))
}

// newTracer returns a tracer that writes to standard output, which is discarded.
func newTracer(t testing.TB, s Sampling, f Formats) *Tracer {
	t.Helper()
	tracer, err := New(Options{Target: export.Target{Protocol: export.Stdout}, Output: io.Discard, Sampling: s, Formats: f})
	harness.NoError(t, err, "New")
	t.Cleanup(func() {
		if err := tracer.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Errorf("Close: got %v, want no error", err)
		}
	})
	return tracer
}

// onwards returns the header that the user container receives.
func onwards(r *Trace, in http.Header) http.Header {
	out := http.Header{}
	for name, values := range in {
		if !r.Drop(name) {
			out[name] = values
		}
	}
	for _, f := range r.Fields() {
		out[f.Name] = append(out[f.Name], f.Value)
	}
	return out
}

var (
	always = Sampling{Rate: 1}
	follow = Sampling{Follow: true}
)

func TestSampledSpanIsParentOfAppSpans(t *testing.T) {
	const w3c = "traceparent: 00-" + tid + "-" + sid + "-01"
	b3in := []string{"X-B3-TraceId: " + tid, "X-B3-SpanId: " + sid, "X-B3-Sampled: 1", "X-B3-ParentSpanId: " + short}
	for _, c := range []struct {
		name    string
		formats Formats
		in      []string
		want    []string // APP and SERVER are placeholders for span IDs
	}{
		{"W3C to W3C", inW3C, []string{w3c, "tracestate: a=1", "tracestate: b=2", "baggage: k=v"},
			[]string{"traceparent: 00-" + tid + "-APP-01", "tracestate: a=1", "tracestate: b=2", "baggage: k=v"}},
		{"W3C to both", inW3C | inB3, []string{w3c, "b3: 0", "X-B3-Flags: 1"},
			[]string{"traceparent: 00-" + tid + "-APP-01", "X-B3-Traceid: " + tid, "X-B3-Spanid: APP", "X-B3-Parentspanid: SERVER", "X-B3-Sampled: 1"}},
		{"B3 to both", inW3C | inB3, append(b3in, "tracestate: a=1", "Baggage: k=v"),
			[]string{"traceparent: 00-" + tid + "-APP-01", "X-B3-Traceid: " + tid, "X-B3-Spanid: APP", "X-B3-Parentspanid: SERVER", "X-B3-Sampled: 1", "Baggage: k=v"}},
		{"B3 to B3 single", inB3Single, append(b3in, "traceparent: stale", "tracestate: a=1"),
			[]string{"traceparent: stale", "tracestate: a=1", "b3: " + tid + "-APP-1-SERVER"}},
		{"B3 of 64 bits", inW3C | inB3, []string{"X-B3-TraceId: " + short, "X-B3-SpanId: " + sid, "X-B3-Flags: 1"},
			[]string{"traceparent: 00-" + strings.Repeat("0", 16) + short + "-APP-01", "X-B3-Traceid: " + short, "X-B3-Spanid: APP", "X-B3-Parentspanid: SERVER", "X-B3-Flags: 1"}},
		{"B3 single, debug", inB3 | inB3Single, []string{"b3: " + tid + "-" + sid + "-d"},
			[]string{"X-B3-Traceid: " + tid, "X-B3-Spanid: APP", "X-B3-Parentspanid: SERVER", "X-B3-Flags: 1", "b3: " + tid + "-APP-d-SERVER"}},
		{"none written", 0, append(b3in, w3c), append(b3in, w3c)},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := fields(c.in...)
			r := newTracer(t, always, c.formats).Begin(carrying(in))
			harness.Equal(t, r.ID(), r.id.String(), "ID")
			r.Enter(observation.Dialling)
			ours := strings.NewReplacer("APP", r.next.String(), "SERVER", r.server.String())
			want := strings.Split(ours.Replace(strings.Join(c.want, "\n")), "\n")
			harness.Equal(t, onwards(r, in), fields(want...), "onwards")
		})
	}
}

func TestUnsampledRequestForwardsClientSpan(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []string
		want []string
	}{
		{"W3C", []string{"traceparent: 00-" + tid + "-" + sid + "-00", "tracestate: a=1"},
			[]string{"traceparent: 00-" + tid + "-" + sid + "-00", "tracestate: a=1", "X-B3-Traceid: " + tid, "X-B3-Spanid: " + sid, "X-B3-Sampled: 0"}},
		{"W3C of a later version", []string{"traceparent: 42-" + tid + "-" + sid + "-80-x"},
			[]string{"traceparent: 00-" + tid + "-" + sid + "-00", "X-B3-Traceid: " + tid, "X-B3-Spanid: " + sid, "X-B3-Sampled: 0"}},
		{"B3", []string{"X-B3-TraceId: " + tid, "X-B3-SpanId: " + sid, "X-B3-ParentSpanId: " + short, "X-B3-Sampled: false"},
			[]string{"traceparent: 00-" + tid + "-" + sid + "-00", "X-B3-Traceid: " + tid, "X-B3-Spanid: " + sid, "X-B3-Sampled: 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := fields(c.in...)
			r := newTracer(t, follow, inW3C|inB3).Begin(carrying(in))
			harness.Equal(t, onwards(r, in), fields(c.want...), "onwards")
			harness.Equal(t, r.ID(), tid, "ID")
		})
	}
}

func TestB3DecisionWithoutTraceID(t *testing.T) {
	for line, want := range map[string]string{"b3: 0": "0", "b3: 1": "1", "X-B3-Sampled: 0": "0", "X-B3-Sampled: 1": "1", "X-B3-Nothing: 1": "0"} {
		in := fields(line)
		r := newTracer(t, follow, inB3).Begin(carrying(in))
		harness.Equal(t, onwards(r, in).Get(b3Sampled), want, line, "X-B3-Sampled")
		if r.id == (trace.TraceID{}) || r.next == (trace.SpanID{}) {
			t.Errorf("%s: got trace %v, span %v, want new IDs", line, r.id, r.next)
		}
	}
}

func TestDropIgnoresCase(t *testing.T) {
	r := newTracer(t, always, inW3C|inB3).Begin(carrying(http.Header{}))
	for _, name := range []string{"traceparent", "TraceState", "b3", "x-b3-traceid", "X-B3-SPANID", "X-B3-ParentSpanId", "X-B3-Sampled", "x-b3-flags"} {
		if !r.Drop(name) {
			t.Errorf("%s: got kept, want dropped", name)
		}
	}
	for _, name := range []string{"", "t", "b", "x", "Baggage", "Traceparents", "X-B3", "X-B3-Other", "X-Request-Id", "Te"} {
		if r.Drop(name) {
			t.Errorf("%s: got dropped, want kept", name)
		}
	}
}

func TestSamplingDecision(t *testing.T) {
	const w3c = "traceparent: 00-" + tid + "-" + sid
	const b3ids = tid + "-" + sid
	for _, c := range []struct {
		name            string
		sampling        Sampling
		line            string
		record, sampled bool
	}{
		{"always, new", always, "", true, true},
		{"always, against the client", always, w3c + "-00", true, true},
		{"follow sampled parent", follow, w3c + "-01", true, true},
		{"follow unsampled parent", Sampling{Rate: 1, Follow: true}, w3c + "-00", false, false},
		{"follow, new", follow, "", false, false},
		{"follow, new, rate 1", Sampling{Rate: 1, Follow: true}, "", true, true},
		{"follow, B3 undecided", Sampling{Rate: 1, Follow: true}, "b3: " + b3ids, true, true},
		{"debug", Sampling{Rate: math.SmallestNonzeroFloat64}, "b3: " + b3ids + "-d", true, true},
		{"sampled parent is forwarded although the parent is not followed", Sampling{Rate: math.SmallestNonzeroFloat64}, w3c + "-01", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTracer(t, c.sampling, inW3C).Begin(carrying(fields(c.line)))
			if record := r.traced; record != c.record || r.sampled != c.sampled {
				t.Errorf("got record %t, sampled %t, want %t, %t", record, r.sampled, c.record, c.sampled)
			}
		})
	}
}

func TestSamplingRateAppliesToShortIDs(t *testing.T) {
	tracer := newTracer(t, Sampling{Rate: 0.25, Follow: true}, inW3C)
	for _, digits := range []int{32, 16} {
		const n = 4000
		recorded := 0
		for range n {
			id, span := newTraceID().String()[32-digits:], newSpanID().String()
			if tracer.Begin(carrying(fields("b3: " + id + "-" + span))).traced {
				recorded++
			}
		}
		if recorded < n/5 || recorded > n*3/10 { // 1000 plus or minus 7 standard deviations
			t.Errorf("%d digits: got %d of %d, want about a quarter", digits, recorded, n)
		}
	}
}

func TestNewReturnsNilWithoutExporter(t *testing.T) {
	for _, o := range []Options{
		{}, {Target: export.Target{Protocol: export.None}, Sampling: always},
		{Target: export.Target{Protocol: export.Zipkin, Endpoint: "http://zipkin"}},
	} {
		tracer, err := New(o)
		if tracer != nil || err != nil {
			t.Errorf("%+v: got %v, %v, want nil, nil", o, tracer, err)
		}
	}
	var tracer *Tracer
	harness.Equal(t, tracer.Close(t.Context()), nil, "Close")
}

func TestUnsampledRequestDoesNotAllocate(t *testing.T) {
	followed := newTracer(t, follow, inW3C|inB3)
	o := get("/")
	for _, c := range []struct {
		name   string
		tracer *Tracer
		in     http.Header
	}{
		{"not sampled by the client", followed, fields("traceparent: 00-" + tid + "-" + sid + "-00")},
		{"not sampled by the client, in B3", followed, fields("X-B3-TraceId: "+tid, "X-B3-SpanId: "+sid, "X-B3-Sampled: 0")},
		{"a new trace", followed, http.Header{}},
	} {
		x := carrying(c.in)
		got := testing.AllocsPerRun(100, func() {
			r := c.tracer.Begin(x)
			_ = r.ID()
			r.Enter(observation.Dialling)
			r.Fields()
			r.Enter(observation.Streaming)
			r.End(o)
		})
		harness.Equal(t, got, 0, c.name, "allocations")
	}
}

func BenchmarkTrace(b *testing.B) {
	o := get("/a?b=c")
	for _, c := range []struct {
		name     string
		sampling Sampling
		in       http.Header
	}{
		{"not sampled, parent", follow, fields("traceparent: 00-" + tid + "-" + sid + "-00")},
		{"not sampled, new", follow, http.Header{}},
		{"sampled", always, fields("traceparent: 00-" + tid + "-" + sid + "-01")},
	} {
		b.Run(c.name, func(b *testing.B) {
			tracer := newTracer(b, c.sampling, inW3C|inB3)
			x := carrying(c.in)
			b.ReportAllocs()
			for b.Loop() {
				r := tracer.Begin(x)
				r.Enter(observation.Dialling)
				r.Fields()
				r.Enter(observation.Streaming)
				r.End(o)
			}
		})
	}
}
