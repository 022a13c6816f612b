package upstream

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/socket"
)

const (
	// bufferSize is how much of a long response is read at once, in bytes: of 100 KB in
	// two pieces, which cost three quarters of what four do.
	bufferSize = 64 << 10
	// smallSize is the same for short ones, which most are.
	smallSize = 4 << 10
	// pieceSize is the same for what comes from clients, who may be slow, for tunnels,
	// which hold their buffers while they wait, and for responses over HTTP/2, of which
	// one client that does not read may hold hundreds.
	pieceSize = 32 << 10
)

// conn is one connection to the user container. One exchange at a time uses it.
type conn struct {
	net.Conn
	buffers *socket.Buffers
	raw     syscall.RawConn // nil where there is none
	bare    bool            // Conn is the socket itself: raw may read and write in its place
	pooled  *[]byte         // from buffers; nil while idle
	buf     []byte          // *pooled, or larger for a large head
	r, w    int             // buf[r:w] has been read and not consumed
	much    bool            // what came last has filled a small buffer
	most    int             // size of the buffer that is then used: bufferSize or pieceSize
	reused  bool            // it has served an exchange before
	written bool            // a byte of the request has been written
	expires time.Time       // while idle

	memory forward.HeadMemory // of the client of the current request

	// The response to the current request. It is not part of Call, because each connection of a
	// client has a Call.
	response Response

	slot atomic.Pointer[App] // whose slot the connection has; nil if it has none

	// Of the request that is being written.
	room          *[]byte // from buffers; where head is
	head, content []byte  // what fits behind the head is there
	call          *Call   // whose head is reserved in the memory budget

	// Of the raw calls, here so that they allocate nothing.
	peek   func(fd uintptr) bool // look
	step   func(fd uintptr) bool // sendOrRead
	silent bool
	sends  *Call // whose request the next step writes; nil: none
	n      int   // of the last step: bytes written or read,
	err    error // and what went wrong
}

func newConn(c net.Conn, buffers *socket.Buffers) *conn {
	n := &conn{Conn: c, buffers: buffers, most: bufferSize}
	if s, ok := c.(syscall.Conn); ok {
		n.raw, _ = s.SyscallConn()
		n.peek, n.step = n.look, n.sendOrRead
		_, n.bare = c.(*net.TCPConn)
	}
	return n
}

// buffered returns what has arrived and is not consumed.
func (c *conn) buffered() []byte { return c.buf[c.r:c.w] }

// begin makes the head of k, which is held only until it is written: it is made again for
// a request that is sent again.
func (c *conn) begin(k *Call) {
	k.Sends++
	k.Client.Sending()
	c.room = c.buffers.Get(pieceSize)
	c.head, c.content = k.Request.AppendHTTP1((*c.room)[:0]), k.Content
	c.call = k
	if len(c.head)+len(c.content) <= cap(c.head) {
		c.head, c.content = append(c.head, c.content...), nil
	}
}

// finish writes the request, of which n bytes have been written already, and releases
// it.
func (c *conn) finish(n int) error {
	done, err := 0, error(nil)
	if n < len(c.head) {
		done, err = c.Write(c.head[n:])
		n += done
	}
	c.written = n > 0
	if n >= len(c.head) && len(c.content) > 0 {
		_, err = c.Write(c.content[n-len(c.head):])
	}
	c.sent()
	return err
}

// sent releases a request that has been written.
func (c *conn) sent() {
	c.buffers.Put(c.room)
	c.room, c.head, c.content = nil, nil, nil
	if c.call != nil {
		c.call.Unreserve()
		c.call = nil
	}
}

// send writes the head of k, and Content, having looked whether a connection that was used
// before is still of use; errStale says that it is not. Where the response is all
// that is to come next, both are left to the next fill.
func (c *conn) send(k *Call) error {
	c.written = false
	if c.bare && k.Body == nil {
		c.sends = k
		return nil
	}
	if c.reused && !c.alive() {
		return errStale
	}
	c.begin(k)
	err := c.finish(0)
	if err != nil && c.reused && !c.written {
		return err
	}
	return nil // there may still be an answer: the one that says why
}

// fill reads more. What is buffered moves to the front; a full buffer grows up
// to limit bytes. No buffer is held while nothing is in it and nothing comes.
func (c *conn) fill(limit int) error {
	if c.r > 0 {
		copy(c.buf, c.buf[c.r:c.w])
		c.w -= c.r
		c.r = 0
	}
	if c.much && len(c.buf) == smallSize {
		c.enlarge()
	}
	if c.buf != nil && c.w == len(c.buf) {
		if len(c.buf) >= limit {
			return &forward.Error{Fault: forward.Garbage, Err: forward.ErrHeadTooLarge}
		}
		if err := c.grow(min(2*len(c.buf), limit)); err != nil {
			return err
		}
	}
	if !c.bare {
		c.hold()
		c.n, c.err = c.Read(c.buf[c.w:])
	} else if err := c.rawRead(); err != nil {
		return err
	}
	switch {
	case c.n > 0:
		c.w += c.n
		c.much = c.w >= smallSize
		return nil
	case c.err == nil:
		return io.EOF
	}
	return c.err
}

// grow replaces the full buffer with one of n bytes, for a long head.
func (c *conn) grow(n int) error {
	if err := c.memory.Reserve(n); err != nil {
		return err
	}
	grown := make([]byte, n)
	copy(grown, c.buf[:c.w])
	c.buf = grown
	return nil
}

// rawRead is Read for a bare connection, which may begin with the writing of a
// request. An error is that of the waiting; what was read is in n and err.
func (c *conn) rawRead() error {
	k := c.sends
	if err := c.raw.Read(c.step); err != nil {
		return err
	}
	if k == nil || !errors.Is(c.err, errPartly) {
		return nil
	}
	_ = c.finish(c.n) // an error may still have its answer
	c.written = true
	return c.raw.Read(c.step)
}

// sendOrRead is what RawConn.Read calls, each time when bytes may have come. It
// reports whether n and err are set; otherwise it is called again.
//
// The request is written here, and not before, because the bytes that come from now
// on will be notified of: what there has been is seen by peeking, so there is no need
// to try a read that would be too early.
func (c *conn) sendOrRead(fd uintptr) (done bool) {
	k := c.sends
	if k == nil {
		return c.tryRead(fd)
	}
	c.sends = nil
	if c.reused && !socket.Silent(fd) {
		c.n, c.err = 0, errStale
		return true
	}
	c.begin(k)
	if len(c.content) > 0 {
		c.n, c.err = socket.WriteTwo(fd, c.head, c.content)
	} else {
		c.n, c.err = socket.Write(fd, c.head)
	}
	c.written = c.n > 0
	switch {
	case c.err == nil && c.n < len(c.head)+len(c.content), errors.Is(c.err, syscall.EAGAIN):
		c.err = errPartly
		return true
	}
	c.sent()
	if c.err != nil && c.reused {
		return true
	}
	// On a fresh connection nobody has peeked; and an answer may explain a failure.
	return (!c.reused || c.err != nil) && c.tryRead(fd)
}

// tryRead reads what there is. It gives the buffer back if that is nothing.
func (c *conn) tryRead(fd uintptr) (done bool) {
	c.hold()
	c.n, c.err = socket.Read(fd, c.buf[c.w:])
	if errors.Is(c.err, syscall.EAGAIN) {
		if c.w == 0 {
			c.park()
		}
		return false
	}
	return true
}

// hold sees to it that there is a buffer.
func (c *conn) hold() {
	if c.buf != nil {
		return
	}
	size := smallSize
	if c.much {
		size = c.most
	}
	c.pooled = c.buffers.Get(size)
	c.buf = *c.pooled
}

// enlarge puts what a small buffer holds into a large one.
func (c *conn) enlarge() {
	small := c.pooled
	c.buf = nil
	c.hold()
	copy(c.buf, (*small)[:c.w])
	c.buffers.Put(small)
}

// park gives the buffer back: an idle connection holds none.
func (c *conn) park() {
	c.buffers.Put(c.pooled)
	c.pooled, c.buf, c.r, c.w = nil, nil, 0, 0
	c.memory.Release()
}

func (c *conn) close() {
	c.Conn.Close()
	c.sent()
	c.park()
	if a := c.slot.Swap(nil); a != nil {
		a.release()
	}
}

// alive peeks whether an idle connection is still open and silent. A FIN, a
// reset or bytes that nobody asked for (a server's 408, say) make it useless.
func (c *conn) alive() bool {
	if c.raw == nil {
		return false
	}
	c.silent = false
	return c.raw.Read(c.peek) == nil && c.silent
}

// disconnected reports whether a connection has ended in both directions: it has no peer.
func (c *conn) disconnected() bool {
	if c.raw == nil {
		return false
	}
	var err error
	controlErr := c.raw.Control(func(fd uintptr) { _, err = syscall.Getpeername(int(fd)) })
	return controlErr == nil && errors.Is(err, syscall.ENOTCONN)
}

// look is what RawConn.Read calls; it never asks it to wait.
func (c *conn) look(fd uintptr) (done bool) {
	c.silent = socket.Silent(fd)
	return true
}
