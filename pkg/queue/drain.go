package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// undoAfter is how long a drain that began without a sign that the pod is ending
// lasts: the app alone was restarted (docs/promises.md 3.5).
const undoAfter = time.Second

// DrainSettings are the times of a drain (docs/promises.md 3.5).
type DrainSettings struct {
	Quiet    time.Duration // so long no new request, then it may end
	Deadline time.Duration // from the beginning; 0: none
	Min      time.Duration // it lasts at least so long

	WaitForStreams bool // streams are waited for like other requests
}

// streamKind says whether an exchange is a stream, which a drain does not wait for
// unless [DrainSettings.WaitForStreams] is set: the app itself ends its streams, when
// it gets SIGTERM (docs/promises.md 3.5).
type streamKind uint8

const (
	notAStream streamKind = iota
	openStream            // an upgraded connection, or an event stream that answers a GET
	grpcStream            // a gRPC call whose response has begun: a stream for a drain that begins later
)

// drainEntry is a request's place among those in flight, guarded by Drain.mu.
type drainEntry struct {
	drain      *Drain        // that the request is in flight for; nil: none. Read by the goroutine that serves
	exchange   Exchange      // whom to notify
	prev, next *RequestState // older and newer ones
	stream     streamKind
	counted    bool // in Drain.streams
}

// A Drain knows which requests are in flight, and the way a pod ends: serving,
// draining, drained, with one way back. Its state is a function of what happened
// and of the time, so it needs no goroutine. It is safe for concurrent use.
//
//	serving  -- Begin(false), a preStop --> draining, for a second
//	         -- Begin(true), SIGTERM -----> draining, for good
//	draining, for a second -- Begin(true) --> draining, for good
//	                       -- a second passes --> serving
//	draining, for good -- quiet and nothing in flight, or the deadline --> drained
//	                   -- quiet and only streams in flight ---------------> closing
//	closing -- the last stream ends, or the deadline --> drained
//
// A drain that is closing refuses the requests that still arrive: the app is being
// stopped.
type Drain struct {
	settings DrainSettings
	begun    atomic.Bool // Begin was called and not undone; a hint, mu decides

	mu      sync.Mutex
	serving context.Context    // ends when the drain begins,
	pause   context.CancelFunc // by this
	began   time.Time          // zero: serving
	ending  bool               // the pod is ending: this can't be undone
	closing bool               // only streams were left
	over    bool               // Abort was called: what comes now comes too late
	settled chan struct{}      // closed when nothing, or only streams, are left in flight; nil: nobody waits
	arrived time.Time          // the last request that counts against quiet
	flights int
	streams int           // of the flights
	head    *RequestState // those in flight, oldest first
	tail    *RequestState
}

// NewDrain returns a drain that has not begun.
func NewDrain(s DrainSettings) *Drain {
	d := &Drain{settings: s}
	d.serving, d.pause = context.WithCancel(context.Background())
	return d
}

// while returns a context that ends with ctx, and when the drain begins. The
// caller must call cancel.
func (d *Drain) while(ctx context.Context) (_ context.Context, cancel func()) {
	d.mu.Lock()
	d.running(time.Now()) // one that has undone itself is over, even if nobody has noticed
	serving := d.serving
	d.mu.Unlock()
	ctx, end := context.WithCancel(ctx)
	stop := context.AfterFunc(serving, end)
	return ctx, func() { stop(); end() }
}

// Begin starts the drain, or joins the running one. ending says that the pod is
// ending; without it the drain undoes itself after a second.
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

// DeadlineAt returns when the running drain's deadline is; the zero time where
// there is no drain or no deadline.
func (d *Drain) DeadlineAt() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settings.Deadline <= 0 || !d.running(time.Now()) {
		return time.Time{}
	}
	return d.began.Add(d.settings.Deadline)
}

// Draining reports whether probes are answered that the pod is ending.
func (d *Drain) Draining() bool {
	if !d.begun.Load() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.running(time.Now())
}

// running reports whether a drain runs and forgets one that has undone itself.
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

// Outcome is how a wait for the drain ended.
type Outcome uint8

// The outcomes.
const (
	Drained     Outcome = iota // quiet, and nothing in flight
	OnlyStreams                // quiet, and nothing in flight but streams
	Deadline                   // the deadline came first
	Undone                     // back to serving
	GaveUp                     // the waiter's own context ended
)

func (o Outcome) String() string {
	return [...]string{"drained", "only streams are left", "deadline", "undone", "gave up"}[o]
}

// Wait returns when the drain is over, in whichever way. With no drain running
// it returns Undone at once.
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

// look decides whether the drain is over, and if not, when to look again unless
// the last in flight that is waited for leaves before; the zero time is never.
// Whatever else happens can only put the end off.
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
		d.closing = d.ending // not where the app alone is restarted
		return OnlyStreams, next, true
	}
	if !d.ending {
		next = earlier(next, d.began.Add(undoAfter))
	}
	return 0, next, false
}

// earlier returns the earlier of two moments, of which the zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// Flights returns how many requests are in flight, streams included, and since when
// the oldest is.
func (d *Drain) Flights() (n int, oldest time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.head != nil {
		oldest = d.head.start
	}
	return d.flights, oldest
}

// Streams returns how many requests in flight are streams that the drain that runs, or
// the next one, does not wait for, unless the settings say so.
func (d *Drain) Streams() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.streams
}

// awaited returns how many requests in flight the drain waits for.
func (d *Drain) awaited() int {
	if d.settings.WaitForStreams {
		return d.flights
	}
	return d.flights - d.streams
}

// Abort ends every exchange in flight with the reason Draining, and those that
// come after.
func (d *Drain) Abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	for state := d.head; state != nil; state = state.flight.next {
		state.end(Draining)
	}
	// Only now: the slot of the first that wakes passes to one who must know.
	for state := d.head; state != nil; state = state.flight.next {
		state.flight.exchange.Notify() // under the lock: afterwards state may be that of another request
	}
}

// Empty returns when nothing is in flight any more, or the context has ended.
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

// arrive notes a request in flight; fresh says that it counts against quiet.
func (d *Drain) arrive(x Exchange, state *RequestState, fresh bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if fresh && state.start.After(d.arrived) { // others may have overtaken it on the way here
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
		state.end(Draining)
	}
}

// noteStream notes that a request in flight has become a stream.
func (d *Drain) noteStream(state *RequestState, kind streamKind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state.flight.stream = kind
	if kind == openStream || !d.running(time.Now()) {
		d.countStream(state)
		d.settle()
	}
}

// countStream counts a request that is a stream, once.
func (d *Drain) countStream(state *RequestState) {
	if f := &state.flight; f.stream != notAStream && !f.counted {
		f.counted = true
		d.streams++
	}
}

// leave undoes arrive.
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
	d.flights--
	d.settle()
}

// settle wakes those who wait, if there may be nothing left to wait for.
func (d *Drain) settle() {
	if d.settled != nil && (d.flights == 0 || d.awaited() == 0) {
		close(d.settled)
		d.settled = nil
	}
}

// untilSettled returns a channel that is closed when nothing is left in flight, or
// nothing that a drain waits for.
func (d *Drain) untilSettled() <-chan struct{} {
	if d.settled == nil {
		d.settled = make(chan struct{})
	}
	return d.settled
}
