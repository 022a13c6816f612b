package sidecar

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/observe/status"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1"
)

const (
	// progressInterval is the time between two log lines about a running drain.
	progressInterval = 5 * time.Second
	// closeFrameLead is the time before the drain deadline at which WebSocket clients receive a Close
	// frame, so that they can close the connection themselves. The actual time is at most a tenth
	// of the maximum duration of the drain.
	closeFrameLead = 2 * time.Second
	// abortTime is the maximum time for sending the error responses to aborted requests.
	abortTime = time.Second
	// leaveTime is the maximum time for closing connections after the listeners are closed. It is
	// longer than the delay before the second HTTP/2 GOAWAY plus the time to receive the rest of a
	// header. The sum of leaveTime and abortTime is less than the three seconds between the drain
	// deadline and the end of the grace period.
	leaveTime = 1500 * time.Millisecond
)

// beginDrain starts a drain or joins the running drain (docs/promises.md 3.5). While the drain is
// running, probes fail, and the engines notify clients to close their connections. ending reports
// whether the pod is terminating.
func (s *sidecar) beginDrain(ending bool) {
	s.proxy.Drain.Begin(ending)
	s.http2.GoAway()
}

// drain serves requests until the drain completes or the drain deadline expires. If only streams
// remain, drain closes the listeners and waits for the streams until the deadline. The user container
// closes the streams when it is stopped.
func (s *sidecar) drain() {
	s.beginDrain(true)
	s.log.Info("draining",
		zap.Duration("quietPeriod", s.config.DrainQuietPeriod.V), zap.Duration("deadline", s.config.DrainDeadline.V))
	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	var timers sync.WaitGroup
	timers.Go(func() { s.runDrainTimers(ctx) })
	outcome := s.proxy.Drain.Wait(ctx)
	if outcome == proxy.OnlyStreams {
		s.log.Info("only streams remain; the user container must close them", s.inFlight()...)
		s.leave.Do(s.stopAccepting)
	}
	cancel()
	timers.Wait()
	if outcome == proxy.Deadline {
		s.cut()
		ctx, cancel := context.WithTimeout(context.Background(), abortTime)
		defer cancel()
		_ = s.proxy.Drain.Empty(ctx) // stopAccepting closes the remaining requests
	}
	s.log.Info("drained", zap.Stringer("outcome", outcome), zap.Duration("took", time.Since(began)))
}

// cut aborts all requests in flight, and all later requests, because the drain deadline has expired.
func (s *sidecar) cut() {
	s.log.Warn("drain deadline exceeded; aborting the remaining requests", s.inFlight()...)
	s.proxy.Drain.Abort()
}

// stopAccepting closes the listeners for requests. Accepted requests are served until they complete or the drain
// deadline expires. After the deadline, connections are closed within leaveTime. If the deadline has passed or is not
// set, leaveTime starts immediately.
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
	_ = s.proxy.Drain.Empty(ctx) // wait for upgraded connections, which the servers do not track
}

// shutDownBoth shuts down both engines. The shutdown of the HTTP/2 engine starts as soon as the HTTP/1
// engine can no longer hand off connections. Waiting for the shutdown of the HTTP/1 engine would keep
// idle HTTP/2 connections open until the HTTP/1 streams are closed.
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

// timeToStop returns the time limit for stopping probes and telemetry. It is the time until the drain
// deadline, but at least one second and at most stopTime. Without a deadline, it is stopTime.
func (s *sidecar) timeToStop() time.Duration {
	deadline := s.proxy.Drain.DeadlineAt()
	if deadline.IsZero() {
		return stopTime
	}
	return min(max(time.Until(deadline), time.Second), stopTime)
}

// runDrainTimers logs the progress of the drain every progressInterval, and sends Close frames to WebSocket
// clients closeFrameLead before the deadline. It returns when ctx is done.
func (s *sidecar) runDrainTimers(ctx context.Context) {
	progress := time.NewTicker(progressInterval)
	defer progress.Stop()
	lead := min(closeFrameLead, s.config.DrainDeadline.V/10)
	closeFrames := time.After(time.Until(s.proxy.Drain.DeadlineAt()) - lead)
	for {
		select {
		case <-ctx.Done():
			return
		case <-progress.C:
			s.log.Info("draining", s.inFlight()...)
		case <-closeFrames:
			s.webSockets.GoAway()
		}
	}
}

// drainState returns the state of the drain for the status page.
func (s *sidecar) drainState() status.Drain {
	drain := s.proxy.Drain
	d := status.Drain{Draining: drain.Draining(), Since: drain.BeganAt(), Deadline: drain.DeadlineAt()}
	d.InFlight, d.Oldest = s.proxy.Drain.Flights()
	return d
}

// inFlight returns log fields with the number of requests in flight, the number of streams among
// them, and the age of the oldest request.
func (s *sidecar) inFlight() []zap.Field {
	n, oldest := s.proxy.Drain.Flights()
	fields := []zap.Field{zap.Int("inFlight", n), zap.Int("streams", s.proxy.Drain.Streams())}
	if n > 0 {
		fields = append(fields, zap.Duration("oldest", time.Since(oldest)))
	}
	return fields
}

// adminHandler returns a handler that serves only the preStop hooks. The handler closes the connection
// after each request. Otherwise a client that pipelines hooks would keep its connection for the total
// duration of these hooks.
func (s *sidecar) adminHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		switch {
		case r.URL.Path == "/wait-for-drain":
			s.waitForDrain(w, r)
		case r.URL.Path == "/drain" && s.config.DrainEndpoint.V:
			s.end.Do(func() {
				s.log.Info("drain started by the preStop hook of the sidecar")
				close(s.ending)
			})
			s.beginDrain(true)
		default:
			http.NotFound(w, r)
		}
	})
}

// waitForDrain handles the preStop hook of the user container. It responds when the drain is complete or
// when only streams remain, so that the user container can stop. If only the user container restarts and
// the pod is not terminating, it responds after one second.
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
	_ = control.SetReadDeadline(time.Time{}) // after an expired deadline, net/http assumes that the client disconnected
	_ = control.SetWriteDeadline(time.Time{})
	if !s.proxy.Drain.Draining() { // log once for several hooks
		s.log.Info("drain started by the preStop hook of the user container")
	}
	s.beginDrain(false)
	outcome := s.proxy.Drain.Wait(ctx)
	lostPlace := outcome == proxy.GaveUp && r.Context().Err() == nil
	_ = control.SetReadDeadline(time.Now()) // otherwise net/http waits for the rest of the request body
	_ = control.SetWriteDeadline(time.Now().Add(smallAnswer))
	if lostPlace {
		s.refuseHook(w, r, http.StatusServiceUnavailable)
	}
	slot.Release()
	if hooks, _ := s.hooks.Load(); hooks == 0 {
		s.log.Info("the preStop hook of the user container completed", zap.Stringer("outcome", outcome))
	}
}

// refuseHook responds with code to a hook for which no slot is free.
func (s *sidecar) refuseHook(w http.ResponseWriter, r *http.Request, code int) {
	if n := s.refusedHooks.Add(time.Now()); n > 0 {
		s.log.Warn("rejected preStop hooks: too many hooks are waiting", zap.Int("refused", n), zap.String("client", r.RemoteAddr))
	}
	http.Error(w, "too many waiting preStop hooks", code)
}
