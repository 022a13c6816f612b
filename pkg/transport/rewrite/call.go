package rewrite

import (
	"io"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// A Client is the origin of the request of a [Call]. All methods are called on the goroutine that
// makes the call and reads the response.
type Client interface {
	Sending()            // a connection exists and the request is sent next; called again for each retry
	Info(*wire.Response) // an informational response; the argument is valid during the call
	Waiting()            // the next byte of the response body has not arrived yet
	StopBody()           // makes a blocked Call.Body.Read return
	BodyArrived() bool   // reports whether Body has arrived completely; false if that is unknown
}

// Call is one request to the user container in HTTP/1.1 or HTTP/2. The packages http1client and
// h2client make calls.
type Call struct {
	Request   *Request            // its header section is encoded each time the request is sent
	Content   []byte              // a complete body, which is sent with the header section; nil if there is no body or Body is set
	Body      io.Reader           // a body that is still arriving; Request describes its framing; nil if there is no body or Content is set
	Trailer   func() []wire.Field // returns the trailer fields after the end of Body; nil if there are none
	Expect100 bool                // Body waits for "100 Continue"
	Client    Client
	Memory    *netconn.Account // account of the connection of the client; nil means no limit

	reserved int // bytes reserved in Memory for the encoded header section

	Sends int            // number of times that the request was sent, including incomplete attempts
	Held  transport.Held // the rest of an aborted call, for which the caller waits; nil if there is none
}

// LongHead is the length in bytes above which the memory for sending a header section is part of
// the memory budget. A shorter header section is sent from a pooled buffer.
const LongHead = 32 << 10

// HeadMemory is the part of a memory budget that a long header section of a response uses. It
// includes the copy that is sent to the client.
type HeadMemory struct {
	Account *netconn.Account // account of the connection of the client; nil means no limit

	held int // bytes
}

// Reserve reserves the memory for a header section of n bytes until Release. It waits in the same
// way as [netconn.Account.Await], and returns an [Error] if the budget is exhausted. Reserve can be
// called again with a larger n.
func (m *HeadMemory) Reserve(n int) error {
	const copies = 2
	more := copies*n - m.held
	if n <= LongHead || more <= 0 {
		return nil
	}
	if !m.Account.Await(more) {
		return &transport.Error{Fault: transport.FaultOverloaded}
	}
	m.held += more
	return nil
}

// Release releases the reserved memory. It can be called more than once.
func (m *HeadMemory) Release() {
	m.Account.Sub(m.held)
	m.held = 0
}

// Held returns the number of reserved bytes.
func (m *HeadMemory) Held() int { return m.held }

// Reserve reserves the memory for sending a header section of about n bytes until Unreserve. It
// waits in the same way as [netconn.Account.Await], and returns false if the budget is exhausted.
// The encoded header section can be much longer than its fields in memory, because fields that are
// repeated by an index of HPACK share a string.
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

// Unreserve releases the memory that Reserve reserved. It can be called more than once.
func (c *Call) Unreserve() {
	if c.reserved > 0 {
		c.Memory.Sub(c.reserved)
		c.reserved = 0
	}
}

// Began records in result that the final response has begun.
func (c *Call) Began(result *transport.Result, status int) {
	result.Replayed = c.Sends > 1
	result.FirstByte, result.Status, result.Begun = time.Now(), status, true
}

// Failed records in result that the call failed with err, and moves Held to result.
func (c *Call) Failed(result *transport.Result, err error) {
	result.Replayed = c.Sends > 1
	result.Held, c.Held = c.Held, nil // the Call is reused for the next request
	result.Err = err
}

// Response is the final response to a [Call].
type Response interface {
	Length() int64         // length of the body in bytes; -1 if it is unknown
	Next() ([]byte, error) // the next bytes of the body, valid until the next call; io.EOF after the last
	Trailer() []wire.Field // the trailer fields after io.EOF
	Close()                // ends the exchange, even if it is incomplete
}
