package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// responding serves a request of method and request content type whose response, of
// the other content type, has begun, until end is closed.
func (h *house) responding(method, requestType, responseType string, end <-chan struct{}) *fake {
	f := newFake("/", header.ContentType, requestType)
	f.request.Method = method
	f.app = func(state *RequestState) Result {
		state.Respond(responseType)
		<-end
		return Result{Status: 200, Begun: true}
	}
	h.start(f)
	synctest.Wait()
	return f
}

func TestOnlyStreamsAreNotWaitedFor(t *testing.T) {
	for _, c := range []struct {
		name, method, requestType, responseType string
		wait                                    bool // DRAIN_STREAMS
		want                                    ended
	}{
		{"events", "GET", "", "text/event-stream", false, ended{OnlyStreams, 30 * time.Second}},
		{"events with a charset", "GET", "", "Text/Event-Stream ; charset=utf-8", false, ended{OnlyStreams, 30 * time.Second}},
		{"a gRPC stream", "POST", "application/grpc+proto", "application/grpc", false, ended{OnlyStreams, 30 * time.Second}},
		{"events, waited for", "GET", "", "text/event-stream", true, ended{Drained, 100 * time.Second}},
		{"events that answer a POST", "POST", "", "text/event-stream", false, ended{Drained, 100 * time.Second}},
		{"a media type that begins so", "GET", "", "text/event-streams", false, ended{Drained, 100 * time.Second}},
		{"a download", "GET", "", "application/octet-stream", false, ended{Drained, 100 * time.Second}},
		{"a response that says gRPC to a request that does not", "GET", "", "application/grpc", false, ended{Drained, 100 * time.Second}},
		{"a gRPC call that is refused", "POST", "application/grpc", "text/plain", false, ended{Drained, 100 * time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse()
				h.Drain.settings.WaitForStreams = c.wait
				end := make(chan struct{})
				h.responding(c.method, c.requestType, c.responseType, end)
				h.Drain.Begin(true)
				drained := wait(h.Drain)
				time.Sleep(100 * time.Second)
				close(end)
				expect(t, "wait", <-drained, c.want)
				synctest.Wait()
				h.empty(t)
			})
		})
	}
}

func TestAGRPCCallThatIsAnsweredDuringTheDrainIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		h.Drain.Begin(false) // and undone
		end := make(chan struct{})
		h.responding("POST", header.GRPC, header.GRPC, end)
		time.Sleep(time.Minute)
		expect(t, "streams, once that drain is undone and until the next begins", h.Drain.Streams(), 0)
		h.Drain.Begin(true)
		expect(t, "wait, for one that was answered before", <-wait(h.Drain), ended{OnlyStreams, 30 * time.Second})
		close(end)
		synctest.Wait()

		h = newHouse()
		h.Drain.Begin(true)
		end = make(chan struct{})
		h.responding("POST", header.GRPC, header.GRPC, end)
		drained := wait(h.Drain)
		time.Sleep(time.Minute)
		close(end)
		expect(t, "wait, for one that is answered now", <-drained, ended{Drained, time.Minute})
	})
}

func TestAfterTheQuietPeriodOnlyStreamsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		end := make(chan struct{})
		stream := h.responding("GET", "", "text/event-stream", end)
		h.Drain.Begin(true)
		late := newFake("/late")
		time.Sleep(20 * time.Second)
		h.serve(late)
		expect(t, "one that comes in the quiet period", h.of(t, late).Reason, OK)
		expect(t, "wait", <-wait(h.Drain), ended{OnlyStreams, 30 * time.Second})

		tooLate := newFake("/too-late").worksUntil(nil)
		h.serve(tooLate)
		expect(t, "one that comes after it", h.of(t, tooLate).Reason, Draining)
		expect(t, "the stream", stream.state.Expired(), OK)
		expect(t, "wait again: the refused one does not begin a quiet period", <-wait(h.Drain), ended{OnlyStreams, 0})
		close(end)
		expect(t, "until the stream has ended", h.Drain.Empty(context.Background()), nil)
		expect(t, "wait, when the stream has ended", <-wait(h.Drain), ended{Drained, 0})
		h.empty(t)
	})
}

// The app alone is restarted, within a quiet period that is shorter than the second
// that is waited for a signal: it may end its streams, and requests are served on.
func TestARestartOfTheAppAloneRefusesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		h.Drain = NewDrain(DrainSettings{Quiet: time.Second / 2, Deadline: time.Minute})
		end := make(chan struct{})
		defer close(end)
		h.responding("GET", "", "text/event-stream", end)
		h.Drain.Begin(false)
		expect(t, "the hook", <-wait(h.Drain), ended{OnlyStreams, time.Second / 2})
		f := newFake("/")
		h.serve(f)
		expect(t, "a request", h.of(t, f).Reason, OK)
	})
}
