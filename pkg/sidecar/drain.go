package sidecar

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/http1"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/status"
)

const (
	// progressInterval is how often a drain says how far it is.
	progressInterval = 5 * time.Second
	// farewellLead is how long before the deadline WebSocket clients are notified, so
	// that they can end in their own way; at most a tenth of the deadline.
	farewellLead = 2 * time.Second
	// abortTime is how long exchanges that the deadline has cut have for telling
	// their clients.
	abortTime = time.Second
	// leaveTime is how long connections on which nothing was accepted have for
	// ending: a little more than HTTP/2's second GOAWAY and the rest of a head take.
	// Together with abortTime it fits into the three seconds that are left between
	// the deadline and the end of the grace period.
	leaveTime = 1500 * time.Millisecond
)

// beginDrain starts the drain, or joins it (promises.md 3.5): from now on probes
// fail and clients are sent elsewhere. ending says that the pod is ending.
func (s *sidecar) beginDrain(ending bool) {
	s.proxy.Drain.Begin(ending)
	s.http2.GoAway()
}

// drain keeps serving until nobody needs us any more, or the deadline has come. Where
// only streams are left, the user container is stopped now and ends them: they are
// forwarded until then, and nothing new is accepted.
func (s *sidecar) drain() {
	s.beginDrain(true)
	s.log.Info("draining",
		zap.Duration("quietPeriod", s.config.DrainQuietPeriod.V), zap.Duration("deadline", s.config.DrainDeadline.V))
	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	beside.Go(func() { s.accompany(ctx) })
	outcome := s.proxy.Drain.Wait(ctx)
	if outcome == queue.OnlyStreams {
		s.log.Info("only streams are left, the user container may end them", s.inFlight()...)
		s.leave.Do(s.stopAccepting)
	}
	cancel()
	beside.Wait()
	if outcome == queue.Deadline {
		s.cut()
		ctx, cancel := context.WithTimeout(context.Background(), abortTime)
		defer cancel()
		_ = s.proxy.Drain.Empty(ctx) // what has not ended by then is ended by stopAccepting
	}
	s.log.Info("drained", zap.Stringer("outcome", outcome), zap.Duration("took", time.Since(began)))
}

// cut ends what is in flight at the deadline, and what comes after it, and tells
// why.
func (s *sidecar) cut() {
	s.log.Warn("drain deadline reached, what is in flight is cut", s.inFlight()...)
	s.proxy.Drain.Abort()
}

// stopAccepting closes the listeners for requests. What is in flight, and what was
// accepted last, is served to its end, or to the drain's deadline; then connections
// have leaveTime for ending.
func (s *sidecar) stopAccepting() {
	end := time.Now()
	if deadline := s.proxy.Drain.DeadlineAt(); deadline.After(end) {
		end = deadline
		timer := time.AfterFunc(time.Until(deadline), s.cut)
		defer timer.Stop()
	}
	ctx, cancel := context.WithDeadline(context.Background(), end.Add(leaveTime))
	defer cancel()
	s.shutDownBoth(ctx)
	_ = s.proxy.Drain.Empty(ctx) // tunnels, which no server knows any more
}

// shutDownBoth shuts both engines down: that for HTTP/2 once the other one gives it no
// more connections, or idle ones would wait for the streams of HTTP/1.
func (s *sidecar) shutDownBoth(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.http1.Shutdown(ctx)
	}()
	select {
	case <-done:
	case <-time.After(http1.GiveTime):
	}
	_ = s.http2.Shutdown(ctx)
	<-done
}

// timeToStop is how long stopping may take that has nothing to do with requests:
// stopTime at most, but not beyond the deadline, except for a second that everybody
// gets.
func (s *sidecar) timeToStop() time.Duration {
	deadline := s.proxy.Drain.DeadlineAt()
	if deadline.IsZero() {
		return stopTime
	}
	return min(max(time.Until(deadline), time.Second), stopTime)
}

// accompany says how far the drain is, and takes leave of WebSockets shortly
// before the deadline.
func (s *sidecar) accompany(ctx context.Context) {
	progress := time.NewTicker(progressInterval)
	defer progress.Stop()
	lead := min(farewellLead, s.config.DrainDeadline.V/10)
	farewell := time.After(time.Until(s.proxy.Drain.DeadlineAt()) - lead)
	for {
		select {
		case <-ctx.Done():
			return
		case <-progress.C:
			s.log.Info("draining", s.inFlight()...)
		case <-farewell:
			s.webSockets.GoAway()
		}
	}
}

// drainState returns the state of the drain for the status page.
func (s *sidecar) drainState() status.Drain {
	d := status.Drain{Draining: s.proxy.Drain.Draining(), Deadline: s.proxy.Drain.DeadlineAt()}
	d.InFlight, d.Oldest = s.proxy.Drain.Flights()
	return d
}

// inFlight returns how many requests are in flight, how many of them are streams, and
// how old the oldest is.
func (s *sidecar) inFlight() []zap.Field {
	n, oldest := s.proxy.Drain.Flights()
	fields := []zap.Field{zap.Int("inFlight", n), zap.Int("streams", s.proxy.Drain.Streams())}
	if n > 0 {
		fields = append(fields, zap.Duration("oldest", time.Since(oldest)))
	}
	return fields
}

// adminHandler serves the preStop hooks, and nothing else. A connection is for one
// request: who sends many at once would otherwise hold it for as long as all of them
// take.
func (s *sidecar) adminHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		switch {
		case r.URL.Path == "/wait-for-drain":
			s.waitForDrain(w, r)
		case r.URL.Path == "/drain" && s.config.DrainEndpoint.V:
			s.end.Do(func() {
				s.log.Info("the pod is ending, says the preStop hook of this container")
				close(s.ending)
			})
			s.beginDrain(true)
		default:
			http.NotFound(w, r)
		}
	})
}

// waitForDrain is the preStop hook of the user container. It returns when the
// user container may stop: when the drain is over or only streams are left, which the
// user container ends itself, or after a second when the pod is not ending at all and
// the user container alone is restarted.
func (s *sidecar) waitForDrain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	slot, err := s.hooks.Acquire(ctx, fair.Request{Client: fair.Address(r.RemoteAddr), End: func() bool {
		cancel()
		return true
	}})
	switch {
	case errors.Is(err, fair.ErrClientLimit):
		s.refuseHook(w, r, http.StatusTooManyRequests)
		return
	case err != nil:
		s.refuseHook(w, r, http.StatusServiceUnavailable)
		return
	}
	slot.Idle()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // or net/http takes it for the end of who asks
	_ = control.SetWriteDeadline(time.Time{})
	if !s.proxy.Drain.Draining() { // one line, however many hooks come
		s.log.Info("the user container is being stopped, draining")
	}
	s.beginDrain(false)
	outcome := s.proxy.Drain.Wait(ctx)
	lostPlace := outcome == queue.GaveUp && r.Context().Err() == nil
	_ = control.SetReadDeadline(time.Now()) // or net/http waits for the rest of a body
	_ = control.SetWriteDeadline(time.Now().Add(smallAnswer))
	if lostPlace {
		s.refuseHook(w, r, http.StatusServiceUnavailable)
	}
	slot.Release()
	if hooks, _ := s.hooks.Load(); hooks == 0 {
		s.log.Info("the user container may stop", zap.Stringer("outcome", outcome))
	}
}

// refuseHook answers a hook for which there is no place.
func (s *sidecar) refuseHook(w http.ResponseWriter, r *http.Request, code int) {
	if n := s.refusedHooks.Add(time.Now()); n > 0 {
		s.log.Warn("too many preStop hooks wait, some were refused", zap.Int("refused", n), zap.String("client", r.RemoteAddr))
	}
	http.Error(w, "too many hooks wait", code)
}
