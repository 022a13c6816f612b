package tracing

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestServerSpanRouteTag(t *testing.T) {
	tracer := newTracer(t, always, inW3C)
	for _, c := range []struct{ tag, byDefault, want string }{
		{"", "", "kn:disabled"},
		{"", "true", "kn:default"},
		{"blue", "true", "kn:undefined"},
		{"blue", "", "blue"},
		{"blue", "false", "blue"},
		{"Blue", "", "kn:tagged"},
		{"kn:default", "", "kn:tagged"},
		{strings.Repeat("a", 64), "", "kn:tagged"},
	} {
		in := http.Header{"Knative-Serving-Tag": {c.tag}, "Knative-Serving-Default-Route": {c.byDefault}}
		o := get("/")
		o.Exchange = carrying(in)
		spans := spansOf(tracer, carrying(in), o)
		last := len(spans) - 1
		harness.Equal[any](t, spans[last].Attributes["kn.route.tag"], c.want, "tag", c.tag, "default", c.byDefault)
		for _, s := range spans[:last] {
			if got, ok := s.Attributes["kn.route.tag"]; ok {
				t.Errorf("%s: got tag %v, want a tag only in the server span", s.Name, got)
			}
		}
	}
}

// Spans are created at the end of the request, but their times must be the times of the phases.
func TestSpanTimesMatchPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer := unstarted(Options{Sampling: always, Limited: true})
		recorded := recordSpans(tracer)
		r := tracer.Begin(carrying(http.Header{}))
		began := time.Now()
		time.Sleep(2 * time.Millisecond)
		r.Enter(observation.Dialling)
		r.Enter(observation.Waiting)
		time.Sleep(3 * time.Millisecond)
		r.Enter(observation.Streaming)
		time.Sleep(5 * time.Millisecond)
		r.End(get("/"))
		var got []string
		for _, s := range recorded.spans {
			got = append(got, fmt.Sprint(s.Name, " ", s.StartTime.Sub(began), " ", s.EndTime.Sub(began)))
			for _, a := range s.Annotations {
				got = append(got, fmt.Sprint(a.Message, " ", a.Time.Sub(began)))
			}
		}
		want := []string{waitName + " 0s 2ms", "HTTP GET 2ms 10ms", "first byte 5ms", "GET 0s 10ms"}
		harness.Equal(t, got, want, "spans")
	})
}

// A rejected request has a span for the wait even if slots are not limited.
func TestRejectedRequestHasWaitSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limited := range []bool{false, true} {
			w := &wire{}
			e := w.start()
			e.format = newZipkin(&export.Resource{})
			o := get("/")
			o.Status, o.Reason = 503, observation.Draining
			tracer := unstarted(Options{Sampling: always, Limited: limited})
			tracer.sink = e
			r := tracer.Begin(carrying(http.Header{}))
			time.Sleep(7 * time.Millisecond)
			r.End(o)
			mustClose(t, e)
			var got []string
			for _, s := range zipkinSpans(w.body) {
				got = append(got, fmt.Sprint(s.name, " ", s.micros, " ", s.failed))
			}
			harness.Equal(t, got, []string{waitName + " 7000 draining", "GET 7000 draining"}, "spans, limited", limited)
		}
	})
}

// The response to an upgrade has no body. Its header is recorded as the first byte.
func TestUpgradeSpanHasFirstByteEvent(t *testing.T) {
	tracer := unstarted(Options{Sampling: always})
	recorded := recordSpans(tracer)
	r := tracer.Begin(carrying(http.Header{}))
	r.Enter(observation.Dialling)
	r.Enter(observation.Tunnelled)
	r.End(get("/"))
	if got := recorded.spans[0].Annotations; len(got) != 1 || got[0].Message != "first byte" {
		t.Errorf("%s: got %v, want the first byte", recorded.spans[0].Name, got)
	}
}

func TestStatusOfResetStreamIsOmitted(t *testing.T) {
	o := get("/")
	o.Status, o.Reason, o.Reset, o.FirstByte = 502, observation.AppReset, true, time.Time{}
	for _, s := range spansOf(newTracer(t, always, inW3C), carrying(http.Header{}), o) {
		harness.Equal(t, s.Attributes["http.response.status_code"], nil, s.Name, "status")
		harness.Equal(t, s.Attributes["queueproxy.reset"] == true, s.SpanKind == trace.SpanKindServer, s.Name, "reset")
	}
}

func TestSpansContainGRPCStatus(t *testing.T) {
	tracer := newTracer(t, always, inW3C)
	for _, c := range []struct {
		status      observation.GRPCStatus
		code        any
		app, server string // error.type of the spans
	}{
		{0, nil, "", ""},
		{observation.GRPCStatusOf(0), int64(0), "", ""},
		{observation.GRPCStatusOf(5), int64(5), "NOT_FOUND", ""},
		{observation.GRPCStatusOf(14), int64(14), "UNAVAILABLE", "UNAVAILABLE"},
		{observation.GRPCMissing, nil, "none", "none"},
	} {
		o := get("/")
		o.RPC = c.status
		spans := spansOf(tracer, carrying(http.Header{}), o)
		for i, want := range []string{c.app, c.server} {
			s := spans[len(spans)-2+i]
			harness.Equal(t, s.Attributes["rpc.grpc.status_code"], c.code, s.Name, c.status)
			kind, _ := s.Attributes["error.type"].(string)
			harness.Equal(t, kind, want, s.Name, c.status)
			harness.Equal(t, s.Code != 0, want != "", s.Name, c.status)
		}
	}
}
