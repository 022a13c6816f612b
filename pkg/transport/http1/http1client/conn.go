package http1client

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

const (
	// bufferSize is the buffer size for long responses in bytes. Reading 100 KB in two parts takes 25 % less time than
	// reading it in four parts.
	bufferSize = 64 << 10
	// smallSize is the initial size of a read buffer in bytes. Most responses are shorter.
	smallSize = 4 << 10
	// pieceSize is the size in bytes of buffers that may be in use for a long time: for request bodies of slow clients,
	// for upgraded connections, and for responses to HTTP/2 clients. An HTTP/2 client that does not read its responses
	// can cause hundreds of buffers to be in use.
	pieceSize = 32 << 10
)

// clientConn is a connection to the user container. It is used by at most one exchange at a time.
type clientConn struct {
	net.Conn
	buffers *netconn.Buffers
	raw     syscall.RawConn // nil if not supported
	bare    bool            // Conn is a *net.TCPConn, so raw can be used to read and write
	pooled  *[]byte         // pooled read buffer; nil while the connection is idle
	buf     []byte          // *pooled, or a larger buffer for a long header section
	r, w    int             // buf[r:w] holds unread input
	much    bool            // the last read filled a small buffer
	most    int             // size of the buffer for long responses: bufferSize or pieceSize
	reused  bool            // the connection was used for an earlier exchange
	written bool            // a byte of the current request was written

	// truncated is true if the upload of the current request was interrupted. In this case, close resets the
	// connection, because the kernel would otherwise keep the unsent bytes until the user container reads them.
	truncated bool

	expires time.Time // time after which an idle connection cannot be reused

	memory netconn.HeadMemory // memory of a long response header section, charged to the client's connection

	// response is the response to the current request. It is not part of Call, because an idle client connection also
	// has a Call.
	response Response

	slot atomic.Pointer[App] // App whose slot the connection uses, or nil

	// The following fields are used while a request is written.
	room          *[]byte // pooled buffer; the backing array of head
	head, content []byte  // content is the part of the body that does not fit into room after head
	call          *Call   // the call to which the memory of head is charged; nil if there is none

	// The following fields are the arguments and results of functions that are passed to raw. They are stored here to
	// avoid allocations.
	peek   func(fd uintptr) bool // the method look
	step   func(fd uintptr) bool // the method sendOrRead
	silent bool                  // result of look
	sends  *Call                 // call whose request step writes next, or nil
	n      int                   // number of bytes that step has written or read
	err    error                 // error of step
}

func newClientConn(c net.Conn, buffers *netconn.Buffers) *clientConn {
	n := &clientConn{Conn: c, buffers: buffers, most: bufferSize}
	if s, ok := c.(syscall.Conn); ok {
		n.raw, _ = s.SyscallConn()
		n.peek, n.step = n.look, n.sendOrRead
		_, n.bare = c.(*net.TCPConn)
	}
	return n
}

// buffered returns the unread input.
func (c *clientConn) buffered() []byte { return c.buf[c.r:c.w] }

// begin encodes the header section of k into a pooled buffer. The buffer is released after the request is written, so
// begin is called again for each retry.
func (c *clientConn) begin(k *Call) {
	k.Sends++
	k.Client.Sending()
	c.room = c.buffers.Get(pieceSize)
	c.head, c.content = k.Request.AppendHTTP1((*c.room)[:0]), k.Content
	c.call = k
	if len(c.head)+len(c.content) <= cap(c.head) {
		c.head, c.content = append(c.head, c.content...), nil
	}
}

// finish writes the rest of the request, of which n bytes were already written, and releases its buffers.
func (c *clientConn) finish(n int) error {
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

// sent releases the buffers and the reserved memory of a request after the request is written.
func (c *clientConn) sent() {
	c.buffers.Put(c.room)
	c.room, c.head, c.content = nil, nil, nil
	if c.call != nil {
		c.call.Memory.Release()
		c.call = nil
	}
}

// send writes the header section and the content of k. If a reused connection is no longer usable, send returns
// errStale. If the request has no Body, send only stores k, and the next call to fill checks the connection and writes
// the request.
func (c *clientConn) send(k *Call) error {
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
	return nil // the user container may have sent a response even if the write failed
}

// fill reads more input. It first moves unread input to the start of the buffer, and enlarges a full buffer up to limit
// bytes. If there is no unread input, the connection holds no buffer while fill waits.
func (c *clientConn) fill(limit int) error {
	if c.r > 0 {
		copy(c.buf, c.buf[c.r:c.w])
		c.w -= c.r
		c.r = 0
	}
	if len(c.buf) == smallSize && c.bodySize() > smallSize {
		c.enlarge()
	}
	if c.buf != nil && c.w == len(c.buf) {
		if len(c.buf) >= limit {
			return &transport.Error{Fault: transport.FaultGarbage, Err: rewrite.ErrHeadTooLarge}
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

// grow replaces the full buffer with a buffer of n bytes. It is needed for a long header section.
func (c *clientConn) grow(n int) error {
	if !c.memory.Reserve(n, rewrite.ResponseCopies) {
		return rewrite.ErrNoMemory
	}
	grown := make([]byte, n)
	copy(grown, c.buf[:c.w])
	c.buf = grown
	return nil
}

// rawRead reads from a connection for which bare is true, and stores the result in c.n and c.err. If c.sends is not
// nil, it first writes the request. It returns an error if the wait for input fails.
func (c *clientConn) rawRead() error {
	k := c.sends
	if err := c.raw.Read(c.step); err != nil {
		return err
	}
	if k == nil || !errors.Is(c.err, errPartly) {
		return nil
	}
	_ = c.finish(c.n) // the user container may have sent a response even if the write failed
	c.written = true
	return c.raw.Read(c.step)
}

// sendOrRead is called by RawConn.Read each time input may have arrived. It returns true if c.n and c.err are set, and
// false if RawConn.Read must call it again.
//
// sendOrRead also writes the request. After the write, RawConn.Read waits for input without a read that would return
// EAGAIN. Input that arrived before the write is detected by netconn.Silent.
func (c *clientConn) sendOrRead(fd uintptr) (done bool) {
	k := c.sends
	if k == nil {
		return c.tryRead(fd)
	}
	c.sends = nil
	if c.reused && !netconn.Silent(fd) {
		c.n, c.err = 0, errStale
		return true
	}
	c.begin(k)
	if len(c.content) > 0 {
		c.n, c.err = netconn.WriteTwo(fd, c.head, c.content)
	} else {
		c.n, c.err = netconn.Write(fd, c.head)
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
	// Input may already have arrived on a new connection, for which Silent was not called. After a write error, the
	// input may contain a response.
	return !c.reused && c.tryRead(fd)
}

// tryRead reads available input. If no input is available, it releases an empty buffer and returns false.
func (c *clientConn) tryRead(fd uintptr) (done bool) {
	c.hold()
	c.n, c.err = netconn.Read(fd, c.buf[c.w:])
	if errors.Is(c.err, syscall.EAGAIN) {
		if c.w == 0 {
			c.park()
		}
		return false
	}
	return true
}

// hold allocates a read buffer if the connection has no buffer.
func (c *clientConn) hold() {
	if c.buf != nil {
		return
	}
	c.pooled = c.buffers.Get(c.bodySize())
	c.buf = *c.pooled
}

// bodySize returns the minimum size, in bytes, of the buffer for the next part of a response.
func (c *clientConn) bodySize() int {
	if !c.much {
		return smallSize
	}
	return c.memory.Account.BufferSize(c.most)
}

// enlarge replaces a small buffer with a large buffer and copies the content.
func (c *clientConn) enlarge() {
	small := c.pooled
	c.buf = nil
	c.hold()
	copy(c.buf, (*small)[:c.w])
	c.buffers.Put(small)
}

// park releases the read buffer and its memory, because an idle connection must not hold a buffer.
func (c *clientConn) park() {
	c.buffers.Put(c.pooled)
	c.pooled, c.buf, c.r, c.w = nil, nil, 0, 0
	c.memory.Release()
}

func (c *clientConn) close() {
	if c.truncated {
		reset(c.Conn)
	} else {
		c.Conn.Close()
	}
	c.sent()
	c.park()
	if a := c.slot.Swap(nil); a != nil {
		a.release()
	}
}

// alive reports whether an idle connection can be reused. It returns false after a FIN, a reset, or unsolicited bytes,
// for example a 408 response. It does not block.
func (c *clientConn) alive() bool {
	if c.raw == nil {
		return false
	}
	c.silent = false
	return c.raw.Read(c.peek) == nil && c.silent
}

// disconnected reports whether the socket no longer has a peer, because both directions of the connection are closed.
func (c *clientConn) disconnected() bool {
	if c.raw == nil {
		return false
	}
	var err error
	controlErr := c.raw.Control(func(fd uintptr) { _, err = syscall.Getpeername(int(fd)) })
	return controlErr == nil && errors.Is(err, syscall.ENOTCONN)
}

// look is passed to RawConn.Read by alive. It always returns true, so that RawConn.Read does not wait.
func (c *clientConn) look(fd uintptr) (done bool) {
	c.silent = netconn.Silent(fd)
	return true
}
