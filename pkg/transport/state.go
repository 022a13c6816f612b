package transport

import (
	"time"
)

// A Handler serves the requests of an engine.
type Handler interface {
	// NewState returns a state that an exchange can reuse for sequential requests.
	NewState() State

	// Serve serves one request and returns when the exchange can be reused.
	Serve(x Exchange, state State)

	// Reject is called instead of Serve for a request that is rejected because the memory budget is exhausted. It
	// does not block. If reset is true, the engine resets the client's stream, and no response is sent.
	Reject(x Exchange, state State, reset bool)

	// Refuse responds with status to a request that is not served because its header section is not valid.
	Refuse(x Exchange, status int)

	// Draining reports whether the pod is being terminated.
	Draining() bool
}

// State is the state of one request. The engine calls its methods to record the progress of the request. All
// methods except Trace, Holds and Waited are safe for concurrent use.
type State interface {
	// Send records that a connection to the user container exists and that the request is sent next.
	Send()

	// Upgrade records that the exchange became a tunnel.
	Upgrade()

	// Upgraded reports whether the exchange became a tunnel.
	Upgraded() bool

	// Touch records that bytes were transferred, which restarts the idle timeout.
	Touch()

	// ExpectBody records that the request has a body. It may make NextExpiry earlier, so it must be called before a
	// [Canceler] watches the request.
	ExpectBody()

	// AwaitBody records that the engine waits for the next byte of the request body until GotBody is called.
	AwaitBody()

	// GotBody records that part of the request body, or its end, has arrived. complete reports whether the body is
	// complete.
	GotBody(complete bool)

	// WriteStarted records that output cannot be sent until the client reads. The wait lasts until WriteDone is
	// called. WriteStarted may make NextExpiry earlier. See [Canceler.WriteStarted].
	WriteStarted()

	// WriteDone records that the output was sent or the write failed.
	WriteDone()

	// Respond records that the final response has begun. contentType is the value of its Content-Type
	// field, or "" if there is none. An engine calls it at most once for each request.
	Respond(contentType string)

	// EndRPC records the grpc-status of the response. It is called before Forward returns.
	EndRPC(status string)

	// Holds reports whether Result.Held must be set if the exchange with the user container is aborted before the
	// response begins.
	Holds() bool

	// Waited returns the time that the request waited for its slot, and the time at which it acquired the slot.
	Waited() (time.Duration, time.Time)

	// Trace returns the fields of the trace, or nil if the request is not traced.
	Trace() TraceFields

	// NextExpiry returns the earliest time at which the request can expire. The zero time means never.
	NextExpiry() time.Time

	// Expiry returns the reason why the request expired, or nil if it did not expire. The reason is
	// FaultBodyStall, FaultClientReadStall or an error of the handler. Expiry does not allocate memory.
	Expiry() error
}

// TraceFields describes how a trace changes the fields of a request to the user container.
type TraceFields interface {
	Drop(name string) bool // reports whether a field from the client is removed; ignores case
	Fields() []Field       // fields to add to the request
}
