// Package link is a client's connection as the engines use it: bytes over TCP, bare or
// over TLS, that are read and written without blocking where that can be done.
//
// An engine waits by [Conn.WaitRead] and [Conn.WaitWrite], which run a function of its
// own each time when the socket may have become ready; inside, [Conn.TryRead] and
// [Conn.TryWrite] do what can be done at once. So an engine holds no buffer while it
// waits. TLS is crypto/tls on top of the same calls: it gets a temporary error where
// nothing has come, and what it writes in one call is sent by one system call. An idle
// connection holds no buffer but crypto/tls's own.
//
// A Conn is also a [net.Conn], for those who want to block.
package link

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

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/socket"
)

// ErrAgain says that nothing can be read or written now.
var ErrAgain error = again{}

// again is a temporary error, after which crypto/tls goes on.
type again struct{}

func (again) Error() string   { return "nothing can be read or written now" }
func (again) Timeout() bool   { return true }
func (again) Temporary() bool { return true }

// Conn is a connection. One goroutine at a time may read and one may write. Any may
// set deadlines and close it.
type Conn struct {
	tcp *net.TCPConn // not embedded: io.Copy would write past TLS by its ReadFrom
	raw syscall.RawConn
	tls *encryption // nil: bare

	late     atomic.Pointer[time.Timer] // runs encryption.closeLate; nil if there is no timer
	greeting atomic.Bool                // the ClientHello is incomplete

	reading, writing *blocking // nil: there was none yet
}

// blocking is a Read or Write, made by the first one: most connections have none.
type blocking struct {
	bytes []byte
	n     int
	err   error
	try   func(fd uintptr) (done bool)
}

// New returns a bare connection.
func New(tcp *net.TCPConn) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Conn{tcp: tcp, raw: raw}, nil
}

// WaitRead calls try, and calls it again each time when bytes may have come, until it
// returns true. It returns an error if the read deadline expires or the connection is closed.
// The connection is also closed if the rest of a TLS record does not arrive in time.
func (c *Conn) WaitRead(try func(fd uintptr) (done bool)) error {
	err := c.raw.Read(try)
	if c.tls != nil {
		c.tls.rest.end()
	}
	return err
}

// TryRead reads what has come: n > 0, or an error: ErrAgain where nothing has, io.EOF
// after the client's last byte. It is to be called inside WaitRead, with its fd.
func (c *Conn) TryRead(fd uintptr, p []byte) (n int, err error) {
	if c.tls != nil {
		return c.tls.read(fd, p)
	}
	return receive(fd, p)
}

// receive is TryRead on a socket.
func receive(fd uintptr, p []byte) (n int, err error) {
	n, err = socket.Read(fd, p)
	if err == nil && n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, asAgain(err)
}

// asAgain makes what a socket says that can do nothing now ErrAgain.
func asAgain(err error) error {
	if errors.Is(err, syscall.EAGAIN) {
		return ErrAgain
	}
	return err
}

// WaitWrite is WaitRead for writing.
func (c *Conn) WaitWrite(try func(fd uintptr) (done bool)) error { return c.raw.Write(try) }

// TryWrite writes what is taken at once of p and of q behind it: n > 0, or an error,
// which is ErrAgain where nothing is taken. Over TLS some of what was taken may still
// have to be sent: all of it has been when TryWrite of nothing returns no error. It is
// to be called inside WaitWrite, with its fd.
func (c *Conn) TryWrite(fd uintptr, p, q []byte) (n int, err error) {
	switch {
	case c.tls != nil:
		return c.tls.write(fd, p, q)
	case len(p) == 0 && len(q) == 0:
		return 0, nil
	case len(q) == 0:
		n, err = socket.Write(fd, p)
	default:
		n, err = socket.WriteTwo(fd, p, q)
	}
	return n, asAgain(err)
}

// TryWriteAll calls TryWrite until p and then q are sent, and returns the remaining bytes and the last
// error. If nothing can be written at the moment, the error is ErrAgain, and TryWriteAll is called again
// with the remaining bytes.
func (c *Conn) TryWriteAll(fd uintptr, p, q []byte) (restP, restQ []byte, err error) {
	for {
		n, err := c.TryWrite(fd, p, q)
		fromP := min(n, len(p))
		p, q = p[fromP:], q[n-fromP:]
		if len(p) == 0 {
			p, q = q, nil
		}
		// With TLS, the last bytes can be in a record that is not sent. The next TryWrite sends it.
		if err != nil || n == 0 || len(p) == 0 && c.tls == nil {
			return p, q, err
		}
	}
}

// Stalled reports whether a TLS record or a message of TLS is incomplete. It is called by the
// reader.
func (c *Conn) Stalled() bool { return c.tls != nil && c.tls.stalled() }

// Silent reports whether no input has arrived that was not read, not even the end. An incomplete
// ClientHello is not read before its end arrives and does not count. Silent may be called concurrently.
func (c *Conn) Silent() bool {
	silent := false
	err := c.raw.Control(func(fd uintptr) {
		if c.greeting.Load() {
			silent = !recordArrived(fd)
		} else {
			silent = socket.Silent(fd)
		}
	})
	return silent && err == nil
}

// TLS returns the state of the encryption; nil: there is none.
func (c *Conn) TLS() *tls.ConnectionState {
	if c.tls == nil {
		return nil
	}
	state := c.tls.conn.ConnectionState()
	return &state
}

// Secure reports whether the connection is encrypted.
func (c *Conn) Secure() bool { return c.tls != nil }

// TCP returns the connection beneath, for those who watch it. Over TLS nobody else may
// read or write on it.
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
	// LingerTime is the time for which [Conn.Linger] discards input.
	LingerTime = time.Second
	// lingerBytes is the maximum number of bytes that are discarded.
	lingerBytes = 8 << 20
	// lingerErrorBytes is lingerBytes after invalid input. The client has LingerTime to read the
	// response. It needs no more input to be read, and a flood would cost processor time.
	lingerErrorBytes = 64 << 10
)

// Linger ends our side of the connection and discards input for up to LingerTime, so that the client can
// read the last output before the connection is reset (RFC 9112 section 9.6). invalid reports whether the
// input of the client was invalid. The caller closes the connection.
func (c *Conn) Linger(invalid bool) {
	end := time.Now().Add(LingerTime)
	_ = c.SetDeadline(end)
	if c.CloseWrite() != nil {
		return
	}
	if !invalid {
		c.discard(lingerBytes)
	} else if c.discard(lingerErrorBytes) == lingerErrorBytes {
		time.Sleep(time.Until(end)) // a close now would reset the connection before the client can read
	}
}

// discard reads up to limit bytes until the end of the input or the read deadline, and returns the number
// of bytes.
func (c *Conn) discard(limit int64) int64 {
	n, _ := io.CopyN(io.Discard, c.tcp, limit)
	return n
}

// CloseWrite ends our side; over TLS it says so first (RFC 8446 section 6.1), if that
// can be written at once.
func (c *Conn) CloseWrite() error {
	c.sayGoodbye()
	return c.tcp.CloseWrite()
}

// Close closes the connection; over TLS it says so first, if that can be written at
// once.
func (c *Conn) Close() error {
	c.sayGoodbye()
	return c.Cut()
}

// Cut closes the connection without a word: over TLS the client can tell that
// something is missing.
func (c *Conn) Cut() error {
	if late := c.late.Swap(nil); late != nil {
		late.Stop()
	}
	return c.tcp.Close()
}

// Reset is Cut that drops what has not been sent, and tells the client by a reset.
func (c *Conn) Reset() error {
	_ = c.tcp.SetLinger(0)
	return c.Cut()
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// Client returns the IP address of the client.
func (c *Conn) Client() netip.Addr { return fair.Address(c.RemoteAddr().String()) }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.tcp.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.tcp.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }
