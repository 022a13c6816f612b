package transport

import (
	"errors"
)

// Fault is the cause of a failed exchange. It implements error, and its conversion to an error does not allocate memory.
// An [Error] contains a Fault and the underlying error.
type Fault uint8

// Values of Fault. FaultClientGone and the values after it are faults that the client causes.
const (
	FaultUnreachable     Fault = iota + 1 // no connection could be opened
	FaultLocal                            // no connection could be opened, because the sidecar lacks a file descriptor, a local port or memory
	FaultReset                            // the connection was closed before the response was complete
	FaultGarbage                          // the response is not valid HTTP
	FaultAborted                          // the engine aborted the call
	FaultOverloaded                       // the memory budget is exhausted
	FaultHeadLimit                        // the header section of the request is longer than the user container accepts
	FaultClientGone                       // the client disconnected
	FaultBadRequest                       // the request is not valid HTTP or not allowed
	FaultTooLarge                         // the request body is longer than MAX_BODY_BYTES
	FaultBodyStall                        // the client did not send the next byte of the request body in time
	FaultClientReadStall                  // the client did not read the response in time
	NumFaults                             // number of values of Fault, including 0
)

var faults = [NumFaults]string{
	FaultUnreachable:     "user container: unreachable",
	FaultLocal:           "user container: no local resources",
	FaultReset:           "user container: connection reset",
	FaultGarbage:         "user container: invalid response",
	FaultAborted:         "user container: request aborted",
	FaultOverloaded:      "memory budget exhausted",
	FaultHeadLimit:       "user container: request header section too long",
	FaultClientGone:      "client disconnected",
	FaultBadRequest:      "bad request",
	FaultTooLarge:        "request body too large",
	FaultBodyStall:       "request body timeout",
	FaultClientReadStall: "response write timeout",
}

func (f Fault) Error() string { return faults[f] }

// ByClient reports whether the client caused the fault.
func (f Fault) ByClient() bool { return f >= FaultClientGone }

// Error contains a fault and the underlying error. The error text must only be written to logs, because it contains
// addresses.
type Error struct {
	Fault Fault
	Err   error

	// Silent reports that a new connection was closed before any byte arrived, and that the user container has
	// never responded in HTTP/1.1. The user container may support only HTTP/2.
	Silent bool
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Fault.Error()
	}
	return e.Fault.Error() + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// faulty is implemented by the errors that have a fault: Fault and *Error.
type faulty interface {
	error
	fault() Fault
}

func (f Fault) fault() Fault  { return f }
func (e *Error) fault() Fault { return e.Fault }

// FaultOf returns the fault of the first *Error or Fault in err, or 0 if err has no fault.
func FaultOf(err error) Fault {
	if e, ok := errors.AsType[faulty](err); ok {
		return e.fault()
	}
	return 0
}

// BodyError returns the error of an exchange whose request body could not be read because of err. If err has no fault,
// the fault is FaultClientGone.
func BodyError(err error) error {
	if FaultOf(err) != 0 {
		return err
	}
	return &Error{Fault: FaultClientGone, Err: err}
}

// Cause returns the reason why an exchange failed with err. aborted is the result of [Canceler.Abortable]. If aborted
// is not nil, it is the reason, and err is only a consequence. body is the error from reading the request body, or
// nil. If err has no fault and body is not nil, body is the reason.
func Cause(aborted, err, body error) error {
	switch {
	case aborted != nil:
		return aborted
	case body != nil && FaultOf(err) == 0:
		return BodyError(body)
	}
	return err
}
