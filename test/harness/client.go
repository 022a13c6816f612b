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

// A Client is a connection to a proxy that a test writes by hand.
type Client struct {
	*net.TCPConn
	T  testing.TB
	In *bufio.Reader // what the proxy sends
}

// Dial connects to an address. The connection ends with the test, and nothing on it
// waits longer than Patience.
func Dial(t testing.TB, address string) *Client {
	t.Helper()
	return DialBy(t, &net.Dialer{}, address)
}

// DialBy is Dial by a dialer.
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

// Send writes bytes.
func (c *Client) Send(text string) {
	c.T.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.T.Fatal(err)
	}
}

// Receive reads the final response to a request with the method.
func (c *Client) Receive(method string) *Message {
	c.T.Helper()
	_, m, err := ReadResponse(c.In, method)
	if err != nil {
		c.T.Fatalf("reading a response: %v", err)
	}
	return m
}

// WantBody reads the response to a GET, and reports an error unless it is 200 with that
// body.
func (c *Client) WantBody(want string) {
	c.T.Helper()
	if m := c.Receive("GET"); m.Status() != http.StatusOK || m.Body != want {
		c.T.Errorf("got %s %.100q, want 200 %.100q", m.Start, m.Body, want)
	}
}

// Get requests a path from a proxy in front of Echo.
func (c *Client) Get(path string) {
	c.T.Helper()
	c.Send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
	c.WantBody(path)
}

// WantEnd reports an error unless the connection ends without another byte.
func (c *Client) WantEnd() {
	c.T.Helper()
	if b, err := c.In.ReadByte(); err == nil {
		rest, _ := io.ReadAll(c.In)
		c.T.Errorf("got %q, want the connection to end", string(b)+string(rest))
	} else if IsTimeout(err) {
		c.T.Error("got silence, want the connection to end")
	}
}

// Pair returns both ends of a TCP connection on this host. They are closed with the test.
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

// IsTimeout reports whether a read or a write has met its deadline.
func IsTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// Narrow makes a socket hold as little as the kernel allows, and what a listener
// accepts likewise. It fits net.Dialer.Control.
func Narrow(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1)
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1)
	})
}
