package proxy

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// workers is a user container that processes a fixed number of requests concurrently. Each request
// takes a fixed time.
type workers struct {
	slots chan struct{}
	took  time.Duration

	mu       sync.Mutex
	now, max int // current and maximum number of requests
}

func (w *workers) serve(state *RequestState) transport.Result {
	state.enter(observation.Waiting)
	w.mu.Lock()
	w.now++
	w.max = max(w.max, w.now)
	w.mu.Unlock()
	w.slots <- struct{}{}
	time.Sleep(w.took) // in the fake time of the synctest bubble
	<-w.slots
	w.mu.Lock()
	w.now--
	w.mu.Unlock()
	return transport.Result{Status: 200, Begun: true}
}

func TestAdaptiveLimitFindsAppCapacity(t *testing.T) {
	for n, most := range map[int]int{8: 10, 20: 15} { // number of workers, and the maximum of the limit
		synctest.Test(t, func(t *testing.T) {
			p := newTestProxy()
			p.Observe = func(*observation.Observation) {}
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
				t.Errorf("%d workers: got %+v, at most %d concurrent requests, want %d to %d, at most 15", n, got, app.max, least, most)
			}
			harness.Equal(t, p.Limit.String(), "0 running, 0 waiting", "at the end")
		})
	}
}

func TestStreamsDoNotUseAdaptiveSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewAdaptiveLimit(adapt.Settings{Max: 6}, 10)
		var ww []*waiter
		for range 8 {
			ww = append(ww, queueUp(m, &Clocks{}))
		}
		harness.Equal(t, m.String(), "4 running, 4 waiting", "at first")
		for i, want := range []string{"5 running, 3 waiting", "6 running, 2 waiting", "6 running, 2 waiting"} {
			state := &ww[i].state
			state.adaptTo(m)
			state.enter(observation.Tunnelled)
			state.enter(observation.Tunnelled)
			harness.Equal(t, m.String(), want, i+1, "streams")
		}
		for i := range 3 {
			m.end(&ww[i].state.ticket, adapt.Answered)
		}
		harness.Equal(t, m.String(), "4 running, 1 waiting", "after the streams")
		for i := 3; i < 8; i++ {
			synctest.Wait()
			m.end(&ww[i].state.ticket, adapt.Answered)
		}
		harness.Equal(t, m.String(), "0 running, 0 waiting", "at the end")
	})
}

func TestOpenRequestsDoNotStopAdaptiveLimit(t *testing.T) {
	for name, wait := range map[string]func(state *RequestState){
		"long polls":   func(*RequestState) {},
		"uploads":      (*RequestState).AwaitBody,
		"slow readers": (*RequestState).WriteStarted,
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newTestProxy()
			p.Observe = func(*observation.Observation) {}
			p.Limit = NewAdaptiveLimit(adapt.Settings{Max: 30}, 100)
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			var all sync.WaitGroup
			for range 12 {
				f := newFake("/poll")
				f.app = func(state *RequestState) transport.Result {
					state.enter(observation.Waiting)
					wait(state)
					<-ctx.Done()
					state.GotBody(false)
					state.WriteDone()
					return transport.Result{Status: 200, Begun: true}
				}
				all.Go(func() { p.Serve(f, &f.state) })
			}
			app := &workers{slots: make(chan struct{}, 8), took: 10 * time.Millisecond}
			served := 0
			for range 10 {
				all.Go(func() {
					f := newFake("/")
					f.app = app.serve
					for ctx.Err() == nil {
						p.Serve(f, &f.state)
						app.mu.Lock()
						served++
						app.mu.Unlock()
					}
				})
			}
			all.Wait()
			if served < 8000 {
				t.Errorf("%s: got %d short requests in 20 s, want most of 16000", name, served)
			}
			harness.Equal(t, p.Limit.String(), "0 running, 0 waiting", name, "at the end")
		})
	}
}

func TestHoldersDescribeRequestsWithSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestProxy()
		p.Limit = NewAdaptiveLimit(adapt.Settings{Max: 3}, 10)
		done := make(chan struct{})
		var all sync.WaitGroup
		for _, path := range []string{"/a", "/b", "/c", "/queued"} {
			f := newFake(path)
			f.app = func(state *RequestState) transport.Result {
				state.enter(observation.Waiting)
				if path == "/b" {
					state.AwaitBody()
				}
				<-done
				return transport.Result{Status: 200, Begun: true}
			}
			all.Go(func() { p.Serve(f, &f.state) })
			synctest.Wait()
		}
		got := ""
		for _, h := range p.Holders() {
			got += h.Method + " " + h.Path + " " + h.Phase + " " + h.Counted + "\n"
		}
		harness.Equal(t, got, "GET /a waiting counted\nGET /b waiting waits for the client\nGET /c waiting counted\n")
		close(done)
		all.Wait()
		harness.Equal(t, len(p.Holders()), 0, "holders at the end")
	})
}

func TestHashOfPathExcludesQuery(t *testing.T) {
	m := NewAdaptiveLimit(adapt.Settings{}, 1)
	poll := m.hash(&transport.Line{Target: "/poll?since=1"})
	harness.Equal(t, m.hash(&transport.Line{Target: "/poll?since=2"}), poll, "another query")
	harness.Equal(t, m.hash(&transport.Line{Target: "http://host/poll"}), poll, "absolute form")
	if got := m.hash(&transport.Line{Target: "/other"}); got == poll {
		t.Errorf("another path: got the same hash %d, want another hash", got)
	}
	harness.Equal(t, NewLimit(1, 1).hash(&transport.Line{Target: "/poll"}), 0, "fixed limit")
}

func TestStateReuseClearsStream(t *testing.T) {
	p := newTestProxy()
	p.Limit = NewAdaptiveLimit(adapt.Settings{}, 0)
	f := newFake("/")
	answered := f.app
	f.app = func(state *RequestState) transport.Result {
		state.enter(observation.Tunnelled)
		harness.Equal(t, p.Limit.exemption(&state.ticket), "stream", "exemption of the first request")
		return transport.Result{Status: 101, Begun: true}
	}
	p.serve(f) // the next request reuses the state of f
	f.app = func(state *RequestState) transport.Result {
		harness.Equal(t, p.Limit.exemption(&state.ticket), "counted", "exemption of the second request")
		return answered(state)
	}
	p.serve(f)
	harness.Equal(t, len(p.seen), 2, "requests")
}

func TestResultOfExchange(t *testing.T) {
	for name, c := range map[string]struct {
		o    observation.Observation
		want adapt.Result
	}{
		"answered":            {observation.Observation{Result: transport.Result{Status: 200}}, adapt.Answered},
		"not found":           {observation.Observation{Result: transport.Result{Status: 404}}, adapt.Answered},
		"error":               {observation.Observation{Result: transport.Result{Status: 500}}, adapt.Failed},
		"unavailable":         {observation.Observation{Result: transport.Result{Status: 503}}, adapt.Failed},
		"too many requests":   {observation.Observation{Result: transport.Result{Status: 429}}, adapt.Failed},
		"not implemented":     {observation.Observation{Result: transport.Result{Status: 501}}, adapt.Answered},
		"gRPC error":          {observation.Observation{RPC: observation.GRPCStatusOf(14), Result: transport.Result{Status: 200}}, adapt.Failed},
		"reset":               {observation.Observation{Reason: observation.AppReset}, adapt.Failed},
		"timeout":             {observation.Observation{Reason: observation.RequestTimeout}, adapt.TimedOut},
		"client disconnects":  {observation.Observation{Reason: observation.ClientGone}, adapt.Unfinished},
		"client stalls":       {observation.Observation{Reason: observation.ClientSlow}, adapt.Unknown},
		"client reads slowly": {observation.Observation{Reason: observation.IdleTimeout}, adapt.Unknown},
		"health check":        {observation.Observation{Excluded: true, Result: transport.Result{Status: 200}}, adapt.Unknown},
		"kubelet probe":       {observation.Observation{Kind: observation.KubeletRequest, Result: transport.Result{Status: 200}}, adapt.Unknown},
		"draining":            {observation.Observation{Reason: observation.Draining}, adapt.Unknown},
	} {
		if c.o.Kind == 0 {
			c.o.Kind = observation.Traffic
		}
		harness.Equal(t, resultOf(&c.o), c.want, name)
	}
}

func TestResultOfHeldExchange(t *testing.T) {
	for name, c := range map[string]struct {
		reason     observation.Reason
		answered   bool
		took, held time.Duration
		want       adapt.Result
	}{
		"response to a disconnected client":        {observation.ClientGone, true, time.Second, time.Second, adapt.Late},
		"response because the client disconnected": {observation.ClientGone, true, time.Second, 10 * time.Millisecond, adapt.Unfinished},
		"no response to a disconnected client":     {observation.ClientGone, false, time.Second, time.Second, adapt.Unfinished},
		"response after the request timeout":       {observation.RequestTimeout, true, time.Second, time.Second, adapt.TimedOut},
		"no response after response start timeout": {observation.ResponseStartTimeout, false, time.Second, time.Second, adapt.TimedOut},
		"drain": {observation.Draining, true, time.Second, time.Second, adapt.Unknown},
	} {
		harness.Equal(t, heldResult(c.reason, c.answered, c.took, c.held), c.want, name)
	}
}
