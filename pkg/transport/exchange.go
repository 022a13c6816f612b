package transport

import (
	"net/http"
)

// A Request is the request of an [Exchange]. Its strings must not be used after Serve returns.
type Request interface {
	// Header returns the first line of the named field without leading and trailing whitespace, or ""
	// if there is none.
	Header(name string) string

	// Repeats reports whether the request has more than one line of the named field.
	Repeats(name string) bool

	// Line returns the properties of the request that are available without an [http.Request].
	Line() Line

	// Request returns the request in the form of net/http. Its context is canceled when the client disconnects. The
	// first call may allocate memory for the request. The request is valid until Observe returns.
	Request() *http.Request
}

// An Exchange is one request and its response, which [Handler.Serve] processes. Engines implement Exchange. They
// may reuse an Exchange for the next request of its connection.
//
// All methods except Notify are called by the goroutine that runs [Handler.Serve].
type Exchange interface {
	Request

	// Answer sends a response that the sidecar generates. It is called instead of Forward, or after a call to Forward
	// that sent nothing to the client. The engine discards an unread request body or closes the connection or stream.
	Answer(a Answer)

	// Wait waits until Notify is called. It returns nil if the request can continue. Otherwise it returns the
	// reason why the request must end, which is FaultClientGone, FaultOverloaded or the error of [State.Expiry].
	Wait(state State) error

	// Notify makes Wait return, or makes a running Forward check whether the request has expired.
	// Any goroutine may call it. A call before Wait is not lost.
	Notify()

	// Forward sends the request to the user container and the response to the client. It returns after the exchange
	// with the user container has ended, unless Result.Held is set.
	Forward(state State) Result
}

// An Answer is a response that a [Handler] generates instead of the user container.
type Answer interface {
	// Status returns the HTTP status.
	Status() int

	// Fields calls yield for each field, except the fields that frame the body.
	Fields(yield func(name, value string))

	// Body returns the content. framed is false if the response has neither content nor, in HTTP/2, a Content-Length.
	Body() (content string, framed bool)
}
