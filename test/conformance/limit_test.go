package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/app/sample"
)

// A holder is a user container that blocks each request until the test releases the request. It
// records the order of arrival.
type holder struct {
	mu       sync.Mutex
	arrived  []string // paths of the requests in the order of arrival
	now, max int
	gates    map[string]chan struct{}
}

func (p *proxy) holder() *holder {
	h := &holder{gates: map[string]chan struct{}{}}
	p.app(h)
	return h
}

func (h *holder) gate(path string) chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gates[path] == nil {
		h.gates[path] = make(chan struct{})
	}
	return h.gates[path]
}

func (h *holder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.arrived = append(h.arrived, r.URL.Path)
	h.now++
	h.max = max(h.max, h.now)
	h.mu.Unlock()
	select {
	case <-h.gate(r.URL.Path):
	case <-r.Context().Done():
	}
	h.mu.Lock()
	h.now--
	h.mu.Unlock()
	io.WriteString(w, r.URL.Path)
}

// free releases the requests with this path.
func (h *holder) free(path string) { close(h.gate(path)) }

func (h *holder) order() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.arrived)
}

// wait waits until a request with this path has arrived.
func (h *holder) wait(t *testing.T, path string) {
	t.Helper()
	poll(t, path+" has arrived in the app", func() error {
		if !slices.Contains(h.order(), path) {
			return fmt.Errorf("got %v", h.order())
		}
		return nil
	})
}

// sendGet opens a connection and sends a GET request without waiting for the response.
func (p *proxy) sendGet(path string, fields ...string) *client {
	p.t.Helper()
	c := dial(p.t, p.addr())
	c.send(request("GET", path, fields...))
	return c
}

func TestQueueFullReturns503(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=2")
	h := p.holder()
	running := p.sendGet("/running")
	h.wait(t, "/running")
	waiting := []*client{p.sendGet("/w1")}
	fence(t, p)
	waiting = append(waiting, p.sendGet("/w2"))
	fence(t, p)
	for _, protocol := range []string{"HTTP/1.1", "h2c"} {
		var m *message
		if protocol == "h2c" {
			var err error
			if m, err = exchangeH2(dial(t, p.addr()), "GET", "/full", "http", "a.test", nil, ""); err != nil {
				t.Fatal(err)
			}
		} else {
			m = dial(t, p.addr()).ask("/full")
		}
		if m.status() != 503 || m.Body != "pending request queue full\n" {
			t.Errorf("%s: got %q with %q, want 503 with the message of Knative", protocol, m.Start, m.Body)
		}
		for name, want := range map[string]string{
			"Retry-After":            "1",
			"Content-Type":           "text/plain; charset=utf-8",
			"X-Content-Type-Options": "nosniff",
			"Proxy-Status":           `queue-proxy; error=connection_limit_reached; details="queue-full"`,
		} {
			if got := m.get(name); got != want {
				t.Errorf("%s: got %s: %q, want %q", protocol, name, got, want)
			}
		}
	}
	h.free("/running")
	running.receive("GET")
	for i, c := range waiting {
		path := fmt.Sprintf("/w%d", i+1)
		h.free(path)
		if m := c.receive("GET"); m.status() != 200 || m.Body != path {
			t.Errorf("got %q with %q, want 200 for the queued request", m.Start, m.Body)
		}
	}
	if slices.Contains(h.order(), "/full") {
		t.Error("the app received the rejected request")
	}
}

// With Knative's default settings, one request runs and ten requests are queued, so two of 13
// requests receive status 503.
func TestQueueDepthDefaultsToTenTimesConcurrency(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1")
	h := p.holder()
	statuses := make(chan int, 13)
	for i := range 13 {
		c := p.sendGet("/" + strconv.Itoa(i))
		go func() {
			m, err := readResponse(c.r, "GET")
			if err != nil {
				t.Error(err)
				m = &message{}
			}
			statuses <- m.status()
		}()
	}
	for range 2 {
		if got := receive(t, "a rejection", statuses); got != 503 {
			t.Errorf("got %d before the first response from the app, want 503", got)
		}
	}
	for i := range 13 {
		h.free("/" + strconv.Itoa(i))
	}
	for range 11 {
		if got := receive(t, "a response", statuses); got != 200 {
			t.Errorf("got %d, want 200", got)
		}
	}
	if h.max != 1 {
		t.Errorf("got %d concurrent requests in the app, want 1", h.max)
	}
}

func TestQueuedRequestsKeepOrder(t *testing.T) {
	const waiters = 10
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=100")
	h := p.holder()
	conns := []*client{p.sendGet("/first")}
	h.wait(t, "/first")
	want := []string{"/first"}
	for i := range waiters {
		path := fmt.Sprintf("/%02d", i)
		conns = append(conns, p.sendGet(path))
		want = append(want, path)
		fence(t, p)
	}
	for i, c := range conns {
		h.wait(t, want[i])
		h.free(want[i])
		if m := c.receive("GET"); m.Body != want[i] {
			t.Errorf("got %q, want %q", m.Body, want[i])
		}
	}
	if got := h.order(); !slices.Equal(got, want) {
		t.Errorf("the app received %v, want %v", got, want)
	}
}

// sendQueued sends a request that waits for a slot. It returns a function that cancels the
// request or closes the connection.
func (p *proxy) sendQueued(t *testing.T, protocol string) (leave func()) {
	t.Helper()
	if protocol != "h2c cancel" {
		c := p.sendGet("/leaves")
		return func() {
			if protocol == "RST" {
				c.Conn.(*net.TCPConn).SetLinger(0)
			}
			c.Close()
		}
	}
	ended, sent := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { close(sent) },
	}))
	go func() {
		defer close(ended)
		r, _ := http.NewRequestWithContext(ctx, "GET", p.url("/leaves"), nil)
		if answer, err := httpClient(t, "h2c").Do(r); err == nil {
			answer.Body.Close()
			t.Errorf("canceled request: got %s, want an error", answer.Status)
		}
	}()
	receiveClose(t, "the request is sent", sent)
	return func() { cancel(); <-ended }
}

// A queued request whose client disconnects leaves the queue immediately.
func TestCanceledRequestLeavesQueue(t *testing.T) {
	inParallel(t)
	for _, protocol := range []string{"FIN", "RST", "h2c cancel"} {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=1")
			h := p.holder()
			running := p.sendGet("/running")
			h.wait(t, "/running")
			leave := p.sendQueued(t, protocol)
			fence(t, p)
			if m := dial(t, p.addr()).ask("/full"); m.status() != 503 {
				t.Fatalf("got %q while the queue is full, want 503", m.Start)
			}
			leave()

			// A new request gets status 503 while the queue is full, and is queued when there is
			// space.
			var newcomer *client
			p.poll("the queue has space", func() error {
				c := p.sendGet("/newcomer")
				c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				m, err := readResponse(c.r, "GET")
				var timeout net.Error
				if errors.As(err, &timeout) && timeout.Timeout() {
					newcomer = c
					return nil
				}
				return fmt.Errorf("got %v, %v", m, err)
			})
			h.free("/running")
			running.receive("GET")
			h.wait(t, "/newcomer")
			h.free("/newcomer")
			newcomer.SetDeadline(time.Now().Add(patience))
			if m, err := readResponse(newcomer.r, "GET"); err != nil || m.status() != 200 {
				t.Errorf("new request: got %v, %v, want 200", m, err)
			}
			if slices.Contains(h.order(), "/leaves") {
				t.Error("the app received the canceled request")
			}
		})
	}
}

// A slot is released only after the exchange with the application ends. Therefore, the canceled
// request has ended when the app receives the next request.
func TestSlotIsHeldUntilCanceledRequestEnds(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=100")
	var mu sync.Mutex
	open := map[*bareConn]bool{} // connections with a request in progress
	var overlaps atomic.Int32
	arrived := make(chan struct{}, 100)
	p.bare(func(c *bareConn, m *message) bool {
		mu.Lock()
		for other := range open {
			if other != c && !peerClosed(other.TCPConn) {
				overlaps.Add(1)
			}
		}
		open[c] = true
		mu.Unlock()
		defer func() {
			mu.Lock()
			delete(open, c)
			mu.Unlock()
		}()
		arrived <- struct{}{}
		if m.Start == "GET /last HTTP/1.1" {
			c.send(ok)
			return true
		}
		c.r.Peek(1) // wait until the sidecar closes the connection
		return false
	})
	for range 20 {
		c := p.sendGet("/leaves")
		receive(t, "the app received the request", arrived)
		next := p.sendGet("/leaves")
		fence(t, p)
		c.Close()
		receive(t, "the app received the next request", arrived)
		next.Close()
	}
	if m := dial(t, p.addr()).ask("/last"); m.status() != 200 {
		t.Errorf("got %q, want 200", m.Start)
	}
	if got := overlaps.Load(); got != 0 {
		t.Errorf("got %d requests before the end of the previous request, want 0", got)
	}
}

// peerClosed reports whether the peer has closed the connection. It does not consume data.
func peerClosed(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = n <= 0 && err != syscall.EAGAIN
	})
	return gone
}

// The sidecar answers probes even if the queue is full.
func TestProbesBypassFullQueue(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=1")
	h := p.holder()
	p.sendGet("/running")
	h.wait(t, "/running")
	p.sendGet("/waiting")
	fence(t, p)
	for fields, want := range map[string]int{"K-Network-Probe: queue": 200, "K-Network-Probe: x": 400} {
		if m := dial(t, p.addr()).ask("/", fields); m.status() != want {
			t.Errorf("%s: got %q, want %d", fields, m.Start, want)
		}
	}
}

func TestQueueTimeoutReturnsReason(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_TIMEOUT_SECONDS=1")
	h := p.holder()
	p.sendGet("/running")
	h.wait(t, "/running")
	m := dial(t, p.addr()).ask("/waits")
	want := `queue-proxy; error=connection_limit_reached; details="queue-timeout"`
	if got := m.get("Proxy-Status"); m.status() < 500 || got != want {
		t.Errorf("got %q with Proxy-Status %q, want a 5xx with %q", m.Start, got, want)
	}
	if slices.Contains(h.order(), "/waits") {
		t.Error("the app received the request that timed out")
	}
}

// With many clients, the application never processes more than N requests at the same time, and
// all requests succeed.
func TestLimitHoldsUnderLoad(t *testing.T) {
	const limit = 3
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY="+strconv.Itoa(limit), "QUEUE_DEPTH=1000")
	if got := p.load(30, 40, 1).Max; got > limit {
		t.Errorf("got %d concurrent requests in the app, want at most %d", got, limit)
	}
}

// The load of 30 clients would justify a limit above the maximum.
func TestAdaptiveLimitStaysBelowMaximum(t *testing.T) {
	const ceiling, least = 6, 2
	p := newProxy(t)
	p.start("CONCURRENCY_MODE=adaptive", "CONTAINER_CONCURRENCY="+strconv.Itoa(ceiling), "CONCURRENCY_MIN="+strconv.Itoa(least))
	if got := p.load(30, 60, 5).Max; got < least || got > ceiling {
		t.Errorf("got %d concurrent requests in the app, want %d to %d", got, least, ceiling)
	}
	if _, got := get(t, httpClient(t, "h1"), "http://"+local(p.port.status)+"/status.json"); !strings.Contains(got, `"adaptive":`) {
		t.Errorf("the status contains no adaptive limit: %s", got)
	}
}

// load starts concurrent clients. The parameter each is the number of requests per client, and ms
// is the time in milliseconds that the app takes for a request. load checks that the app receives
// each request once, and returns the counters of the app.
func (p *proxy) load(clients, each, ms int) sample.Running {
	t := p.t
	t.Helper()
	app := p.sample()
	var served atomic.Int32
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			c, err := net.Dial("tcp", p.addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(2 * patience))
			r := bufio.NewReader(c)
			for i := range each {
				id := fmt.Sprintf("c%d-%d", client, i)
				io.WriteString(c, request("GET", fmt.Sprintf("/slow?ms=%d", ms), "X-Id: "+id))
				m, err := readResponse(r, "GET")
				if err != nil || m.status() != 200 {
					t.Errorf("%s: got %v, %v, want 200", id, m, err)
					return
				}
				if got := app.Seen(id); got != 1 {
					t.Errorf("%s: the app received the request %d times, want once", id, got)
				}
				served.Add(1)
			}
		})
	}
	all.Wait()
	if got := int(served.Load()); got != clients*each {
		t.Errorf("got %d successful requests, want %d", got, clients*each)
	}
	return app.Running()
}

// Streams of a connection share its flow control window. Unread bodies of queued requests must
// leave a part of the window to the request that holds the slot.
func TestQueuedBodiesDoNotBlockConnectionWindow(t *testing.T) {
	p := newProxy(t)
	arrived := make(chan string, 1)
	p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			arrived <- r.URL.Path
		}
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	}))
	p.start("CONTAINER_CONCURRENCY=1")
	client := httpClient(t, "h2c")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	post := func(path string, body io.Reader) error {
		r, _ := http.NewRequestWithContext(ctx, "POST", p.url(path), body)
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if want := "4194304 <nil>"; err != nil || string(b) != want {
			return fmt.Errorf("got %d %q, %v, want %q", answer.StatusCode, b, err, want)
		}
		return nil
	}
	body, sender := io.Pipe()
	ends := make(chan error, 10)
	go func() { ends <- post("/first", body) }()
	go sender.Write([]byte("x"))
	<-arrived
	var sent atomic.Int64
	for range cap(ends) - 1 {
		go func() { ends <- post("/waits", io.TeeReader(io.LimitReader(zero{}, 4<<20), counter{&sent})) }()
	}
	// Wait until no data is transferred for 100 ms.
	for last := int64(-1); last != sent.Load() || last == 0; time.Sleep(100 * time.Millisecond) {
		last = sent.Load()
	}
	go func() {
		sender.Write(make([]byte, 4<<20-1))
		sender.Close()
	}()
	for range cap(ends) {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
