package proxy

import (
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Clocks contains the timeouts of a request (docs/promises.md 3.2). 0 disables a timeout. Request,
// ResponseStart and Queue begin when the header section of the request has been read, so they
// include the time in the queue.
type Clocks struct {
	Request       time.Duration // maximum duration of the request
	FirstByteOnly bool          // Request applies only until the response begins
	ResponseStart time.Duration // maximum time until the response begins
	Idle          time.Duration // maximum time between two bytes in either direction
	Body          time.Duration // maximum time until the next byte of a request body that is being forwarded; applies until the response begins
	Send          time.Duration // maximum time until the client accepts a part of the response
	Queue         time.Duration // maximum time until the request gets a slot
}

// deadlines computes when a request expires. It has no timer. A [transport.Canceler] calls NextExpiry, and sets a
// timer only if a timeout is set.
type deadlines struct {
	clocks *Clocks
	start  time.Time
	most   time.Duration // maximum duration of the request, including a tunnel; 0 means that only the timeouts in clocks apply
	active atomic.Int64  // time of the last byte of the request body, in nanoseconds after start; if Clocks.Idle is set, time of the last byte in either direction

	phase  atomic.Uint32 // the current Phase, which determines the timeouts that apply
	forced atomic.Uint32 // the Reason passed to end; OK if there is none

	bodyLimited  atomic.Bool // ExpectBody was called
	bodyComplete atomic.Bool // GotBody was called with the end of the body

	// waitStart is when the engine began to wait for the next body byte, in nanoseconds after start. It is 0 if the
	// engine is not waiting. It is 1 during a wait if Clocks.Body does not apply, because the exact time is not needed.
	waitStart atomic.Int64

	offer atomic.Int64 // when the current write began to wait for the client, in nanoseconds since start; 0 if no write is waiting
}

// begin starts the timeouts of a request that arrived at now.
func (d *deadlines) begin(c *Clocks, now time.Time) {
	d.clocks, d.start, d.most = c, now, 0
	d.phase.Store(uint32(observation.Queued))
	d.active.Store(0)
	d.forced.Store(uint32(observation.OK))
	d.bodyLimited.Store(false)
	d.bodyComplete.Store(false)
	d.waitStart.Store(0)
	d.offer.Store(0)
}

// Phase returns the current phase of the request.
func (d *deadlines) Phase() observation.Phase { return observation.Phase(d.phase.Load()) }

// Touch records that a byte was transferred. It restarts Clocks.Idle.
func (d *deadlines) Touch() {
	if d.clocks.Idle > 0 {
		d.active.Store(int64(time.Since(d.start)))
	}
}

// ExpectBody records that the request has a body to which Clocks.Body applies. NextExpiry may then
// return an earlier time, so ExpectBody must be called before a canceler is set.
func (d *deadlines) ExpectBody() { d.bodyLimited.Store(true) }

// AwaitBody records that the engine waits for the next byte of the request body until GotBody is called.
func (d *deadlines) AwaitBody() {
	start := int64(1) // the exact time is only needed for Clocks.Body
	if d.clocks.Body > 0 && d.bodyLimited.Load() {
		start = max(int64(time.Since(d.start)), start)
	}
	d.waitStart.Store(start)
}

// GotBody records that bytes or the end of the request body have arrived.
func (d *deadlines) GotBody(complete bool) {
	d.waitStart.Store(0)
	if complete {
		d.bodyComplete.Store(true)
	}
	d.active.Store(int64(time.Since(d.start)))
}

// WriteStarted records that output cannot be sent until the client reads. The wait lasts until WriteDone is called.
// NextExpiry may then return an earlier time.
func (d *deadlines) WriteStarted() {
	if d.clocks.Send > 0 {
		d.offer.Store(max(int64(time.Since(d.start)), 1))
	}
}

// WriteDone records that the output was sent or the write failed.
func (d *deadlines) WriteDone() {
	if d.clocks.Send > 0 {
		d.offer.Store(0)
	}
}

// end makes Expiry return reason regardless of the timeouts. Only the first call has an effect. The
// caller must notify the exchange.
func (d *deadlines) end(reason observation.Reason) {
	d.forced.CompareAndSwap(uint32(observation.OK), uint32(reason))
}

// NextExpiry returns the earliest time at which the request can expire, or the zero time if no
// timeout is set. Only WriteStarted makes the result earlier while a canceler is set. An engine
// therefore does not have to set the canceler again for other events.
func (d *deadlines) NextExpiry() time.Time {
	e := d.earliest()
	if e.at == 0 {
		return time.Time{}
	}
	return d.start.Add(e.at)
}

// Expiry returns the reason that was passed to end, or the error of the timeout that has expired. It
// returns nil if the request has not expired.
func (d *deadlines) Expiry() error {
	if reason := observation.Reason(d.forced.Load()); reason != observation.OK {
		return reasonError(reason)
	}
	e := d.earliest()
	if e.at == 0 || time.Since(d.start) < e.at {
		return nil
	}
	// The other errors are faults, which already identify the request body or the response as the
	// cause.
	if _, general := e.err.(reasonError); general && d.uploading() { //nolint:errorlint // never wrapped
		return reasonError(observation.ClientSlow)
	}
	return e.err
}

// uploading reports whether the user container has not responded and the engine waits for a request body to which
// Clocks.Body applies.
func (d *deadlines) uploading() bool {
	phase := d.Phase()
	return d.bodyLimited.Load() && d.awaitsBody() && phase > observation.Queued && phase < observation.Streaming
}

// endedUpload reports whether the request ended at now, before the response began and while the client was sending its
// body. A body is still being sent if bytes arrived in the last second, even if the engine has not called AwaitBody yet.
func (d *deadlines) endedUpload(now time.Time) bool {
	recent := now.Sub(d.start)-time.Duration(d.active.Load()) < time.Second
	return d.uploading() || recent && d.bodyLimited.Load() && !d.bodyComplete.Load() && d.Phase() < observation.Streaming
}

// awaitsBody reports whether the engine waits for the request body.
func (d *deadlines) awaitsBody() bool { return d.waitStart.Load() != 0 }

// An expiry contains the time at which a timeout expires and the error that Expiry then returns.
type expiry struct {
	err error
	at  time.Duration // relative to the start of the request; 0 if no timeout is set
}

// consider replaces e if the timeout d, which begins at base, expires earlier. If d is 0, there is no
// timeout.
func (e *expiry) consider(err error, d, base time.Duration) {
	if d > 0 && (e.at == 0 || base+d < e.at) {
		*e = expiry{err, base + d}
	}
}

// earliest returns the timeout that expires first in the current phase.
func (d *deadlines) earliest() (e expiry) {
	c, phase := d.clocks, d.Phase()
	e.consider(reasonError(observation.RequestTimeout), d.most, 0)
	e.consider(reasonError(observation.IdleTimeout), c.Idle, time.Duration(d.active.Load()))
	if phase == observation.Tunnelled {
		return e
	}
	if offer := d.offer.Load(); offer != 0 {
		e.consider(transport.FaultClientReadStall, c.Send, time.Duration(offer))
	}
	if phase == observation.Queued {
		e.consider(reasonError(observation.QueueTimeout), c.Queue, 0)
	}
	if phase < observation.Streaming {
		e.consider(reasonError(observation.ResponseStartTimeout), c.ResponseStart, 0)
	}
	if c.Body > 0 && phase < observation.Streaming && d.bodyLimited.Load() {
		since := time.Duration(d.waitStart.Load())
		if since == 0 {
			since = time.Since(d.start)
		}
		e.consider(transport.FaultBodyStall, c.Body, since)
	}
	if phase < observation.Streaming || !c.FirstByteOnly {
		e.consider(reasonError(observation.RequestTimeout), c.Request, 0)
	}
	return e
}
