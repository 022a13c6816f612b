package nethttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/nethttp"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/stats"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 10 * time.Second

// A house is an engine in front of an app, with everything that lies between.
type house struct {
	t       *testing.T
	proxy   *queue.Proxy
	server  *nethttp.Server
	address string
	log     *safeBuffer

	mu   sync.Mutex
	seen []queue.Observation
}

// build makes a house. change may alter its parts before anybody comes.
func build(t *testing.T, app http.Handler, change func(*queue.Proxy, *nethttp.Settings)) *house {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "PRI" { // net/http shows the question whether it speaks HTTP/2 to its handlers
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
			return
		}
		app.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	return buildOn(t, server.Listener.Addr().(*net.TCPAddr).Port, change)
}

// buildOn makes a house in front of an app that listens on port.
func buildOn(t *testing.T, port int, change func(*queue.Proxy, *nethttp.Settings)) *house {
	t.Helper()
	h := &house{t: t, log: &safeBuffer{}}
	h.proxy = &queue.Proxy{
		Ready: func(context.Context) error { return nil },
		Drain: queue.NewDrain(queue.DrainSettings{}),
		Stats: stats.New(time.Now()),
		Observe: func(o *queue.Observation) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.seen = append(h.seen, *o)
		},
	}
	s := nethttp.Settings{MaxHeaderBytes: 1 << 20, AppHost: fmt.Sprint("127.0.0.1:", port)}
	if change != nil {
		change(h.proxy, &s)
	}
	watcher, err := hangup.New()
	if err != nil {
		t.Fatal(err)
	}
	upstreamApp := upstream.New(upstream.Settings{Port: port, ConnectRetry: 50 * time.Millisecond})
	client := h2client.New(h2client.Settings{Dial: upstreamApp.Dial, Unsettled: upstreamApp.Forget})
	h.server = nethttp.New(s, h.proxy, upstreamApp, client, watcher, log.New(h.log, "", 0))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = ln.Addr().String()
	done := make(chan error)
	go func() { done <- h.server.Serve(ln, nil) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = h.server.Shutdown(ctx)
		if err := <-done; err != nil {
			t.Errorf("Serve: got %v, want nil", err)
		}
		upstreamApp.Close()
		watcher.Close()
		if text := h.log.String(); strings.Contains(text, "panic") || strings.Contains(text, "superfluous") {
			t.Errorf("net/http said:\n%s", text)
		}
	})
	return h
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// observed waits for n observations.
func (h *house) observed(n int) []queue.Observation {
	h.t.Helper()
	var seen []queue.Observation
	h.poll(fmt.Sprintf("%d observations", n), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		seen = slices.Clone(h.seen)
		return len(seen) >= n
	})
	return seen
}

func (h *house) poll(what string, ok func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("got no %s within %v", what, patience)
		}
	}
}

// A client is a connection that a test writes by hand.
type client struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func (h *house) dial() *client {
	h.t.Helper()
	c, err := net.Dial("tcp", h.address)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &client{Conn: c, t: h.t, r: bufio.NewReader(c)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// receive reads one response and its body.
func (c *client) receive(method string) (*http.Response, string) {
	c.t.Helper()
	r, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("reading a response: %v", err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Fatalf("reading a body: %v", err)
	}
	return r, string(body)
}

// ended reports an error unless the connection ends without another byte.
func (c *client) ended() {
	c.t.Helper()
	if b, err := c.r.ReadByte(); err == nil {
		rest, _ := io.ReadAll(c.r)
		c.t.Errorf("got %q, want the connection to end", string(b)+string(rest))
	} else if isTimeout(err) {
		c.t.Error("got silence, want the connection to end")
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// targets records the request targets that an app sees.
type targets struct {
	mu   sync.Mutex
	list []string
}

func (l *targets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	l.mu.Lock()
	l.list = append(l.list, r.RequestURI)
	l.mu.Unlock()
	io.WriteString(w, r.RequestURI)
}

func (l *targets) get() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

func TestPipelinedRequestsAreAnsweredInOrderOnOneConnection(t *testing.T) {
	h := build(t, &targets{}, nil)
	c := h.dial()
	c.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n" +
		"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" +
		"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
		"GET /d HTTP/1.1\r\nHost: a\r\n\r\n")
	for _, want := range []string{"/a", "/b", "/c", "/d"} {
		if _, got := c.receive("GET"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAHeadSentByteByByteIsServed(t *testing.T) {
	h := build(t, &targets{}, nil)
	c := h.dial()
	for range 2 { // the second while net/http waits for a hang-up
		for _, b := range []byte("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab") {
			c.send(string(b))
		}
		if _, got := c.receive("POST"); got != "/slow" {
			t.Errorf("got %q, want %q", got, "/slow")
		}
	}
}

func TestTargetsArriveByteForByte(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			line, _ := r.ReadString('\n')
			lines <- strings.TrimRight(line, "\r\n")
			io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			for line != "\r\n" && line != "" {
				line, _ = r.ReadString('\n')
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close() })
	h := buildOn(t, ln.Addr().(*net.TCPAddr).Port, nil)
	for _, target := range []string{
		"/", "//", "/a//b", "/a/../b", "/%2f%2F", "/a?x=1;y=2&z=%zz", "/p\"q|r", "/\xc3\xa9/%2f", "/?", "/a?b?c", "/a;b=c", "/*", "/\\",
	} {
		c := h.dial()
		c.send("GET " + target + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		if r, body := c.receive("GET"); r.StatusCode != 204 {
			t.Errorf("%q: got %d %q, want 204", target, r.StatusCode, body)
			continue
		}
		if got, want := <-lines, "GET "+target+" HTTP/1.1"; got != want {
			t.Errorf("the app got %q, want %q", got, want)
		}
	}
}

func TestAHeadOverTheLimitIsAnswered431(t *testing.T) {
	h := build(t, &targets{}, func(_ *queue.Proxy, s *nethttp.Settings) { s.MaxHeaderBytes = 8 << 10 })
	for _, size := range []int{13 << 10, 100 << 10} { // net/http takes 4 KiB more than it is told
		c := h.dial()
		c.send("GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", size) + "\r\n\r\n")
		if r, _ := c.receive("GET"); r.StatusCode != 431 {
			t.Errorf("%d bytes: got %d, want 431", size, r.StatusCode)
		}
		c.ended()
	}
}

func TestAnAnswerToAFinishedPostKeepsTheConnection(t *testing.T) {
	h := build(t, &targets{}, nil)
	for _, body := range []string{
		"Content-Length: 5\r\n\r\nhello",
		"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	} {
		c := h.dial()
		for range 50 {
			c.send("POST /x HTTP/1.1\r\nHost: a\r\n" + body)
			if r, _ := c.receive("POST"); r.StatusCode != 200 || r.Close {
				t.Fatalf("got %d, close %v, want 200, close false", r.StatusCode, r.Close)
			}
		}
	}
}

func TestAnEarlyAnswerReachesAClientThatStillSends(t *testing.T) {
	h := build(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		io.WriteString(w, "too large")
	}), nil)
	for i := range 20 {
		c := h.dial()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			fmt.Fprintf(c, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 20<<20)
			io.CopyN(c, zeros{}, 20<<20)
		}()
		if r, got := c.receive("POST"); r.StatusCode != 413 || got != "too large" {
			t.Errorf("%d: got %d %q, want 413", i, r.StatusCode, got)
		}
		c.Close()
		<-sent
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAnAnswerOfOurOwnDoesNotWaitForABody(t *testing.T) {
	h := build(t, &targets{}, nil)
	c := h.dial()
	c.send("POST /x HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\nContent-Length: 500\r\n\r\nhello")
	if r, got := c.receive("POST"); r.StatusCode != 200 || got != "queue" || !r.Close {
		t.Errorf("got %d %q, close %v, want 200 queue, close true", r.StatusCode, got, r.Close)
	}
	c.ended()
}

func TestAnAnswerToAnOddRequestDoesNotWaitForItsBody(t *testing.T) {
	h := build(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).EnableFullDuplex() // or the app waits
		io.WriteString(w, "done")
	}), nil)
	for field, want := range map[string]string{"K-Network-Probe: queue": "queue", "X: y": "done"} {
		c := h.dial()
		c.send("POST /x HTTP/1.1\nHost: a\n" + field + "\nContent-Length: 5\n\n")
		if r, got := c.receive("POST"); r.StatusCode != 200 || got != want || !r.Close {
			t.Errorf("got %d %q, close %v, want 200 %q, close true", r.StatusCode, got, r.Close, want)
		}
		c.ended()
	}
}

// blocking is an app whose requests wait to be freed, and that tells when the
// client of one has gone.
type blocking struct {
	running atomic.Int32
	gone    atomic.Int32
	free    chan struct{}
}

func (b *blocking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.running.Add(1)
	defer b.running.Add(-1)
	select {
	case <-b.free:
	case <-r.Context().Done():
		b.gone.Add(1)
	}
}

func TestAClientThatLeavesIsNoticed(t *testing.T) {
	leave := map[string]func(*net.TCPConn){
		"FIN":        func(c *net.TCPConn) { c.Close() },
		"half-close": func(c *net.TCPConn) { c.CloseWrite() },
		"reset":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"behind more requests": func(c *net.TCPConn) {
			io.WriteString(c, "GET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.1\r\n")
			c.Close()
		},
	}
	for name, leave := range leave {
		for _, where := range []string{"waiting", "forwarded", "with a body"} {
			t.Run(name+" while "+where, func(t *testing.T) {
				app := &blocking{free: make(chan struct{})}
				defer close(app.free)
				h := build(t, app, func(p *queue.Proxy, _ *nethttp.Settings) { p.Limit = queue.NewLimit(1, 5) })
				first := h.dial()
				first.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
				h.poll("running request", func() bool { return app.running.Load() == 1 })
				c, want := first, queue.Waiting
				if where != "forwarded" {
					c, want = h.dial(), queue.Queued
					if c.send("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"); where == "with a body" {
						c.send("abc")
					}
					h.poll("waiting request", func() bool { _, waiting := h.proxy.Limit.Load(); return waiting == 1 })
				}
				leave(c.Conn.(*net.TCPConn))
				o := h.observed(1)[0]
				if o.Why != queue.ClientGone || o.Status != 499 || o.Phase != want {
					t.Errorf("got %v, %d, %v, want %v, 499, %v", o.Why, o.Status, o.Phase, queue.ClientGone, want)
				}
				if where == "forwarded" {
					h.poll("cancelled request at the app", func() bool { return app.gone.Load() == 1 })
				} else if _, waiting := h.proxy.Limit.Load(); waiting != 0 {
					t.Errorf("got %d waiting, want 0", waiting)
				}
			})
		}
	}
}

func TestAClientThatLeavesWithItsAnswerIsNoFailure(t *testing.T) {
	h := build(t, &targets{}, nil)
	const requests = 300
	for range requests {
		c := h.dial()
		c.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
		c.receive("GET")
		c.Close()
	}
	for _, o := range h.observed(requests) {
		if o.Why != queue.OK {
			t.Fatalf("got %v, want %v", o.Why, queue.OK)
		}
	}
}

func TestEachClockFiresInItsPhase(t *testing.T) {
	const soon = 30 * time.Millisecond
	silent := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	begun := func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begun")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	for _, v := range []struct {
		name   string
		clocks queue.Clocks
		app    http.HandlerFunc
		why    queue.Why
		phase  queue.Phase
		status int // 0: the response is cut
	}{
		{"request, before the response", queue.Clocks{Request: soon}, silent, queue.RequestTimeout, queue.Waiting, 504},
		{"response start", queue.Clocks{ResponseStart: soon, Request: time.Hour}, silent, queue.ResponseStartTimeout, queue.Waiting, 504},
		{"idle, before the response", queue.Clocks{Idle: soon}, silent, queue.IdleTimeout, queue.Waiting, 504},
		{"request, in the response", queue.Clocks{Request: soon}, begun, queue.RequestTimeout, queue.Streaming, 0},
		{"idle, in the response", queue.Clocks{Idle: soon, ResponseStart: time.Hour}, begun, queue.IdleTimeout, queue.Streaming, 0},
	} {
		t.Run(v.name, func(t *testing.T) {
			h := build(t, v.app, func(p *queue.Proxy, _ *nethttp.Settings) { p.Clocks = v.clocks })
			for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
				c := h.httpClient(protocol)
				r, err := c.Get("http://" + h.address + "/")
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(r.Body)
				r.Body.Close()
				if v.status == 0 && (err == nil || string(body) != "begun") {
					t.Errorf("%s: got %q, %v, want a broken response", protocol, body, err)
				}
				if v.status != 0 && (r.StatusCode != v.status || string(body) != "request timeout" || err != nil) {
					t.Errorf("%s: got %d %q, %v, want %d", protocol, r.StatusCode, body, err, v.status)
				}
			}
			for _, o := range h.observed(2) {
				if o.Why != v.why || o.Phase != v.phase {
					t.Errorf("got %v while %v, want %v while %v", o.Why, o.Phase, v.why, v.phase)
				}
			}
		})
	}
}

func TestARequestThatIsSentTwiceIsObservedAsReplayed(t *testing.T) {
	type key struct{}
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		var broken atomic.Bool
		app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/it" && !broken.Swap(true) {
				r.Context().Value(key{}).(net.Conn).Close()
			}
		}))
		app.Config.Protocols = new(http.Protocols)
		app.Config.Protocols.SetHTTP1(true)
		app.Config.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2")
		app.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) }
		app.Start()
		t.Cleanup(app.Close)
		h := buildOn(t, app.Listener.Addr().(*net.TCPAddr).Port, nil)
		client := h.httpClient(protocol)
		for _, path := range []string{"/first", "/it"} {
			r, err := client.Get("http://" + h.address + path)
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if r.StatusCode != 200 {
				t.Errorf("%s %s: got %d, want 200", protocol, path, r.StatusCode)
			}
		}
		if o := h.observed(2); o[0].Replayed || !o[1].Replayed {
			t.Errorf("%s: observed as replayed: got %v, %v, want false, true", protocol, o[0].Replayed, o[1].Replayed)
		}
	}
}

// What has been swallowed in HTTP/1.1 may have been acted on by one that speaks it.
func TestAFirstRequestThatIsSwallowedIsSentInHTTP2ToOneThatSpeaksNothingElse(t *testing.T) {
	for _, both := range []bool{true, false} {
		for _, body := range []string{"", "hello"} {
			var seen atomic.Int32
			type key struct{}
			app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost && seen.Add(1) == 1 && r.ProtoMajor == 1 {
					r.Context().Value(key{}).(net.Conn).Close()
				}
			}))
			app.Config.Protocols = new(http.Protocols)
			app.Config.Protocols.SetHTTP1(both)
			app.Config.Protocols.SetUnencryptedHTTP2(true)
			app.Config.ErrorLog = log.New(io.Discard, "", 0)
			app.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) }
			app.Start()
			t.Cleanup(app.Close)
			h := buildOn(t, app.Listener.Addr().(*net.TCPAddr).Port, nil)
			r, err := h.httpClient("HTTP/1.1").Post("http://"+h.address+"/", "", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			want := map[bool]int{true: 502, false: 200}[both]
			if r.StatusCode != want || seen.Load() != 1 {
				t.Errorf("speaks HTTP/1.1 too %v, body %q: got %d, sent %d times, want %d, once", both, body, r.StatusCode, seen.Load(), want)
			}
		}
	}
}

// httpClient returns a client that speaks one version alone.
func (h *house) httpClient(protocol string) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(protocol == "HTTP/1.1")
	p.SetUnencryptedHTTP2(protocol == "HTTP/2")
	tr := &http.Transport{Protocols: p, DisableCompression: true}
	h.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

func TestAResponseCutShortToAnHTTP10ClientEndsInAReset(t *testing.T) {
	h := build(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "some")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}), nil)
	c := h.dial()
	c.send("GET / HTTP/1.0\r\n\r\n")
	_, err := io.ReadAll(c.r)
	if err == nil || isTimeout(err) {
		t.Errorf("got %v at the end, want a reset: a clean end says that the response is whole", err)
	}
}

func TestTheDrainsDeadlineCutsWhatIsInFlight(t *testing.T) {
	app := &blocking{free: make(chan struct{})}
	defer close(app.free)
	h := build(t, app, nil)
	c := h.dial()
	c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	h.poll("running request", func() bool { return app.running.Load() == 1 })
	h.proxy.Drain.Begin(true)
	h.proxy.Drain.Abort()
	r, got := c.receive("GET")
	if want := `queue-proxy; error=destination_unavailable; details="draining"`; r.StatusCode != 503 || got != "shutting down\n" || r.Header.Get("Proxy-Status") != want || !r.Close {
		t.Errorf("got %d %q, Proxy-Status %q, close %v, want 503, %q, close true", r.StatusCode, got, r.Header.Get("Proxy-Status"), r.Close, want)
	}
}

func TestTheSlotIsHeldUntilTheAppIsDone(t *testing.T) {
	var most, now atomic.Int32
	h := build(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, strings.Repeat("x", 10_000))
	}), func(p *queue.Proxy, _ *nethttp.Settings) { p.Limit = queue.NewLimit(3, 100) })
	var all sync.WaitGroup
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		client := h.httpClient(protocol)
		for range 10 {
			all.Go(func() {
				for i := range 30 {
					r, err := client.Post("http://"+h.address+"/", "", strings.NewReader(strings.Repeat("y", i*100)))
					if err != nil {
						t.Error(err)
						return
					}
					n, err := io.Copy(io.Discard, r.Body)
					r.Body.Close()
					if r.StatusCode != 200 || n != 10_000 || err != nil {
						t.Errorf("got %d, %d bytes, %v, want 200, 10000", r.StatusCode, n, err)
					}
				}
			})
		}
	}
	all.Wait()
	if got := most.Load(); got > 3 {
		t.Errorf("got %d requests in the app at once, want at most 3", got)
	}
	if running, waiting := h.proxy.Limit.Load(); running != 0 || waiting != 0 {
		t.Errorf("got %d running and %d waiting after the last answer, want none", running, waiting)
	}
}

func TestABodyOverTheLimitIsAnswered413(t *testing.T) {
	h := build(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }),
		func(_ *queue.Proxy, s *nethttp.Settings) { s.MaxBodyBytes = 1000 })
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		for name, body := range map[string]io.Reader{
			"announced": bytes.NewReader(make([]byte, 1001)),
			"chunked":   io.MultiReader(bytes.NewReader(make([]byte, 1001))),
		} {
			r, err := h.httpClient(protocol).Post("http://"+h.address+"/", "", body)
			if err != nil {
				t.Fatalf("%s, %s: %v", protocol, name, err)
			}
			r.Body.Close()
			if r.StatusCode != 413 {
				t.Errorf("%s, %s: got %d, want 413", protocol, name, r.StatusCode)
			}
		}
	}
}

// A timer looks at the request at any time, also when it has just become a tunnel.
func TestAnUpgradeWhileATimerLooksIsNoRace(t *testing.T) {
	const clock = 300 * time.Millisecond
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		time.Sleep(clock * 7 / 10)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: it\r\n\r\n")
	})}
	go server.Serve(ln)
	t.Cleanup(func() { server.Close() })
	h := buildOn(t, ln.Addr().(*net.TCPAddr).Port, func(p *queue.Proxy, _ *nethttp.Settings) { p.Clocks.ResponseStart = clock })
	for range 5 {
		first := h.dial()
		first.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n") // whose ring is left to who has its exchange next
		first.receive("GET")
		time.Sleep(clock / 2)
		c := h.dial()
		c.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: it\r\n\r\n")
		if r, err := http.ReadResponse(c.r, nil); err != nil || r.StatusCode != 101 && r.StatusCode != 504 {
			t.Errorf("got %v, %v, want 101, or 504 on a busy host", r, err)
		}
	}
}
