package http1

import "github.com/queue-proxy/queue-proxy/pkg/observation/bound"

// Memory that is charged to the memory budget for a request, in addition to the buffer that contains the header
// section.
const (
	requestBytes = 8 << 10 // memory in bytes for the stack of a request and the connection to the user container
	fieldBytes   = 48      // memory in bytes for a parsed field
	manyFields   = 64      // maximum number of fields for which an idle connection keeps memory
)

// charge sets the number of bytes that are charged to the memory budget for the read buffer and the request.
func (c *serverConn) charge(n int) { c.held = c.memory.Set(c.held, n) }

// admit charges the memory of the received request to the memory budget. It waits in the same way as
// [netconn.Account.Await], and returns false if the budget is exhausted.
func (c *serverConn) admit() bool {
	n := requestBytes + len(c.buf) + fieldBytes*len(c.request.Fields)
	if !c.memory.Await(n - c.held) {
		return false
	}
	c.held = n
	return true
}

// reserve charges the memory that is needed to forward the request, and returns false if the memory budget is
// exhausted. endForward releases this memory. reserve is not inlined, so that the stack of a request stays small.
//
//go:noinline
func (x *exchange) reserve() bool {
	if !x.call.ReserveHead(x.size) {
		return false
	}
	return x.call.Body == nil || x.call.ReserveBody()
}

// evictMemory closes the connection because the memory budget is exhausted. It is safe for concurrent use.
func (c *serverConn) evictMemory() {
	c.costly.Store(true)
	c.abandon()
}

// growHead charges the read buffer of an incomplete header section to the memory budget. If the buffer is full,
// growHead charges the larger buffer that the next read needs. If the buffer is larger than bufferSize and the budget
// is exhausted, growHead sends an error response and returns false. It is not inlined, so that the stack of an idle
// connection stays small.
//
//go:noinline
func (c *serverConn) growHead() bool {
	n := len(c.buf)
	if c.w-c.r == n { // the buffer is full, and makeRoom will enlarge it
		n = max(bufferSize, 2*n)
	}
	if n <= bufferSize {
		c.charge(n)
		return true
	}
	if n > c.held {
		if !c.memory.Admit(n - c.held) {
			c.rejectHead()
			return false
		}
		c.held = n
	}
	return true
}

// rejectHead rejects a request with an incomplete header section. After the response, the connection is closed.
func (c *serverConn) rejectHead() {
	c.hit(bound.Memory)
	c.abandonHead()
	c.server.proxy.Reject(&c.exchange, c.state, false)
}

// chargeUnread is called if the client does not read the output. It charges the buffers that contain output to the
// memory budget until the current write ends. These are the output buffer, the buffer for encrypted bytes, and the
// buffer of the response.
func (c *serverConn) chargeUnread() {
	if !c.counted || c.unread != 0 {
		return
	}
	x := &c.exchange
	if x.direct && len(c.then) == 0 {
		x.leaveRoom() // x.out was written, and the remaining bytes are in the buffer of the call
	}
	c.unread = cap(x.out) + c.nc.Unsent()
	if c.running != nil {
		c.unread += c.running.Buffered()
	}
	c.memory.Add(c.unread)
}
