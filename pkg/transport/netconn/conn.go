// Package netconn implements client connections below HTTP: nonblocking TCP and TLS connections ([Conn]),
// listeners, sockets, and the detection of disconnected clients ([Watcher]). The package limits the number of
// connections ([ConnLimit]) and the memory of their requests ([Budget]), and sends Close frames to WebSocket
// clients ([WebSockets]).
//
// An engine waits with [Conn.WaitRead] and [Conn.WaitWrite]. They call a function each time the socket may be
// ready. In this function, [Conn.TryRead] and [Conn.TryWrite] transfer bytes without blocking. An engine therefore
// needs no buffer while it waits. A TLS connection works in the same way: crypto/tls receives a temporary error if no
// bytes are available, and an idle TLS connection holds only the buffers of crypto/tls.
//
// A Conn is also a [net.Conn] for callers that block.
package netconn

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrAgain is returned if no bytes can be read or written without blocking.
var ErrAgain error = again{}

// again is the type of ErrAgain. It implements [net.Error]. Because the error is temporary,
// crypto/tls can continue to use the connection.
type again struct{}

func (again) Error() string   { return "operation would block" }
func (again) Timeout() bool   { return true }
func (again) Temporary() bool { return true }

// Conn is a client connection. At most one goroutine may read and at most one may write at the same
// time. Deadlines, CloseWrite, Close, Cut and Reset are safe for concurrent use.
type Conn struct {
	tcp *net.TCPConn // not embedded, because io.Copy would use ReadFrom and bypass TLS
	raw syscall.RawConn
	tls *encryption // nil without TLS

	late     atomic.Pointer[time.Timer] // runs encryption.closeLate; nil if there is no timer
	greeting atomic.Bool                // the ClientHello is incomplete

	reading, writing *blocking // nil before the first blocking Read or Write
}

// blocking is the state of Read or Write. It is allocated by the first call, because most connections
// never block.
type blocking struct {
	bytes []byte
	n     int
	err   error
	try   func(fd uintptr) (done bool)
}

// New returns a connection without TLS.
func New(tcp *net.TCPConn) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Conn{tcp: tcp, raw: raw}, nil
}

// WaitRead calls try immediately and then each time input may have arrived, until try returns true. It returns an
// error if the read deadline expires or the connection is closed. The connection is also closed if the rest of a
// TLS record or TLS message does not arrive within Server.recordTime.
func (c *Conn) WaitRead(try func(fd uintptr) (done bool)) error {
	err := c.raw.Read(try)
	if c.tls != nil {
		c.tls.rest.end()
	}
	return err
}

// TryRead reads the available input without blocking. If no input is available, it returns
// ErrAgain. At the end of the input, it returns io.EOF. TryRead must be called by the function that
// was passed to WaitRead, with the same fd.
func (c *Conn) TryRead(fd uintptr, p []byte) (n int, err error) {
	if c.tls != nil {
		return c.tls.read(fd, p)
	}
	return receive(fd, p)
}

// receive implements TryRead for a socket.
func receive(fd uintptr, p []byte) (n int, err error) {
	n, err = Read(fd, p)
	if err == nil && n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, asAgain(err)
}

// asAgain converts EAGAIN to ErrAgain.
func asAgain(err error) error {
	if errors.Is(err, syscall.EAGAIN) {
		return ErrAgain
	}
	return err
}

// WaitWrite calls try immediately and then each time the socket may accept output, until try returns true. It returns an
// error if the write deadline expires or the connection is closed.
func (c *Conn) WaitWrite(try func(fd uintptr) (done bool)) error { return c.raw.Write(try) }

// TryWrite writes as much of p and then q as possible without blocking, and returns the number of
// bytes written. If no bytes can be written, it returns ErrAgain. With TLS, written bytes may still
// be buffered. If a call to TryWrite with empty p and q returns no error, all written bytes were
// sent. TryWrite must be called by the function that was passed to WaitWrite, with the same fd.
func (c *Conn) TryWrite(fd uintptr, p, q []byte) (n int, err error) {
	switch {
	case c.tls != nil:
		return c.tls.write(fd, p, q)
	case len(p) == 0 && len(q) == 0:
		return 0, nil
	case len(q) == 0:
		n, err = Write(fd, p)
	default:
		n, err = WriteTwo(fd, p, q)
	}
	return n, asAgain(err)
}

// TryWriteAll calls TryWrite until p and then q are sent, and returns the remaining bytes and the last error. If
// the error is ErrAgain, the caller must call TryWriteAll again with the remaining bytes when the socket is ready.
func (c *Conn) TryWriteAll(fd uintptr, p, q []byte) (restP, restQ []byte, err error) {
	for {
		n, err := c.TryWrite(fd, p, q)
		fromP := min(n, len(p))
		p, q = p[fromP:], q[n-fromP:]
		if len(p) == 0 {
			p, q = q, nil
		}
		// With TLS, the last bytes may be in a record that was not sent. The next TryWrite sends this record.
		if err != nil || n == 0 || len(p) == 0 && c.tls == nil {
			return p, q, err
		}
	}
}

// Stalled reports whether a TLS record or TLS message is incomplete. It must be called by the reading
// goroutine.
func (c *Conn) Stalled() bool { return c.tls != nil && c.tls.stalled() }

// Silent reports whether the connection has no unread input. The end of the input counts as unread input. An
// incomplete ClientHello does not count, because it is not read until it is complete. Silent is safe for concurrent
// use.
func (c *Conn) Silent() bool {
	silent := false
	err := c.raw.Control(func(fd uintptr) {
		if c.greeting.Load() {
			silent = !recordArrived(fd)
		} else {
			silent = Silent(fd)
		}
	})
	return silent && err == nil
}

// TLS returns the state of the TLS connection, or nil without TLS.
func (c *Conn) TLS() *tls.ConnectionState {
	if c.tls == nil {
		return nil
	}
	state := c.tls.conn.ConnectionState()
	return &state
}

// Unsent returns the size in bytes of the buffer for unsent encrypted bytes. It is 0 without TLS.
func (c *Conn) Unsent() int {
	if c.tls == nil {
		return 0
	}
	return c.tls.unsent()
}

// Secure reports whether the connection is encrypted.
func (c *Conn) Secure() bool { return c.tls != nil }

// TCP returns the TCP connection, so that the caller can watch it. With TLS, the caller must not read
// from it or write to it.
func (c *Conn) TCP() *net.TCPConn { return c.tcp }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if c.reading == nil {
		c.reading = &blocking{try: c.readOnce}
	}
	r := c.reading
	r.bytes, r.n = p, 0
	err := c.WaitRead(r.try)
	r.bytes = nil
	if err != nil {
		return 0, err
	}
	return r.n, r.err
}

func (c *Conn) readOnce(fd uintptr) (done bool) {
	r := c.reading
	r.n, r.err = c.TryRead(fd, r.bytes)
	return !errors.Is(r.err, ErrAgain)
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if c.writing == nil {
		c.writing = &blocking{try: c.writeAll}
	}
	w := c.writing
	w.bytes, w.err = p, nil
	err := c.WaitWrite(w.try)
	n := len(p) - len(w.bytes)
	w.bytes = nil
	return n, cmp.Or(err, w.err)
}

func (c *Conn) writeAll(fd uintptr) (done bool) {
	w := c.writing
	w.bytes, _, w.err = c.TryWriteAll(fd, w.bytes, nil)
	return !errors.Is(w.err, ErrAgain)
}

const (
	// LingerTime is the maximum time that [Conn.Linger] discards input.
	LingerTime = time.Second
	// lingerBytes is the maximum number of bytes that Linger discards.
	lingerBytes = 8 << 20
	// lingerErrorBytes replaces lingerBytes after invalid input. It is lower because discarding a large amount of input
	// costs CPU time. The client still has LingerTime to read the response.
	lingerErrorBytes = 64 << 10
)

// Linger closes the write side and discards input for up to LingerTime, so that the client can read
// the last output before the connection is reset (RFC 9112 section 9.6). invalid is true if the
// client's input was invalid. The caller must close the connection.
func (c *Conn) Linger(invalid bool) {
	end := time.Now().Add(LingerTime)
	_ = c.SetDeadline(end)
	if c.CloseWrite() != nil {
		return
	}
	if !invalid {
		c.discard(lingerBytes)
	} else if c.discard(lingerErrorBytes) == lingerErrorBytes {
		time.Sleep(time.Until(end)) // if the caller closed the connection now, the client could not read the response
	}
}

// discard reads and discards up to limit bytes. It stops at the end of the input or at the read deadline. It returns the
// number of discarded bytes.
func (c *Conn) discard(limit int64) int64 {
	n, _ := io.CopyN(io.Discard, c.tcp, limit)
	return n
}

// CloseWrite closes the write side. With TLS, it first sends close_notify (RFC 8446 section 6.1) if
// this does not block.
func (c *Conn) CloseWrite() error {
	c.sendCloseNotify()
	return c.tcp.CloseWrite()
}

// Close closes the connection. With TLS, it first sends close_notify, unless the write would block.
func (c *Conn) Close() error {
	c.sendCloseNotify()
	return c.Cut()
}

// Cut closes the connection without close_notify, so that a TLS client detects truncated output.
func (c *Conn) Cut() error {
	if late := c.late.Swap(nil); late != nil {
		late.Stop()
	}
	return c.tcp.Close()
}

// Reset closes the connection with a TCP reset and drops unsent output.
func (c *Conn) Reset() error {
	_ = c.tcp.SetLinger(0)
	return c.Cut()
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// Client returns the IP address of the client.
func (c *Conn) Client() netip.Addr {
	return c.tcp.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.tcp.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.tcp.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }
