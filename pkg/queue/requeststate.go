package queue

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
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

// Phase is how far a request has come.
type Phase uint32

// The phases, in order.
const (
	Queued    Phase = iota // waits for a slot
	Dialling               // has a slot, not yet a connection
	Waiting                // has been sent, at least in part; no response yet
	Streaming              // the response has begun
	Tunnelled              // upgraded: bytes both ways, no longer HTTP
)

func (p Phase) String() string {
	return [...]string{"queued", "dialling", "waiting", "streaming", "streaming"}[p]
}

// RequestState is the time of one request: when it came, how far it is, and which clock
// runs out next. It is memory of the engine, which reuses it, and costs nothing
// while no clock is set. Its exported methods but Trace and Waited are safe for
// concurrent use.
type RequestState struct {
	clocks *Clocks
	start  time.Time
	most   time.Duration // for the whole request, whatever clocks says; 0: no such bound
	active atomic.Int64  // the last byte, nanoseconds after start

	// Small ones together: there is one of these for each idle connection.
	phase   atomic.Uint32
	forced  atomic.Uint32 // a Reason from outside: the drain's deadline
	owing   atomic.Bool   // the client has a body to send that Clocks.Body applies to
	stream  streamKind    // guarded by Drain.mu
	counted bool          // in Drain.streams, guarded by Drain.mu
	holds   bool          // see Holds

	owed  atomic.Int64 // since when its next byte is waited for, nanoseconds after start; 0: it is not
	offer atomic.Int64 // since when a piece of the response waits for the client, nanoseconds after start; 0: none does
	trace Trace        // nil: not traced

	ticket   ticket        // its place in the queue, guarded by Limit.mu
	drain    *Drain        // that the request is in flight for; nil: none. Read by the goroutine that serves
	exchange Exchange      // whom to wake, guarded by Drain.mu
	prev     *RequestState // list of those in flight, guarded by Drain.mu
	next     *RequestState //
	seen     Observation
}

// begin makes state new for a request that came at now.
func (state *RequestState) begin(c *Clocks, now time.Time) {
	state.clocks, state.start, state.most = c, now, 0
	state.phase.Store(uint32(Queued))
	state.active.Store(0)
	state.forced.Store(uint32(OK))
	state.owing.Store(false)
	state.owed.Store(0)
	state.offer.Store(0)
}

// Holds reports whether the engine has to say in Result.Held what is left of an exchange
// that is broken off before its response has begun.
func (state *RequestState) Holds() bool { return state.holds }

// Trace returns the trace of the request; nil: it is not traced.
func (state *RequestState) Trace() Trace { return state.trace }

// Waited returns how long the request waited for its slot, and when it got it.
func (state *RequestState) Waited() (time.Duration, time.Time) {
	return state.seen.Slot.Sub(state.seen.Start), state.seen.Slot
}

// Enter notes that the request has come to phase p. In all but Dialling a byte has
// brought it there. Streaming is entered by [RequestState.Respond].
func (state *RequestState) Enter(p Phase) {
	state.phase.Store(uint32(p))
	if p != Dialling {
		state.Touch()
	}
	if state.trace != nil {
		state.trace.Enter(p)
	}
	if p == Tunnelled && state.drain != nil {
		state.drain.noteStream(state, openStream)
	}
}

// Respond notes that the final response has begun. Its Content-Type, "" for none,
// decides whether it is a stream (docs/promises.md 3.5). It is called by the goroutine
// that serves the request.
func (state *RequestState) Respond(contentType string) {
	state.Enter(Streaming)
	if state.drain == nil {
		return
	}
	switch {
	case isEventStream(contentType):
		if state.seen.Method == http.MethodGet {
			state.drain.noteStream(state, openStream)
		}
	case IsGRPC(contentType) && IsGRPC(state.seen.Exchange.Header(header.ContentType)):
		state.drain.noteStream(state, grpcStream)
	}
}

// isEventStream reports whether a media type is that of server-sent events (HTML
// Living Standard, section 9.2), whatever its parameters.
func isEventStream(contentType string) bool {
	const eventStream = "text/event-stream"
	if len(contentType) < len(eventStream) || !strings.EqualFold(contentType[:len(eventStream)], eventStream) {
		return false
	}
	rest := strings.TrimLeft(contentType[len(eventStream):], " \t")
	return rest == "" || rest[0] == ';'
}

// Phase returns how far the request has come.
func (state *RequestState) Phase() Phase { return Phase(state.phase.Load()) }

// Touch notes that a byte has moved, for the idle clock.
func (state *RequestState) Touch() {
	if state.clocks.Idle > 0 {
		state.active.Store(int64(time.Since(state.start)))
	}
}

// ExpectBody notes that the request has a body, which Clocks.Body applies to. It
// alone can bring Next nearer: call it before an alarm is set.
func (state *RequestState) ExpectBody() { state.owing.Store(state.clocks.Body > 0) }

// AwaitBody notes that the next byte of the request's body is waited for, until
// GotBody.
func (state *RequestState) AwaitBody() {
	if state.owing.Load() {
		state.owed.Store(max(int64(time.Since(state.start)), 1))
	}
}

// GotBody notes that bytes of the request's body have come, or its end.
func (state *RequestState) GotBody() {
	state.owed.Store(0)
	state.Touch()
}

// writeStarted notes that a piece of the response waits for the client to take it, until
// WriteDone. It can bring Next nearer.
func (state *RequestState) writeStarted() {
	if state.clocks.Send > 0 {
		state.offer.Store(max(int64(time.Since(state.start)), 1))
	}
}

// WriteDone notes that the client has taken the piece, or never will.
func (state *RequestState) WriteDone() {
	if state.clocks.Send > 0 {
		state.offer.Store(0)
	}
}

// End makes Expired return reason from now on, whatever the clocks say, unless it was
// called before. The caller wakes the exchange.
func (state *RequestState) End(reason Reason) {
	state.forced.CompareAndSwap(uint32(OK), uint32(reason))
}

// Next returns the earliest moment at which the request may expire; the zero time means
// never. But for a write that starts the moment can only move away: an engine may leave
// an alarm alone until it rings.
func (state *RequestState) Next() time.Time {
	_, at := state.earliest()
	if at == 0 {
		return time.Time{}
	}
	return state.start.Add(at)
}

// Expired returns the clock that has run out, OK while none has. A deadline that
// rings only asks; this decides.
func (state *RequestState) Expired() Reason {
	if reason := Reason(state.forced.Load()); reason != OK {
		return reason
	}
	if reason, at := state.earliest(); at != 0 && time.Since(state.start) >= at {
		return reason
	}
	return OK
}

// earliest returns the clock that runs out first in the present phase and when,
// counted from start; 0 is never.
func (state *RequestState) earliest() (reason Reason, at time.Duration) {
	c, phase := state.clocks, state.Phase()
	consider := func(r Reason, d time.Duration, base time.Duration) {
		if d > 0 && (at == 0 || base+d < at) {
			reason, at = r, base+d
		}
	}
	if phase == Tunnelled {
		consider(IdleTimeout, c.Idle, time.Duration(state.active.Load()))
		return reason, at
	}
	if offer := state.offer.Load(); offer != 0 {
		consider(IdleTimeout, c.Send, time.Duration(offer))
	}
	if phase == Queued {
		consider(QueueTimeout, c.Queue, 0)
	}
	if phase < Streaming {
		consider(ResponseStartTimeout, c.ResponseStart, 0)
	}
	if phase < Streaming && state.owing.Load() {
		since := time.Duration(state.owed.Load())
		if since == 0 {
			since = time.Since(state.start)
		}
		consider(IdleTimeout, c.Body, since)
	}
	if phase < Streaming || !c.FirstByteOnly {
		consider(RequestTimeout, c.Request, 0)
	}
	consider(RequestTimeout, state.most, 0)
	consider(IdleTimeout, c.Idle, time.Duration(state.active.Load()))
	return reason, at
}
