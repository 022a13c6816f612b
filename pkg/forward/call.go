package forward

import (
	"io"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// A Client is where the request of a [Call] has come from. All methods are called on the
// goroutine that makes the call and reads its response.
type Client interface {
	Sending()            // a connection is there, the request is about to be sent; once for each time that it is
	Info(*wire.Response) // an informational response; valid during the call
	Waiting()            // the next byte of the response's body is not there yet
	StopBody()           // makes a blocked Body.Read return
	BodyArrived() bool   // whether all of Body has come; false where nobody knows
}

// Call is one request to the user container, in whatever HTTP that speaks: packages upstream
// and h2client make it.
type Call struct {
	Request   *Request            // whose head is made for each sending
	Content   []byte              // a body of which all is here: it is sent with the head; nil: none, or Body
	Body      io.Reader           // one that is still to come, as Request says how; nil: none, or Content
	Trailer   func() []wire.Field // the trailer fields once Body has ended; nil: none
	Expect100 bool                // Body waits for "100 Continue"
	Client    Client

	Sends int        // how often the request has been sent, or begun to be
	Held  queue.Held // what is left of a call that was broken off; nil: nothing. The caller waits for it
}

// Began notes in result that the final response has begun.
func (c *Call) Began(result *queue.Result, status int) {
	result.Replayed = c.Sends > 1
	result.FirstByte, result.Status, result.Begun = time.Now(), status, true
}

// Failed notes in result that there is no response, as [Fail] does, and what is left of the
// call.
func (c *Call) Failed(result *queue.Result, killed queue.Reason, err, body error) {
	result.Replayed = c.Sends > 1
	result.Held, c.Held = c.Held, nil // the call is kept for the next request
	Fail(result, killed, err, body)
}

// Response is the final response to a [Call].
type Response interface {
	Length() int64         // of the body in bytes; -1: it is not known
	Next() ([]byte, error) // the next bytes of the body, valid until the next call; io.EOF after the last
	Trailer() []wire.Field // the trailer fields after io.EOF
	Close()                // ends the exchange, wherever it is
}
