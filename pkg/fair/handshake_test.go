package fair_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// certificate returns a certificate of approximately size bytes.
func certificate(t *testing.T, size int) tls.Certificate {
	t.Helper()
	c, err := harness.NewCertificate(func(c *x509.Certificate) {
		for n := 0; n < size; n += 200 {
			c.DNSNames = append(c.DNSNames, strings.Repeat("x", 198)+".a")
		}
	})
	harness.NoError(t, err)
	return c
}

// A guarded server accepts TLS connections and echoes the first byte of each connection.
type guarded struct {
	addr   string
	failed chan error
	close  func() error
}

func guard(t *testing.T, change func(*fair.Handshakes)) guarded {
	t.Helper()
	g := guarded{failed: make(chan error, 1000)}
	h := fair.Handshakes{
		Config: &tls.Config{Certificates: []tls.Certificate{certificate(t, 0)}, ClientAuth: tls.RequestClientCert},
		Max:    4, Bytes: 8 << 10, Time: harness.Patience,
		Failed: func(_ net.Addr, err error) { g.failed <- err },
	}
	change(&h)
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	ln := h.Listener(bare)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 1)
				io.ReadFull(c, b)
				c.Write(b)
				io.Copy(io.Discard, c)
			}()
		}
	}()
	g.addr, g.close = bare.Addr().String(), ln.Close
	t.Cleanup(func() { ln.Close(); <-done })
	return g
}

// client performs a handshake, sends one byte and waits for the echo.
func (g *guarded) client(t *testing.T, certificates ...tls.Certificate) (*tls.Conn, error) {
	t.Helper()
	c := tls.Client(dial(t, g.addr, ""), &tls.Config{InsecureSkipVerify: true, Certificates: certificates})
	if _, err := io.WriteString(c, "a"); err != nil {
		return nil, err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return c, err
}

func TestHandshakeByteLimit(t *testing.T) {
	t.Parallel()
	g := guard(t, func(*fair.Handshakes) {})
	if _, err := g.client(t, certificate(t, 4<<10)); err != nil {
		t.Errorf("certificate of 4 KB: got error %v, want none", err)
	}
	if _, err := g.client(t, certificate(t, 100<<10)); err == nil || harness.IsTimeout(err) {
		t.Errorf("certificate of 100 KB: got %v, want a closed connection", err)
	}
	harness.Equal(t, (<-g.failed).Error(), "the handshake exceeds 8192 bytes")
}

func TestCompleteHandshakesHaveNoLimits(t *testing.T) {
	t.Parallel()
	harness.ScaleTime(t, func(scale int) (inTime bool) {
		timeout := time.Duration(scale) * 200 * time.Millisecond
		g := guard(t, func(h *fair.Handshakes) { h.Time = timeout })
		c, err := g.client(t)
		if err != nil {
			return false
		}
		// The timeout of the handshake expires while the client writes.
		for end := time.Now().Add(timeout * 2); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if _, err := c.Write(make([]byte, 10<<10)); err != nil {
				t.Fatalf("write after the handshake: got error %v, want none", err)
			}
		}
		return true
	})
}

func TestIncompleteHandshakesDoNotBlockClients(t *testing.T) {
	t.Parallel()
	g := guard(t, func(*fair.Handshakes) {})
	for range 3 {
		for _, text := range []string{"", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"} {
			for range 10 {
				dial(t, g.addr, text)
			}
		}
		if _, err := g.client(t); err != nil {
			t.Errorf("client after incomplete handshakes: got error %v, want none", err)
		}
	}
}

func TestHandshakeTimeout(t *testing.T) {
	t.Parallel()
	g := guard(t, func(h *fair.Handshakes) { h.Time = time.Second })
	silent, half := dial(t, g.addr, ""), dial(t, g.addr, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
	for name, c := range map[string]net.Conn{"silent": silent, "half": half} {
		if _, err := io.Copy(io.Discard, c); harness.IsTimeout(err) {
			t.Errorf("%s: got %v, want a closed connection", name, err)
		}
	}
	if err := <-g.failed; !harness.IsTimeout(err) {
		t.Errorf("got %v, want a timeout", err)
	}
	select {
	case err := <-g.failed:
		t.Errorf("silent connection: got %v, want no reported error", err)
	default:
	}
}

func TestCloseStopsIncompleteHandshakes(t *testing.T) {
	t.Parallel()
	g := guard(t, func(*fair.Handshakes) {})
	if _, err := g.client(t); err != nil { // the listener has begun to accept connections
		t.Fatal(err)
	}
	half := dial(t, g.addr, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
	g.close()
	if _, err := io.Copy(io.Discard, half); harness.IsTimeout(err) {
		t.Errorf("got %v, want a closed connection", err)
	}
	if _, err := net.Dial("tcp", g.addr); err == nil {
		t.Error("got a connection after Close, want none")
	}
}

// A failing listener returns errors from Accept.
type failing struct {
	net.Listener
	err error
}

func (f failing) Accept() (net.Conn, error) { return nil, f.err }
func (f failing) Close() error              { return nil }

func TestAcceptReturnsListenerErrors(t *testing.T) {
	t.Parallel()
	want := errors.New("too many open files")
	ln := fair.Handshakes{Config: &tls.Config{}, Max: 1, Bytes: 1, Time: harness.Patience}.Listener(failing{err: want})
	for range 2 {
		if _, err := ln.Accept(); err != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	ln.Close()
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}

// A connection with a completed handshake keeps its slot until Accept returns the connection. Other
// connections wait for this slot.
func TestCompleteHandshakesAreNotClosed(t *testing.T) {
	t.Parallel()
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	ln := fair.Handshakes{
		Config: &tls.Config{Certificates: []tls.Certificate{certificate(t, 0)}}, Max: 2, Bytes: 8 << 10, Time: harness.Patience,
	}.Listener(bare)
	t.Cleanup(func() { ln.Close() })
	const n = 6
	done := make(chan error, n)
	connect := func() {
		done <- tls.Client(dial(t, bare.Addr().String(), ""), &tls.Config{InsecureSkipVerify: true}).Handshake()
	}
	go connect()
	if c, err := ln.Accept(); err != nil { // starts to accept
		t.Fatal(err)
	} else {
		defer c.Close()
	}
	for range n - 1 {
		go connect()
	}
	for range 3 { // one connection returned by Accept, and two that are waiting
		harness.NoError(t, <-done, "handshake")
	}
	select {
	case err := <-done:
		t.Fatalf("handshake above the limit: got result %v, want the handshake to wait", err)
	case <-time.After(1500 * time.Millisecond): // longer than the maximum required idle time
	}
	go func() {
		for range n - 1 {
			if c, err := ln.Accept(); err == nil {
				defer c.Close()
			}
		}
	}()
	for range n - 3 {
		harness.Equal(t, <-done, nil)
	}
}
