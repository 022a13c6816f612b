package queue

import (
	"sync/atomic"
	"time"
)

// Clocks are the limits on a request's time (docs/promises.md 3.2). Zero is off. They
// all start when the request is read, so waiting in the queue counts.
type Clocks struct {
	Request       time.Duration // the whole request,
	FirstByteOnly bool          // or, with this, until the response begins
	ResponseStart time.Duration // until the response begins
	Idle          time.Duration // between bytes, in either direction
	Body          time.Duration // for the client's next byte of a body that is being forwarded, until the response begins
	Send          time.Duration // for the client to take a piece of the response that is there for it
	Queue         time.Duration // until a slot is free
}

// A Stall is a transfer that a client stalls. Several timeouts have the reason IdleTimeout, and
// the Stall tells them apart.
type Stall uint8

// The stalls.
const (
	NoStall       Stall = iota
	BodyStall           // the client does not send the next byte of the request body: Clocks.Body
	ResponseStall       // the client does not read the response: Clocks.Send
)

// deadlines decide when a request has taken too long. It has no timer: an [Alarm] asks for
// the next moment, and costs nothing while no clock is set.
type deadlines struct {
	clocks *Clocks
	start  time.Time
	most   time.Duration // maximum duration of the request, including a tunnel; 0 means that only clocks applies
	active atomic.Int64  // the last byte, nanoseconds after start

	phase  atomic.Uint32 // a Phase, which decides what clocks run
	forced atomic.Uint32 // a Reason from outside: the drain's deadline
	owing  atomic.Bool   // the client has a body to send that Clocks.Body applies to

	owed  atomic.Int64 // since when its next byte is waited for, nanoseconds after start; 0: it is not
	offer atomic.Int64 // since when a piece of the response waits for the client, nanoseconds after start; 0: none does
}

// begin starts the clocks of a request that came at now.
func (d *deadlines) begin(c *Clocks, now time.Time) {
	d.clocks, d.start, d.most = c, now, 0
	d.phase.Store(uint32(Queued))
	d.active.Store(0)
	d.forced.Store(uint32(OK))
	d.owing.Store(false)
	d.owed.Store(0)
	d.offer.Store(0)
}

// Phase returns how far the request has come.
func (d *deadlines) Phase() Phase { return Phase(d.phase.Load()) }

// Touch notes that a byte has moved, for the idle clock.
func (d *deadlines) Touch() {
	if d.clocks.Idle > 0 {
		d.active.Store(int64(time.Since(d.start)))
	}
}

// ExpectBody notes that the request has a body, which Clocks.Body applies to. It
// alone can bring nextExpiry nearer: call it before an alarm is set.
func (d *deadlines) ExpectBody() { d.owing.Store(d.clocks.Body > 0) }

// AwaitBody notes that the next byte of the request's body is waited for, until
// GotBody.
func (d *deadlines) AwaitBody() {
	if d.owing.Load() {
		d.owed.Store(max(int64(time.Since(d.start)), 1))
	}
}

// GotBody notes that bytes of the request's body have come, or its end.
func (d *deadlines) GotBody() {
	d.owed.Store(0)
	d.Touch()
}

// writeStarted notes that a piece of the response waits for the client to take it, until
// WriteDone. It can bring nextExpiry nearer.
func (d *deadlines) writeStarted() {
	if d.clocks.Send > 0 {
		d.offer.Store(max(int64(time.Since(d.start)), 1))
	}
}

// WriteDone notes that the client has taken the piece, or never will.
func (d *deadlines) WriteDone() {
	if d.clocks.Send > 0 {
		d.offer.Store(0)
	}
}

// end makes expiry return reason from now on, regardless of the timeouts, unless it was called before.
// The caller wakes the exchange.
func (d *deadlines) end(reason Reason) {
	d.forced.CompareAndSwap(uint32(OK), uint32(reason))
}

// nextExpiry returns the earliest moment at which the request may expire; the zero time means
// never. But for a write that starts the moment can only move away: an engine may leave
// an alarm alone until it rings.
func (d *deadlines) nextExpiry() time.Time {
	e := d.earliest()
	if e.at == 0 {
		return time.Time{}
	}
	return d.start.Add(e.at)
}

// expiry returns the timeout that has expired, or OK, and the stall that caused it.
func (d *deadlines) expiry() (reason Reason, stall Stall) {
	if reason := Reason(d.forced.Load()); reason != OK {
		return reason, NoStall
	}
	if e := d.earliest(); e.at != 0 && time.Since(d.start) >= e.at {
		return e.reason, e.stall
	}
	return OK, NoStall
}

// An expiry is the expiry of a timeout.
type expiry struct {
	reason Reason
	stall  Stall
	at     time.Duration // since the start of the request; 0 if no timeout is set
}

// consider replaces e if the timeout d, which begins at base, expires earlier. If d is 0, there is
// no timeout.
func (e *expiry) consider(r Reason, s Stall, d, base time.Duration) {
	if d > 0 && (e.at == 0 || base+d < e.at) {
		*e = expiry{r, s, base + d}
	}
}

// earliest returns the timeout that expires first in the current phase. It is called several times
// for each request.
func (d *deadlines) earliest() (e expiry) {
	c, phase := d.clocks, d.Phase()
	e.consider(RequestTimeout, NoStall, d.most, 0)
	e.consider(IdleTimeout, NoStall, c.Idle, time.Duration(d.active.Load()))
	if phase == Tunnelled {
		return e
	}
	if offer := d.offer.Load(); offer != 0 {
		e.consider(IdleTimeout, ResponseStall, c.Send, time.Duration(offer))
	}
	if phase == Queued {
		e.consider(QueueTimeout, NoStall, c.Queue, 0)
	}
	if phase < Streaming {
		e.consider(ResponseStartTimeout, NoStall, c.ResponseStart, 0)
	}
	if phase < Streaming && d.owing.Load() {
		since := time.Duration(d.owed.Load())
		if since == 0 {
			since = time.Since(d.start)
		}
		e.consider(IdleTimeout, BodyStall, c.Body, since)
	}
	if phase < Streaming || !c.FirstByteOnly {
		e.consider(RequestTimeout, NoStall, c.Request, 0)
	}
	return e
}
