package export

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of what a collector may answer. It is not ours, and must not be able to take
// the memory and the processor time that requests need.
const (
	maxHead        = 64 << 10  // bytes of an answer's head with all 1xx before it, and of its trailers
	maxAnswer      = 64 << 10  // bytes of an answer's body
	maxReceived    = 256 << 10 // bytes on the connection for one export: frames and the TLS handshake included
	maxUnsolicited = 1 << 10   // bytes that arrive without a request: net/http logs what it has read of them
	maxIdle        = 90 * time.Second
)

var errReceived = errors.New("the collector has sent more than 256 KiB for one export")

// A connection is an [http.RoundTripper] with one connection. It keeps the connection after an export
// that succeeds, and closes it after one that fails. It is for one request at a time.
//
// An [http.Transport] with MaxConnsPerHost 1 would also keep the limits on bytes, but it differs in
// three ways. It continues to dial after the context of a request is done, and the next request waits
// for that dial. It does not close an HTTP/2 connection if a stream fails, so that the kernel keeps the
// data for a collector that does not read. Over HTTP/2, it does not repeat a POST if the collector has
// closed an idle connection, and a push of metrics is not repeated by its caller.
type connection struct {
	via  *http.Transport
	left atomic.Int64                // bytes that may still be received
	raw  atomic.Pointer[net.TCPConn] // under the ClientConn of now

	mu   sync.Mutex
	kept *http.ClientConn // nil: none, or in use
	idle *time.Timer      // closes kept
}

// newConnection returns a connection that is made through proxy; nil: directly.
func newConnection(proxy *url.URL, protocols *http.Protocols, config *tls.Config) *connection {
	c := &connection{}
	var dialer net.Dialer
	c.via = &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			c.raw.Store(conn.(*net.TCPConn)) // which a dialer returns for "tcp"
			return &rationedConn{conn, &c.left}, nil
		},
		Proxy:                  http.ProxyURL(proxy),
		TLSClientConfig:        config,
		Protocols:              protocols,
		DisableCompression:     true, // answers are short
		MaxResponseHeaderBytes: maxHead,
		ReadBufferSize:         maxUnsolicited,
	}
	return c
}

// RoundTrip implements [http.RoundTripper]. The request must have GetBody.
func (c *connection) RoundTrip(req *http.Request) (*http.Response, error) {
	if conn := c.take(); conn != nil {
		res, err := c.roundTrip(conn, req)
		if err == nil || req.Context().Err() != nil {
			return res, err
		}
		body, err := req.GetBody() // the collector may have closed it just now
		if err != nil {
			return nil, err
		}
		req = req.WithContext(req.Context())
		req.Body = body
	}
	c.left.Store(maxReceived)
	conn, err := c.via.NewClientConn(req.Context(), req.URL.Scheme, net.JoinHostPort(req.URL.Hostname(), req.URL.Port()))
	if err != nil {
		return nil, err
	}
	return c.roundTrip(conn, req)
}

func (c *connection) roundTrip(conn *http.ClientConn, req *http.Request) (*http.Response, error) {
	c.left.Store(maxReceived)
	c.linger(0)
	res, err := conn.RoundTrip(req)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	res.Body = &answerBody{ReadCloser: res.Body, conn: conn, keep: c.keep}
	return res, nil
}

// take returns the kept connection, which is then the caller's; nil: there is none.
func (c *connection) take() *http.ClientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.kept
	if conn == nil {
		return nil
	}
	c.kept = nil
	c.idle.Stop()
	if conn.Err() != nil {
		_ = conn.Close()
		return nil
	}
	return conn
}

// linger sets what closing does with what the collector has not read: 0 throws it away,
// -1 leaves it to the kernel. That would keep it for minutes, as our memory, for each
// export to a collector that does not read.
func (c *connection) linger(seconds int) {
	if raw := c.raw.Load(); raw != nil {
		_ = raw.SetLinger(seconds) // it may be closed
	}
}

// keep keeps a connection for the next export, for some time.
func (c *connection) keep(conn *http.ClientConn) {
	c.linger(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept, c.idle = conn, time.AfterFunc(maxIdle, c.close)
}

// close closes the kept connection.
func (c *connection) close() {
	if conn := c.take(); conn != nil {
		_ = conn.Close()
	}
}

// An answerBody ends the use of its connection when it is closed.
type answerBody struct {
	io.ReadCloser
	conn  *http.ClientConn
	keep  func(*http.ClientConn)
	whole bool // it was read to its end
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.whole = b.whole || err == io.EOF
	return n, err
}

func (b *answerBody) Close() error {
	err := b.ReadCloser.Close()
	if !b.whole {
		return errors.Join(err, b.conn.Close())
	}
	b.keep(b.conn)
	return err
}

// A rationedConn reads no more than is left.
type rationedConn struct {
	net.Conn
	left *atomic.Int64
}

func (c *rationedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left.Add(-int64(n)) < 0 {
		return 0, errReceived
	}
	return n, err
}
