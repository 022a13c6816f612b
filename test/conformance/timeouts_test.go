package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The tests check each timeout in each phase of a request and with each protocol
// (docs/promises.md 3.2). Each test checks the response to the client, how the request ends in
// the user container, and the log.

// A timeoutSetting is a setting of a timeout and the expected error.
type timeoutSetting struct {
	name    string
	setting string
	word    string // reason in Proxy-Status and in the log
	kind    string // error type of RFC 9209
	status  int    // status of the response if the timeout expires before a response begins
}

const tick = "400ms" // duration of the tested timeout

var (
	requestTimeout = timeoutSetting{"request", "REVISION_TIMEOUT_SECONDS=" + tick, "request-timeout", "http_response_timeout", 504}
	startTimeout   = timeoutSetting{"response start", "REVISION_RESPONSE_START_TIMEOUT_SECONDS=" + tick, "response-start-timeout", "http_response_timeout", 504}
	idleTimeout    = timeoutSetting{"idle", "REVISION_IDLE_TIMEOUT_SECONDS=" + tick, "idle-timeout", "connection_read_timeout", 504}
	queueTimeout   = timeoutSetting{"queue", "QUEUE_TIMEOUT_SECONDS=" + tick, "queue-timeout", "connection_limit_reached", 503}
	bodyTimeout    = timeoutSetting{"body", "BODY_TIMEOUT=" + tick, "client-slow", "http_request_error", 408}
)

// slowClient returns the setting with the error for a request with an incomplete body, because in this
// case the client causes the timeout.
func (c timeoutSetting) slowClient() timeoutSetting {
	c.word, c.kind, c.status = bodyTimeout.word, bodyTimeout.kind, bodyTimeout.status
	return c
}

// settings returns settings that enable only this timeout.
func (c timeoutSetting) settings(more ...string) []string {
	return append([]string{"REVISION_TIMEOUT_SECONDS=0", "DRAIN_DEADLINE=10s", "REVISION_TIMEOUT_SCOPE=request", c.setting}, more...)
}

// logged fails the test unless a log line contains the reason and the phase.
func (c timeoutSetting) logged(t *testing.T, p *proxy, phase string) {
	t.Helper()
	poll(t, "the log contains the reason and the phase", func() error {
		if !p.out.HasLine(`"reason":"`+c.word+`"`, `"phase":"`+phase+`"`) {
			return fmt.Errorf("no line with reason %s and phase %s", c.word, phase)
		}
		return nil
	})
}

// early lists the protocols of requests that time out before a response begins.
var early = []string{"HTTP/1.1", "HTTP/1.0", "HEAD", "h2c", "gRPC", "TLS", "TLS h2", "WebSocket"}

// checkEarlyTimeout sends one request and checks the response after the timeout. A POST request
// has an incomplete body.
func (c timeoutSetting) checkEarlyTimeout(t *testing.T, p *proxy, protocol, method string) {
	t.Helper()
	rest := "\r\nHost: a.test\r\n\r\n"
	if method == "POST" {
		rest = "\r\nHost: a.test\r\nContent-Length: 100\r\n\r\nhalf"
	}
	switch protocol {
	case "HTTP/1.1", "HTTP/1.0":
		w := dial(t, p.addr())
		w.send(method + " /wait " + protocol + rest)
		c.wantHTTP1(t, p, w, method)
	case "HEAD":
		w := dial(t, p.addr())
		w.send(request("HEAD", "/wait"))
		c.wantHTTP1(t, p, w, "HEAD")
	case "TLS":
		w := dialTLS(t, p.tlsAddr(), "http/1.1")
		w.send(method + " /wait HTTP/1.1" + rest)
		c.wantHTTP1(t, p, w, method)
	case "WebSocket": // read the response of the handshake
		w := dial(t, p.addr())
		w.send(request("GET", "/wait", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="))
		c.wantHTTP1(t, p, w, "GET")
	case "h2c", "TLS h2":
		c.checkEarlyTimeoutH2(t, p, protocol, method)
	case "gRPC":
		h := dialH2(t, p.addr())
		h.open(1, true, "POST", "/wait", "Content-Type: application/grpc+proto", "TE: trailers")
		want := "4"
		if c.name == "queue" {
			want = "14"
		}
		a := h.answer(1)
		if a.status != 200 || a.get("grpc-status") != want || a.body != "" || a.cut || word(a.get("proxy-status")) != c.word {
			t.Errorf("got %+v, want 200, trailers only, grpc-status %s and reason %s", a, want, c.word)
		}
	default:
		t.Fatalf("unknown protocol %q", protocol)
	}
}

// response returns the expected response if the timeout expires before a response begins.
func (c timeoutSetting) response() (code int, body string) {
	if c.name == "queue" {
		return c.status, "pending request queue full\n"
	}
	return c.status, "request timeout"
}

// wantHTTP1 reads and checks the response to a request with the given method.
func (c timeoutSetting) wantHTTP1(t *testing.T, p *proxy, w *client, method string) {
	t.Helper()
	code, body := c.response()
	m := w.receive(method)
	if method == "HEAD" {
		m.Body = body // a response to HEAD has no body
	}
	if m.Body != body {
		t.Errorf("got body %q, want %q", m.Body, body)
	}
	checkOurs(t, p, m, code, c.kind, c.word)
	if got := m.get("Retry-After"); (got == "1") != (c.name == "queue") {
		t.Errorf("got Retry-After %q, want 1 for the queue timeout, and no field for other timeouts", got)
	}
}

func (c timeoutSetting) checkEarlyTimeoutH2(t *testing.T, p *proxy, protocol, method string) {
	t.Helper()
	code, body := c.response()
	h := p.h2Peer(protocol)
	h.open(1, method == "GET", method, "/wait")
	a := h.answer(1)
	if a.status != code || a.body != body || a.cut || word(a.get("proxy-status")) != c.word {
		t.Errorf("got %+v, want %d with %q and reason %s", a, code, body, c.word)
	}
	// The connection remains usable.
	h.open(3, true, "GET", "/now")
	if a := h.answer(3); a.cut {
		t.Errorf("next request on the connection: got %+v, want a complete response", a)
	}
}

// h2Peer opens an HTTP/2 connection. protocol is h2c or TLS h2.
func (p *proxy) h2Peer(protocol string) *h2Peer {
	p.t.Helper()
	if protocol == "h2c" {
		return dialH2(p.t, p.addr())
	}
	return newH2Peer(p.t, dialTLS(p.t, p.tlsAddr(), "h2").Conn)
}

func TestTimeoutBeforeResponseReturns504(t *testing.T) {
	inParallel(t)
	for _, c := range []timeoutSetting{requestTimeout, startTimeout, idleTimeout} {
		for _, scope := range []string{"request", "first-byte"} {
			if c.name != "request" && scope != "request" {
				continue
			}
			t.Run(c.name+"/"+scope, func(t *testing.T) {
				p := newProxy(t)
				writeCertificate(t, p.dir)
				app := newEndlessApp()
				p.app(app)
				p.start(append(c.settings(), "REVISION_TIMEOUT_SCOPE="+scope)...)
				for _, protocol := range early {
					c.checkEarlyTimeout(t, p, protocol, "GET")
					if got := receive(t, protocol+": the request ends in the app", app.over); got != "/wait" {
						t.Errorf("%s: the app completed %s, want /wait", protocol, got)
					}
					for len(app.over) > 0 {
						<-app.over
					}
				}
				c.logged(t, p, "waiting")
			})
		}
	}
}

func TestTimeoutInQueueDoesNotReachApp(t *testing.T) {
	inParallel(t)
	for _, c := range []timeoutSetting{requestTimeout, startTimeout, idleTimeout, queueTimeout} {
		t.Run(c.name, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			h := p.tunnelHolder()
			p.start(c.settings("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=100")...)
			h.hold(t, p)
			for _, protocol := range early {
				if protocol == "TLS h2" || protocol == "h2c" {
					continue // these protocols are tested below, because their tests send a second request
				}
				c.checkEarlyTimeout(t, p, protocol, "GET")
			}
			for _, protocol := range both {
				answer, body := get(t, httpClient(t, protocol), p.url("/wait"))
				if answer.StatusCode/100 != 5 || word(answer.Header.Get("Proxy-Status")) != c.word {
					t.Errorf("%s: got %s with %q, want reason %s", protocol, answer.Status, body, c.word)
				}
			}
			c.logged(t, p, "queued")
			if got, _ := h.app.requests(); len(got) != 1 {
				t.Errorf("the app received %d requests, want 1", len(got))
			}
			if err := h.check(); err != nil {
				t.Errorf("tunnel that holds the slot: %v", err)
			}
		})
	}
}

// A slotHolder is a tunnel with traffic. Only the idle timeout applies to the tunnel, and the traffic
// keeps this timeout from expiring.
type slotHolder struct {
	app *bareApp
	c   *client
	err chan error
}

// tunnelHolder starts a user container that accepts upgrades and echoes data.
func (p *proxy) tunnelHolder() *slotHolder {
	return &slotHolder{app: p.bare(upgrading), err: make(chan error, 1)}
}

func (h *slotHolder) hold(t *testing.T, p *proxy) {
	t.Helper()
	h.c = dial(t, p.addr())
	h.c.send(request("GET", "/", "Connection: Upgrade", "Upgrade: echo"))
	if m := h.c.receive("GET"); m.status() != 101 {
		t.Fatalf("got %q, want 101", m.Start)
	}
	if _, err := io.ReadFull(h.c.r, make([]byte, len("hello"))); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(30 * time.Millisecond):
			}
			_, err := io.WriteString(h.c, "x")
			if err == nil {
				_, err = h.c.r.ReadByte()
			}
			if err != nil {
				h.err <- err
				return
			}
		}
	}()
}

// check returns the error that ended the tunnel, or nil.
func (h *slotHolder) check() error {
	select {
	case err := <-h.err:
		return err
	default:
		return nil
	}
}

// The timeouts also run while the sidecar retries to connect to the app.
func TestTimeoutDuringConnectReturns504(t *testing.T) {
	inParallel(t)
	for _, c := range []timeoutSetting{requestTimeout, startTimeout, idleTimeout} {
		t.Run(c.name, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			p.start(c.settings("CONNECT_RETRY=60s")...)
			for _, protocol := range early {
				if protocol != "h2c" && protocol != "TLS h2" {
					c.checkEarlyTimeout(t, p, protocol, "GET")
				}
			}
			answer, body := get(t, httpClient(t, "h2c"), p.url("/wait"))
			if answer.StatusCode != 504 || body != "request timeout" {
				t.Errorf("h2c: got %s with %q, want 504", answer.Status, body)
			}
			c.logged(t, p, "dialling")
		})
	}
}

// After the first byte of a response, the sidecar aborts the response so that the client
// detects the error. The idle timeout must expire during a silent response, and the
// request timeout during an active response.
func TestTimeoutDuringResponseAbortsResponse(t *testing.T) {
	inParallel(t)
	for _, c := range []timeoutSetting{requestTimeout, idleTimeout} {
		t.Run(c.name, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			app := newEndlessApp()
			p.app(app)
			p.start(c.settings()...)
			chunked, fixed, grpc := "/chunked", "/fixed", "/chunked"
			if c.name == "idle" {
				chunked, fixed, grpc = "/silent", "/silent-fixed", "/grpc"
			}
			for _, row := range []cutResponse{
				{"HTTP/1.1 chunked", p.addr(), "HTTP/1.1", chunked, false},
				{"HTTP/1.1 with Content-Length", p.addr(), "HTTP/1.1", fixed, false},
				{"HTTP/1.0 without Content-Length", p.addr(), "HTTP/1.0", chunked, true},
				{"HTTP/1.0 with Content-Length", p.addr(), "HTTP/1.0", fixed, false},
				{"TLS chunked", p.tlsAddr(), "HTTP/1.1", chunked, false},
				{"TLS with Content-Length", p.tlsAddr(), "HTTP/1.1", fixed, false},
				{"TLS, HTTP/1.0 without Content-Length", p.tlsAddr(), "HTTP/1.0", chunked, true},
				{"HTTP/1.1 with Connection: close, chunks", p.addr(), "HTTP/1.1\r\nConnection: close", chunked, false},
			} {
				row.check(t, p)
				app.wantOver(t, row.name, row.path)
			}
			for _, protocol := range []string{"h2c", "TLS h2"} {
				h := p.h2Peer(protocol)
				for i, path := range []string{chunked, fixed} {
					stream := uint32(2*i + 1)
					h.open(stream, true, "GET", path)
					a := h.answer(stream)
					if a.status != 200 || !a.cut || strings.Contains(a.body, "timeout") || !strings.Contains(a.body, "begun") {
						t.Errorf("%s%s: got %+v, want status 200 from the app and RST_STREAM", protocol, path, a)
					}
					app.wantOver(t, protocol, path)
				}
			}
			h := dialH2(t, p.addr())
			h.open(1, true, "POST", grpc, "Content-Type: application/grpc", "TE: trailers")
			if a := h.answer(1); a.status != 200 || !a.cut || a.get("grpc-status") != "" {
				t.Errorf("gRPC: got %+v, want status 200 from the app and RST_STREAM", a)
			}
			app.wantOver(t, "gRPC", grpc)
			c.logged(t, p, "streaming")
		})
	}
}

// wantOver waits until a request for path ends in the app.
func (a *endlessApp) wantOver(t *testing.T, protocol, path string) {
	t.Helper()
	if got := receive(t, protocol+": the request ends in the app", a.over); got != path {
		t.Errorf("%s: the app completed %s, want %s", protocol, got, path)
	}
}

// A cutResponse is a response over HTTP/1 that is aborted by a timeout.
type cutResponse struct {
	name, addr, proto, path string
	reset                   bool // the response has no framing, so only a reset shows that it is truncated
}

func (r cutResponse) check(t *testing.T, p *proxy) {
	t.Helper()
	w := dial(t, r.addr)
	if r.addr == p.tlsAddr() {
		w = dialTLS(t, r.addr, "http/1.1")
	}
	w.send("GET " + r.path + " " + r.proto + "\r\nHost: a.test\r\n\r\n")
	head := w.awaitStart("GET", r.path)
	b, err := io.ReadAll(w.r)
	switch {
	case bytes.Contains(b, []byte("timeout")):
		t.Errorf("%s: got body %.200q, want only data from the app", r.name, b)
	case !bytes.Contains(b, []byte("begun")):
		t.Errorf("%s: got %.200q, want the data from the app", r.name, b)
	case r.reset && err == nil:
		t.Errorf("%s: got %d bytes and EOF, want a reset", r.name, len(b))
	case r.reset && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.ErrUnexpectedEOF):
		t.Errorf("%s: got %v, want a reset", r.name, err)
	case head.get("Transfer-Encoding") != "" && bytes.HasSuffix(b, []byte("0\r\n\r\n")):
		t.Errorf("%s: got the last chunk, want a truncated body", r.name)
	case head.get("Content-Length") != "" && len(b) >= 100000:
		t.Errorf("%s: got all %d bytes, want a truncated body", r.name, len(b))
	}
}

// The gRPC client receives an error on a stream on which both sides have sent messages.
func TestIdleTimeoutDuringGRPCStreamReturnsError(t *testing.T) {
	p := newProxy(t)
	ended := p.grpcHolder()
	p.start(idleTimeout.settings()...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out []byte
	err := p.held(ctx).RecvMsg(&out)
	if err == nil || errors.Is(err, io.EOF) || ctx.Err() != nil {
		t.Errorf("got %v (context of the client: %v), want an error", err, ctx.Err())
	}
	if code := status.Code(err); code != codes.Internal && code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Canceled {
		t.Errorf("got %v, want the code of a proxy error", err)
	}
	if err := receive(t, "the stream ends in the app", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the app received %v, want %v", err, context.Canceled)
	}
	idleTimeout.logged(t, p, "streaming")
}

// After the response has started, the response-start timeout does not apply. The request
// timeout with the scope first-byte does not apply either. The idle timeout does not expire
// while data is transferred.
func TestTimeoutsDoNotEndActiveResponse(t *testing.T) {
	for name, settings := range map[string][]string{
		"response start":      startTimeout.settings(),
		"first byte":          append(requestTimeout.settings(), "REVISION_TIMEOUT_SCOPE=first-byte"),
		"idle":                idleTimeout.settings(),
		"older control plane": without(append(requestTimeout.settings(), "REVISION_TIMEOUT_SCOPE="), "REVISION_TIMEOUT_SCOPE=request"),
		"body":                bodyTimeout.settings(),
		"queue":               queueTimeout.settings("CONTAINER_CONCURRENCY=1"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.sample()
			p.start(settings...)
			for _, protocol := range both {
				answer, body := get(t, httpClient(t, protocol), p.url("/sse?n=12&ms=100"))
				if got := strings.Count(body, "data: "); got != 12 || answer.StatusCode != 200 {
					t.Errorf("%s: got %s and %d events, want 200 and 12", protocol, answer.Status, got)
				}
			}
		})
	}
}

// In Knative 1.19 and later, REVISION_TIMEOUT_SECONDS applies to the whole request.
func TestRequestTimeoutScopeFollowsControlPlane(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start("REVISION_TIMEOUT_SECONDS="+tick, "DRAIN_DEADLINE=10s", "OBSERVABILITY_CONFIG={}")
	answer, err := httpClient(t, "h1").Get(p.url("/sse?n=12&ms=100"))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if b, err := io.ReadAll(answer.Body); err == nil {
		t.Errorf("got a complete response of %d bytes, want a truncated response", len(b))
	}
}

// The idle timeout and the body timeout do not expire while an upload makes progress.
func TestTimeoutsDoNotEndActiveUpload(t *testing.T) {
	for _, c := range []timeoutSetting{idleTimeout, bodyTimeout} {
		for _, protocol := range both {
			t.Run(c.name+"/"+protocol, func(t *testing.T) {
				p := newProxy(t)
				p.sample()
				p.start(c.settings()...)
				r, w := io.Pipe()
				go func() {
					for range 12 {
						io.WriteString(w, "x")
						time.Sleep(100 * time.Millisecond) // the pauses must be shorter than the timeouts
					}
					w.Close()
				}()
				answer, err := httpClient(t, protocol).Post(p.url("/sink"), "text/plain", r)
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close()
				b, _ := io.ReadAll(answer.Body)
				if answer.StatusCode != 200 || !strings.Contains(string(b), `"length": 12`) {
					t.Errorf("got %s with %q, want status 200 and length 12", answer.Status, b)
				}
			})
		}
	}
}

// WebSocket connections with traffic in one direction are not closed by a timeout.
func TestTimeoutsDoNotEndActiveWebSocket(t *testing.T) {
	for _, c := range []timeoutSetting{requestTimeout, startTimeout, idleTimeout, queueTimeout, bodyTimeout} {
		t.Run(c.name, func(t *testing.T) {
			p := newProxy(t)
			p.bare(func(c *bareConn, m *message) bool {
				c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				if m.Start == "GET /app-talks HTTP/1.1" {
					for {
						if _, err := c.Write([]byte("x")); err != nil {
							return false
						}
						time.Sleep(40 * time.Millisecond) // the pauses must be shorter than the timeouts
					}
				}
				if m.Start == "GET /client-talks HTTP/1.1" {
					io.Copy(io.Discard, c.r)
					return false
				}
				io.Copy(c, c.r)
				return false
			})
			p.start(c.settings()...)
			for _, who := range []string{"/app-talks", "/client-talks", "/both"} {
				w := p.sendGet(who, "Connection: Upgrade", "Upgrade: x")
				if m := w.receive("GET"); m.status() != 101 {
					t.Fatalf("%s: got %q, want 101", who, m.Start)
				}
				p.watch(time.Second, func() {
					if who != "/app-talks" {
						w.send("x")
					}
					if who != "/client-talks" {
						if _, err := w.r.ReadByte(); err != nil {
							t.Fatalf("%s: %v", who, err)
						}
					}
				})
				w.Close()
			}
		})
	}
}

func TestIdleTimeoutEndsIdleWebSocket(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start(idleTimeout.settings()...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+p.addr()+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	began := time.Now()
	if _, _, err := ws.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("read: got %v, want a closed connection", err)
	}
	if took := time.Since(began); took < 350*time.Millisecond {
		t.Errorf("the connection was closed after %v, want %s", took, tick)
	}
	idleTimeout.logged(t, p, "streaming")
}

// The connection to the app ends when the idle timeout ends a tunnel.
func TestIdleTimeoutClosesTunnelToApp(t *testing.T) {
	p := newProxy(t)
	over := make(chan error, 1)
	p.bare(func(c *bareConn, m *message) bool {
		c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, err := c.r.ReadByte()
		over <- err
		return false
	})
	p.start(idleTimeout.settings()...)
	w := p.sendGet("/", "Connection: Upgrade", "Upgrade: x")
	w.receive("GET")
	if err := receive(t, "the tunnel ends in the app", over); !ended(err) {
		t.Errorf("read in the app: got %v, want a closed connection", err)
	}
	w.closed()
}

// Only the idle timeout applies to an idle tunnel.
func TestOtherTimeoutsDoNotEndIdleTunnel(t *testing.T) {
	inParallel(t)
	for _, c := range []timeoutSetting{requestTimeout, startTimeout, queueTimeout, bodyTimeout} {
		t.Run(c.name, func(t *testing.T) {
			p := newProxy(t)
			p.bare(upgrading)
			p.start(c.settings()...)
			w := p.sendGet("/", "Connection: Upgrade", "Upgrade: echo")
			w.receive("GET")
			io.ReadFull(w.r, make([]byte, len("hello")))
			w.SetReadDeadline(time.Now().Add(1200 * time.Millisecond))
			var timeout net.Error
			if _, err := w.r.ReadByte(); !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Fatalf("got %v after three timeouts, want a read timeout", err)
			}
			w.SetDeadline(time.Now().Add(patience))
			w.send("still there")
			b := make([]byte, len("still there"))
			if _, err := io.ReadFull(w.r, b); err != nil || string(b) != "still there" {
				t.Errorf("got %q, %v, want the echoed text", b, err)
			}
		})
	}
}

// If a client stops sending its request body, the slot of the request is released.
func TestIncompleteBodyReleasesSlotAfterTimeout(t *testing.T) {
	inParallel(t)
	for _, c := range []timeoutSetting{bodyTimeout, idleTimeout, requestTimeout, startTimeout} {
		c = c.slowClient()
		for _, protocol := range []string{"HTTP/1.1", "HTTP/1.0", "h2c", "TLS", "TLS h2"} {
			t.Run(c.name+"/"+protocol, func(t *testing.T) {
				p := newProxy(t)
				writeCertificate(t, p.dir)
				app := newEndlessApp()
				p.app(app)
				p.start(c.settings("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=10")...)
				c.checkEarlyTimeout(t, p, protocol, "POST")
				receive(t, "the request ends in the app", app.over)
				// The slot is free, so the next request does not wait.
				w := dial(t, p.addr())
				w.send(request("GET", "/chunked"))
				w.awaitStart("GET", "/chunked")
				c.logged(t, p, "waiting")
			})
		}
	}
}

// gRPC streams can be silent for a long time, so the body timeout does not apply to them.
func TestBodyTimeoutDoesNotApplyToGRPC(t *testing.T) {
	p := newProxy(t)
	p.grpcApp()
	p.start(bodyTimeout.settings()...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := p.grpcClient().NewStream(ctx, &echoDesc.Streams[0], "/test.Echo/Many")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // the pause must be longer than twice the timeout
	in, out := []byte("x"), []byte(nil)
	if err := errors.Join(s.SendMsg(&in), s.RecvMsg(&out)); err != nil {
		t.Errorf("echo after one second without messages: %v", err)
	}
}

// While the app does not read, the client cannot send more content.
func TestBodyTimeoutDoesNotApplyToBlockedUpload(t *testing.T) {
	const timeout, size = 2 * time.Second, 4 << 20 // size is larger than all windows and buffers
	p := newProxy(t)
	p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2 * timeout)
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}), "h2")
	p.start("BODY_TIMEOUT=" + timeout.String())
	for _, protocol := range []string{"h1", "h2c"} {
		res, err := httpClient(t, protocol).Post("http://"+p.addr(), "", bytes.NewReader(make([]byte, size)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || string(body) != strconv.Itoa(size) {
			t.Errorf("%s: got status %d, %q and error %v, want 200 and %d", protocol, res.StatusCode, body, err, size)
		}
	}
}

// gRPC requires HTTP/2, so the media type of gRPC does not disable the timeout over HTTP/1.1.
func TestBodyTimeoutAppliesToGRPCOverHTTP1(t *testing.T) {
	inParallel(t)
	for _, protocol := range []string{"HTTP/1.1", "TLS"} {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			p.app(newEndlessApp())
			p.start(bodyTimeout.settings("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=10")...)
			w := dial(t, p.addr())
			if protocol == "TLS" {
				w = dialTLS(t, p.tlsAddr(), "http/1.1")
			}
			w.send(request("POST", "/wait", "Content-Type: application/grpc", "Content-Length: 100"))
			if m := w.receive("POST"); m.status() != 200 || m.get("Grpc-Status") != "4" || word(m.get("Proxy-Status")) != bodyTimeout.word {
				t.Errorf("got %q with %v, want 200, grpc-status 4 and reason %s", m.Start, m.Fields, bodyTimeout.word)
			}
			next := dial(t, p.addr())
			next.send(request("GET", "/chunked"))
			next.awaitStart("GET", "/chunked") // the next request must get the slot
		})
	}
}

// A timeout ends the response to a client that stops reading.
func TestTimeoutEndsResponseToSlowReader(t *testing.T) {
	for _, c := range []timeoutSetting{idleTimeout, requestTimeout} {
		for _, protocol := range []string{"HTTP/1.1", "h2c", "TLS"} {
			t.Run(c.name+"/"+protocol, func(t *testing.T) {
				p := newProxy(t)
				writeCertificate(t, p.dir)
				app := p.sample()
				p.start(c.settings("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=10")...)
				switch protocol {
				case "HTTP/1.1":
					p.sendGet("/stream/1000000000")
				case "TLS":
					dialTLS(t, p.tlsAddr(), "http/1.1").send(request("GET", "/stream/1000000000"))
				case "h2c":
					// The initial flow control window of the client is 0, and the client never
					// increases it.
					w := dial(t, p.addr())
					w.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00")
					path := "/stream/1000000000"
					block := "\x82\x86\x41\x06a.test\x04" + string(rune(len(path))) + path
					w.send("\x00\x00" + string(rune(len(block))) + "\x01\x05\x00\x00\x00\x01" + block)
				}
				p.poll("the request ends in the app", func() error {
					if got := app.Running(); got.Ended != 1 || got.Now != 0 {
						return fmt.Errorf("got %+v", got)
					}
					return nil
				})
				if m := dial(t, p.addr()).ask("/bytes/2"); m.status() != 200 {
					t.Errorf("next request: got %q, want 200", m.Start)
				}
				c.logged(t, p, "streaming")
			})
		}
	}
}

// If all timeouts are set, the first timeout that expires determines the failure reason.
func TestFirstExpiredTimeoutDeterminesReason(t *testing.T) {
	inParallel(t)
	for _, c := range []timeoutSetting{requestTimeout, startTimeout, idleTimeout} {
		t.Run(c.name, func(t *testing.T) {
			p := newProxy(t)
			p.app(newEndlessApp())
			settings := []string{"REVISION_TIMEOUT_SECONDS=30s", "REVISION_TIMEOUT_SCOPE=request", "REVISION_RESPONSE_START_TIMEOUT_SECONDS=20s", "REVISION_IDLE_TIMEOUT_SECONDS=20s", "QUEUE_TIMEOUT_SECONDS=20s"}
			p.start(append(settings, c.setting)...)
			m := dial(t, p.addr()).ask("/wait")
			checkOurs(t, p, m, 504, c.kind, c.word)
		})
	}
}

// The value 0 disables a timeout. In Knative's queue-proxy, a timeout of 0 expires immediately.
func TestTimeoutOfZeroIsDisabled(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start("REVISION_TIMEOUT_SECONDS=0", "REVISION_RESPONSE_START_TIMEOUT_SECONDS=0", "REVISION_IDLE_TIMEOUT_SECONDS=0", "QUEUE_TIMEOUT_SECONDS=0", "BODY_TIMEOUT=0", "DRAIN_DEADLINE=10s")
	for _, protocol := range both {
		if answer, body := get(t, httpClient(t, protocol), p.url("/slow?ms=300")); answer.StatusCode != 200 || body != "slow\n" {
			t.Errorf("%s: got %s with %q, want status 200 from the app", protocol, answer.Status, body)
		}
	}
}

// A timeout of a request does not affect the next request on the connection.
func TestTimeoutKeepsHTTP1Connection(t *testing.T) {
	p := newProxy(t)
	p.app(newEndlessApp())
	p.start(requestTimeout.settings()...)
	w := dial(t, p.addr())
	for range 3 {
		checkOurs(t, p, w.ask("/wait"), 504, requestTimeout.kind, requestTimeout.word)
	}
	if got := w.ask("/wait").Fields; slices.ContainsFunc(got, func(f field) bool { return strings.EqualFold(f.Name, "Connection") }) {
		t.Errorf("got %v, want no Connection header", got)
	}
}
