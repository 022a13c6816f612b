package http2_test

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// earlyResponses lists responses to incomplete requests. A gRPC server ends a stream in this way if it needs no
// more messages.
var earlyResponses = map[string]struct {
	serve  func(s *appStream)
	status int
	body   string
	reason observation.Reason
}{
	"no content": {func(s *appStream) { s.respond(true, ":status", "202") }, 202, "", observation.OK},
	"content": {func(s *appStream) {
		s.respond(false, ":status", "200")
		_ = s.WriteData(s.id, false, []byte("one, "))
		_ = s.WriteData(s.id, true, []byte("two"))
	}, 200, "one, two", observation.OK},
	"rejection": {func(s *appStream) {
		s.respond(false, ":status", "413")
		_ = s.WriteData(s.id, true, []byte("too much"))
	}, 413, "too much", observation.OK},
}

func TestEarlyResponseOverHTTP2IsForwarded(t *testing.T) {
	for name, c := range earlyResponses {
		t.Run(name, func(t *testing.T) {
			a := newFrameApp(t, c.serve)
			client := a.proxy.Dial()
			client.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
			if m := client.Receive("POST"); m.Status() != c.status || m.Body != c.body || !m.Closes() {
				t.Errorf("HTTP/1.1: got %d %q, close %v, want %d %q, close true", m.Status(), m.Body, m.Closes(), c.status, c.body)
			}
			client.WantEnd()
			harness.Equal(t, harness.Receive(t, a.observations, "observation").Reason, c.reason, "HTTP/1.1: reason")

			h2 := connect(t, a.proxy)
			id := h2.open(request("POST", "/"), "hello")
			got := h2.receive(id)
			harness.Equal(t, got, fmt.Sprintf("%d []\nbody %q", c.status, c.body), "HTTP/2")
			harness.Equal(t, harness.Receive(t, a.observations, "observation").Reason, c.reason, "HTTP/2: reason")
		})
	}
}

// open sends an incomplete request with content and returns the ID of its stream.
func (c *client) open(s *script, content string) uint32 {
	c.Helper()
	id := c.id
	c.id += 2
	harness.NoError(c, c.WriteHead(id, false, flat(s.fields)...))
	harness.NoError(c, c.WriteData(id, false, []byte(content)))
	return id
}

// httpx sends END_STREAM in an empty DATA frame after the content. It fails if the stream was already reset.
func TestLateEndStreamIsNotReset(t *testing.T) {
	for _, content := range []string{"", "hello"} {
		t.Run(content, func(t *testing.T) {
			app := harness.NewApp(t, harness.Echo)
			c := connect(t, proxytest.Start(t, app, nil))
			for range 20 {
				id := c.open(request("POST", "/", [2]string{"content-length", strconv.Itoa(len(content))}), content)
				harness.NoError(c, c.WritePing(false, [8]byte{1}))
				for acknowledged := false; !acknowledged; {
					f, err := c.ReadFrame()
					harness.NoError(c, err)
					if reset, ok := f.(*xhttp2.RSTStreamFrame); ok {
						t.Fatalf("got a reset with %v before END_STREAM", reset.ErrCode)
					}
					ping, ok := f.(*xhttp2.PingFrame)
					acknowledged = ok && ping.IsAck()
				}
				harness.NoError(c, c.WriteData(id, true, nil))
				if got := c.receive(id); !strings.HasPrefix(got, "200") || strings.Contains(got, "reset") {
					t.Fatalf("got %q, want 200", got)
				}
			}
			harness.NoError(c, c.WritePing(false, [8]byte{2}))
			for {
				f, err := c.ReadFrame()
				harness.NoError(c, err)
				if reset, ok := f.(*xhttp2.RSTStreamFrame); ok {
					t.Fatalf("got a reset with %v after the response", reset.ErrCode)
				}
				if ping, ok := f.(*xhttp2.PingFrame); ok && ping.IsAck() {
					return
				}
			}
		})
	}
}

// In HTTP/1.1, the method becomes a part of the request line.
func TestInvalidMethodIsReset(t *testing.T) {
	app := harness.NewApp(t, harness.Echo)
	server := proxytest.Start(t, app, nil)
	app.Forget()
	for _, method := range []string{"GET /hidden HTTP/1.1", "GET /hidden", "GET ", "G\tT", "G:T", "GÉT", ""} {
		c := connect(t, server)
		if got := c.receive(c.send(request(method, "/x"))); !strings.HasSuffix(got, "reset PROTOCOL_ERROR") {
			t.Errorf("%q: got %q, want a reset", method, got)
		}
	}
	harness.Equal(t, len(app.Requests()), 0, "requests of the application")
}

func TestReplayOverHTTP2IsObserved(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	a := newFrameApp(t, func(s *appStream) {
		path := s.f.PseudoValue("path")
		mu.Lock()
		again := seen[path]
		seen[path] = true
		mu.Unlock()
		if path == "/closed" && !again {
			_ = s.Close()
			return
		}
		s.respond(true, ":status", "204")
	})
	c := connect(t, a.proxy)
	for _, path := range []string{"/first", "/closed"} { // the second request can be replayed, because it reuses the connection
		if got := c.receive(c.send(request("GET", path))); !strings.HasPrefix(got, "204") {
			t.Errorf("%s: got %q, want 204", path, got)
		}
		harness.Equal(t, harness.Receive(t, a.observations, "observation").Replayed, path == "/closed", path, "replayed")
	}
}

func TestTLSIsObserved(t *testing.T) {
	for _, secure := range []bool{false, true} {
		app := harness.NewApp(t, harness.Echo)
		server := proxytest.Start(t, app, func(_ *proxy.Proxy, o *proxytest.Options) { o.TLS = secure })
		h1 := server.Connect(t)
		defer h1.Close()
		_, err := h1.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
		harness.NoError(t, err)
		server.Observed(1)
		c := connect(t, server)
		c.receive(c.send(request("GET", "/")))
		for i, o := range server.Observed(2) {
			if o.TLS != secure || o.Major != i+1 {
				t.Errorf("got TLS %v, HTTP/%d, want %v, HTTP/%d", o.TLS, o.Major, secure, i+1)
			}
		}
	}
}

// An informational response can arrive after its request was canceled, while the memory of the request is
// already used for another request. The race detector finds such accesses.
func TestInformationalResponsesOfCanceledRequests(t *testing.T) {
	fields := []string{":status", "103"}
	for i := range 40 {
		fields = append(fields, "x-"+strings.Repeat("a", i+1), "x")
	}
	for name, server := range map[string]func(t *testing.T) *proxytest.Proxy{
		"HTTP/1.1": func(t *testing.T) *proxytest.Proxy {
			return proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
				for conn.Request() != nil {
					for range 90 {
						conn.Send("HTTP/1.1 103 Early Hints\r\nLink: " + strings.Repeat("x", 1000) + "\r\n\r\n")
					}
					conn.Send(harness.OK("it"))
				}
			}), shortTimeout)
		},
		"HTTP/2": func(t *testing.T) *proxytest.Proxy {
			app := harness.NewApp(t, func(conn *harness.AppConn) {
				serveFrames(conn, func(s *appStream) {
					for range 90 {
						s.respond(false, fields...)
					}
					s.respond(true, ":status", "204")
				})
			})
			return start(t, app.Listener, shortTimeout)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := server(t)
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					client := p.Client("HTTP/2")
					for i := range 20 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%10*5)*time.Millisecond)
						r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Address+"/", nil)
						if err != nil {
							t.Error(err)
						} else if response, err := client.Do(r); err == nil {
							response.Body.Close()
						}
						cancel()
					}
				})
			}
			all.Wait()
			p.WantReleased(-1)
		})
	}
}

// shortTimeout ends requests while their informational responses are forwarded.
func shortTimeout(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks.Request = 30 * time.Millisecond }

// The client does not read the informational responses before the 101 response.
func TestTimeoutBeforeUpgradeIsReported(t *testing.T) {
	const hint = "HTTP/1.1 103 Early Hints\r\nLink: "
	long := hint + strings.Repeat("~", 200<<10) + "\r\n\r\n"
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		m := conn.Request()
		accept := sha1.Sum([]byte(m.Get("sec-websocket-key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		conn.Send(long + long + hint + "x\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
			"Sec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(accept[:]) + "\r\n\r\n")
		conn.Hang()
	}), func(p *proxy.Proxy, s *proxytest.Options) {
		p.Clocks.Request = time.Second
		s.Narrow = true
	})
	nc := harness.DialBy(t, &net.Dialer{Control: harness.Narrow}, server.Address)
	nc.Send(xhttp2.ClientPreface)
	c := harness.NewFrames(nc)
	harness.NoError(t, c.WriteSettings())
	harness.NoError(t, c.WriteHead(1, false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":authority", "a", ":path", "/"))
	o := server.Observed(1)[0]
	harness.Equal(t, o.Reason, observation.RequestTimeout, "reason")
	harness.Equal(t, o.Status, 504, "status")
	harness.Equal(t, o.Phase, observation.Waiting, "phase")
	harness.Equal(t, o.Upgraded || o.Begun, false, "upgraded")
}

// An HTTP/2 client receives the reset instead. See TestAppResetIsForwarded.
func TestAppResetReturns502OverHTTP1(t *testing.T) {
	a := newFrameApp(t, func(s *appStream) { _ = s.WriteRSTStream(s.id, xhttp2.ErrCodeInternal) })
	client := a.proxy.Dial()
	client.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
	if m := client.Receive("POST"); m.Status() != 502 || !m.Closes() {
		t.Errorf("got %d, close %v, want 502, close true", m.Status(), m.Closes())
	}
	client.WantEnd()
	harness.Equal(t, harness.Receive(t, a.observations, "observation").Reason, observation.AppReset, "reason")
}
