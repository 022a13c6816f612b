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

// Life is the time of one request: when it came, how far it is, and which clock
// runs out next. It is memory of the engine, which reuses it, and costs nothing
// while no clock is set. Its exported methods but Trace and Waited are safe for
// concurrent use.
type Life struct {
	clocks *Clocks
	start  time.Time
	most   time.Duration // for the whole request, whatever clocks says; 0: no such bound
	active atomic.Int64  // the last byte, nanoseconds after start

	// Small ones together: there is one of these for each idle connection.
	phase   atomic.Uint32
	forced  atomic.Uint32 // a Why from outside: the drain's deadline
	owing   atomic.Bool   // the client has a body to send that Clocks.Body applies to
	stream  streamKind    // guarded by Drain.mu
	counted bool          // in Drain.streams, guarded by Drain.mu
	holds   bool          // see Holds

	owed  atomic.Int64 // since when its next byte is waited for, nanoseconds after start; 0: it is not
	offer atomic.Int64 // since when a piece of the response waits for the client, nanoseconds after start; 0: none does
	trace Trace        // nil: not traced

	ticket   ticket   // its place in the queue, guarded by Limit.mu
	drain    *Drain   // that the request is in flight for; nil: none. Read by the goroutine that serves
	exchange Exchange // whom to wake, guarded by Drain.mu
	prev     *Life    // list of those in flight, guarded by Drain.mu
	next     *Life    //
	seen     Observation
}

// begin makes l new for a request that came at now.
func (l *Life) begin(c *Clocks, now time.Time) {
	l.clocks, l.start, l.most = c, now, 0
	l.phase.Store(uint32(Queued))
	l.active.Store(0)
	l.forced.Store(uint32(OK))
	l.owing.Store(false)
	l.owed.Store(0)
	l.offer.Store(0)
}

// Holds reports whether the engine has to say in Result.Held what is left of an exchange
// that is broken off before its response has begun.
func (l *Life) Holds() bool { return l.holds }

// Trace returns the trace of the request; nil: it is not traced.
func (l *Life) Trace() Trace { return l.trace }

// Waited returns how long the request waited for its slot, and when it got it.
func (l *Life) Waited() (time.Duration, time.Time) { return l.seen.Slot.Sub(l.seen.Start), l.seen.Slot }

// Enter notes that the request has come to phase p. In all but Dialling a byte has
// brought it there. Streaming is entered by [Life.Respond].
func (l *Life) Enter(p Phase) {
	l.phase.Store(uint32(p))
	if p != Dialling {
		l.Touch()
	}
	if l.trace != nil {
		l.trace.Enter(p)
	}
	if p == Tunnelled && l.drain != nil {
		l.drain.noteStream(l, openStream)
	}
}

// Respond notes that the final response has begun. Its Content-Type, "" for none,
// decides whether it is a stream (docs/promises.md 3.5). It is called by the goroutine
// that serves the request.
func (l *Life) Respond(contentType string) {
	l.Enter(Streaming)
	if l.drain == nil {
		return
	}
	switch {
	case isEventStream(contentType):
		if l.seen.Method == http.MethodGet {
			l.drain.noteStream(l, openStream)
		}
	case IsGRPC(contentType) && IsGRPC(l.seen.Exchange.Header(header.ContentType)):
		l.drain.noteStream(l, grpcStream)
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
func (l *Life) Phase() Phase { return Phase(l.phase.Load()) }

// Touch notes that a byte has moved, for the idle clock.
func (l *Life) Touch() {
	if l.clocks.Idle > 0 {
		l.active.Store(int64(time.Since(l.start)))
	}
}

// OwesBody notes that the request has a body, which Clocks.Body applies to. It
// alone can bring Next nearer: call it before an alarm is set.
func (l *Life) OwesBody() { l.owing.Store(l.clocks.Body > 0) }

// AwaitBody notes that the next byte of the request's body is waited for, until
// GotBody.
func (l *Life) AwaitBody() {
	if l.owing.Load() {
		l.owed.Store(max(int64(time.Since(l.start)), 1))
	}
}

// GotBody notes that bytes of the request's body have come, or its end.
func (l *Life) GotBody() {
	l.owed.Store(0)
	l.Touch()
}

// offered notes that a piece of the response waits for the client to take it, until
// Taken. It can bring Next nearer.
func (l *Life) offered() {
	if l.clocks.Send > 0 {
		l.offer.Store(max(int64(time.Since(l.start)), 1))
	}
}

// Taken notes that the client has taken what was offered, or never will.
func (l *Life) Taken() {
	if l.clocks.Send > 0 {
		l.offer.Store(0)
	}
}

// End makes Over return why from now on, whatever the clocks say, unless it was
// called before. The caller wakes the exchange.
func (l *Life) End(why Why) { l.forced.CompareAndSwap(uint32(OK), uint32(why)) }

// Next returns the earliest moment at which Over may have something to say;
// the zero time means never. But for Offer the moment can only move away: an engine
// may leave an alarm alone until it rings.
func (l *Life) Next() time.Time {
	_, at := l.earliest()
	if at == 0 {
		return time.Time{}
	}
	return l.start.Add(at)
}

// Over returns the clock that has run out, OK while none has. A deadline that
// rings only asks; this decides.
func (l *Life) Over() Why {
	if why := Why(l.forced.Load()); why != OK {
		return why
	}
	if why, at := l.earliest(); at != 0 && time.Since(l.start) >= at {
		return why
	}
	return OK
}

// earliest returns the clock that runs out first in the present phase and when,
// counted from start; 0 is never.
func (l *Life) earliest() (why Why, at time.Duration) {
	c, phase := l.clocks, l.Phase()
	consider := func(w Why, d time.Duration, base time.Duration) {
		if d > 0 && (at == 0 || base+d < at) {
			why, at = w, base+d
		}
	}
	if phase == Tunnelled {
		consider(IdleTimeout, c.Idle, time.Duration(l.active.Load()))
		return why, at
	}
	if offer := l.offer.Load(); offer != 0 {
		consider(IdleTimeout, c.Send, time.Duration(offer))
	}
	if phase == Queued {
		consider(QueueTimeout, c.Queue, 0)
	}
	if phase < Streaming {
		consider(ResponseStartTimeout, c.ResponseStart, 0)
	}
	if phase < Streaming && l.owing.Load() {
		since := time.Duration(l.owed.Load())
		if since == 0 {
			since = time.Since(l.start)
		}
		consider(IdleTimeout, c.Body, since)
	}
	if phase < Streaming || !c.FirstByteOnly {
		consider(RequestTimeout, c.Request, 0)
	}
	consider(RequestTimeout, l.most, 0)
	consider(IdleTimeout, c.Idle, time.Duration(l.active.Load()))
	return why, at
}
