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
type Drain struct {
	settings DrainSettings
	begun    atomic.Bool // Begin was called and not undone; a hint, mu decides

	mu      sync.Mutex
	serving context.Context    // ends when the drain begins,
	pause   context.CancelFunc // by this
	began   time.Time          // zero: serving
	ending  bool               // the pod is ending: this can't be undone
	over    bool               // Abort was called: what comes now comes too late
	emptied chan struct{}      // closed when the last in flight leaves; nil: nobody waits
	arrived time.Time          // the last request that counts against quiet
	flights int
	head    *Life // those in flight, oldest first
	tail    *Life
}

// NewDrain returns a drain that has not begun.
func NewDrain(s DrainSettings) *Drain {
	d := &Drain{settings: s}
	d.serving, d.pause = context.WithCancel(context.Background())
	return d
}

// While returns a context that ends with ctx, and when the drain begins. The
// caller must call cancel.
func (d *Drain) While(ctx context.Context) (_ context.Context, cancel func()) {
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

// Draining reports whether probes are told to go away.
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
	Drained  Outcome = iota // quiet, and nothing in flight
	Deadline                // the deadline came first
	Undone                  // back to serving
	GaveUp                  // the waiter's own context ended
)

func (o Outcome) String() string {
	return [...]string{"drained", "deadline", "undone", "gave up"}[o]
}

// Wait returns when the drain is over, in whichever way. With no drain running
// it returns Undone at once.
func (d *Drain) Wait(ctx context.Context) Outcome {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		d.mu.Lock()
		outcome, next, over := d.look(time.Now())
		emptied := d.untilEmpty()
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
		case <-emptied:
		case <-timer.C:
		}
	}
}

// look decides whether the drain is over, and if not, when to look again unless
// the last in flight leaves before; the zero time is never. Whatever else happens
// can only put the end off.
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
	if now.Before(quiet) {
		next = earlier(next, quiet)
	} else if d.flights == 0 {
		return Drained, next, true
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

// Flights returns how many requests are in flight and since when the oldest is.
func (d *Drain) Flights() (n int, oldest time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.head != nil {
		oldest = d.head.start
	}
	return d.flights, oldest
}

// Abort ends every exchange in flight with the reason Draining, and those that
// come after.
func (d *Drain) Abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	for l := d.head; l != nil; l = l.next {
		l.End(Draining)
	}
	// Only now: the slot of the first that wakes passes to one who must know.
	for l := d.head; l != nil; l = l.next {
		l.exchange.Wake() // under the lock: afterwards l may serve another request
	}
}

// Empty returns when nothing is in flight any more, or the context has ended.
func (d *Drain) Empty(ctx context.Context) error {
	for {
		d.mu.Lock()
		n, emptied := d.flights, d.untilEmpty()
		d.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-emptied:
		}
	}
}

// arrive notes a request in flight; fresh says that it counts against quiet.
func (d *Drain) arrive(x Exchange, l *Life, fresh bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if fresh && l.start.After(d.arrived) { // others may have overtaken it on the way here
		d.arrived = l.start
	}
	l.exchange, l.prev, l.next = x, d.tail, nil
	if d.tail == nil {
		d.head = l
	} else {
		d.tail.next = l
	}
	d.tail = l
	d.flights++
	if d.over {
		l.End(Draining)
	}
}

// leave undoes arrive.
func (d *Drain) leave(l *Life) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.prev == nil {
		d.head = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		d.tail = l.prev
	} else {
		l.next.prev = l.prev
	}
	l.exchange, l.prev, l.next = nil, nil, nil
	d.flights--
	if d.flights == 0 && d.emptied != nil {
		close(d.emptied)
		d.emptied = nil
	}
}

// untilEmpty returns a channel that is closed when the last in flight leaves.
func (d *Drain) untilEmpty() <-chan struct{} {
	if d.emptied == nil {
		d.emptied = make(chan struct{})
	}
	return d.emptied
}
