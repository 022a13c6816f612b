package transport

import (
	"time"
)

// Result is the result of Forward.
type Result struct {
	Status    int       // status of the final response from the user container; 0 if there was none
	Err       error     // the error if the response was not forwarded completely (see [FaultOf]); nil otherwise
	Begun     bool      // the status of the final response from the user container was sent to the client
	Upgraded  bool      // the exchange became a tunnel
	Replayed  bool      // the request was sent twice (docs/promises.md 3.7)
	Reset     bool      // the client's stream was reset before a response (docs/promises.md 3.12); Status is then not sent
	In, Out   int64     // content bytes from the client and to the client, including responses from the sidecar
	FirstByte time.Time // time of the first byte of the final response; zero if there was none
	Held      Held      // the aborted exchange, if the user container may still process the request; otherwise nil
}

// Held is an exchange with the user container that was aborted before its response began. [State.Holds] reports
// whether an engine must return it in [Result].
type Held interface {
	// Wait cancels the request as far as the protocol allows. It returns when the user container has responded or
	// has closed the connection, or when the timeout expires. answered reports whether the user container has
	// responded. Wait is called once, possibly after Serve has returned.
	Wait(timeout time.Duration) (answered bool)
}
