package tracing

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
	ocb3 "go.opencensus.io/plugin/ochttp/propagation/b3"
	octrace "go.opencensus.io/plugin/ochttp/propagation/tracecontext"
	"go.opencensus.io/trace"
)

const (
	tid   = "4bf92f3577b34da6a3ce929d0e0e4736"
	sid   = "00f067aa0ba902b7"
	short = "a3ce929d0e0e4736"
)

// fields returns a header from lines of the form "name: value".
func fields(lines ...string) http.Header {
	h := http.Header{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ":")
		h.Add(name, strings.TrimPrefix(value, " "))
	}
	return h
}

func TestParseTraceHeaders(t *testing.T) {
	id := trace.TraceID{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36}
	low := trace.TraceID{8: 0xa3, 9: 0xce, 10: 0x92, 11: 0x9d, 12: 0x0e, 13: 0x0e, 14: 0x47, 15: 0x36}
	span := trace.SpanID{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7}
	w3c := func(d decision) parent { return parent{id: id, span: span, decision: d, w3c: true} }
	b3of := func(d decision) parent { return parent{id: id, span: span, decision: d} }
	none := parent{}

	for _, c := range []struct {
		name  string
		lines []string
		want  parent
	}{
		{"nothing", nil, none},
		{"W3C, sampled", []string{"traceparent: 00-" + tid + "-" + sid + "-01"}, w3c(yes)},
		{"W3C, not sampled", []string{"traceparent: 00-" + tid + "-" + sid + "-00"}, w3c(no)},
		{"W3C, other flags", []string{"traceparent: 00-" + tid + "-" + sid + "-fe"}, w3c(no)},
		{"W3C, blanks around", []string{"traceparent: \t00-" + tid + "-" + sid + "-01 "}, w3c(yes)},
		{"W3C, later version", []string{"traceparent: cc-" + tid + "-" + sid + "-01"}, w3c(yes)},
		{"W3C, later version with more", []string{"traceparent: cc-" + tid + "-" + sid + "-01-more"}, w3c(yes)},
		{"W3C, later version with more and no dash", []string{"traceparent: cc-" + tid + "-" + sid + "-01.more"}, none},
		{"W3C, version 0 with more", []string{"traceparent: 00-" + tid + "-" + sid + "-01-more"}, none},
		{"W3C, version ff", []string{"traceparent: ff-" + tid + "-" + sid + "-01"}, none},
		{"W3C, upper case", []string{"traceparent: 00-" + strings.ToUpper(tid) + "-" + sid + "-01"}, none},
		{"W3C, zero trace", []string{"traceparent: 00-" + strings.Repeat("0", 32) + "-" + sid + "-01"}, none},
		{"W3C, zero span", []string{"traceparent: 00-" + tid + "-" + strings.Repeat("0", 16) + "-01"}, none},
		{"W3C, too short", []string{"traceparent: 00-" + tid + "-" + sid + "-0"}, none},
		{"W3C, no dash", []string{"traceparent: 00-" + tid + "_" + sid + "-01"}, none},
		{"W3C, flags that are not digits", []string{"traceparent: 00-" + tid + "-" + sid + "-0x"}, none},
		{"W3C twice", []string{"traceparent: 00-" + tid + "-" + sid + "-01", "traceparent: 00-" + tid + "-" + sid + "-01"}, none},
		{"B3, sampled", []string{"X-B3-TraceId: " + tid, "X-B3-SpanId: " + sid, "X-B3-Sampled: 1"}, b3of(yes)},
		{"B3, true", []string{"X-B3-TraceId: " + tid, "X-B3-SpanId: " + sid, "X-B3-Sampled: true"}, b3of(yes)},
		{"B3, not sampled", []string{"X-B3-TraceId: " + tid, "X-B3-SpanId: " + sid, "X-B3-Sampled: 0"}, b3of(no)},
		{"B3, undecided", []string{"X-B3-TraceId: " + tid, "X-B3-SpanId: " + sid}, b3of(undecided)},
		{"B3, debug wins", []string{"X-B3-TraceId: " + tid, "X-B3-SpanId: " + sid, "X-B3-Sampled: 0", "X-B3-Flags: 1"}, b3of(debug)},
		{"B3, upper case", []string{"X-B3-TraceId: " + strings.ToUpper(tid), "X-B3-SpanId: " + strings.ToUpper(sid)}, b3of(undecided)},
		{"B3, 64 bits", []string{"X-B3-TraceId: " + short, "X-B3-SpanId: " + sid}, parent{id: low, span: span, short: true}},
		{"B3, odd length", []string{"X-B3-TraceId: " + tid[1:], "X-B3-SpanId: " + sid, "X-B3-Sampled: 1"}, parent{decision: yes}},
		{"B3, no span", []string{"X-B3-TraceId: " + tid, "X-B3-Sampled: 1"}, parent{decision: yes}},
		{"B3, only a decision", []string{"X-B3-Sampled: 0"}, parent{decision: no}},
		{"B3, zero trace", []string{"X-B3-TraceId: " + strings.Repeat("0", 32), "X-B3-SpanId: " + sid}, none},
		{"B3 single", []string{"b3: " + tid + "-" + sid + "-1"}, b3of(yes)},
		{"B3 single with a parent", []string{"b3: " + tid + "-" + sid + "-d-" + short}, b3of(debug)},
		{"B3 single, undecided", []string{"b3: " + tid + "-" + sid}, b3of(undecided)},
		{"B3 single, 64 bits", []string{"b3: " + short + "-" + sid + "-0"}, parent{id: low, span: span, short: true, decision: no}},
		{"B3 single, only a decision", []string{"b3: 0"}, parent{decision: no}},
		{"B3 single, only debug", []string{"b3: d"}, parent{decision: debug}},
		{"B3 single, unknown state", []string{"b3: " + tid + "-" + sid + "-x"}, none},
		{"B3 single, empty state", []string{"b3: " + tid + "-" + sid + "-"}, none},
		{"B3 single, bad parent", []string{"b3: " + tid + "-" + sid + "-1-xyz"}, none},
		{"B3 single, extra fields", []string{"b3: " + tid + "-" + sid + "-1-" + sid + "-"}, none},
		{"W3C before B3", []string{"traceparent: 00-" + tid + "-" + sid + "-00", "X-B3-TraceId: " + short, "X-B3-SpanId: " + sid, "X-B3-Sampled: 1", "b3: 1"}, w3c(no)},
		{"bad W3C, then B3", []string{"traceparent: 00-x", "X-B3-TraceId: " + tid, "X-B3-SpanId: " + sid, "b3: 1"}, b3of(undecided)},
		{"B3 before B3 single", []string{"X-B3-TraceId: " + tid, "X-B3-SpanId: " + sid, "b3: " + short + "-" + sid + "-1"}, b3of(undecided)},
		{"bad B3, then B3 single", []string{"X-B3-TraceId: zz", "X-B3-SpanId: " + sid, "b3: " + tid + "-" + sid + "-1"}, b3of(yes)},
	} {
		harness.Equal(t, parentOf(carrying(fields(c.lines...))), c.want, c.name)
	}
}

// Regular expressions for the formats in the specifications. The function spelt also checks that IDs are not zero.
var (
	traceparentFormat = regexp.MustCompile(`^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}|([1-9a-f][0-9a-f]|0[1-9a-f])-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-(?s:.*))?)$`)
	b3Format          = regexp.MustCompile(`^(([0-9a-fA-F]{16}){1,2}-[0-9a-fA-F]{16}(-[01d](-[0-9a-fA-F]{16})?)?|[01d])$`)
)

// spelt reports whether s matches a format and contains no zero ID.
func spelt(format *regexp.Regexp, s string, traceAt, spanAt int) bool {
	parts := strings.Split(s, "-")
	return format.MatchString(s) && (len(parts) == 1 || strings.Trim(parts[traceAt], "0") != "" && strings.Trim(parts[spanAt], "0") != "")
}

// FuzzParseTraceHeaders verifies that this package accepts exactly the fields that the specifications permit, and
// that OpenCensus returns the same result for these fields. OpenCensus also accepts other fields.
func FuzzParseTraceHeaders(f *testing.F) {
	f.Add("00-"+tid+"-"+sid+"-01", tid, sid, "1", "", tid+"-"+sid+"-d-"+sid)
	f.Add("cc-"+tid+"-"+sid+"-01-x", short, sid, "true", "1", "0")
	f.Add("ff-", "\xff", "-", "d", "0", "-----")
	f.Add("00-"+tid+"-"+sid+"-01-", strings.ToUpper(tid), strings.ToUpper(sid), "0", "1", short+"-"+sid+"-1-"+sid+"-")
	f.Add("00-"+strings.Repeat("0", 32)+"-"+sid+"-01", tid, strings.Repeat("0", 16), "", "", tid+"-"+sid+"-")
	f.Fuzz(func(t *testing.T, traceparent, id, span, sampled, flags, single string) {
		if _, got := parseTraceparent(traceparent); got != (traceparent[:min(len(traceparent), 2)] != "ff" && spelt(traceparentFormat, traceparent, 1, 2)) {
			t.Errorf("traceparent %q: got accepted %t, want %t", traceparent, got, !got)
		}
		if _, got := parseB3Single(single); got != spelt(b3Format, single, 0, 1) {
			t.Errorf("b3 %q: got accepted %t, want %t", single, got, !got)
		}
		if p, ok := parseTraceparent(traceparent); ok && traceparent[:2] == "00" { // OpenCensus supports only version 00
			want, ok := (&octrace.HTTPFormat{}).SpanContextFromRequest(&http.Request{Header: http.Header{"Traceparent": {traceparent}}})
			if !ok || want.TraceID != p.id || want.SpanID != p.span || want.IsSampled() != (p.decision == yes) {
				t.Errorf("%q: got %+v, want %+v", traceparent, p, want)
			}
		}
		if p, ok := parseB3(id, span, b3Decision("", sampled)); ok {
			r := &http.Request{Header: http.Header{b3TraceID: {id}, b3SpanID: {span}, b3Sampled: {sampled}}}
			want, ok := (&ocb3.HTTPFormat{}).SpanContextFromRequest(r)
			if !ok || want.TraceID != p.id || want.SpanID != p.span || want.IsSampled() != (p.decision == yes) {
				t.Errorf("%q %q: got %+v, want %+v", id, span, p, want)
			}
		}
		if p, ok := parseB3Single(single); ok && p.id != (trace.TraceID{}) {
			if got := strings.ToLower(single); !strings.HasPrefix(got, p.id.String()[32-strings.Index(single, "-"):]+"-"+p.span.String()) {
				t.Errorf("%q: got %+v, want the IDs of the header", single, p)
			}
		}

		// The outgoing fields are always valid.
		h := http.Header{"Traceparent": {traceparent}, b3TraceID: {id}, b3SpanID: {span}, b3Sampled: {sampled}, b3Flags: {flags}, b3: {single}}
		tracer := unstarted(Options{Sampling: Sampling{Rate: 0.5, Follow: true}, Formats: inW3C | inB3 | inB3Single})
		r := tracer.Begin(carrying(h))
		r.Enter(observation.Dialling)
		out := http.Header{}
		for _, f := range r.Fields() {
			out.Set(f.Name, f.Value)
		}
		harness.Equal(t, len(out.Get("Traceparent")), 55, "bytes of traceparent")
		again := parentOf(carrying(out))
		if again.id != r.id || again.span != r.next || again.decision >= yes != r.sampled {
			t.Errorf("%v: got %+v, want trace %v, span %v, sampled %t", out, again, r.id, r.next, r.sampled)
		}
		if p, ok := parseB3(out.Get(b3TraceID), out.Get(b3SpanID), yes); !ok || p.id != r.id || p.span != r.next {
			t.Errorf("B3: got %v, want trace %v, span %v", out, r.id, r.next)
		}
		if p, ok := parseB3Single(out.Get(b3)); !ok || p.id != r.id || p.span != r.next {
			t.Errorf("B3 single: got %v, want trace %v, span %v", out, r.id, r.next)
		}
	})
}
