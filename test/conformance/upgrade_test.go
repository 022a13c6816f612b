package conformance

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

func TestWebSocketMessagesOfAllSizesAreForwarded(t *testing.T) {
	p := newProxy(t)
	p.start("REVISION_RESPONSE_START_TIMEOUT_SECONDS=300")
	p.sample()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+p.addr()+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(16 << 20)
	for _, size := range []int{0, 1, 125, 126, 64 << 10, 64<<10 + 1, 1 << 20} {
		for range 10 {
			want := noise(size)
			if err := c.Write(ctx, websocket.MessageBinary, want); err != nil {
				t.Fatalf("write message of %d bytes: %v", size, err)
			}
			kind, got, err := c.Read(ctx)
			if err != nil {
				t.Fatalf("read message of %d bytes: %v", size, err)
			}
			if kind != websocket.MessageBinary || !bytes.Equal(got, want) {
				t.Fatalf("got %v of %d bytes, want the %d bytes that were sent", kind, len(got), size)
			}
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, "done"); err != nil {
		t.Errorf("close: %v", err)
	}
}

// upgrading is a script that accepts any upgrade, sends "hello" in the same packet, and then
// echoes all data.
func upgrading(c *bareConn, m *message) bool {
	if m.get("Upgrade") == "" || m.get("Connection") == "" {
		c.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
		return true
	}
	c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + m.get("Upgrade") + "\r\nX-App: yes\r\n\r\nhello")
	io.Copy(c, c.r)
	c.CloseWrite()
	return false
}

// The app cannot set the Proxy-Status of the sidecar in a response with status 101
// (docs/promises.md 3.6).
func TestSwitchingProtocolsRemovesForgedProxyStatus(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.start()
	p.bare(func(c *bareConn, m *message) bool {
		c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n" +
			"Proxy-Status: queue-proxy; error=connection_refused, other; error=dns_error\r\nProxy-Status: queue-proxy\r\n\r\n")
		return false
	})
	for name, w := range map[string]*client{"plain": dial(t, p.addr()), "TLS": dialTLS(t, p.tlsAddr(), "http/1.1")} {
		m := w.ask("/", "Connection: Upgrade", "Upgrade: x")
		if got := values(m.Fields, "Proxy-Status"); m.status() != 101 || !slices.Equal(got, []string{"other; error=dns_error"}) {
			t.Errorf("%s: got %q with Proxy-Status %q, want 101 with the member of the other proxy", name, m.Start, got)
		}
	}
}

// Data that arrives in the same packet as an upgrade request, or as the response with status
// 101, is forwarded.
func TestDataAfterUpgradeIsForwarded(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.bare(upgrading)
	for i := range 20 {
		c := dial(t, p.addr())
		early := fmt.Sprintf("early bytes %02d", i)
		c.send(request("GET", "/", "Connection: Upgrade", "Upgrade: echo/1") + early)
		m := c.receive("GET")
		if m.status() != 101 || m.get("Upgrade") != "echo/1" || m.get("X-App") != "yes" {
			t.Fatalf("got %q with Upgrade %q and X-App %q, want 101 from the app", m.Start, m.get("Upgrade"), m.get("X-App"))
		}
		got := make([]byte, len("hello")+len(early))
		if _, err := io.ReadFull(c.r, got); err != nil {
			t.Fatalf("read: %v after %q", err, got)
		}
		if want := "hello" + early; string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
		c.send(" and later data")
		got = make([]byte, len(" and later data"))
		if _, err := io.ReadFull(c.r, got); err != nil || string(got) != " and later data" {
			t.Errorf("got %q, %v, want the later data", got, err)
		}
		c.Close()
	}
}

// If one side closes its upgraded connection, the sidecar also closes the connection to the
// other side.
func TestUpgradedConnectionEndReachesOtherSide(t *testing.T) {
	p := newProxy(t)
	p.start()
	appEnded := make(chan struct{}, 1)
	p.bare(func(c *bareConn, m *message) bool {
		c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		if m.Start == "GET /app-ends HTTP/1.1" {
			c.Close()
			return false
		}
		io.Copy(io.Discard, c.r)
		appEnded <- struct{}{}
		return false
	})
	c := dial(t, p.addr())
	c.send(request("GET", "/client-ends", "Connection: Upgrade", "Upgrade: echo"))
	c.receive("GET")
	c.Close()
	receive(t, "the connection ends in the app", appEnded)

	c = dial(t, p.addr())
	c.send(request("GET", "/app-ends", "Connection: Upgrade", "Upgrade: echo"))
	c.receive("GET")
	c.closed()
}

// resetting is a script that accepts an upgrade and resets the connection after the first byte.
func resetting(c *bareConn, m *message) bool {
	if m.get("Upgrade") == "websocket" {
		c.send(switching(m))
	} else {
		c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + m.get("Upgrade") + "\r\n\r\n")
	}
	c.r.ReadByte()
	c.reset()
	return false
}

func TestResetOfAppReachesUpgradedClient(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.start()
	p.bare(resetting)
	for _, protocol := range []string{"websocket", "x"} {
		for name, c := range map[string]*client{"plain": dial(t, p.addr()), "TLS": dialTLS(t, p.tlsAddr(), "http/1.1")} {
			if m := c.ask("/", "Connection: Upgrade", "Upgrade: "+protocol); m.status() != 101 {
				t.Fatalf("%s, %s: got %q, want 101", name, protocol, m.Start)
			}
			c.send("x")
			if got, err := io.ReadAll(c.r); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s, %s: got %q, %v, want %v", name, protocol, got, err, syscall.ECONNRESET)
			}
		}
	}
}

// awaitingReset returns a script that accepts an upgrade, sends "hello", reads until an error
// occurs, and sends this error to ended.
func awaitingReset(ended chan<- error) func(c *bareConn, m *message) bool {
	return func(c *bareConn, m *message) bool {
		c.send(switching(m) + "hello")
		_, err := io.ReadAll(c.r)
		ended <- err
		return false
	}
}

func TestResetOfUpgradedClientReachesApp(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.start()
	ended := make(chan error, 1)
	p.bare(awaitingReset(ended))
	for name, c := range map[string]*client{"plain": dial(t, p.addr()), "TLS": dialTLS(t, p.tlsAddr(), "http/1.1")} {
		if m := c.ask("/", "Connection: Upgrade", "Upgrade: websocket"); m.status() != 101 {
			t.Fatalf("%s: got %q, want 101", name, m.Start)
		}
		tcp, ok := c.Conn.(*net.TCPConn)
		if !ok {
			tcp = c.Conn.(*tls.Conn).NetConn().(*net.TCPConn)
		}
		tcp.SetLinger(0)
		tcp.Close()
		if err := receive(t, "the end of the connection", ended); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: got %v, want %v", name, err, syscall.ECONNRESET)
		}
	}
}

// An upgraded connection uses a slot until it is closed.
func TestUpgradedConnectionHoldsSlot(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0")
	p.bare(upgrading)
	c := dial(t, p.addr())
	c.send(request("GET", "/", "Connection: Upgrade", "Upgrade: echo"))
	c.receive("GET")
	if m := dial(t, p.addr()).ask("/"); m.status() != 503 {
		t.Errorf("request during an upgraded connection: got %q, want 503", m.Start)
	}
	c.Close()
	p.poll("the slot is free", func() error {
		if m := dial(t, p.addr()).ask("/"); m.status() == 503 {
			return fmt.Errorf("got %q", m.Start)
		}
		return nil
	})
}

// The test opens several tunnels at the same time. The data of one tunnel must not reach
// another tunnel.
func TestManyConcurrentUpgradedConnections(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.bare(upgrading)
	var conns []*client
	for range 50 {
		c := dial(t, p.addr())
		c.send(request("GET", "/", "Connection: upgrade", "Upgrade: echo"))
		if m := c.receive("GET"); m.status() != http.StatusSwitchingProtocols {
			t.Fatalf("got %q, want 101", m.Start)
		}
		conns = append(conns, c)
	}
	for i, c := range conns {
		c.send(fmt.Sprintf("%04d", i))
	}
	for i, c := range conns {
		got := make([]byte, len("hello0000"))
		if _, err := io.ReadFull(c.r, got); err != nil || string(got) != fmt.Sprintf("hello%04d", i) {
			t.Errorf("tunnel %d: got %q, %v, want hello%04d", i, got, err, i)
		}
		c.Conn.(*net.TCPConn).CloseWrite()
		c.closed()
	}
}

// Framing and connection fields of the app are removed from a response with status 101. A
// response without Upgrade is invalid (RFC 9110 section 15.2.2).
func TestSwitchingProtocolsRequiresUpgrade(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.start()
	p.bare(func(c *bareConn, m *message) bool {
		if strings.HasPrefix(m.Start, "GET /no-upgrade ") {
			c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n")
			return false
		}
		c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade, X-Hop\r\nUpgrade: x\r\n" +
			"Content-Length: 5\r\nKeep-Alive: timeout=5\r\nSec-WebSocket-Accept: y\r\n\r\n")
		return false
	})
	for name, open := range map[string]func() *client{
		"plain": func() *client { return dial(t, p.addr()) }, "TLS": func() *client { return dialTLS(t, p.tlsAddr(), "http/1.1") },
	} {
		m := open().ask("/", "Connection: Upgrade", "Upgrade: x")
		if m.status() != 101 || m.get("Upgrade") != "x" || m.get("Connection") != "Upgrade" || m.get("Sec-WebSocket-Accept") != "y" {
			t.Errorf("%s: got %q with %v, want 101 with protocol x", name, m.Start, m.Fields)
		}
		for _, field := range []string{"Content-Length", "Keep-Alive"} {
			if got := m.get(field); got != "" {
				t.Errorf("%s: got %s: %s, want no such field", name, field, got)
			}
		}
		if m := open().ask("/no-upgrade", "Connection: Upgrade", "Upgrade: x"); m.status() != 502 || word(m.get("Proxy-Status")) != "app-garbage" {
			t.Errorf("%s: status 101 without Upgrade: got %q, want 502 app-garbage", name, m.Start)
		}
	}
}

// A WebSocket has no half-closed state, so its slot is released one second after the client
// disconnects, even if the app never closes its side (docs/promises.md 3.7a).
func TestWebSocketClientDisconnectReleasesSlot(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=10")
	forever := make(chan struct{})
	defer close(forever)
	p.bare(func(c *bareConn, m *message) bool {
		c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		<-forever
		return false
	})
	for i := range 3 {
		c := dial(t, p.addr())
		c.send(request("GET", "/", "Connection: Upgrade", "Upgrade: websocket"))
		began := time.Now()
		m := c.receive("GET")
		if took := time.Since(began); m.status() != 101 || took > time.Second+slack {
			t.Fatalf("WebSocket %d: got %q after %v, want 101 within one second after the previous client disconnected", i, m.Start, took)
		}
		c.Close()
	}
}
