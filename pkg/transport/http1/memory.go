package http1

import "github.com/queue-proxy/queue-proxy/pkg/observation/bound"

// Sizes for the memory budget. The memory of a request is charged in addition to the buffer that holds
// its header section.
const (
	requestBytes = 8 << 10 // bytes for the stack of a request and the connection to the user container
	fieldBytes   = 48      // bytes for a parsed field
	manyFields   = 64      // maximum number of fields for which an idle connection keeps memory
)

// charge sets the number of bytes that are charged to the memory budget for the read buffer.
func (c *serverConn) charge(n int) { c.held = c.memory.Set(c.held, n) }

// admit reports whether the budget has memory for the request that was read. It waits in the same way as
// [netconn.Account.Await].
func (c *serverConn) admit() bool {
	n := requestBytes + len(c.buf) + fieldBytes*len(c.request.Fields)
	if !c.memory.Await(n - c.held) {
		return false
	}
	c.held = n
	return true
}

// reserve reports whether the budget has memory to forward the request. endForward releases this
// memory. It is not inlined, so that the stack of a request stays small.
//
//go:noinline
func (x *exchange) reserve() bool {
	if !x.call.ReserveHead(x.size) {
		return false
	}
	return x.call.Body == nil || x.call.ReserveBody()
}

// evictMemory closes the connection because the memory budget is exhausted. Any goroutine may call it.
func (c *serverConn) evictMemory() {
	c.costly.Store(true)
	c.abandon()
}

// growHead charges the buffer of an incomplete header section to the memory budget. This includes the
// larger buffer that the next read requires. If the budget rejects a buffer larger than bufferSize,
// growHead sends an error response and returns false. It is not inlined, so that the stack of an idle
// connection stays small.
//
//go:noinline
func (c *serverConn) growHead() bool {
	n := len(c.buf)
	if c.w-c.r == n { // see makeRoom
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

// rejectHead rejects a request with an incomplete header section. The connection is closed afterwards.
func (c *serverConn) rejectHead() {
	c.hit(bound.Memory)
	c.abandonHead()
	c.server.proxy.Reject(&c.exchange, c.state, false)
}

// chargeUnread charges two things to the memory budget: the output that the client does not read, and the
// response buffers that wait for that output. The memory is charged until the write ends.
func (c *serverConn) chargeUnread() {
	if !c.counted || c.unread != 0 {
		return
	}
	x := &c.exchange
	if x.direct && len(c.then) == 0 {
		x.leaveRoom() // only data in the buffer of the user container remains
	}
	c.unread = cap(x.out) + c.nc.Unsent()
	if c.running != nil {
		c.unread += c.running.Buffered()
	}
	c.memory.Add(c.unread)
}
