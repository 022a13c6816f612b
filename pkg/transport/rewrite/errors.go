package rewrite

import (
	"errors"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// Fault is the cause of a failure between the request and its response.
type Fault uint8

// Values of Fault.
const (
	Unreachable Fault = iota + 1 // no connection could be opened
	Local                        // no connection, because the sidecar has no file descriptor, no local port or no memory for it
	Reset                        // the connection was closed before the response was complete
	Garbage                      // the response is not valid HTTP
	Body                         // the request body could not be read
	Aborted                      // the engine aborted the call
	Overloaded                   // the memory budget has no memory for the header section of the response
	HeadLimit                    // the header section of the request is longer than the user container accepts
)

// Error contains a fault and the underlying error. The text is only for logs, because it contains
// addresses.
type Error struct {
	Fault Fault
	Err   error

	// Silent reports that a new connection was closed before any byte arrived, and that the user
	// container has not used HTTP/1.1 yet. It may support only HTTP/2.
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

// FaultOf returns the fault of err, or 0 if err does not contain an *Error.
func FaultOf(err error) Fault {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Fault
	}
	return 0
}

// reasonOf returns the reason why a request failed with err. The user container is the cause of an
// error that is not an *Error. If the request body could not be read, the client is the cause.
func reasonOf(err error) observation.Reason {
	switch FaultOf(err) {
	case Unreachable:
		return observation.AppUnreachable
	case Local:
		return observation.Local
	case Garbage:
		return observation.AppGarbage
	case Overloaded:
		return observation.Overload
	case HeadLimit:
		return observation.HeadTooLarge
	case Body:
		return bodyReason(err)
	}
	return observation.AppReset
}

// Fail records in result why a request failed. If killed is not OK, the request was aborted for
// that reason, and err is only a consequence. Otherwise the reason depends on err. body is the
// error of reading the request body, or nil. It is used if err is not an *Error.
func Fail(result *observation.Result, killed observation.Reason, err, body error) {
	if result.Reason = killed; killed != observation.OK {
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

// bodyReason returns the reason why a request body could not be read.
func bodyReason(err error) observation.Reason {
	if errors.Is(err, ErrTooLarge) {
		return observation.TooLarge
	}
	if _, ok := errors.AsType[*wire.BadChunk](err); ok {
		return observation.BadRequest
	}
	return observation.ClientGone
}
