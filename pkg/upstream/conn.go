package upstream

import (
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// bufferSize is how much of a response is read at once.
const bufferSize = 32 << 10

// bufferPool holds buffers of bufferSize that are not in use.
type bufferPool struct{ sync.Pool }

func (p *bufferPool) get() *[]byte {
	if b, ok := p.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, bufferSize)
	return &b
}

func (p *bufferPool) put(b *[]byte) { p.Put(b) }

// conn is one connection to the user container. One exchange at a time uses it.
type conn struct {
	net.Conn
	buffers *bufferPool
	raw     syscall.RawConn // nil where there is none
	pooled  *[]byte         // from buffers; nil while idle
	buf     []byte          // *pooled, or larger for a large head
	r, w    int             // buf[r:w] has been read and not consumed
	reused  bool            // it has served an exchange before
	expires time.Time       // while idle

	// Of alive, here so that it allocates nothing.
	peek   func(fd uintptr) bool // look
	one    [1]byte
	silent bool
}

func newConn(c net.Conn, buffers *bufferPool) *conn {
	n := &conn{Conn: c, buffers: buffers}
	if s, ok := c.(syscall.Conn); ok {
		n.raw, _ = s.SyscallConn()
		n.peek = n.look
	}
	return n
}

// buffered returns what has arrived and is not consumed.
func (c *conn) buffered() []byte { return c.buf[c.r:c.w] }

// fill reads more. What is buffered moves to the front; a full buffer grows up
// to limit bytes.
func (c *conn) fill(limit int) error {
	if c.buf == nil {
		c.pooled = c.buffers.get()
		c.buf = *c.pooled
	}
	if c.r > 0 {
		copy(c.buf, c.buf[c.r:c.w])
		c.w -= c.r
		c.r = 0
	}
	if c.w == len(c.buf) {
		if len(c.buf) >= limit {
			return &Error{Fault: Garbage, Err: errHeadTooLarge}
		}
		grown := make([]byte, min(2*len(c.buf), limit))
		copy(grown, c.buf[:c.w])
		c.buf = grown
	}
	n, err := c.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// park gives the buffer back: an idle connection holds none.
func (c *conn) park() {
	if c.pooled != nil {
		c.buffers.put(c.pooled)
	}
	c.pooled, c.buf, c.r, c.w = nil, nil, 0, 0
}

func (c *conn) close() {
	c.Conn.Close()
	c.park()
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

// look is what RawConn.Read calls; it never asks it to wait.
func (c *conn) look(fd uintptr) (done bool) {
	_, _, err := syscall.Recvfrom(int(fd), c.one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.silent = err == syscall.EAGAIN
	return true
}
