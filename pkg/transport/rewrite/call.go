package rewrite

import (
	"errors"
	"io"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// A Client receives the events of a [Call] for the client that sent the request. All methods are called by the
// goroutine that makes the call and reads the response.
type Client interface {
	Sending()            // a connection exists and the request is sent next; called again for each retry
	Info(*wire.Response) // an informational response arrived; the argument is valid only during the call
	Waiting()            // the next byte of the response body has not arrived yet
	StopBody()           // makes a blocked Call.Body.Read return
	BodyArrived() bool   // reports whether Body is known to have arrived completely
}

// Call is one request to the user container over HTTP/1.1 or HTTP/2. It is sent by package http1client or http2client.
type Call struct {
	Request   *Request            // encoded each time the request is sent
	Content   []byte              // complete body, sent with the header section; nil if there is no body or Body is set
	Body      io.Reader           // body that is still arriving, framed as in Request; nil if there is no body or Content is set
	Trailer   func() []wire.Field // returns the trailer fields after the end of Body; nil if there are none
	Expect100 bool                // Body is sent only after a 100 response or ContinueTimeout
	Client    Client

	// Memory is the memory that is charged to the client connection for the encoded header section of the request.
	// The encoded header section may be much longer than the received fields, because HTTP/2 fields that refer to the
	// same entry of the HPACK table share one string.
	Memory netconn.HeadMemory

	bodyMemory int  // bytes that are charged to the account of Memory while Body is sent
	smallBody  bool // Body is sent with a small buffer, because memory is scarce

	Sends int            // number of times that the request was sent, including incomplete attempts
	Held  transport.Held // aborted exchange that the user container may still process; nil if there is none
}

// ContinueTimeout is the maximum time for which a body is delayed while the sidecar waits for a 100 (Continue)
// response. RFC 9110 section 10.1.1 does not specify a time. A server that does not support 100-continue never sends
// the response.
const ContinueTimeout = time.Second

// ErrNoMemory is returned if the memory budget has no memory for the header section of a response.
var ErrNoMemory = &transport.Error{Fault: transport.FaultOverloaded, Err: errors.New("header section of the response")}

// ResponseCopies is the number of copies of the header section of a response in memory. One copy is received, and the
// other copy is sent to the client.
const ResponseCopies = 2

// Sizes in bytes of the memory that is needed to send Body.
const (
	largeBodyBuffer = 32 << 10
	smallBodyBuffer = 4 << 10
	bodySender      = 4 << 10 // stack of the goroutine that sends Body
)

// ReserveHead reserves the memory for sending the header section of Request. received is the size of the received
// header section in bytes. ReserveHead waits in the same way as [netconn.Account.Await], and returns false if the
// budget is exhausted.
func (c *Call) ReserveHead(received int) bool {
	n := received
	// The sent header section is at most about 1+forwardedFactor times as long as the received one, because
	// X-Forwarded-For is copied. Memory is reserved only for a sent header section of more than netconn.LongHead bytes,
	// so Size is called only if this length is possible.
	if n > netconn.LongHead/(1+forwardedFactor) {
		n = max(n, c.Request.Size())
	}
	return c.Memory.Reserve(n, 1)
}

// ReserveBody charges the memory that is needed to send Body to Memory.Account. It waits in the same way as
// [netconn.Account.Await], and returns false if the budget is exhausted.
func (c *Call) ReserveBody() bool {
	a := c.Memory.Account
	c.smallBody = a.BufferSize(largeBodyBuffer) < largeBodyBuffer
	n := bodySender + c.BodyBuffer()
	if !a.Await(n) {
		return false
	}
	c.bodyMemory = n
	return true
}

// BodyBuffer returns the size in bytes of the buffer for sending Body.
func (c *Call) BodyBuffer() int {
	if c.smallBody {
		return smallBodyBuffer
	}
	return largeBodyBuffer
}

// ReleaseBody releases the memory that ReserveBody charged. It must be called after Body is sent.
func (c *Call) ReleaseBody() {
	c.Memory.Account.Sub(c.bodyMemory)
	c.bodyMemory = 0
}

// Release releases Memory and the memory that ReserveBody charged. It must be called after the call ends, and can
// be called more than once.
func (c *Call) Release() {
	c.Memory.Release()
	c.ReleaseBody()
}

// MoveTo moves the request and the memory that c has charged to another call. The other call must release the memory.
func (c *Call) MoveTo(to *Call) {
	*to = *c
	c.Memory, c.bodyMemory = netconn.HeadMemory{Account: c.Memory.Account}, 0
}

// Began records in result that the final response has begun.
func (c *Call) Began(result *transport.Result, status int) {
	result.Replayed = c.Sends > 1
	result.FirstByte, result.Status, result.Begun = time.Now(), status, true
}

// Failed records in result that the call failed with err, and moves Held to result.
func (c *Call) Failed(result *transport.Result, err error) {
	result.Replayed = c.Sends > 1
	result.Held, c.Held = c.Held, nil // c is reused for the next request
	result.Err = err
}

// Response is the final response to a [Call].
type Response interface {
	Length() int64         // length of the body in bytes; -1 if it is unknown
	Next() ([]byte, error) // the next bytes of the body, valid until the next call; io.EOF after the last bytes
	Trailer() []wire.Field // the trailer fields after io.EOF
	Close()                // ends the exchange, even if it is incomplete
}
