package conformance

import (
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// This file tests WebSockets over HTTP/2 (RFC 8441). The sidecar forwards them to the
// application as WebSockets over HTTP/1.1.

// openWebSocket sends an extended CONNECT with additional fields.
func (p *h2Peer) openWebSocket(stream uint32, target string, more ...field) {
	p.t.Helper()
	err := p.raw(stream, false, append([]field{
		{":method", "CONNECT"}, {":protocol", "websocket"}, {":scheme", "https"}, {":authority", "a.test"}, {":path", target},
		{"sec-websocket-version", "13"}, {"sec-websocket-protocol", "chat"}, {"origin", "https://a.test"},
	}, more...))
	if err != nil {
		p.t.Fatalf("stream %d: send: %v", stream, err)
	}
}

// received waits until the data received on a stream equals want.
func (p *h2Peer) received(stream uint32, want string) {
	p.t.Helper()
	poll(p.t, fmt.Sprintf("%q on stream %d", want, stream), func() error {
		events, _ := p.seen()
		var got strings.Builder
		for _, e := range events {
			if e.stream == stream {
				got.WriteString(e.data)
			}
		}
		if got.String() != want {
			return fmt.Errorf("got %q", got.String())
		}
		return nil
	})
}

// switching returns a response that accepts a WebSocket (RFC 6455 section 4.2.2).
func switching(m *message) string {
	sum := sha1.Sum([]byte(m.get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: chat\r\n" +
		"Sec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n"
}

func TestWebSocketOverHTTP2IsForwardedAsHTTP1(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1")
	heads, ended := make(chan *message, 1), make(chan string, 1)
	p.bare(func(c *bareConn, m *message) bool {
		if m.get("Upgrade") == "" {
			return true
		}
		heads <- m
		c.send(switching(m) + "hello")
		got, _ := io.ReadAll(c.r)
		ended <- string(got)
		c.send(" and bye")
		return false
	})
	c := dialH2(t, p.addr())
	c.await("SETTINGS that allow extended CONNECT", func(e h2Event) bool { return e.connects })
	c.openWebSocket(1, "/chat?x=1")
	m := receive(t, "the app receives the request", heads)
	for name, want := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13", "Sec-Websocket-Protocol": "chat",
		"Origin": "https://a.test", "Host": "a.test",
	} {
		if got := m.get(name); !strings.EqualFold(got, want) {
			t.Errorf("the app received %s: %q, want %q", name, got, want)
		}
	}
	if key, err := base64.StdEncoding.DecodeString(m.get("Sec-WebSocket-Key")); m.Start != "GET /chat?x=1 HTTP/1.1" || err != nil || len(key) != 16 {
		t.Errorf("the app received %q with key %q, want GET /chat?x=1 and a key of 16 bytes", m.Start, m.get("Sec-WebSocket-Key"))
	}
	c.received(1, "hello")
	c.data(1, false, "one ")
	c.data(1, true, "two")
	if got := receive(t, "the stream ends in the app", ended); got != "one two" {
		t.Errorf("the app received %q, want one two", got)
	}
	a := c.answer(1)
	if a.status != 200 || a.cut || a.body != "hello and bye" || a.get("sec-websocket-protocol") != "chat" {
		t.Errorf("got %+v, want 200 and all data from the app", a)
	}
	for _, name := range []string{"sec-websocket-accept", "connection", "upgrade"} {
		if got := a.get(name); got != "" {
			t.Errorf("got %s: %s, want no such field over HTTP/2", name, got)
		}
	}
}

func TestWebSocketOverHTTP2RejectedByApp(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1")
	p.bare(func(c *bareConn, m *message) bool {
		switch m.Start {
		case "GET /forbidden HTTP/1.1":
			c.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n")
		case "GET /another HTTP/1.1":
			c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n")
			return false
		case "GET /dies HTTP/1.1":
			c.reset()
			return false
		}
		return true
	})
	c := dialH2(t, p.addr())
	for i, test := range []struct {
		target string
		status int
		word   string
	}{
		{"/forbidden", 403, ""},
		{"/another", 502, "app-garbage"},
		{"/dies", 502, "app-reset"},
		{"/forbidden", 403, ""}, // this request must get the slot that the preceding request released
	} {
		stream := uint32(2*i + 1)
		c.openWebSocket(stream, test.target)
		if a := c.answer(stream); a.status != test.status || word(a.get("proxy-status")) != test.word {
			t.Errorf("%s: got %d %q, want %d %q", test.target, a.status, a.get("proxy-status"), test.status, test.word)
		}
	}
}

// A reset by the app is forwarded as RST_STREAM with CANCEL (RFC 8441 section 5).
func TestResetOfAppReachesWebSocketOverHTTP2(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.bare(resetting)
	c := dialH2(t, p.addr())
	c.openWebSocket(1, "/")
	c.data(1, false, "x")
	if a := c.answer(1); a.status != 200 || !a.cut || a.reset != http2.ErrCodeCancel {
		t.Errorf("got %+v, want 200 and a reset with %v", a, http2.ErrCodeCancel)
	}
}

// RST_STREAM is forwarded as a reset of the TCP connection (RFC 8441 section 5).
func TestResetOfWebSocketOverHTTP2ReachesApp(t *testing.T) {
	p := newProxy(t)
	p.start()
	ended := make(chan error, 1)
	p.bare(awaitingReset(ended))
	c := dialH2(t, p.addr())
	c.openWebSocket(1, "/")
	c.received(1, "hello")
	c.reset(1, http2.ErrCodeCancel)
	if err := receive(t, "the end of the connection", ended); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want %v", err, syscall.ECONNRESET)
	}
}

// If a client cancels a WebSocket before the WebSocket is open, the request keeps its slot
// (docs/promises.md 3.1).
func TestCanceledWebSocketOverHTTP2HoldsSlot(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1")
	w := &worker{time: 500 * time.Millisecond}
	p.appSpeaking(w, "h1")
	c := dialH2(t, p.addr())
	for i := range uint32(3) {
		c.openWebSocket(2*i+1, "/work")
		p.poll("the app receives the request", func() error {
			if w.came.Load() != int64(i+1) {
				return errNotYet
			}
			return nil
		})
		c.reset(2*i+1, http2.ErrCodeCancel)
	}
	if _, body := get(t, httpClient(t, "h1"), p.url("/now")); body != "" {
		t.Errorf("got %q, want an empty body", body)
	}
	if most := w.most.Load(); most != 1 {
		t.Errorf("the app had %d concurrent requests, want 1", most)
	}
}

// When the pod shuts down, an open WebSocket receives a Close frame with code 1001 (RFC 6455
// section 7.4.1), and then the stream ends.
func TestDrainClosesWebSocketOverHTTP2(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=1s")
	p.bare(func(c *bareConn, m *message) bool {
		c.send(switching(m))
		io.Copy(io.Discard, c.r)
		return false
	})
	c := dialH2(t, p.addr())
	c.openWebSocket(1, "/")
	c.await("the response", func(e h2Event) bool { return e.frame == http2.FrameHeaders && e.stream == 1 })
	p.signal(syscall.SIGTERM)
	c.received(1, "\x88\x02\x03\xe9")
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}
