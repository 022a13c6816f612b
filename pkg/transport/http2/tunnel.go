package http2

import (
	"cmp"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

const webSocket = "websocket"

// connect implements Forward for a request with extended CONNECT. It forwards a WebSocket over HTTP/2 (RFC 8441) as a
// WebSocket over HTTP/1.1 (RFC 6455).
func (x *exchange) connect(state transport.State) (result transport.Result) {
	if x.protocol != webSocket || x.server.app.OnlyH2() {
		return transport.Result{Err: transport.FaultBadRequest}
	}
	q := &x.request
	key := newKey()
	q.Method, q.Length, q.Chunked, q.Expect100, q.Upgrade = http.MethodGet, -1, false, false, true
	q.Fields = append(q.Fields,
		wire.Field{Name: []byte(transport.Connection), Value: []byte(transport.Upgrade)},
		wire.Field{Name: []byte(transport.Upgrade), Value: []byte(webSocket)},
		wire.Field{Name: []byte("Sec-WebSocket-Key"), Value: []byte(key)})
	q.Trace = state.Trace()
	x.canceler.Watch(state)
	c := &x.call
	c.Content, c.Body, c.Trailer, c.Expect100 = nil, nil, nil, false
	r := x.do(state, &result)
	if r == nil {
		return result
	}
	switch accept, _ := wire.Find(r.Head.Fields, "sec-websocket-accept"); {
	case r.Head.Status != http.StatusSwitchingProtocols: // the user container rejected the WebSocket
		state.Respond("")
		x.finish(r, &result)
		return result
	case wire.String(accept) != acceptOf(key):
		result.Err = transport.FaultGarbage
	}
	if err := cmp.Or(x.canceler.Abortable(nil), result.Err); err != nil {
		r.Close()
		return transport.Result{Err: err}
	}
	x.tunnel(r, &result)
	return result
}

// newKey returns a random Sec-WebSocket-Key (RFC 6455 section 4.1). The key is needed because clients do not send this
// field over HTTP/2.
func newKey() string {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // rand.Read never returns an error
	return base64.StdEncoding.EncodeToString(nonce[:])
}

// acceptOf returns the value of Sec-WebSocket-Accept for the given Sec-WebSocket-Key (RFC 6455 section 4.2.2).
func acceptOf(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// tunnel sends a 200 response, which opens the WebSocket, to the client. It then copies bytes in both directions until
// the WebSocket ends.
func (x *exchange) tunnel(r *http1client.Response, result *transport.Result) {
	result.Status, result.Upgraded = http.StatusOK, true
	x.state.Upgrade()
	x.stream.BothWays()
	k := x.server.block()
	k.Status(http.StatusOK)
	rewrite.EachResponseField(r.Head.Fields, withoutAccept{k})
	err := x.stream.SendHead(k, false)
	x.server.putBlock(k)
	x.conn.Flush(false)
	client := &clientConn{x: x}
	if err != nil {
		r.Close()
		result.Err = transport.FaultClientGone
		return
	}
	w := netconn.NewWebSocket(client)
	x.server.settings.WebSockets.Add(w)
	defer x.server.settings.WebSockets.Remove(w)
	r.Tunnel(w, nil, x.canceler, x.state, result)
}

// withoutAccept is an Encoder that adds all fields to k except Sec-WebSocket-Accept, which WebSockets over HTTP/2 do
// not use (RFC 8441 section 5).
type withoutAccept struct{ k *http2conn.Block }

// Field implements rewrite.Encoder.
func (w withoutAccept) Field(name, value string) {
	if !transport.EqualFold(name, "sec-websocket-accept") {
		w.k.Field(name, value)
	}
}

// clientConn implements net.Conn for the stream of a tunnel. Read and Write may be called concurrently.
type clientConn struct {
	x *exchange

	mu    sync.Mutex
	late  *time.Timer // timer that calls the method cut; nil if no deadline was set
	ended bool        // cut was called
}

// Read implements net.Conn.
func (c *clientConn) Read(p []byte) (int, error) {
	n, err := c.x.body.Read(p)
	if errors.Is(err, errStopped) {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// Write implements net.Conn.
func (c *clientConn) Write(p []byte) (int, error) {
	if c.cutOff() {
		return 0, os.ErrDeadlineExceeded
	}
	waits, err := c.x.stream.SendData(p, false)
	if err != nil {
		return 0, err
	}
	c.x.conn.Flush(false)
	for waits && c.x.stream.Waits() {
		<-c.x.woken
		if c.cutOff() {
			return 0, os.ErrDeadlineExceeded
		}
	}
	return len(p), nil
}

func (c *clientConn) cutOff() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// cut makes reads and writes return os.ErrDeadlineExceeded.
func (c *clientConn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.x.body.stop()
	c.x.wake()
}

// CloseWrite ends this side of the stream with END_STREAM.
func (c *clientConn) CloseWrite() error {
	_, err := c.x.stream.SendData(nil, true)
	c.x.conn.Flush(false)
	return err
}

// Close implements net.Conn.
func (c *clientConn) Close() error {
	c.cut()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late != nil {
		c.late.Stop()
	}
	if !c.x.stream.Ended() {
		c.x.stream.Reset(http2conn.Cancel)
	}
	return nil
}

// Reset resets the stream with RST_STREAM (RFC 8441 section 5).
func (c *clientConn) Reset() error {
	c.x.stream.Reset(http2conn.Cancel)
	return c.Close()
}

// SetDeadline implements net.Conn. A zero time is ignored. SetReadDeadline and SetWriteDeadline set the same deadline,
// because a tunnel does not need separate deadlines for reads and writes.
func (c *clientConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 {
		c.cut()
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late == nil {
		c.late = time.AfterFunc(left, c.cut)
	} else {
		c.late.Reset(left)
	}
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *clientConn) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *clientConn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }

// LocalAddr implements net.Conn.
func (c *clientConn) LocalAddr() net.Addr { return c.x.conn.Link().LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *clientConn) RemoteAddr() net.Addr { return c.x.conn.Link().RemoteAddr() }
