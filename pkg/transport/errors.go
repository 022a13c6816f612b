package transport

import (
	"errors"
)

// Fault is the cause of a failure between the request and its response.
type Fault uint8

// Values of Fault.
const (
	FaultUnreachable Fault = iota + 1 // no connection could be opened
	FaultLocal                        // no connection, because the sidecar has no file descriptor, no local port or no memory for it
	FaultReset                        // the connection was closed before the response was complete
	FaultGarbage                      // the response is not valid HTTP
	FaultBody                         // the request body could not be read
	FaultAborted                      // the engine aborted the call
	FaultOverloaded                   // the memory budget has no memory for the header section of the response
	FaultHeadLimit                    // the header section of the request is longer than the user container accepts
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
	name := [...]string{FaultUnreachable: "unreachable", FaultLocal: "no local resources", FaultReset: "reset", FaultGarbage: "garbage", FaultBody: "request body", FaultAborted: "aborted", FaultOverloaded: "no memory for the response", FaultHeadLimit: "request head"}[e.Fault]
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
