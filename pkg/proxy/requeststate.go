package proxy

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// RequestState is the state of one request. The engine owns the memory and reuses it for later
// requests, so an idle connection also has a RequestState. Exported methods may be called
// concurrently, except Trace, Holds and Waited.
type RequestState struct {
	deadlines // the phase and the timeouts

	adaptive atomic.Pointer[Limit] // the adaptive limit from which the request has a slot; nil if there is none

	ticket ticket                  // queue entry and slot
	flight drainEntry              // entry in the list of requests in flight
	trace  Trace                   // nil if the request is not traced
	seen   observation.Observation // the observation that is reported when the request ends

	rejected observation.Reason // reason to reject the request; OK if it is served
	reset    bool               // the engine resets the stream of a rejected request
}

// Holds reports whether the engine must set Result.Held if it aborts an exchange whose response has
// not begun.
func (state *RequestState) Holds() bool { return state.ticket.holds }

// Trace returns the trace of the request. It is nil if the request is not traced.
func (state *RequestState) Trace() transport.TraceFields { return state.trace }

// Waited returns how long the request waited for its slot, and when it got the slot.
func (state *RequestState) Waited() (time.Duration, time.Time) {
	return state.seen.Slot.Sub(state.seen.Start), state.seen.Slot
}

// Send implements transport.State.
func (state *RequestState) Send() { state.enter(observation.Waiting) }

// Upgrade implements transport.State.
func (state *RequestState) Upgrade() { state.enter(observation.Tunnelled) }

// Upgraded implements transport.State.
func (state *RequestState) Upgraded() bool { return state.Phase() == observation.Tunnelled }

// enter records that the request has entered phase p. Each phase except Dialling begins when a byte
// is transferred, so enter also restarts Clocks.Idle for these phases.
func (state *RequestState) enter(p observation.Phase) {
	state.phase.Store(uint32(p))
	if p != observation.Dialling {
		state.Touch()
	}
	if state.trace != nil {
		state.trace.Enter(p)
	}
	if p == observation.Tunnelled {
		state.becomeStream()
	}
}

// adaptTo records that the request has a slot of m, if m is adaptive. If m is nil, the request no
// longer has a slot.
func (state *RequestState) adaptTo(m *Limit) {
	if m != nil && m.adaptive == nil {
		return
	}
	if m != nil || state.adaptive.Load() != nil {
		state.adaptive.Store(m)
	}
}

// AwaitBody records that the engine waits for the next byte of the request body until GotBody is
// called.
func (state *RequestState) AwaitBody() {
	state.deadlines.AwaitBody()
	state.awaitClient()
}

// GotBody records that bytes or the end of the request body have arrived.
func (state *RequestState) GotBody(complete bool) {
	state.deadlines.GotBody(complete)
	state.clientReady()
}

// WriteStarted records that output cannot be sent until the client reads. The wait lasts until
// WriteDone is called.
func (state *RequestState) WriteStarted() {
	state.deadlines.WriteStarted()
	state.awaitClient()
}

// WriteDone records that the output was sent or the write failed.
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

// becomeStream records that the request has become a stream. The adaptive limit does not count
// streams, and the drain does not wait for them by default.
func (state *RequestState) becomeStream() {
	if m := state.adaptive.Load(); m != nil {
		m.adapt(func(now time.Time) { m.adaptive.Stream(now, &state.ticket.slot) })
	}
	if state.flight.drain != nil {
		state.flight.drain.noteStream(state, openStream)
	}
}

// Respond records that the final response has begun. contentType is the value of the Content-Type
// field, or "" if there is none. The media type determines whether the response is a stream
// (docs/promises.md 3.5).
//
// An engine calls Respond at most once per request, on any goroutine, and Forward does not return
// before Respond has returned. The HTTP/2 engine calls Respond on the goroutine that reads the
// connection to the user container.
func (state *RequestState) Respond(contentType string) {
	state.enter(observation.Streaming)
	switch {
	case isEventStream(contentType):
		if state.seen.Method == http.MethodGet {
			state.becomeStream()
		}
	case transport.IsGRPC(contentType):
		state.seen.RPC = observation.GRPCMissing // until EndRPC is called
		if state.flight.drain != nil && transport.IsGRPC(state.seen.Exchange.Header(transport.ContentType)) {
			state.flight.drain.noteStream(state, grpcStream)
		}
	}
}

// EndRPC records the grpc-status of the response. The status is in the trailer section, or in the
// header section if the response has no body and no trailers. EndRPC has no effect if the response
// does not use gRPC. It must be called after Respond and before Forward returns.
func (state *RequestState) EndRPC(status string) {
	if state.seen.RPC != 0 {
		state.seen.RPC = observation.ParseGRPCStatus(status)
	}
}

// isEventStream reports whether a media type is the type of server-sent events (HTML Living
// Standard, section 9.2). Parameters are ignored.
func isEventStream(contentType string) bool {
	const eventStream = "text/event-stream"
	if len(contentType) < len(eventStream) || !strings.EqualFold(contentType[:len(eventStream)], eventStream) {
		return false
	}
	rest := strings.TrimLeft(contentType[len(eventStream):], " \t")
	return rest == "" || rest[0] == ';'
}
