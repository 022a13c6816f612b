package http1client

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// halfClosedTimeout is the timeout of each read and write after one direction of a tunnel ends.
const halfClosedTimeout = 30 * time.Second

// goneTimeout is the maximum time that a WebSocket stays open after the client closes its side of the connection. A
// WebSocket has no half-close (RFC 6455 section 7.1.1), and a WebSocket that is closed must not use a concurrency slot.
const goneTimeout = time.Second

// AppendSwitch appends the header section of the 101 response to the client. It contains Connection, Upgrade (RFC
// 9110 section 15.2.2) and the fields that are forwarded to clients.
func (r *Response) AppendSwitch(b []byte) []byte {
	lines := rewrite.Lines(append(b, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"...))
	for _, f := range r.Head.Fields {
		if transport.EqualFold(f.Name, transport.Upgrade) {
			lines = wire.AppendField(lines, f.Name, f.Value)
		}
	}
	rewrite.EachResponseField(r.Head.Fields, &lines)
	return append(lines, "\r\n"...)
}

// IsWebSocket reports whether a 101 response switches to WebSocket.
func (r *Response) IsWebSocket() bool {
	protocol, _ := wire.Find(r.Head.Fields, transport.Upgrade)
	return transport.EqualFold(protocol, "websocket")
}

// tunnelSize is the size in bytes of the buffer for each direction of a tunnel. It is small because most WebSockets are
// idle most of the time. After a read that fills the buffer, a larger buffer is used.
const tunnelSize = 4 << 10

// Tunnel copies bytes in both directions between the client and the user container after a 101 response. Tunnel returns
// when both directions end, one direction fails, or the canceler fires. It stores the error and the byte counts in
// result. early is the input that the client sent after its request. Tunnel resets Head and closes both connections.
func (r *Response) Tunnel(client net.Conn, early []byte, canceler *transport.Canceler, state transport.State, result *transport.Result) {
	canceler.Abortable(func() {
		r.call.Abort()
		client.SetDeadline(past)
	})
	canceler.Watch(state)
	t := r.newTunnel(client, state.Touch)
	result.In, result.Out = t.copyBoth(early)
	result.Err = canceler.Abortable(nil)
	if transport.FaultOf(result.Err) == transport.FaultClientGone { // RST_STREAM or a closed HTTP/2 connection
		t.clientReset.Store(true)
	}
	t.close()
}

// newTunnel returns the tunnel of a 101 response. touch is called before each write. Two goroutines may call touch
// concurrently.
func (r *Response) newTunnel(client net.Conn, touch func()) *tunnel {
	app := r.conn
	t := &tunnel{
		call: r.call, client: client, app: app, bounds: r.app.settings.Bounds, touch: touch,
		webSocket: r.IsWebSocket(), early: append([]byte(nil), app.buffered()...),
	}
	app.park()
	r.Head.Reset() // releases the buffer of the header section
	return t
}

// copyBoth copies bytes in both directions and returns the number of bytes in each direction. early is the input
// that the client sent after its request.
func (t *tunnel) copyBoth(early []byte) (in, out int64) {
	var both sync.WaitGroup
	both.Go(func() { in = t.copy(t.app, t.client, early) })
	out = t.copy(t.client, t.app, t.early)
	both.Wait()
	return in, out
}

// close closes both connections. If one peer has reset its connection, the other connection is reset
// as well, because a FIN would mark the truncated data as complete.
func (t *tunnel) close() {
	t.call.detach()
	if t.appReset.Load() {
		reset(t.client)
	} else {
		t.client.Close()
	}
	if t.clientReset.Load() {
		reset(t.app.Conn)
	}
	t.app.close()
}

// reset resets a connection with RST, or with RST_STREAM in HTTP/2 (RFC 8441 section 5).
func reset(conn net.Conn) {
	switch c := conn.(type) {
	case interface{ Reset() error }:
		_ = c.Reset()
	case *net.TCPConn:
		_ = c.SetLinger(0)
		_ = c.Close()
	default:
		_ = c.Close()
	}
}

type tunnel struct {
	call   *Call
	client net.Conn
	app    *clientConn
	bounds *bound.Recorder
	touch  func()
	early  []byte      // input that the user container sent after the 101 response
	half   atomic.Bool // one direction of the tunnel has ended

	appReset    atomic.Bool // the user container has reset its connection
	clientReset atomic.Bool // the client has reset its connection or stream

	closed bool // closeWrite was called for app; guarded by call.mu

	webSocket bool
	end       time.Time // deadline after the client closes its side of a WebSocket; guarded by call.mu
}

// largeBytes returns the number of bytes that are charged to the memory budget for a large buffer. With TLS, the
// encrypted content also counts, because it is buffered if the client does not read.
func (t *tunnel) largeBytes() int {
	if t.call.Request.Secure {
		return 2 * pieceSize
	}
	return pieceSize
}

// takeLarge returns a large buffer and charges its memory to the budget.
func (t *tunnel) takeLarge() *[]byte {
	t.call.Memory.Account.Add(t.largeBytes())
	return t.app.buffers.Get(pieceSize)
}

// putLarge releases a large buffer. It does nothing if the buffer is nil.
func (t *tunnel) putLarge(large *[]byte) {
	if large != nil {
		t.app.buffers.Put(large)
		t.call.Memory.Account.Sub(t.largeBytes())
	}
}

// copy writes the bytes in first and then the input of src to dst. At the end of the input, it closes the write side of
// dst. It returns the number of bytes written.
func (t *tunnel) copy(dst, src net.Conn, first []byte) (moved int64) {
	small := make([]byte, tunnelSize)
	buf := small
	var pooled *[]byte
	defer func() { t.putLarge(pooled) }()
	for {
		if len(first) > 0 {
			t.touch()
			t.setDeadlines(dst, src)
			n, err := dst.Write(first)
			moved += int64(n)
			if err != nil {
				t.recordReset(err, dst)
				t.recordTimeout(err)
				break
			}
		}
		switch full := len(first) == len(buf); {
		case full && pooled == nil:
			pooled = t.takeLarge()
			buf = *pooled
		case !full && pooled != nil:
			t.putLarge(pooled)
			pooled, buf = nil, small
		}
		t.setDeadlines(dst, src)
		n, err := src.Read(buf)
		first = buf[:n]
		if n > 0 {
			continue
		}
		if err == io.EOF && !t.wasReset(src) && t.closeWrite(dst) == nil {
			if src == t.client && t.webSocket {
				t.limit()
			}
			if !t.half.Swap(true) {
				t.setDeadlines(src, dst) // sets a deadline for the other direction
			}
			return moved
		}
		t.recordReset(err, src)
		t.recordTimeout(err)
		break
	}
	// This direction has failed, so end both directions.
	t.client.SetDeadline(past)
	t.app.SetDeadline(past)
	return moved
}

// setDeadlines sets a deadline for the next read from src and the next write to dst. It does nothing if
// neither direction of the tunnel has ended or if the call was aborted.
func (t *tunnel) setDeadlines(dst, src net.Conn) {
	if !t.half.Load() {
		return
	}
	t.call.mu.Lock()
	defer t.call.mu.Unlock()
	if !t.call.aborted {
		end := time.Now().Add(halfClosedTimeout)
		if !t.end.IsZero() {
			end = t.end
		}
		src.SetReadDeadline(end)
		dst.SetWriteDeadline(end)
	}
}

// recordReset is called with the error of a read from c or a write to c. If err reports a reset, recordReset records
// that the peer has reset the connection.
func (t *tunnel) recordReset(err error, c net.Conn) {
	switch {
	case !errors.Is(err, syscall.ECONNRESET):
	case c == t.app:
		t.appReset.Store(true)
	default:
		t.clientReset.Store(true)
	}
}

// wasReset is called after a read from c returns io.EOF, and reports whether the peer reset the connection. The kernel
// reports a reset only once. If a write has already returned ECONNRESET, the next read returns io.EOF.
func (t *tunnel) wasReset(c net.Conn) bool {
	if c != t.app {
		return t.clientReset.Load()
	}
	t.call.mu.Lock()
	defer t.call.mu.Unlock()
	if t.closed || !t.app.disconnected() { // an orderly close, by both sides or only by the user container
		return false
	}
	t.appReset.Store(true)
	return true
}

// closeWrite closes the write side of c.
func (t *tunnel) closeWrite(c net.Conn) error {
	if c == t.app {
		t.call.mu.Lock()
		t.closed = true
		t.call.mu.Unlock()
	}
	return closeWrite(c)
}

// recordTimeout records the bound TunnelTimeout if err reports that a deadline set by setDeadlines has expired.
func (t *tunnel) recordTimeout(err error) {
	if !t.half.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	t.call.mu.Lock()
	defer t.call.mu.Unlock()
	if !t.call.aborted && t.end.IsZero() {
		t.bounds.Hit(bound.TunnelTimeout, t.client.RemoteAddr().String())
	}
}

// limit sets the deadline of a WebSocket after the client closes its side of the connection.
func (t *tunnel) limit() {
	t.call.mu.Lock()
	defer t.call.mu.Unlock()
	t.end = time.Now().Add(goneTimeout)
}

// closeWrite closes the write side of c, or returns net.ErrClosed if c has no half-close.
func closeWrite(c net.Conn) error {
	if n, ok := c.(*clientConn); ok {
		c = n.Conn
	}
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return net.ErrClosed
}
