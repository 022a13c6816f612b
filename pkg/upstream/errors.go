package upstream

import (
	"errors"
	"syscall"
)

// Fault says what went wrong between the request and its response.
type Fault uint8

// The faults.
const (
	Unreachable Fault = iota + 1 // no connection
	Reset                        // the connection broke, or ended too early
	Garbage                      // what came is not HTTP
	Body                         // the request's own body could not be read
	Aborted                      // by Call.Abort
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
	name := [...]string{Unreachable: "unreachable", Reset: "reset", Garbage: "garbage", Body: "request body", Aborted: "aborted"}[e.Fault]
	if e.Err == nil {
		return "user container: " + name
	}
	return "user container: " + name + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

var (
	errTooManyInfos = errors.New("too many informational responses")
	errHeadTooLarge = errors.New("response head too large")
	errNotAsked     = errors.New("switched protocols without being asked")
	errNoUpgrade    = errors.New("switched protocols without saying to which")
	errSpeaksH2     = errors.New("answered in HTTP/2")
	errNotAgain     = errors.New("reset the request's stream")
	errEndedEarly   = errors.New("the body ended early")
	errStale        = errors.New("the idle connection had ended")
	errPartly       = errors.New("the head is written in part") // never told
)

// refused reports whether nothing listened: the one failure to dial after which
// the next attempt is worth making at once. A host without IPv6 says so in its
// own ways.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, syscall.EAFNOSUPPORT) ||
		errors.Is(err, syscall.ENETUNREACH)
}
