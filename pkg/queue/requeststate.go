package queue

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

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

// RequestState is what the lifecycle keeps of one request, each part with its own job. It
// is memory of the engine, which reuses it: there is one for each idle connection. Its
// exported methods but Trace, Holds and Waited are safe for concurrent use.
type RequestState struct {
	deadlines // how far it is, and which limit on its time runs out next

	adaptive atomic.Pointer[Limit] // the adaptive limit that the request has a slot of; nil: none

	ticket ticket      // its place in the line for a slot
	flight drainEntry  // its place among the requests in flight
	trace  Trace       // nil: not traced
	seen   Observation // what is recorded of it at its end

	rejected Reason // reason to reject the request; OK: it is served
	reset    bool   // the engine resets the stream of a rejected request
}

// Holds reports whether the engine has to say in Result.Held what is left of an exchange
// that is broken off before its response has begun.
func (state *RequestState) Holds() bool { return state.ticket.holds }

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
	if p == Tunnelled {
		state.becomeStream()
	}
}

// adaptTo records the limit that the request has a slot of, if it is adaptive.
func (state *RequestState) adaptTo(m *Limit) {
	if m != nil && m.adaptive == nil {
		return
	}
	if m != nil || state.adaptive.Load() != nil {
		state.adaptive.Store(m)
	}
}

// AwaitBody notes that the next byte of the request's body is waited for, until GotBody.
func (state *RequestState) AwaitBody() {
	state.deadlines.AwaitBody()
	state.awaitClient()
}

// GotBody notes that bytes of the request's body have come, or its end.
func (state *RequestState) GotBody() {
	state.deadlines.GotBody()
	state.clientReady()
}

// writeStarted notes that a piece of the response waits for the client to take it, until
// WriteDone.
func (state *RequestState) writeStarted() {
	state.deadlines.writeStarted()
	state.awaitClient()
}

// WriteDone notes that the client has taken the piece, or never will.
func (state *RequestState) WriteDone() {
	state.deadlines.WriteDone()
	state.clientReady()
}

func (state *RequestState) awaitClient() {
	if m := state.adaptive.Load(); m != nil {
		m.adapt(func(now time.Time) { m.adaptive.AwaitClient(now, &state.ticket.slot) })
	}
}

func (state *RequestState) clientReady() {
	if m := state.adaptive.Load(); m != nil {
		m.adapt(func(now time.Time) { m.adaptive.ClientReady(now, &state.ticket.slot) })
	}
}

// becomeStream notes that the request lasts as long as people like.
func (state *RequestState) becomeStream() {
	state.seen.Stream = true
	if m := state.adaptive.Load(); m != nil {
		m.adapt(func(now time.Time) { m.adaptive.Stream(now, &state.ticket.slot) })
	}
	if state.flight.drain != nil {
		state.flight.drain.noteStream(state, openStream)
	}
}

// Respond records that the final response has begun. contentType is the value of its Content-Type
// field, or "" if there is none. It decides whether the response is a stream (docs/promises.md 3.5).
//
// An engine calls Respond at most once per request, on any goroutine, and Forward returns after
// Respond has returned. The HTTP/2 engine calls it on the goroutine that reads the connection to
// the user container.
func (state *RequestState) Respond(contentType string) {
	state.Enter(Streaming)
	switch {
	case isEventStream(contentType):
		if state.seen.Method == http.MethodGet {
			state.becomeStream()
		}
	case state.flight.drain == nil:
	case IsGRPC(contentType) && IsGRPC(state.seen.Exchange.Header(header.ContentType)):
		state.flight.drain.noteStream(state, grpcStream)
	}
}

// rpcErrors are the codes of gRPC that say that the user container has failed, or has too
// much to do. The others are the client's doing (https://grpc.io/docs/guides/status-codes/).
var rpcErrors = map[string]bool{
	"2":  true, // UNKNOWN
	"4":  true, // DEADLINE_EXCEEDED
	"8":  true, // RESOURCE_EXHAUSTED
	"13": true, // INTERNAL
	"14": true, // UNAVAILABLE
	"15": true, // DATA_LOSS
}

// EndRPC notes the grpc-status of the response: of its trailers, or of its head where it
// has nothing else. It is to be called before Forward returns.
func (state *RequestState) EndRPC(status string) { state.seen.RPCError = rpcErrors[status] }

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
