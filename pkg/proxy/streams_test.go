package proxy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// responding starts to serve a request, and returns it when its response has begun. The response ends
// when end is closed. The other arguments are the method of the request, and the media types of the
// request and of the response.
func (h *testProxy) responding(method, requestType, responseType string, end <-chan struct{}) *fake {
	f := newFake("/", transport.ContentType, requestType)
	f.request.Method = method
	f.app = func(state *RequestState) transport.Result {
		state.Respond(responseType)
		<-end
		return transport.Result{Status: 200, Begun: true}
	}
	h.begin(f)
	return f
}

func TestDrainDoesNotWaitForStreams(t *testing.T) {
	for _, c := range []struct {
		name, method, requestType, responseType string
		wait                                    bool // DRAIN_STREAMS
		want                                    ended
	}{
		{"events", "GET", "", "text/event-stream", false, ended{OnlyStreams, 30 * time.Second}},
		{"events with a charset", "GET", "", "Text/Event-Stream ; charset=utf-8", false, ended{OnlyStreams, 30 * time.Second}},
		{"a gRPC stream", "POST", "application/grpc+proto", "application/grpc", false, ended{OnlyStreams, 30 * time.Second}},
		{"events with DRAIN_STREAMS", "GET", "", "text/event-stream", true, ended{Drained, 100 * time.Second}},
		{"events in response to POST", "POST", "", "text/event-stream", false, ended{Drained, 100 * time.Second}},
		{"a media type with the same prefix", "GET", "", "text/event-streams", false, ended{Drained, 100 * time.Second}},
		{"a download", "GET", "", "application/octet-stream", false, ended{Drained, 100 * time.Second}},
		{"gRPC response to another request", "GET", "", "application/grpc", false, ended{Drained, 100 * time.Second}},
		{"a gRPC call with a text response", "POST", "application/grpc", "text/plain", false, ended{Drained, 100 * time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newTestProxy()
				h.Drain.settings.WaitForStreams = c.wait
				end := make(chan struct{})
				h.responding(c.method, c.requestType, c.responseType, end)
				h.Drain.Begin(true)
				drained := wait(h.Drain)
				time.Sleep(100 * time.Second)
				close(end)
				harness.Equal(t, <-drained, c.want, "wait")
				synctest.Wait()
				h.empty(t)
			})
		})
	}
}

func TestDrainWaitsForGRPCCallAnsweredDuringDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Drain.Begin(false) // this drain is undone
		end := make(chan struct{})
		h.responding("POST", transport.GRPC, transport.GRPC, end)
		time.Sleep(time.Minute)
		harness.Equal(t, h.Drain.Streams(), 0, "streams between two drains")
		h.Drain.Begin(true)
		harness.Equal(t, <-wait(h.Drain), ended{OnlyStreams, 30 * time.Second}, "wait for a call answered before the drain")
		close(end)
		synctest.Wait()

		h = newTestProxy()
		h.Drain.Begin(true)
		end = make(chan struct{})
		h.responding("POST", transport.GRPC, transport.GRPC, end)
		drained := wait(h.Drain)
		time.Sleep(time.Minute)
		close(end)
		harness.Equal(t, <-drained, ended{Drained, time.Minute}, "wait for a call answered during the drain")
	})
}

func TestDrainClosingRejectsNewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		end := make(chan struct{})
		stream := h.responding("GET", "", "text/event-stream", end)
		h.Drain.Begin(true)
		late := newFake("/late")
		time.Sleep(20 * time.Second)
		h.serve(late)
		harness.Equal(t, h.of(t, late).Reason, observation.OK, "request during the quiet period")
		harness.Equal(t, <-wait(h.Drain), ended{OnlyStreams, 30 * time.Second}, "wait")

		tooLate := h.serve(newFake("/too-late").worksUntil(nil))
		harness.Equal(t, h.of(t, tooLate).Reason, observation.Draining, "request after the quiet period")
		harness.Equal(t, stream.state.expired(), observation.OK, "expiry of the stream")
		harness.Equal(t, <-wait(h.Drain), ended{OnlyStreams, 0}, "second wait, without a new quiet period")
		close(end)
		harness.Equal(t, h.Drain.Empty(context.Background()), nil, "Empty after the end of the stream")
		harness.Equal(t, <-wait(h.Drain), ended{Drained, 0}, "wait after the end of the stream")
		h.empty(t)
	})
}

// While only the app restarts, new requests are served, even if the quiet period has ended before
// undoAfter and the app is ending its streams.
func TestAppRestartRejectsNoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Drain = NewDrain(DrainSettings{Quiet: time.Second / 2, Deadline: time.Minute})
		end := make(chan struct{})
		defer close(end)
		h.responding("GET", "", "text/event-stream", end)
		h.Drain.Begin(false)
		harness.Equal(t, <-wait(h.Drain), ended{OnlyStreams, time.Second / 2}, "wait of the preStop hook")
		f := h.serve(newFake("/"))
		harness.Equal(t, h.of(t, f).Reason, observation.OK, "reason of a new request")
	})
}
