package queue

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// workers is a user container with so many workers, each of which takes a time for a
// request.
type workers struct {
	slots chan struct{}
	took  time.Duration

	mu       sync.Mutex
	now, max int // requests in it
}

func (w *workers) serve(state *RequestState) Result {
	state.Enter(Waiting)
	w.mu.Lock()
	w.now++
	w.max = max(w.max, w.now)
	w.mu.Unlock()
	w.slots <- struct{}{}
	time.Sleep(w.took) // the clock is the test's
	<-w.slots
	w.mu.Lock()
	w.now--
	w.mu.Unlock()
	return Result{Status: 200, Begun: true}
}

func TestAnAdaptiveLimitFindsWhatTheAppCanTake(t *testing.T) {
	for n, most := range map[int]int{8: 10, 20: 15} { // workers, and the greatest limit that may be found
		synctest.Test(t, func(t *testing.T) {
			p := newTestProxy()
			p.Observe = func(*Observation) {}
			p.Limit = NewAdaptiveLimit(adapt.Settings{Min: 2, Max: 15}, 100)
			app := &workers{slots: make(chan struct{}, n), took: 10 * time.Millisecond}
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			var clients sync.WaitGroup
			for range 20 {
				clients.Go(func() {
					f := newFake("/")
					f.app = app.serve
					for ctx.Err() == nil {
						p.Serve(f, &f.state)
					}
				})
			}
			clients.Wait()
			got, adaptive := p.Limit.Adaptive()
			if least := min(n, 15); !adaptive || got.Base < least || got.Base > most || app.max > 15 {
				t.Errorf("%d workers: got %+v, at most %d at once, want %d to %d, at most 15", n, got, app.max, least, most)
			}
			harness.Equal(t, p.Limit.String(), "0 running, 0 waiting", "at the end")
		})
	}
}

func TestStreamsTakeNoneOfTheSlotsThatAnAdaptiveLimitGives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewAdaptiveLimit(adapt.Settings{Max: 6}, 10)
		var ww []*waiter
		for range 8 {
			ww = append(ww, queueUp(m, &Clocks{}))
		}
		harness.Equal(t, m.String(), "4 running, 4 waiting", "at first")
		ww[0].state.Enter(Tunnelled)
		ww[0].state.Enter(Tunnelled)
		harness.Equal(t, m.String(), "5 running, 3 waiting", "with a WebSocket")
		ww[1].state.Enter(Tunnelled)
		ww[2].state.Enter(Tunnelled)
		harness.Equal(t, m.String(), "6 running, 2 waiting", "with three, under the ceiling")
		for i := range 3 {
			m.end(&ww[i].state.ticket, &ww[i].state.seen, false)
		}
		harness.Equal(t, m.String(), "4 running, 1 waiting", "when they have ended")
		for range 5 {
			m.release()
		}
		harness.Equal(t, m.String(), "0 running, 0 waiting", "at the end")
	})
}

func TestTheRequestAfterAStreamIsNone(t *testing.T) {
	p := newTestProxy()
	p.Limit = NewAdaptiveLimit(adapt.Settings{}, 0)
	f := newFake("/")
	answered := f.app
	f.app = func(state *RequestState) Result {
		state.Enter(Tunnelled)
		return Result{Status: 101, Begun: true}
	}
	p.serve(f) // with the memory that serves the next one too
	f.app = func(state *RequestState) Result {
		harness.Equal(t, p.Limit.streams, 0, "streams while it is served")
		return answered(state)
	}
	p.serve(f)
	harness.Equal(t, p.Limit.streams, 0, "streams at the end")
	harness.Equal(t, p.of(t, f).Stream, true, "the first is a stream")
	harness.Equal(t, p.seen[1].Stream, false, "the second is a stream")
}

func TestOnlyWhatSaysSomethingOfTheAppIsASample(t *testing.T) {
	slot := time.Unix(100, 0)
	for name, c := range map[string]struct {
		o          Observation
		ok, failed bool
	}{
		"answered":           {Observation{Result: Result{Status: 200}}, true, false},
		"not found":          {Observation{Result: Result{Status: 404}}, true, false},
		"broken":             {Observation{Result: Result{Status: 500}}, true, true},
		"broken, in gRPC":    {Observation{RPCError: true, Result: Result{Status: 200}}, true, true},
		"reset":              {Observation{Result: Result{Reason: AppReset}}, true, true},
		"too slow":           {Observation{Result: Result{Reason: RequestTimeout}}, true, true},
		"the client left":    {Observation{Result: Result{Reason: ClientGone}}, false, false},
		"a client's bytes":   {Observation{Result: Result{Reason: IdleTimeout}}, false, false},
		"a WebSocket":        {Observation{Stream: true, Result: Result{Status: 101}}, false, false},
		"a health check":     {Observation{Excluded: true, Result: Result{Status: 200}}, false, false},
		"a kubelet's probe":  {Observation{Kind: header.KubeletRequest, Result: Result{Status: 200}}, false, false},
		"the pod was ending": {Observation{Result: Result{Reason: Draining}}, false, false},
	} {
		if c.o.Slot = slot; c.o.Kind == 0 {
			c.o.Kind = header.Traffic
		}
		s, ok := sample(&ticket{inFlight: 3}, &c.o, slot.Add(time.Second))
		if ok != c.ok || ok && (s != adapt.Sample{Took: time.Second, InFlight: 3, Failed: c.failed}) {
			t.Errorf("%s: got %+v, %v, want %v, failed %v", name, s, ok, c.ok, c.failed)
		}
	}
}

func TestARequestSaysHowManyWereInFlightWhenItGotItsSlot(t *testing.T) {
	for name, limit := range map[string]*Limit{"no limit": nil, "a limit": NewLimit(10, 0), "an adaptive limit": NewAdaptiveLimit(adapt.Settings{}, 0)} {
		synctest.Test(t, func(t *testing.T) {
			p := newTestProxy()
			p.Limit = limit
			done := make(chan struct{})
			var all sync.WaitGroup
			for range 3 {
				f := newFake("/").worksUntil(done)
				all.Go(func() { p.Serve(f, &f.state) })
				synctest.Wait()
			}
			close(done)
			all.Wait()
			got := 0
			for _, o := range p.seen {
				got += o.InFlight
			}
			harness.Equal(t, got, 1+2+3, name, "all together")
		})
	}
}
