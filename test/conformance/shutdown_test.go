package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// This file tests the shutdown of a pod (docs/promises.md 3.5).

// slack is the delay that a busy machine may add to a duration. It is shorter than an
// unexpected wait, which takes at least ten seconds.
const slack = 3 * time.Second

// endlessID is the last stream ID of a GOAWAY that rejects no stream (RFC 9113 section 6.8).
const endlessID = 1<<31 - 1

// 200 clients send requests at full speed, and the sidecar receives SIGTERM. The clients stop
// one second later. The app receives each request once, and each client receives the response
// from the app.
func TestDrainUnderLoadLosesNoRequest(t *testing.T) {
	const quiet, longest = 500 * time.Millisecond, 400 * time.Millisecond
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD="+quiet.String(), "DRAIN_DEADLINE=15s")
	app := p.sample()
	c := newTraffic(t, p)
	c.http1(60, true, "GET", "/bytes/300")
	c.http1(10, true, "POST", "/sink")
	c.http1(20, false, "GET", "/stream/3000")
	c.http1(10, true, "GET", "/slow?ms=400")
	c.h2c(5, 10, "/bytes/300")
	c.h2c(2, 5, "/slow?ms=400")
	c.webSockets(40)
	c.until("a thousand requests have been answered", func() bool { return c.answered() > 1000 })
	p.signal(syscall.SIGTERM)
	p.draining()
	since := c.answered()
	c.until("a thousand more have been answered", func() bool { return c.answered() > since+1000 })
	if p.ended() {
		t.Fatal("the sidecar exited while clients were sending requests")
	}
	c.end()
	idle := time.Now()
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	if took, most := time.Since(idle), quiet+longest+slack; took > most {
		t.Errorf("the sidecar exited %v after the last request, want at most %v", took, most)
	}
	for _, a := range c.attempts() {
		if a.status != 200 || !a.whole {
			t.Errorf("got %v, want a response from the app", a)
		}
		if got := app.Seen(a.id); got != 1 {
			t.Errorf("the app received the request %d times, want 1: %v", got, a)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.closes) > 0 || len(c.noClose) > 0 {
		t.Errorf("got WebSocket close codes %v and errors %v, want no close codes and no errors", c.closes, c.noClose)
	}
	t.Logf("%d requests and %d WebSocket messages", len(c.ledger), c.echoed)
}

// until waits until a condition is true while the clients are sending requests.
func (c *traffic) until(what string, is func() bool) {
	c.t.Helper()
	poll(c.t, what, func() error {
		if !is() {
			return errNotYet
		}
		return nil
	})
}

// The clients never stop sending requests. The sidecar exits at the deadline, and the responses to
// canceled requests contain the reason.
func TestDrainDeadlineCancelsRequestsWithReason(t *testing.T) {
	const deadline = 2 * time.Second
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=300ms", "DRAIN_DEADLINE="+deadline.String())
	app := p.sample()
	c := newTraffic(t, p)
	c.http1(30, true, "GET", "/bytes/300")
	c.http1(10, false, "GET", "/bytes/300")
	c.http1(5, true, "GET", "/slow?ms=60000")
	c.h2c(3, 10, "/bytes/300")
	c.h2c(1, 5, "/slow?ms=60000")
	c.webSockets(20)
	c.until("some requests have been answered", func() bool { return c.answered() > 500 })
	began := time.Now()
	p.signal(syscall.SIGTERM)
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	if took := time.Since(began); took < deadline-100*time.Millisecond || took > deadline+slack {
		t.Errorf("the sidecar exited after %v, want the deadline of %v plus at most %v", took, deadline, slack)
	}
	c.end()
	kinds := map[string]int{}
	for _, a := range c.attempts() {
		seen := app.Seen(a.id)
		switch {
		case a.whole && a.status == 200:
			kinds["answered"]++
			if seen != 1 {
				t.Errorf("the app received the request %d times, want 1: %v", seen, a)
			}
		case a.whole && a.status == 503 && a.word == "draining" && a.body == shuttingDown:
			kinds["told"]++
		case a.begun && !a.whole && a.status == 200 && a.ended.After(began.Add(deadline-100*time.Millisecond)):
			kinds["cut"]++ // the response had begun before the deadline
		case !a.dialled:
			kinds["not connected"]++
		case !a.begun && seen == 0 && a.ended.After(began.Add(deadline-100*time.Millisecond)):
			kinds["never read"]++
		default:
			t.Errorf("request %v after the signal, received %d times by the app: %v", a.began.Sub(began), seen, a)
		}
	}
	if kinds["told"] == 0 {
		t.Error("no response with reason draining")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, code := range c.closes {
		if code != websocket.StatusGoingAway {
			t.Errorf("got WebSocket close code %v, want 1001", code)
		}
	}
	if len(c.closes) != 20 || len(c.noClose) > 0 {
		t.Errorf("%d of 20 WebSockets received a Close frame, the others failed with %v", len(c.closes), c.noClose)
	}
	t.Logf("%v", kinds)
}

// An endlessApp sends responses without end, except to requests for /now.
type endlessApp struct {
	running atomic.Int32 // number of requests in progress
	over    chan string  // paths of requests that were canceled
}

func newEndlessApp() *endlessApp { return &endlessApp{over: make(chan string, 100)} }

func (a *endlessApp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.running.Add(1)
	defer func() {
		a.running.Add(-1)
		if r.URL.Path != "/now" {
			a.over <- r.URL.Path
		}
	}()
	control := http.NewResponseController(w)
	control.EnableFullDuplex()
	say := func(text string) bool {
		_, err := io.WriteString(w, text)
		return err == nil && control.Flush() == nil
	}
	switch r.URL.Path {
	case "/fixed", "/silent-fixed":
		w.Header().Set("Content-Length", "100000")
	case "/grpc":
		w.Header().Set("Content-Type", "application/grpc")
	}
	switch r.URL.Path {
	case "/now":
		return
	case "/wait":
		io.Copy(io.Discard, r.Body) // read the body, because net/http detects the end of the connection only after the body
		<-r.Context().Done()
		return
	case "/silent", "/silent-fixed", "/grpc":
		say("begun")
		<-r.Context().Done()
		return
	}
	for say("begun") {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitStart waits for the header section of a response with status 200.
func (w *client) awaitStart(method, target string) *message {
	w.t.Helper()
	m, err := readHead(w.r)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, target, err)
	}
	if m.status() != 200 {
		w.t.Fatalf("%s %s: got %q, want 200", method, target, m.Start)
	}
	return m
}

// At the deadline, each protocol reports canceled requests in its own way.
func TestDrainDeadlineForEachProtocol(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=1s")
	app := newEndlessApp()
	p.app(app)

	waiting1 := p.sendGet("/wait")
	waiting0 := dial(t, p.addr())
	waiting0.send("GET /wait HTTP/1.0\r\nHost: a.test\r\n\r\n")
	uploading := dial(t, p.addr())
	uploading.send("POST /wait HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100\r\n\r\nhalf")
	chunked, fixed := p.sendGet("/chunked"), p.sendGet("/fixed")
	begun0 := dial(t, p.addr())
	begun0.send("GET /old HTTP/1.0\r\nHost: a.test\r\n\r\n")
	chunked.awaitStart("GET", "/chunked")
	fixed.awaitStart("GET", "/fixed")
	begun0.awaitStart("GET", "/old")
	h2 := startRequestsH2(t, p)
	p.poll("the app received all requests", func() error {
		if got := app.running.Load(); got != 11 {
			return fmt.Errorf("got %d of 11 requests", got)
		}
		return nil
	})
	p.signal(syscall.SIGTERM)

	for name, c := range map[string]*client{"HTTP/1.1": waiting1, "HTTP/1.0": waiting0, "an upload": uploading} {
		m := c.receive("GET")
		if m.status() != 503 || m.Body != shuttingDown || word(m.get("Proxy-Status")) != "draining" {
			t.Errorf("%s, no response yet: got %q with %q, Proxy-Status %q; want 503 shutting down, draining", name, m.Start, m.Body, m.get("Proxy-Status"))
		}
	}
	for name, c := range map[string]*client{"chunked": chunked, "with Content-Length": fixed} {
		b, err := io.ReadAll(c.r)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("response %s: %v", name, err)
		}
		if bytes.Contains(b, []byte("\r\n0\r\n")) || len(b) >= 100000 || bytes.Contains(b, []byte("shutting")) {
			t.Errorf("response %s: got %.200q, want a truncated body", name, b)
		}
	}
	if b, err := io.ReadAll(begun0.r); !errors.Is(err, syscall.ECONNRESET) || bytes.Contains(b, []byte("shutting")) {
		t.Errorf("response over HTTP/1.0: got %v and %.100q, want a reset", err, b)
	}
	wantTruncatedH2(t, h2)
	for range 11 {
		receive(t, "a request ends in the app", app.over)
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	for _, phase := range []string{"waiting", "streaming"} {
		if !p.out.HasLine(`"reason":"draining"`, fmt.Sprintf(`"phase":%q`, phase)) {
			t.Errorf("no log line with reason draining and phase %s", phase)
		}
	}
}

// startRequestsH2 sends five requests to an endlessApp on one connection. The responses on
// streams 3, 5 and 9 begin.
func startRequestsH2(t *testing.T, p *proxy) *h2Peer {
	t.Helper()
	h2 := dialH2(t, p.addr())
	h2.open(1, true, "GET", "/wait")
	h2.open(3, true, "GET", "/chunked")
	h2.open(5, true, "GET", "/fixed")
	h2.open(7, true, "POST", "/wait", "Content-Type: application/grpc", "TE: trailers")
	h2.open(9, true, "POST", "/grpc", "Content-Type: application/grpc", "TE: trailers")
	for _, stream := range []uint32{3, 5, 9} {
		h2.await("the response begins", func(e h2Event) bool { return e.stream == stream && e.data != "" })
	}
	return h2
}

// wantTruncatedH2 checks how the requests of startRequestsH2 end at the deadline.
func wantTruncatedH2(t *testing.T, h2 *h2Peer) {
	t.Helper()
	if a := h2.answer(1); a.status != 503 || a.body != shuttingDown || a.cut {
		t.Errorf("h2c, no response yet: got %+v, want 503", a)
	}
	for _, stream := range []uint32{3, 5, 9} {
		if a := h2.answer(stream); !a.cut || strings.Contains(a.body, "shutting") {
			t.Errorf("h2c, stream %d, response in progress: got %+v, want RST_STREAM", stream, a)
		}
	}
	if a := h2.answer(7); a.status != 200 || a.get("grpc-status") != "14" || a.body != "" || a.cut {
		t.Errorf("gRPC, no response yet: got %+v, want grpc-status 14 in trailers only", a)
	}
}

// The gRPC client gets Unavailable, so it can retry the call on another pod.
func TestDrainDeadlineEndsGRPCCallWithUnavailable(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=700ms")
	app := newEndlessApp()
	p.app(app)
	ended := make(chan error, 1)
	client := p.grpcClient()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		in, out := []byte("x"), []byte(nil)
		ended <- client.Invoke(ctx, "/wait", &in, &out)
	}()
	p.poll("the app received the call", func() error {
		if app.running.Load() == 0 {
			return errNotYet
		}
		return nil
	})
	p.signal(syscall.SIGTERM)
	if err := receive(t, "the end of the call", ended); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// Requests that are queued at the deadline never reach the app.
func TestDrainDeadlineCancelsQueuedRequests(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=700ms")
	h := p.holder()
	running := p.sendGet("/running")
	h.wait(t, "/running")
	waiting := []*client{p.sendGet("/w1"), p.sendGet("/w2")}
	fence(t, p)
	p.signal(syscall.SIGTERM)
	for _, c := range append(waiting, running) {
		if m := c.receive("GET"); m.status() != 503 || m.Body != shuttingDown || m.get("Retry-After") != "" {
			t.Errorf("got %q with %q, want 503 shutting down", m.Start, m.Body)
		}
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	if got := h.order(); len(got) != 1 {
		t.Errorf("the app received %v, want only /running", got)
	}
	if !p.out.HasLine(`"reason":"draining"`, `"phase":"queued"`) {
		t.Error("no log line with reason draining and phase queued")
	}
}

// The drain serves queued requests and does not wait for the deadline after the queue is empty.
func TestDrainServesQueueInOrder(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "DRAIN_QUIET_PERIOD=100ms")
	h := p.holder()
	conns := []*client{p.sendGet("/0")}
	h.wait(t, "/0")
	for i := 1; i < 5; i++ {
		conns = append(conns, p.sendGet(fmt.Sprintf("/%d", i)))
		fence(t, p)
	}
	p.signal(syscall.SIGTERM)
	p.draining()
	for i, c := range conns {
		path := fmt.Sprintf("/%d", i)
		h.wait(t, path)
		h.free(path)
		if m := c.receive("GET"); m.status() != 200 || m.Body != path {
			t.Errorf("got %q with %q, want 200 from the app with %s", m.Start, m.Body, path)
		}
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// RFC 9113 section 6.8: the first GOAWAY does not reject any streams, and the last GOAWAY does
// not reject streams that were opened. Idle connections also receive GOAWAY.
func TestDrainSendsGOAWAYWithoutLosingStreams(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.start("DRAIN_QUIET_PERIOD=300ms")
	h := p.holder()
	idle, fresh, busy := dialH2(t, p.addr()), dialH2(t, p.addr()), dialH2(t, p.addr())
	overTLS := newH2Peer(t, dialTLS(t, p.tlsAddr(), "h2").Conn)
	h.free("/short")
	for _, c := range []*h2Peer{idle, overTLS} {
		c.open(1, true, "GET", "/short")
		if a := c.answer(1); a.status != 200 {
			t.Fatalf("got %+v, want 200", a)
		}
	}
	busy.open(1, true, "GET", "/held")
	h.wait(t, "/held")
	p.signal(syscall.SIGTERM)
	for name, c := range map[string]*h2Peer{"idle": idle, "without a request": fresh, "busy": busy, "over TLS": overTLS} {
		if e := c.goAway(); e.last != endlessID || e.code != http2.ErrCodeNo {
			t.Errorf("%s: got %v, want a GOAWAY that rejects no stream", name, e)
		}
	}
	// Streams that the client opened before it received GOAWAY are served.
	busy.open(3, true, "GET", "/short")
	if a := busy.answer(3); a.status != 200 || a.body != "/short" {
		t.Errorf("stream opened after GOAWAY: got %+v, want 200 from the app", a)
	}
	idle.open(3, true, "GET", "/short")
	if a := idle.answer(3); a.status != 200 {
		t.Errorf("stream opened after GOAWAY on an idle connection: got %+v, want 200 from the app", a)
	}
	h.free("/held")
	if a := busy.answer(1); a.status != 200 || a.body != "/held" {
		t.Errorf("stream in progress: got %+v, want 200 from the app", a)
	}
	for name, row := range map[string]struct {
		c    *h2Peer
		last uint32
	}{"idle": {idle, 3}, "without a request": {fresh, 0}, "busy": {busy, 3}, "over TLS": {overTLS, 1}} {
		all := row.c.goAways()
		if len(all) < 2 {
			t.Errorf("%s: got %v, want at least two GOAWAY frames", name, all)
			continue
		}
		if e := all[len(all)-1]; e.last < row.last || e.last == endlessID || e.code != http2.ErrCodeNo {
			t.Errorf("%s: got last GOAWAY %v, want last stream %d", name, e, row.last)
		}
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// A new connection during the drain can be used until it receives GOAWAY.
func TestNewHTTP2ConnectionGetsGOAWAYAfterResponse(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=300ms")
	h := p.holder()
	held := p.sendGet("/held")
	h.wait(t, "/held")
	h.free("/short")
	p.signal(syscall.SIGTERM)
	p.draining()
	c := dialH2(t, p.addr())
	c.open(1, true, "GET", "/short")
	if a := c.answer(1); a.status != 200 {
		t.Errorf("got %+v, want 200", a)
	}
	if e := c.goAway(); e.last != endlessID {
		t.Errorf("got %v, want a GOAWAY that rejects no stream", e)
	}
	c.open(3, true, "GET", "/short")
	if a := c.answer(3); a.status != 200 {
		t.Errorf("got %+v after GOAWAY, want 200", a)
	}
	h.free("/held")
	held.receive("GET")
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// A reset would discard data that the client has not yet received.
func TestDrainClosesIdleConnectionsWithoutReset(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.start("DRAIN_QUIET_PERIOD=200ms")
	p.sample()
	var idle []*client
	for range 20 {
		idle = append(idle, dial(t, p.addr()), dialTLS(t, p.tlsAddr(), "http/1.1"))
	}
	for _, c := range idle {
		if m := c.ask("/bytes/2"); m.status() != 200 {
			t.Fatalf("got %q, want 200", m.Start)
		}
	}
	unused := dial(t, p.addr())
	awaitInputRead(t, p)
	p.signal(syscall.SIGTERM)
	for i, c := range append(idle, unused) {
		if n, err := c.r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("connection %d: got %d bytes and %v, want EOF", i, n, err)
		}
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// Requests that arrive while the sidecar closes idle connections are either served or not read. The
// app receives only requests that get a response.
func TestDrainDoesNotCloseConnectionWithRequest(t *testing.T) {
	inParallel(t)
	const quiet = 150 * time.Millisecond
	for round := range 5 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			p := newProxy(t)
			p.start("DRAIN_QUIET_PERIOD="+quiet.String(), "EXCLUDE_PATHS=/bytes/2") // excluded requests do not extend the quiet period
			app := p.sample()
			var conns []*client
			for range 100 {
				c := dial(t, p.addr())
				c.ask("/bytes/2")
				conns = append(conns, c)
			}
			random := rand.New(rand.NewPCG(uint64(round), 1))
			signalled := time.Now()
			p.signal(syscall.SIGTERM)
			var all sync.WaitGroup
			answered, refused := atomic.Int32{}, atomic.Int32{}
			for i, c := range conns {
				at := signalled.Add(quiet - 10*time.Millisecond + time.Duration(random.Int64N(int64(60*time.Millisecond))))
				all.Go(func() {
					time.Sleep(time.Until(at)) // wait, because the requests must arrive near the end of the quiet period
					id := fmt.Sprintf("%d-%d", round, i)
					io.WriteString(c, request("GET", "/bytes/2", "X-Id: "+id))
					m, err := readResponse(c.r, "GET")
					if err == nil && m.status() == 200 && m.Cut == nil {
						answered.Add(1)
						return
					}
					refused.Add(1)
					if got := app.Seen(id); got != 0 {
						t.Errorf("the app received a request for which the client got %v, %v", m, err)
					}
					if err == nil || !ended(err) {
						t.Errorf("got %v, %v, want a response or a closed connection", m, err)
					}
				})
			}
			all.Wait()
			if got := p.code(); got != 0 {
				t.Errorf("got exit code %d, want 0", got)
			}
			t.Logf("%d requests answered, %d rejected", answered.Load(), refused.Load())
		})
	}
}

// A request is accepted as soon as its header section is complete, even if the header section
// was incomplete when the drain completed. The request can run until the deadline.
func TestRequestCompletedAfterDrainIsServed(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=15s")
	p.sample()
	c := dial(t, p.addr())
	c.send("GET /slow?ms=6000 HTTP/1.1\r\nHost: a.test\r\n")
	awaitInputRead(t, p)
	p.signal(syscall.SIGTERM)
	p.awaitLog(`"message":"drained"`)
	c.send("\r\n")
	m := c.receive("GET")
	if m.status() != 200 || m.Body != "slow\n" {
		t.Errorf("got %q with %q, want 200 from the app", m.Start, m.Body)
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// Clients that never complete a request or never read a response do not keep the pod running
// after the deadline, when three seconds of the grace period remain.
func TestClientsDoNotExtendDrainDeadline(t *testing.T) {
	inParallel(t)
	const deadline = time.Second
	for name, hold := range holders {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE="+deadline.String())
			p.sample()
			hold(t, p)
			if !strings.Contains(name, "not read") && !strings.Contains(name, "goes on") {
				awaitInputRead(t, p)
			}
			began := time.Now()
			p.signal(syscall.SIGTERM)
			if got := p.code(); got != 0 {
				t.Errorf("got exit code %d, want 0", got)
			}
			if took, most := time.Since(began), deadline+slack; took > most {
				t.Errorf("the sidecar exited after %v, want at most %v", took, most)
			}
		})
	}
}

// holders lists, for all ports, clients with requests that never end.
var holders = map[string]func(t *testing.T, p *proxy){
	"incomplete header section":        func(t *testing.T, p *proxy) { dial(t, p.addr()).send("GET / HTTP/1.1\r\nHost: a.test\r\n") },
	"incomplete second header section": func(t *testing.T, p *proxy) { c := dial(t, p.addr()); c.ask("/bytes/1"); c.send("GET / HT") },
	"incomplete body": func(t *testing.T, p *proxy) {
		dial(t, p.addr()).send("POST /sink HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc")
	},
	"an endless upload": func(t *testing.T, p *proxy) {
		c := dial(t, p.addr())
		c.send("POST /sink HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000000\r\n\r\n")
		go io.Copy(c, endless{})
	},
	"a response that is not read": func(t *testing.T, p *proxy) {
		p.sendGet("/bytes/1000000000")
	},
	"an HTTP/2 client that does not read": func(t *testing.T, p *proxy) {
		c := dial(t, p.addr())
		c.send(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		c.send("\x00\x00\x0e\x01\x05\x00\x00\x00\x01\x82\x86\x41\x06a.test\x04\x02/w") // HEADERS frame with GET /w
	},
	"a connection to the hooks without a request":      func(t *testing.T, p *proxy) { dial(t, local(p.port.admin)) },
	"an incomplete request to the hooks":               func(t *testing.T, p *proxy) { dial(t, local(p.port.admin)).send("GET /wait-for-drain HT") },
	"a connection to the statistics without a request": func(t *testing.T, p *proxy) { dial(t, local(p.port.autoscaler)) },
	"incomplete HTTP/2 preface":                        func(t *testing.T, p *proxy) { dial(t, p.addr()).send("PRI * HTT") },
	"incomplete handshake":                             func(t *testing.T, p *proxy) { dial(t, p.tlsAddr()).send("\x16\x03\x01\x02\x00\x01") },
	"a WebSocket that is not read":                     holdByWebSocket,
}

// holdByWebSocket sends messages without reading responses until writes block.
func holdByWebSocket(t *testing.T, p *proxy) {
	c := dial(t, p.addr())
	c.send(request("GET", "/ws", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="))
	c.receive("GET")
	var written atomic.Int64
	go func() {
		message := "\x82\xfe\x40\x00\x00\x00\x00\x00" + strings.Repeat("x", 0x4000)
		for {
			n, err := io.WriteString(c, message)
			if written.Add(int64(n)); err != nil {
				return
			}
		}
	}()
	last := int64(-1)
	p.poll("writes are blocked", func() error {
		time.Sleep(50 * time.Millisecond) // allow time for data to be transferred
		if n := written.Load(); n == 0 || n != last {
			last = n
			return errNotYet
		}
		return nil
	})
}

// The sidecar does not wait until the deadline for an incomplete request, because the request
// was not accepted.
func TestIncompleteRequestDoesNotDelayExit(t *testing.T) {
	inParallel(t)
	for name, text := range map[string]string{
		"incomplete header section": "GET / HTTP/1.1\r\nHost: a.test\r\n", "incomplete preface": "PRI * HTT", "nothing": "",
	} {
		for _, port := range []string{"plain", "TLS"} {
			t.Run(name+"/"+port, func(t *testing.T) {
				p := newProxy(t)
				writeCertificate(t, p.dir)
				p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=15s")
				p.sample()
				c := dial(t, p.addr())
				if port == "TLS" {
					c = dialTLS(t, p.tlsAddr(), "http/1.1")
				}
				c.send(text)
				awaitInputRead(t, p)
				began := time.Now()
				p.signal(syscall.SIGTERM)
				if got := p.code(); got != 0 {
					t.Errorf("got exit code %d, want 0", got)
				}
				if took := time.Since(began); took > 1500*time.Millisecond+slack {
					t.Errorf("the sidecar exited after %v, want the quiet period and about one second", took)
				}
			})
		}
	}
}

func TestDrainCompletesLongResponse(t *testing.T) {
	inParallel(t)
	for _, protocol := range both {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			p.start("DRAIN_QUIET_PERIOD=100ms")
			p.sample()
			answer, err := httpClient(t, protocol).Get(p.url("/sse?n=12&ms=100"))
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			p.signal(syscall.SIGTERM)
			b := within(t, "the rest of the response", func() ([]byte, error) { return io.ReadAll(answer.Body) })
			if got := strings.Count(string(b), "data: "); got != 12 {
				t.Errorf("got %d events, want 12", got)
			}
			if got := p.code(); got != 0 {
				t.Errorf("got exit code %d, want 0", got)
			}
		})
	}
}

// Shortly before the deadline, a WebSocket with a long message in progress receives its Close
// frame after that message.
func TestWebSocketCloseIsSentBetweenMessages(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=2s")
	const size = 200_000
	p.bare(func(c *bareConn, m *message) bool {
		c.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		// Send messages in several parts. The pause between messages is not longer than the
		// pause within a message.
		head := []byte{0x82, 127, 0, 0, 0, 0, 0, size >> 16, size >> 8 & 0xff, size & 0xff}
		for {
			for _, piece := range [][]byte{head, bytes.Repeat([]byte("a"), size/2), bytes.Repeat([]byte("b"), size/2)} {
				if _, err := c.Write(piece); err != nil {
					return false
				}
				time.Sleep(5 * time.Millisecond) // send the message slowly
			}
		}
	})
	c := p.sendGet("/", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
	if m := c.receive("GET"); m.status() != 101 {
		t.Fatalf("got %q, want 101", m.Start)
	}
	p.signal(syscall.SIGTERM)
	began := time.Now()
	whole := strings.Repeat("a", size/2) + strings.Repeat("b", size/2)
	for messages := 0; ; messages++ {
		head := make([]byte, 2)
		if _, err := io.ReadFull(c.r, head); err != nil {
			t.Fatalf("read after %d messages: %v", messages, err)
		}
		if string(head) == "\x88\x02" {
			code := make([]byte, 2)
			io.ReadFull(c.r, code)
			if string(code) != "\x03\xe9" {
				t.Errorf("got status %x, want 1001", code)
			}
			if took := time.Since(began); took < time.Second {
				t.Errorf("got Close %v after the signal, want a Close frame shortly before the deadline", took)
			}
			t.Logf("got Close after %d messages", messages)
			break
		}
		message := make([]byte, 8+size)
		if _, err := io.ReadFull(c.r, message); err != nil {
			t.Fatalf("message %d: %v", messages, err)
		}
		if string(message[8:]) != whole {
			t.Fatalf("message %d differs from the sent message", messages)
		}
	}
	// No data follows a Close frame.
	if b, _ := io.ReadAll(c.r); len(b) > 0 {
		t.Errorf("got %d bytes after Close, want 0", len(b))
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// preStop sends the request of a preStop hook and does not wait for the response.
func (p *proxy) preStop(path string) *client {
	p.t.Helper()
	c := dial(p.t, local(p.port.admin))
	c.send(request("GET", path, "Connection: close"))
	return c
}

// returned returns a channel that receives the time at which a preStop hook returned.
func returned(c *client) <-chan time.Time {
	done := make(chan time.Time, 1)
	go func() {
		m, err := readResponse(c.r, "GET")
		if err != nil || m.status() != 200 || m.Body != "" {
			c.t.Errorf("preStop hook: got %+v, %v, want 200 with an empty body", m, err)
		}
		done <- time.Now()
	}()
	return done
}

// Kubernetes calls the hook first and sends the signal later.
func TestPreStopHookWaitsForRequests(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=200ms")
	h := p.holder()
	held := p.sendGet("/held")
	h.wait(t, "/held")
	hooks := []<-chan time.Time{returned(p.preStop("/wait-for-drain")), returned(p.preStop("/wait-for-drain"))} // one hook for each of two containers
	p.draining()
	time.Sleep(500 * time.Millisecond) // wait, because the signal must arrive while the hooks are waiting
	p.signal(syscall.SIGTERM)
	late := returned(p.preStop("/wait-for-drain"))

	// More than one second after the hook, the drain continues and requests are served.
	h.free("/more")
	p.watch(1200*time.Millisecond, func() {
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 503 {
			t.Fatalf("probe: got %q, want 503", m.Start)
		}
		if m := dial(t, p.addr()).ask("/more"); m.status() != 200 {
			t.Fatalf("request: got %q, want 200", m.Start)
		}
		for _, hook := range append(hooks, late) {
			select {
			case <-hook:
				t.Fatal("a hook returned while a request was in progress")
			default:
			}
		}
	})
	freed := time.Now()
	h.free("/held")
	if m := held.receive("GET"); m.status() != 200 {
		t.Errorf("got %q, want 200", m.Start)
	}
	for _, hook := range append(hooks, late) {
		if at := receive(t, "the hook returns", hook); at.Before(freed) {
			t.Error("a hook returned before the end of the last request")
		}
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// watch calls look repeatedly for the given duration.
func (p *proxy) watch(d time.Duration, look func()) {
	p.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		look()
	}
}

// If only the application is restarted, probes fail for one second, and there is no other
// effect.
func TestPreStopHookWithoutSignalReturnsAfterSecond(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=10s")
	h := p.holder()
	h.free("/short")
	held := p.sendGet("/held")
	h.wait(t, "/held")
	for round := range 2 { // restart the app twice
		began := time.Now()
		hook := returned(p.preStop("/wait-for-drain"))
		p.draining()
		if m := dial(t, p.addr()).ask("/short"); m.status() != 200 {
			t.Errorf("request: got %q, want 200", m.Start)
		}
		at := receive(t, "the hook returns", hook)
		if took := at.Sub(began); took < 990*time.Millisecond || took > time.Second+slack {
			t.Errorf("round %d: the hook took %v, want one second", round, took)
		}
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 200 {
			t.Errorf("round %d: probe after the hook: got %q, want 200", round, m.Start)
		}
		c := dial(t, p.addr())
		if m := c.ask("/short"); m.get("Connection") != "" {
			t.Errorf("round %d: got Connection: %s after the hook, want no Connection field", round, m.get("Connection"))
		}
	}
	h.free("/held")
	if m := held.receive("GET"); m.status() != 200 {
		t.Errorf("request in progress: got %q, want 200", m.Start)
	}
	if p.ended() {
		t.Error("the sidecar exited")
	}
}

func TestSIGTERMWithoutHookDrains(t *testing.T) {
	const quiet = 1500 * time.Millisecond // longer than the interval between requests on a busy machine
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=" + quiet.String())
	p.sample()
	// The quiet period starts again with each new request.
	p.signal(syscall.SIGTERM)
	p.draining()
	var last time.Time
	p.watch(2*time.Second, func() {
		last = time.Now()
		if m := dial(t, p.addr()).ask("/bytes/2"); m.status() != 200 {
			t.Fatalf("got %q, want 200", m.Start)
		}
	})
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	if took := time.Since(last); took < quiet || took > quiet+slack {
		t.Errorf("the sidecar exited %v after the last request, want the quiet period of %v", took, quiet)
	}
}

// Probes, health checks and scrapes do not extend the quiet period.
func TestOnlyTrafficExtendsQuietPeriod(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=300ms", "DRAIN_DEADLINE=15s", "EXCLUDE_PATHS=/healthz", "EXCLUDE_USER_AGENTS=Prometheus/")
	p.sample()
	began := time.Now()
	p.signal(syscall.SIGTERM)
	fields := [][]string{{"K-Network-Probe: queue"}, {"K-Network-Probe: probe", "K-Network-Hash: h"}, {"User-Agent: kube-probe/1.31"}, {"User-Agent: Prometheus/3"}, nil}
	for i := 0; !p.ended() && time.Since(began) < patience; i++ {
		conn, err := net.Dial("tcp", p.addr())
		if err != nil {
			break
		}
		io.WriteString(conn, request("GET", "/healthz", append(fields[i%len(fields)], "Connection: close")...))
		conn.SetDeadline(time.Now().Add(time.Second))
		io.Copy(io.Discard, conn)
		conn.Close()
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	if took := time.Since(began); took > 300*time.Millisecond+slack {
		t.Errorf("the sidecar exited after %v, want the quiet period", took)
	}
}

func TestDrainWaitsForLongRequest(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=50ms")
	p.sample()
	c := p.sendGet("/slow?ms=1200")
	awaitInputRead(t, p)
	p.signal(syscall.SIGTERM)
	if m := c.receive("GET"); m.status() != 200 || m.Body != "slow\n" {
		t.Errorf("got %q with %q, want 200 from the app", m.Start, m.Body)
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

func TestDrainTakesAtLeastMinimum(t *testing.T) {
	const least = 1200 * time.Millisecond
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=50ms", "DRAIN_MIN="+least.String())
	p.sample()
	began := time.Now()
	p.signal(syscall.SIGTERM)
	p.watch(least/2, func() {
		if m := dial(t, p.addr()).ask("/bytes/2"); m.status() != 200 {
			t.Fatalf("got %q, want 200", m.Start)
		}
	})
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	if took := time.Since(began); took < least || took > least+slack {
		t.Errorf("the sidecar exited after %v, want %v", took, least)
	}
}

// A second signal skips the drain.
func TestSecondSignalExitsWithOneImmediately(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=10s")
	h := p.holder()
	c := p.sendGet("/held")
	h.wait(t, "/held")
	p.signal(syscall.SIGTERM)
	p.draining()
	began := time.Now()
	p.signal(syscall.SIGINT)
	if got := p.code(); got != 1 {
		t.Errorf("got exit code %d, want 1", got)
	}
	if took := time.Since(began); took > slack {
		t.Errorf("the sidecar exited after %v, want at most %v", took, slack)
	}
	c.closed()
}

// The preStop hook of a native sidecar starts the drain, because the sidecar receives SIGTERM only
// after the app has stopped.
func TestDrainEndpointStartsDrain(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_ENDPOINT=true", "DRAIN_QUIET_PERIOD=300ms")
	h := p.holder()
	held := p.sendGet("/held")
	h.wait(t, "/held")
	h.free("/short")
	began := time.Now()
	receive(t, "/drain returns", returned(p.preStop("/drain")))
	if took := time.Since(began); took > slack {
		t.Errorf("/drain took %v, want at most %v", took, slack)
	}
	hook := returned(p.preStop("/wait-for-drain")) // the app's hook runs at the same time
	p.watch(1300*time.Millisecond, func() {        // the drain must take more than one second
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 503 {
			t.Fatalf("probe: got %q, want 503", m.Start)
		}
	})
	if m := dial(t, p.addr()).ask("/short"); m.status() != 200 || m.get("Connection") != "close" {
		t.Errorf("request: got %q with Connection %q, want 200 from the app and close", m.Start, m.get("Connection"))
	}
	select {
	case <-hook:
		t.Error("the hook of the app returned while a request was in progress")
	default:
	}
	h.free("/held")
	held.receive("GET")
	receive(t, "the hook of the app returns", hook)
	p.awaitLog(`"message":"drained"`)

	// The sidecar keeps running, because other containers may still need it.
	p.watch(500*time.Millisecond, func() {
		if m := dial(t, p.addr()).ask("/short"); m.status() != 200 {
			t.Fatalf("request: got %q, want 200", m.Start)
		}
	})
	receive(t, "/wait-for-drain returns immediately", returned(p.preStop("/wait-for-drain")))
	signalled := time.Now()
	p.signal(syscall.SIGTERM)
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	if took := time.Since(signalled); took > slack {
		t.Errorf("the sidecar exited %v after the signal, want at most %v", took, slack)
	}
}

// If /drain has started the drain, a signal does not shorten it.
func TestSIGTERMAfterDrainEndpointContinuesDrain(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_ENDPOINT=true", "DRAIN_QUIET_PERIOD=100ms")
	h := p.holder()
	held := p.sendGet("/held")
	h.wait(t, "/held")
	receive(t, "/drain returns", returned(p.preStop("/drain")))
	p.signal(syscall.SIGTERM)
	p.watch(400*time.Millisecond, func() {
		if p.ended() {
			t.Fatal("the sidecar exited while a request was in progress")
		}
	})
	h.free("/held")
	if m := held.receive("GET"); m.status() != 200 {
		t.Errorf("got %q, want 200", m.Start)
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// The admin port accepts only the exact paths of its hooks.
func TestAdminPortRejectsOtherPaths(t *testing.T) {
	inParallel(t)
	for name, row := range map[string]struct {
		env     []string
		drain   int
		overTLS bool
	}{
		"by default":         {nil, 404, false},
		"with a certificate": {nil, 404, true},
		"disabled":           {[]string{"DRAIN_ENDPOINT=false"}, 404, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			if row.overTLS {
				writeCertificate(t, p.dir)
			}
			p.start(row.env...)
			for _, path := range []string{"/drain", "/", "/drain/", "/wait-for-drain/", "/wait-for-drain/x", "/healthz", "/metrics", "/quitquitquit", "/debug/pprof/", "//drain", "/x/../wait-for-drain", "http://a.test"} {
				if m := dial(t, local(p.port.admin)).ask(path); m.status() != 404 {
					t.Errorf("%s: got %q, want 404", path, m.Start)
				}
			}
			if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 200 {
				t.Errorf("probe: got %q, want 200 because no drain has started", m.Start)
			}
			receive(t, "the hook without TLS", returned(p.preStop("/wait-for-drain")))
		})
	}
}

// A canceled hook does not stop the drain.
func TestCanceledPreStopHookDoesNotStopDrain(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=100ms")
	h := p.holder()
	held := p.sendGet("/held")
	h.wait(t, "/held")
	hook := p.preStop("/wait-for-drain")
	p.draining()
	p.signal(syscall.SIGTERM)
	p.awaitLog(`"message":"draining"`)
	hook.Close()
	p.watch(1200*time.Millisecond, func() {
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 503 {
			t.Fatalf("probe: got %q, want 503", m.Start)
		}
	})
	h.free("/held")
	held.receive("GET")
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}
