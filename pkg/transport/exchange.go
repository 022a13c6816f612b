package transport

import (
	"net/http"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// An Exchange is one request and its response. [Handler.Serve] processes it. An engine implements
// Exchange and may reuse a value for the next request of its connection.
//
// All methods except Notify are called by the goroutine that runs [Handler.Serve].
type Exchange interface {
	// Header returns the first line of the named request field without leading and trailing
	// whitespace, or "" if there is none. The string must not be used after Serve returns.
	Header(name string) string

	// Repeats reports whether the request has more than one line of the named field.
	Repeats(name string) bool

	// Line returns the properties of the request that are available without an [http.Request].
	Line() observation.Line

	// Request returns the request in the form of net/http. Its context is canceled when the client
	// disconnects. The engine may have to allocate the request. It is valid until Observe returns.
	Request() *http.Request

	// Answer sends a response of the sidecar, either instead of Forward or after a Forward that
	// sent nothing to the client. The engine handles a request body that was not read.
	Answer(a *Answer)

	// Wait returns OK after Notify, ClientGone if the client has disconnected, or the reason why
	// the request has expired.
	Wait(state State) observation.Reason

	// Notify makes Wait return, or makes a running Forward check whether the request has expired.
	// Any goroutine may call it. A call before Wait is not lost.
	Notify()

	// Forward sends the request to the user container and the response to the client. It returns
	// after the exchange with the user container has ended, except for the part in Result.Held.
	Forward(state State) observation.Result
}
