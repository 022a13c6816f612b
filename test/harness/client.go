package harness

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// A Client is a raw connection to a proxy.
type Client struct {
	*net.TCPConn
	T  testing.TB
	In *bufio.Reader // input of the connection
}

// Dial connects to an address. The connection is closed at the end of the test and has a
// deadline of Patience.
func Dial(t testing.TB, address string) *Client {
	t.Helper()
	return DialBy(t, &net.Dialer{}, address)
}

// DialBy is like Dial with the given dialer.
func DialBy(t testing.TB, d *net.Dialer, address string) *Client {
	t.Helper()
	c, err := d.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(Patience))
	return &Client{TCPConn: c.(*net.TCPConn), T: t, In: bufio.NewReader(c)}
}

// Send writes text to the connection.
func (c *Client) Send(text string) {
	c.T.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.T.Fatal(err)
	}
}

// Receive reads the final response to a request with the given method.
func (c *Client) Receive(method string) *Message {
	c.T.Helper()
	_, m, err := ReadResponse(c.In, method)
	if err != nil {
		c.T.Fatalf("read the response: %v", err)
	}
	return m
}

// WantBody reads the response to a GET request and reports an error unless it has status 200
// and the given body.
func (c *Client) WantBody(want string) {
	c.T.Helper()
	if m := c.Receive("GET"); m.Status() != http.StatusOK || m.Body != want {
		c.T.Errorf("got %s %.100q, want 200 %.100q", m.Start, m.Body, want)
	}
}

// Get requests a path from a proxy with an Echo app.
func (c *Client) Get(path string) {
	c.T.Helper()
	c.Send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
	c.WantBody(path)
}

// WantEnd reports an error unless the connection is closed and no more data arrives.
func (c *Client) WantEnd() {
	c.T.Helper()
	if b, err := c.In.ReadByte(); err == nil {
		rest, _ := io.ReadAll(c.In)
		c.T.Errorf("got %q, want a closed connection", string(b)+string(rest))
	} else if IsTimeout(err) {
		c.T.Error("got a timeout, want a closed connection")
	}
}

// Pair returns both ends of a TCP connection. They are closed at the end of the test.
func Pair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	ln := Listen(t)
	defer ln.Close()
	dialed, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	return dialed.(*net.TCPConn), accepted.(*net.TCPConn)
}

// IsTimeout reports whether err is a timeout of a read or a write.
func IsTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// Narrow minimizes the buffers of a socket. Sockets that a listener accepts inherit the size.
// Narrow can be used as net.Dialer.Control.
func Narrow(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1)
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1)
	})
}
