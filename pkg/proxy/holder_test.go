package proxy

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// occupy serves n requests that stay in a phase until done is closed.
func (h *testProxy) occupy(all *sync.WaitGroup, done <-chan struct{}, n int, path string, phase observation.Phase) {
	for range n {
		f := newFake(path)
		f.app = func(state *RequestState) transport.Result {
			switch phase {
			case observation.Tunnelled:
				state.Upgrade()
			case observation.Streaming:
				state.Respond("")
			default:
				state.enter(phase)
			}
			<-done
			return transport.Result{Status: 200, Begun: true}
		}
		all.Go(func() { h.serve(f) })
	}
	synctest.Wait()
}

func TestInAppCountsAllRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Exclude.Paths = []string{"/excluded"}
		h.Limit = NewLimit(100, 10)
		done := make(chan struct{})
		var all sync.WaitGroup
		h.occupy(&all, done, maxHolders, "/socket", observation.Tunnelled)
		h.occupy(&all, done, 1, "/excluded", observation.Waiting)
		h.occupy(&all, done, 4, "/download", observation.Streaming)
		time.Sleep(time.Minute)
		first := time.Now()
		h.occupy(&all, done, 30, "/a", observation.Waiting)
		time.Sleep(time.Second)
		h.occupy(&all, done, 45, "/b", observation.Dialling)
		probe := kubeletProbe("10.0.0.1:1").worksUntil(done)
		all.Go(func() { h.serve(probe) })
		h.occupy(&all, done, 3, "/queued", observation.Waiting)
		harness.Equal(t, h.InApp(time.Second), observation.AppRequests{Pending: 75, Long: 30, Responding: 4, Upgraded: 20, Oldest: first})
		harness.Equal(t, len(h.Holders()), maxHolders, "holders")
		close(done)
		all.Wait()
		harness.Equal(t, h.InApp(time.Minute), observation.AppRequests{}, "at the end")
	})
}

// The time in the queue is not a part of the time in the app.
func TestInAppReturnsTimeOfSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit = NewLimit(1, 10)
		first, second := make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		h.occupy(&all, first, 1, "/a", observation.Waiting)
		h.occupy(&all, second, 1, "/b", observation.Waiting)
		time.Sleep(time.Minute)
		close(first)
		synctest.Wait()
		harness.Equal(t, h.InApp(time.Minute), observation.AppRequests{Pending: 1, Oldest: time.Now()})
		holder := h.Holders()[0]
		harness.Equal(t, holder.Slot.Sub(holder.Since), time.Minute, "time in the queue")
		close(second)
		all.Wait()
	})
}

// As for gRPC calls, ExpectBody is not called.
func TestInAppExcludesUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		done := make(chan struct{})
		var all sync.WaitGroup
		var upload *RequestState
		f := newFake("/upload")
		f.app = func(state *RequestState) transport.Result {
			upload = state
			state.Send()
			state.AwaitBody()
			<-done
			return transport.Result{Status: 200, Begun: true}
		}
		all.Go(func() { h.serve(f) })
		synctest.Wait()
		time.Sleep(time.Minute)
		harness.Equal(t, h.InApp(time.Minute), observation.AppRequests{}, "while the client sends the body")
		upload.GotBody(false)
		sent := time.Now()
		time.Sleep(time.Minute)
		harness.Equal(t, h.InApp(time.Minute), observation.AppRequests{Pending: 1, Long: 1, Oldest: sent}, "after the last byte")
		close(done)
		all.Wait()
	})
}

// The client can disconnect between two reads of the body, when the engine does not wait for a byte.
func TestAbortedUploadIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name     string
			complete bool
			after    time.Duration // time between the last byte and the disconnect
			want     bool
		}{
			{"during the upload", false, 100 * time.Millisecond, true},
			{"while the user container does not read the body", false, time.Second, false},
			{"after the complete body", true, 100 * time.Millisecond, false},
		} {
			h := newTestProxy()
			f := newFake("/upload")
			f.app = func(state *RequestState) transport.Result {
				state.ExpectBody()
				state.Send()
				state.AwaitBody()
				time.Sleep(2 * time.Second)
				state.GotBody(test.complete)
				time.Sleep(test.after)
				return transport.Result{Err: transport.FaultClientGone}
			}
			h.serve(f)
			harness.Equal(t, h.of(t, f).Uploading, test.want, test.name)
		}
	})
}

// heldFor is the exchange of a user container that responds after a duration.
type heldFor time.Duration

func (h heldFor) Wait(most time.Duration) (answered bool) {
	time.Sleep(min(time.Duration(h), most))
	return time.Duration(h) < most
}

func TestInAppReturnsLastHeldRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit, h.Grace = NewLimit(1, 1), 10*time.Second
		for _, after := range []time.Duration{time.Minute, 3 * time.Second} {
			f := newFake("/")
			f.app = func(state *RequestState) transport.Result {
				state.Send()
				time.Sleep(time.Second)
				return transport.Result{Err: transport.FaultClientGone, Held: heldFor(after)}
			}
			h.serve(f)
			time.Sleep(h.Grace)
		}
		harness.Equal(t, h.InApp(time.Minute), observation.AppRequests{Held: observation.HeldRequests{
			Answered: time.Now().Add(-7 * time.Second),
			Expired:  time.Now().Add(-11 * time.Second), Method: "GET", Path: "/", Waited: 11 * time.Second,
		}})
	})
}

// A request can end while Holders reads its method and path. The test can fail only with the race
// detector.
func TestHoldersIsSafeWhileRequestsEnd(t *testing.T) {
	h := newTestProxy()
	var all sync.WaitGroup
	h.Observe = func(*observation.Observation) {
		all.Go(func() { _ = h.Holders() })
	}
	for range 4 {
		all.Go(func() {
			for range 500 {
				h.serve(newFake("/"))
			}
		})
	}
	all.Wait()
}
