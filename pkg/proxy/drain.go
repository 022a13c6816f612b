package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// undoAfter is the time after which a drain is undone if there was no signal that the pod is
// terminating. In this case, only the app was restarted (docs/promises.md 3.5).
const undoAfter = time.Second

// DrainSettings contains the settings of a drain (docs/promises.md 3.5).
type DrainSettings struct {
	Quiet    time.Duration // minimum time without a new request before the drain ends
	Deadline time.Duration // maximum duration; 0 means no limit
	Min      time.Duration // minimum duration

	WaitForStreams bool // also wait for streams
}

// A streamKind indicates whether an exchange is a stream. A drain does not wait for streams unless
// [DrainSettings.WaitForStreams] is set, because the app ends its streams when it receives SIGTERM
// (docs/promises.md 3.5).
type streamKind uint8

const (
	notAStream streamKind = iota
	openStream            // an upgraded connection, or an event stream in response to GET
	grpcStream            // a gRPC call whose response has begun; it becomes a stream when a drain begins
)

// drainEntry is the list entry of a request in flight. It is guarded by Drain.mu.
type drainEntry struct {
	drain      *Drain             // the drain that counts the request; nil if the request is not in flight. Read without the lock while the request is served
	exchange   transport.Exchange // notified by Abort
	prev, next *RequestState      // the next older and the next newer request
	stream     streamKind
	counted    bool // the request is counted in Drain.streams
}

// A Drain contains the list of requests in flight and the state of the shutdown. The state
// depends only on past events and on the current time, so a Drain needs no goroutine. A Drain is
// safe for concurrent use.
//
//	serving  -- Begin(false), a preStop hook --> draining, reversible
//	         -- Begin(true), SIGTERM ----------> draining, final
//	draining, reversible -- Begin(true) --> draining, final
//	                     -- 1 second -----> serving
//	draining, final -- quiet and no request in flight, or the deadline --> drained
//	                -- quiet and only streams in flight -----------------> closing
//	closing -- the last stream ends, or the deadline --> drained
//
// A drain in the state closing rejects new requests, because the app is being stopped.
type Drain struct {
	settings DrainSettings
	begun    atomic.Bool // Begin was called and the drain has not been undone; only a hint; the fields below mu are authoritative

	mu      sync.Mutex
	serving context.Context    // canceled when the drain begins
	pause   context.CancelFunc // cancels serving
	began   time.Time          // start of the drain; zero if no drain is running
	ending  bool               // the pod is terminating; the drain is not undone
	closing bool               // only streams are in flight, and new requests are rejected
	over    bool               // Abort was called; new requests end immediately
	settled chan struct{}      // closed when the drain no longer waits for any request in flight; nil if no goroutine waits
	arrived time.Time          // start of the last request that reset the quiet period
	flights int                // number of requests in flight
	streams int                // number of flights that are streams
	head    *RequestState      // requests in flight, oldest first
	tail    *RequestState
}

// NewDrain returns a drain that has not begun.
func NewDrain(s DrainSettings) *Drain {
	d := &Drain{settings: s}
	d.serving, d.pause = context.WithCancel(context.Background())
	return d
}

// while returns a context that is canceled when ctx is canceled or the drain begins. The caller
// must call cancel.
func (d *Drain) while(ctx context.Context) (_ context.Context, cancel func()) {
	d.mu.Lock()
	d.running(time.Now()) // undoes a drain that has lasted for undoAfter
	serving := d.serving
	d.mu.Unlock()
	ctx, end := context.WithCancel(ctx)
	stop := context.AfterFunc(serving, end)
	return ctx, func() { stop(); end() }
}

// Begin starts the drain, or joins the running drain. ending reports whether the pod is terminating.
// If no call sets ending, the drain is undone one second after the first call.
func (d *Drain) Begin(ending bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if !d.running(now) {
		d.began, d.arrived = now, now
		for state := d.head; state != nil; state = state.flight.next { // gRPC calls become streams
			d.countStream(state)
		}
	}
	d.ending = d.ending || ending
	d.begun.Store(true)
	d.pause()
}

// BeganAt returns the start of the running drain. It returns the zero time if no drain is running.
func (d *Drain) BeganAt() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running(time.Now()) {
		return time.Time{}
	}
	return d.began
}

// DeadlineAt returns the deadline of the running drain. It returns the zero time if no drain is
// running or there is no deadline.
func (d *Drain) DeadlineAt() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settings.Deadline <= 0 || !d.running(time.Now()) {
		return time.Time{}
	}
	return d.began.Add(d.settings.Deadline)
}

// Draining reports whether a drain is running. While a drain is running, probes fail, because the
// pod or the app is terminating.
func (d *Drain) Draining() bool {
	if !d.begun.Load() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.running(time.Now())
}

// running reports whether a drain is running. It undoes a reversible drain that has lasted for
// undoAfter. d.mu must be held.
func (d *Drain) running(now time.Time) bool {
	if d.began.IsZero() {
		return false
	}
	if d.ending || now.Sub(d.began) < undoAfter {
		return true
	}
	d.began = time.Time{}
	d.begun.Store(false)
	d.serving, d.pause = context.WithCancel(context.Background())
	return false
}

// Outcome is the result of a wait for the drain.
type Outcome uint8

// Values of Outcome.
const (
	Drained     Outcome = iota // quiet, and no request in flight
	OnlyStreams                // quiet, and only streams in flight
	Deadline                   // the deadline has passed
	Undone                     // no drain is running
	GaveUp                     // the context of the caller was canceled
)

func (o Outcome) String() string {
	return [...]string{"drained", "only streams are left", "deadline", "undone", "gave up"}[o]
}

// Wait waits until the drain is over and returns its outcome. If no drain is running, it returns
// Undone immediately.
func (d *Drain) Wait(ctx context.Context) Outcome {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		d.mu.Lock()
		outcome, next, over := d.look(time.Now())
		settled := d.untilSettled()
		d.mu.Unlock()
		if over {
			return outcome
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return GaveUp
		case <-settled:
		case <-timer.C:
		}
	}
}

// look reports whether the drain is over. If the drain is not over, next is the time of the next
// check, or zero if no check is necessary until settled is closed. Other events only extend the
// drain. d.mu must be held.
func (d *Drain) look(now time.Time) (outcome Outcome, next time.Time, over bool) {
	if !d.running(now) {
		return Undone, next, true
	}
	s := &d.settings
	if s.Deadline > 0 {
		next = d.began.Add(s.Deadline)
		if !now.Before(next) {
			return Deadline, next, true
		}
	}
	quiet := d.arrived.Add(s.Quiet)
	if least := d.began.Add(s.Min); quiet.Before(least) {
		quiet = least
	}
	switch {
	case d.flights == 0 && (d.closing || !now.Before(quiet)):
		return Drained, next, true
	case d.closing:
		return OnlyStreams, next, true
	case now.Before(quiet):
		next = earlier(next, quiet)
	case d.awaited() == 0:
		d.closing = d.ending // do not close if only the app was restarted
		return OnlyStreams, next, true
	}
	if !d.ending {
		next = earlier(next, d.began.Add(undoAfter))
	}
	return 0, next, false
}

// earlier returns the earlier of a and b. If a is zero, it returns b.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// Flights returns the number of requests in flight, including streams, and the start time of the
// oldest request.
func (d *Drain) Flights() (n int, oldest time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.head != nil {
		oldest = d.head.start
	}
	return d.flights, oldest
}

// Streams returns the number of streams in flight. A drain does not wait for them unless
// WaitForStreams is set.
func (d *Drain) Streams() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.streams
}

// awaited returns the number of requests in flight for which the drain waits.
func (d *Drain) awaited() int {
	if d.settings.WaitForStreams {
		return d.flights
	}
	return d.flights - d.streams
}

// Abort ends every exchange in flight and all later requests with the reason Draining.
func (d *Drain) Abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	for state := d.head; state != nil; state = state.flight.next {
		state.end(observation.Draining)
	}
	// Call end for all requests before the first Notify. Otherwise an aborted request could pass
	// its slot to a queued request, and the queued request would be forwarded.
	for state := d.head; state != nil; state = state.flight.next {
		state.flight.exchange.Notify() // after Unlock, state may belong to another request
	}
}

// Empty waits until no request is in flight. It returns the error of ctx if ctx is canceled first.
func (d *Drain) Empty(ctx context.Context) error {
	for {
		d.mu.Lock()
		n, settled := d.flights, d.untilSettled()
		d.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-settled:
		}
	}
}

// arrive adds a request to the requests in flight. If fresh is true, the request resets the quiet
// period.
func (d *Drain) arrive(x transport.Exchange, state *RequestState, fresh bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if fresh && state.start.After(d.arrived) { // calls to arrive are not ordered by start time
		d.arrived = state.start
	}
	state.flight = drainEntry{drain: d, exchange: x, prev: d.tail}
	if d.tail == nil {
		d.head = state
	} else {
		d.tail.flight.next = state
	}
	d.tail = state
	d.flights++
	if d.over || d.closing {
		state.end(observation.Draining)
	}
}

// noteStream records that a request in flight has become a stream. A gRPC call whose response begins
// during a drain is not counted as a stream, so the drain waits for it.
func (d *Drain) noteStream(state *RequestState, kind streamKind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state.flight.stream = kind
	if kind == openStream || !d.running(time.Now()) {
		d.countStream(state)
		d.settle()
	}
}

// countStream adds a request to Drain.streams if it is a stream that is not counted yet. d.mu must be
// held.
func (d *Drain) countStream(state *RequestState) {
	if f := &state.flight; f.stream != notAStream && !f.counted {
		f.counted = true
		d.streams++
	}
}

// leave removes a request that was added by arrive.
func (d *Drain) leave(state *RequestState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := &state.flight
	if f.prev == nil {
		d.head = f.next
	} else {
		f.prev.flight.next = f.next
	}
	if f.next == nil {
		d.tail = f.prev
	} else {
		f.next.flight.prev = f.prev
	}
	if f.counted {
		d.streams--
	}
	*f = drainEntry{}
	state.seen.Line = transport.Line{} // the strings may point into a buffer of the engine; Holders reads them under the lock
	d.flights--
	d.settle()
}

// settle closes settled if no request is in flight, or only streams for which the drain does not
// wait. d.mu must be held.
func (d *Drain) settle() {
	if d.settled != nil && (d.flights == 0 || d.awaited() == 0) {
		close(d.settled)
		d.settled = nil
	}
}

// untilSettled returns a channel that is closed when no request is in flight, or only streams for
// which the drain does not wait. d.mu must be held.
func (d *Drain) untilSettled() <-chan struct{} {
	if d.settled == nil {
		d.settled = make(chan struct{})
	}
	return d.settled
}
