package forward

import (
	"errors"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// Fault says what went wrong between the request and its response.
type Fault uint8

// The faults.
const (
	Unreachable Fault = iota + 1 // no connection
	Local                        // no connection, because the sidecar has no file descriptor, no local port or no memory for it
	Reset                        // the connection broke, or ended too early
	Garbage                      // what came is not HTTP
	Body                         // the request's own body could not be read
	Aborted                      // by the engine
	Overloaded                   // the memory budget has no memory for the head of the response
	HeadLimit                    // the head of the request is longer than the user container accepts
)

// Error is a fault and what the system said about it. Its text is for logs
// alone: it names addresses.
type Error struct {
	Fault Fault
	Err   error

	// Silent says that a fresh connection was closed without a byte, and that the
	// user container has not been heard to speak HTTP/1.1 yet: it may speak HTTP/2
	// alone.
	Silent bool
}

func (e *Error) Error() string {
	name := [...]string{Unreachable: "unreachable", Local: "no local resources", Reset: "reset", Garbage: "garbage", Body: "request body", Aborted: "aborted", Overloaded: "no memory for the response", HeadLimit: "request head"}[e.Fault]
	if e.Err == nil {
		return "user container: " + name
	}
	return "user container: " + name + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// FaultOf returns the fault by which err has come; 0: it is no *Error.
func FaultOf(err error) Fault {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Fault
	}
	return 0
}

// reasonOf returns the reason for which a request has failed with err. What is no *Error
// is the user container's fault. Of a body that could not be read only the client can be
// the origin, unless the body was too long.
func reasonOf(err error) queue.Reason {
	switch FaultOf(err) {
	case Unreachable:
		return queue.AppUnreachable
	case Local:
		return queue.Local
	case Garbage:
		return queue.AppGarbage
	case Overloaded:
		return queue.Overload
	case HeadLimit:
		return queue.HeadTooLarge
	case Body:
		return bodyReason(err)
	}
	return queue.AppReset
}

// Fail notes in result what has ended a request: killed, the reason for which it was broken
// off, if there is one, since that is the cause of whatever error came of it; and err
// otherwise. body is why the request's body could not be read, nil if it could, for errors
// of those who do not say it.
func Fail(result *queue.Result, killed queue.Reason, err, body error) {
	if result.Reason = killed; killed != queue.OK {
		return
	}
	if body != nil && FaultOf(err) == 0 {
		err = &Error{Fault: Body, Err: body}
	}
	result.Reason, result.Err = reasonOf(err), err
	if status, ok := errors.AsType[grpcStatus](err); ok {
		result.GRPC = status.GRPCStatus()
	}
}

// grpcStatus is an error of the user container for which gRPC specifies a status.
type grpcStatus interface {
	error
	GRPCStatus() int
}

// bodyReason returns the reason for which a request's body could not be read.
func bodyReason(err error) queue.Reason {
	if errors.Is(err, ErrTooLarge) {
		return queue.TooLarge
	}
	if _, ok := errors.AsType[*wire.BadChunk](err); ok {
		return queue.BadRequest
	}
	return queue.ClientGone
}
