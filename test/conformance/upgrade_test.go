package conformance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/coder/websocket"
)

func TestWebSocketMessagesOfAnySizeAreEchoed(t *testing.T) {
	p := newPod(t)
	p.sidecar("REVISION_RESPONSE_START_TIMEOUT_SECONDS=300")
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
				t.Fatalf("%d bytes: writing: %v", size, err)
			}
			kind, got, err := c.Read(ctx)
			if err != nil {
				t.Fatalf("%d bytes: reading: %v", size, err)
			}
			if kind != websocket.MessageBinary || !bytes.Equal(got, want) {
				t.Fatalf("got %v of %d bytes, want the %d that were sent", kind, len(got), size)
			}
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, "done"); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// upgrading is a script that accepts any upgrade, says hello in the same packet
// and then sends everything back.
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

// Bytes right behind the upgrade request, and right behind its 101, are not lost.
func TestBytesBehindAnUpgradeAreNotLost(t *testing.T) {
	p := newPod(t)
	p.sidecar()
	p.bare(upgrading)
	for i := range 20 {
		c := dial(t, p.addr())
		early := fmt.Sprintf("early bytes %02d", i)
		c.send(request("GET", "/", "Connection: Upgrade", "Upgrade: echo/1") + early)
		m := c.receive("GET")
		if m.status() != 101 || m.get("Upgrade") != "echo/1" || m.get("X-App") != "yes" {
			t.Fatalf("got %q with Upgrade %q and X-App %q, want the app's 101", m.Start, m.get("Upgrade"), m.get("X-App"))
		}
		got := make([]byte, len("hello")+len(early))
		if _, err := io.ReadFull(c.r, got); err != nil {
			t.Fatalf("reading: %v after %q", err, got)
		}
		if want := "hello" + early; string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
		c.send(" and later ones")
		got = make([]byte, len(" and later ones"))
		if _, err := io.ReadFull(c.r, got); err != nil || string(got) != " and later ones" {
			t.Errorf("got %q, %v, want the later bytes", got, err)
		}
		c.Close()
	}
}

// When one side of an upgraded connection ends, the other hears of it.
func TestTheEndOfAnUpgradedConnectionReachesTheOtherSide(t *testing.T) {
	p := newPod(t)
	p.sidecar()
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
	receive(t, "the app hears of the end", appEnded)

	c = dial(t, p.addr())
	c.send(request("GET", "/app-ends", "Connection: Upgrade", "Upgrade: echo"))
	c.receive("GET")
	c.closed()
}

// An upgraded connection is in the user container for its whole life.
func TestAnUpgradedConnectionKeepsItsSlot(t *testing.T) {
	p := newPod(t)
	p.sidecar("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0")
	p.bare(upgrading)
	c := dial(t, p.addr())
	c.send(request("GET", "/", "Connection: Upgrade", "Upgrade: echo"))
	c.receive("GET")
	if m := dial(t, p.addr()).ask("/"); m.status() != 503 {
		t.Errorf("beside an upgraded connection: got %q, want 503", m.Start)
	}
	c.Close()
	p.poll("the slot is free again", func() error {
		if m := dial(t, p.addr()).ask("/"); m.status() == 503 {
			return fmt.Errorf("got %q", m.Start)
		}
		return nil
	})
}

// Two tunnels do not see one another's bytes, and each lasts as long as it will.
func TestManyUpgradedConnectionsAtOnce(t *testing.T) {
	p := newPod(t)
	p.sidecar()
	p.bare(upgrading)
	var conns []*wire
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
			t.Errorf("tunnel %d: got %q, %v", i, got, err)
		}
		c.Conn.(*net.TCPConn).CloseWrite()
		c.closed()
	}
}
