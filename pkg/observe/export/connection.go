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

// Limits for the response from a collector. A faulty or hostile collector must not use up the
// memory and CPU time that requests need.
const (
	maxHead        = 64 << 10  // maximum length of a response header, including all 1xx responses and the trailers, in bytes
	maxAnswer      = 64 << 10  // maximum length of a response body in bytes
	maxReceived    = 256 << 10 // maximum number of bytes received on the connection for one export, including frames and the TLS handshake
	maxUnsolicited = 1 << 10   // maximum number of bytes read from an idle connection; net/http logs these bytes
	maxIdle        = 90 * time.Second
)

var errReceived = errors.New("the response of the collector exceeds 256 KiB")

// A connection is an [http.RoundTripper] that uses at most one network connection. It keeps the network
// connection open after a successful export and closes it after a failed export. It supports one request
// at a time.
//
// An [http.Transport] with MaxConnsPerHost 1 could enforce the same limits, but it differs in three ways. It continues
// to dial after the context of a request is done, and the next request waits for that dial. If an HTTP/2 stream fails,
// it keeps the connection open, and the kernel then keeps unsent data for a collector that does not read. Over HTTP/2,
// it does not retry a POST after the collector has closed an idle connection. A push of metrics would then fail, and
// its caller does not retry.
type connection struct {
	via  *http.Transport
	left atomic.Int64                // number of bytes that may still be received
	raw  atomic.Pointer[net.TCPConn] // TCP connection of the current ClientConn

	mu   sync.Mutex
	kept *http.ClientConn // nil if there is no idle connection
	idle *time.Timer      // closes kept when it fires
}

// newConnection returns a connection that uses proxy. proxy may be nil.
func newConnection(proxy *url.URL, protocols *http.Protocols, config *tls.Config) *connection {
	c := &connection{}
	var dialer net.Dialer
	c.via = &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			c.raw.Store(conn.(*net.TCPConn)) // the dialer returns a *net.TCPConn for the network "tcp"
			return &rationedConn{conn, &c.left}, nil
		},
		Proxy:                  http.ProxyURL(proxy),
		TLSClientConfig:        config,
		Protocols:              protocols,
		DisableCompression:     true, // responses are short
		MaxResponseHeaderBytes: maxHead,
		ReadBufferSize:         maxUnsolicited,
	}
	return c
}

// RoundTrip implements [http.RoundTripper]. req.GetBody must not be nil.
func (c *connection) RoundTrip(req *http.Request) (*http.Response, error) {
	if conn := c.take(); conn != nil {
		res, err := c.roundTrip(conn, req)
		if err == nil || req.Context().Err() != nil {
			return res, err
		}
		body, err := req.GetBody() // the collector may have just closed the idle connection
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

// take removes and returns the kept connection, or nil if there is none.
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

// linger sets SO_LINGER. With 0, unsent data is discarded when the connection is closed. With -1, the kernel keeps
// unsent data for minutes after each export if the collector does not read it. This data counts as container memory.
func (c *connection) linger(seconds int) {
	if raw := c.raw.Load(); raw != nil {
		_ = raw.SetLinger(seconds) // the connection may be closed
	}
}

// keep stores a connection for the next export. The connection is closed if it is idle for maxIdle.
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

// An answerBody is a response body. Close keeps the connection if the body was read completely, and
// closes it otherwise.
type answerBody struct {
	io.ReadCloser
	conn  *http.ClientConn
	keep  func(*http.ClientConn)
	whole bool // the body was read until io.EOF
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

// A rationedConn returns an error after left bytes are read.
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
