package forward

import (
	"io"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/memory"
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
	Memory    *memory.Account // of the connection of the client; nil: no limit

	reserved int // bytes in Memory for sending the head

	Sends int        // how often the request has been sent, or begun to be
	Held  queue.Held // what is left of a call that was broken off; nil: nothing. The caller waits for it
}

// LongHead is the length of a head, in bytes, from which the memory for sending it is part of the
// budget. A shorter one is sent from a pooled buffer.
const LongHead = 32 << 10

// HeadMemory is the part of a memory budget that belongs to a long head of a response: the head, and
// the copy that is sent to the client.
type HeadMemory struct {
	Account *memory.Account // of the connection of the client; nil: no limit

	held int // bytes
}

// Reserve adds the memory for a head in n bytes, until Release. It waits as [memory.Account.Await] does, and
// returns an [Error] if the budget is exhausted. It can be called again with a larger n.
func (m *HeadMemory) Reserve(n int) error {
	const copies = 2
	more := copies*n - m.held
	if n <= LongHead || more <= 0 {
		return nil
	}
	if !m.Account.Await(more) {
		return &Error{Fault: Overloaded}
	}
	m.held += more
	return nil
}

// Release subtracts the memory. It can be called more than once.
func (m *HeadMemory) Release() {
	m.Account.Sub(m.held)
	m.held = 0
}

// Held returns the number of bytes that were added.
func (m *HeadMemory) Held() int { return m.held }

// Reserve adds the memory for sending a head of about n bytes to the budget, until Unreserve. It
// waits as [memory.Account.Await] does, and returns false if the budget is exhausted. The head can be much
// longer than the memory of its fields, because fields that are repeated by an index of HPACK share a string.
func (c *Call) Reserve(n int) bool {
	if n <= LongHead {
		return true
	}
	if !c.Memory.Await(n) {
		return false
	}
	c.reserved = n
	return true
}

// Unreserve subtracts the memory that Reserve added. It can be called more than once.
func (c *Call) Unreserve() {
	if c.reserved > 0 {
		c.Memory.Sub(c.reserved)
		c.reserved = 0
	}
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
