package http1_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// A blocking app holds each request until it is freed, but those to /p. It tells
// how many have come and how many of their connections have ended before.
type blocking struct {
	running, gone atomic.Int32
	free          chan struct{}
}

func newBlocking() *blocking { return &blocking{free: make(chan struct{})} }

func (b *blocking) play(p *peer) {
	for m := p.request(); m != nil; m = p.request() {
		if m.target() == "/p" {
			p.say(ok("/p"))
			continue
		}
		b.running.Add(1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = p.in.Peek(1)
		}()
		select {
		case <-b.free:
			p.say(ok(m.target()))
			<-ended
		case <-ended:
			b.gone.Add(1)
		}
	}
}

func TestAClientThatLeavesIsNoticed(t *testing.T) {
	leave := map[string]func(*client){
		"FIN":        func(c *client) { c.Close() },
		"half-close": func(c *client) { c.CloseWrite() },
		"reset":      func(c *client) { c.SetLinger(0); c.Close() },
		"behind more requests": func(c *client) {
			c.send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.1\r\n")
			c.Close()
		},
		"behind a full buffer": func(c *client) {
			c.send(strings.Repeat("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n", 3000))
			c.Close()
		},
	}
	for name, leave := range leave {
		for _, where := range []string{"queued", "queued with a body", "forwarded", "forwarded with a body", "inside its body"} {
			t.Run(name+" while "+where, func(t *testing.T) {
				app := newBlocking()
				h := build(t, newApp(t, app.play), func(p *queue.Proxy, _ *settings) { p.Limit = queue.NewLimit(1, 5) })
				defer close(app.free)
				c, want := h.dial(), queue.Waiting
				switch where {
				case "forwarded":
					c.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
				case "forwarded with a body":
					c.send("POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
				case "inside its body":
					if strings.HasPrefix(name, "behind") {
						t.Skip("what comes is its body")
					}
					c.send("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc")
					h.inFlight(1)
				default:
					first := h.dial()
					first.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
					h.poll("running request", func() bool { return app.running.Load() == 1 })
					if c, want = h.dial(), queue.Queued; where == "queued" {
						c.send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
					} else {
						c.send("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
					}
					h.poll("waiting request", func() bool { _, waiting := h.proxy.Limit.Load(); return waiting == 1 })
				}
				if strings.HasPrefix(where, "forwarded") {
					h.poll("running request", func() bool { return app.running.Load() == 1 })
				}
				leave(c)
				o := h.observed(1)[0]
				if where == "inside its body" && o.Phase == queue.Dialling {
					want = queue.Dialling // it may leave so early
				}
				if o.Why != queue.ClientGone || o.Status != 499 || o.Phase != want {
					t.Errorf("got %v, %d, %v, want %v, 499, %v", o.Why, o.Status, o.Phase, queue.ClientGone, want)
				}
				if strings.HasPrefix(where, "forwarded") {
					h.poll("cancelled request at the app", func() bool { return app.gone.Load() == 1 })
				} else if _, waiting := h.proxy.Limit.Load(); waiting != 0 {
					t.Errorf("got %d waiting, want 0", waiting)
				}
			})
		}
	}
}

func TestAClientThatLeavesInsideTheResponseIsNoticed(t *testing.T) {
	ended := make(chan struct{})
	h := build(t, newApp(t, func(p *peer) {
		p.request()
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		p.hang()
		close(ended)
	}), nil)
	c := h.dial()
	c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := readHead(c.r); err != nil {
		t.Fatal(err)
	}
	c.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("got an app that is still asked, want its connection closed")
	}
	if o := h.observed(1)[0]; o.Why != queue.ClientGone || o.Status != 200 || o.Phase != queue.Streaming {
		t.Errorf("got %v, %d, %v, want %v, 200, %v", o.Why, o.Status, o.Phase, queue.ClientGone, queue.Streaming)
	}
}

// The context of a request that somebody wanted to see ends with its client.
func TestTheRequestsContextEndsWhenTheClientLeaves(t *testing.T) {
	asked := make(chan struct{})
	h := build(t, newApp(t, echo), func(p *queue.Proxy, _ *settings) {
		p.Ready = func(ctx context.Context) error {
			close(asked)
			<-ctx.Done()
			return ctx.Err()
		}
	})
	c := h.dial()
	c.send("GET / HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\n\r\n")
	<-asked
	c.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.shutdown()
	}()
	select {
	case <-done:
	case <-time.After(patience / 2):
		t.Fatal("got a probe that still waits, want it to end with its client")
	}
}

func TestEachClockFiresInItsPhase(t *testing.T) {
	const soon = 30 * time.Millisecond
	silent := func(p *peer) { p.request(); p.hang() }
	begun := func(p *peer) {
		p.request()
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n")
		p.hang()
	}
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, v := range []struct {
		name   string
		clocks queue.Clocks
		app    func(*peer)
		text   string
		why    queue.Why
		phase  queue.Phase
		status int // 0: the response is cut
		stays  bool
	}{
		{"request, before the response", queue.Clocks{Request: soon}, silent, get, queue.RequestTimeout, queue.Waiting, 504, true},
		{"response start", queue.Clocks{ResponseStart: soon, Request: time.Hour}, silent, get, queue.ResponseStartTimeout, queue.Waiting, 504, true},
		{"idle, before the response", queue.Clocks{Idle: soon}, silent, get, queue.IdleTimeout, queue.Waiting, 504, true},
		{"request, behind a body", queue.Clocks{Request: soon}, silent, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", queue.RequestTimeout, queue.Waiting, 504, true},
		{"request, in a body", queue.Clocks{Request: soon}, silent, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab", queue.RequestTimeout, queue.Waiting, 504, false},
		{"body", queue.Clocks{Body: soon, Request: time.Hour}, silent, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab", queue.IdleTimeout, queue.Waiting, 504, false},
		{"body in chunks", queue.Clocks{Body: soon, Request: time.Hour}, silent, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", queue.IdleTimeout, queue.Waiting, 504, false},
		{"request, in the response", queue.Clocks{Request: soon}, begun, get, queue.RequestTimeout, queue.Streaming, 0, false},
		{"idle, in the response", queue.Clocks{Idle: soon, ResponseStart: time.Hour}, begun, get, queue.IdleTimeout, queue.Streaming, 0, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			play := func(p *peer) {
				b, _ := p.in.Peek(6)
				if string(b) == "GET /a" {
					echo(p)
					return
				}
				v.app(p)
			}
			h := build(t, newApp(t, play), func(p *queue.Proxy, _ *settings) { p.Clocks = v.clocks })
			c := h.dial()
			c.send(v.text)
			_, m, err := readResponse(c.r, "GET")
			switch {
			case m == nil:
				t.Fatalf("got %v, want a response", err)
			case v.status == 0 && (err == nil || m.body != "begun"):
				t.Errorf("got %q, %v, want a broken response", m.body, err)
			case v.status != 0 && (m.status() != v.status || m.body != "request timeout" || err != nil):
				t.Errorf("got %s %q, %v, want %d", m.start, m.body, err, v.status)
			}
			if o := h.observed(1)[0]; o.Why != v.why || o.Phase != v.phase {
				t.Errorf("got %v while %v, want %v while %v", o.Why, o.Phase, v.why, v.phase)
			}
			if v.stays != (m.get("connection") == "") && v.status != 0 {
				t.Errorf("got Connection: %q, want the connection to stay: %v", m.get("connection"), v.stays)
			}
			if !v.stays {
				c.ended()
				return
			}
			for range 3 { // no deadline of the first request is left for the others
				time.Sleep(soon / 3)
				c.get("/after")
			}
			h.wantCounts(4, 0)
		})
	}
}

func TestAQueueThatIsFullAnswers503(t *testing.T) {
	for name, v := range map[string]struct {
		text  string
		stays bool
	}{
		"no body":                  {"GET /p HTTP/1.1\r\nHost: a\r\n\r\n", true},
		"a body that has arrived":  {"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", true},
		"a body that has not":      {"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell", false},
		"chunks that have arrived": {"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			app := newBlocking()
			h := build(t, newApp(t, app.play), func(p *queue.Proxy, _ *settings) { p.Limit = queue.NewLimit(1, 0) })
			first := h.dial()
			first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
			h.poll("running request", func() bool { return app.running.Load() == 1 })
			c := h.dial()
			c.send(v.text)
			m := c.receive("GET")
			if want := `queue-proxy; error=connection_limit_reached; details="queue-full"`; m.status() != 503 || m.get("proxy-status") != want ||
				m.get("retry-after") != "1" || m.body != "pending request queue full\n" {
				t.Errorf("got %+v, want 503, %s", m, want)
			}
			if stays := m.get("connection") == ""; stays != v.stays {
				t.Errorf("got Connection: %q, want the connection to stay: %v", m.get("connection"), v.stays)
			}
			close(app.free)
			first.wantBody("/first")
			if v.stays {
				h.poll("free slot", func() bool { running, _ := h.proxy.Limit.Load(); return running == 0 })
				c.get("/after")
			} else {
				c.ended()
			}
		})
	}
}

func TestARequestThatWaitedIsServedInItsTurn(t *testing.T) {
	app := newBlocking()
	a := newApp(t, app.play)
	h := build(t, a, func(p *queue.Proxy, _ *settings) {
		p.Limit, p.Clocks = queue.NewLimit(1, 10), queue.Clocks{Queue: time.Hour, Request: time.Hour}
	})
	var clients []*client
	for i := range 5 {
		c := h.dial()
		c.send(fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", i))
		h.inFlight(i + 1)
		clients = append(clients, c)
	}
	close(app.free)
	for i, c := range clients {
		c.wantBody(fmt.Sprintf("/%d", i))
	}
	if got, want := strings.Join(a.lines(), "|"), "POST /0 HTTP/1.1|POST /1 HTTP/1.1|POST /2 HTTP/1.1|POST /3 HTTP/1.1|POST /4 HTTP/1.1"; got != want {
		t.Errorf("the app got %s, want %s", got, want)
	}
}

func TestAnOldWaitDoesNotHarmTheNextRequest(t *testing.T) {
	app := newBlocking()
	h := build(t, newApp(t, app.play), func(p *queue.Proxy, _ *settings) {
		p.Limit, p.Clocks = queue.NewLimit(1, 10), queue.Clocks{Queue: 30 * time.Millisecond}
	})
	first := h.dial()
	first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
	h.poll("running request", func() bool { return app.running.Load() == 1 })
	c := h.dial()
	c.send("GET /late HTTP/1.1\r\nHost: a\r\n\r\n")
	if m := c.receive("GET"); m.status() != 503 || !strings.Contains(m.get("proxy-status"), "queue-timeout") {
		t.Errorf("got %s, %s, want 503, queue-timeout", m.start, m.get("proxy-status"))
	}
	close(app.free)
	first.wantBody("/first")
	c.get("/after")
}

func TestTheDrainsDeadlineCutsWhatIsInFlight(t *testing.T) {
	app := newBlocking()
	h := build(t, newApp(t, func(p *peer) {
		if b, _ := p.in.Peek(6); string(b) == "GET /s" {
			p.request()
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbegun")
			p.hang()
			return
		}
		app.play(p)
	}), func(p *queue.Proxy, _ *settings) { p.Limit = queue.NewLimit(2, 5) })
	defer close(app.free)
	stream := h.dial()
	stream.send("GET /s HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := readHead(stream.r); err != nil {
		t.Fatal(err)
	}
	waits := h.dial()
	waits.send("GET /w HTTP/1.1\r\nHost: a\r\n\r\n")
	h.poll("running request", func() bool { return app.running.Load() == 1 })
	queued := h.dial()
	queued.send("GET /q HTTP/1.1\r\nHost: a\r\n\r\n")
	h.inFlight(3)
	h.proxy.Drain.Begin(true)
	h.proxy.Drain.Abort()
	for _, c := range []*client{waits, queued} {
		m := c.receive("GET")
		if want := `queue-proxy; error=destination_unavailable; details="draining"`; m.status() != 503 || m.body != "shutting down\n" || m.get("proxy-status") != want || m.get("connection") != "close" {
			t.Errorf("got %+v, want 503, %s, close", m, want)
		}
		c.ended()
	}
	if b, _ := io.ReadAll(stream.r); string(b) != "begun" {
		t.Errorf("got %q, want the stream cut behind \"begun\"", b)
	}
}

func TestWhileDrainingEachAnswerSendsItsClientAway(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	c, d := h.dial(), h.dial()
	c.get("/before")
	d.get("/before")
	h.proxy.Drain.Begin(true)
	c.send("GET /p HTTP/1.1\r\nHost: a\r\n\r\n")
	if m := c.receive("GET"); m.status() != 200 || m.get("connection") != "close" {
		t.Errorf("got %s, Connection: %s, want 200, close", m.start, m.get("connection"))
	}
	c.ended()
	d.send("GET /p HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\n\r\n")
	if m := d.receive("GET"); m.status() != 503 || m.body != "shutting down\n" || m.get("connection") != "close" {
		t.Errorf("got %s %q, Connection: %s, want 503, close", m.start, m.body, m.get("connection"))
	}
	d.ended()
}

func TestBothSidesMayEndTheConnection(t *testing.T) {
	h := build(t, newApp(t, says(map[string]string{"close": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi<close>"})), nil)
	c := h.dial()
	c.send("GET / HTTP/1.1\r\nHost: a\r\nX-Say: close\r\n\r\n")
	if m := c.receive("GET"); m.get("connection") != "" {
		t.Errorf("got Connection: %s, want none: it is between us and the app", m.get("connection"))
	}
	c.send("GET /p HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\nHost: a\r\n\r\n")
	if m := c.receive("GET"); m.body != "/p" || m.get("connection") != "close" {
		t.Errorf("got %q, Connection: %s, want /p, close", m.body, m.get("connection"))
	}
	c.ended()
	h.wantCounts(2, 0)
}

func TestAHeadThatDoesNotComeInTimeEndsTheConnection(t *testing.T) {
	h := build(t, newApp(t, echo), func(_ *queue.Proxy, s *settings) { s.HeaderTimeout = 50 * time.Millisecond })
	c := h.dial()
	c.get("/p")
	time.Sleep(100 * time.Millisecond) // between two requests nothing has to come
	c.get("/p")
	c.send("GET /slow HTTP/1.1\r\nHo")
	c.ended()
}

func TestShutdownEndsIdleConnectionsAndServesTheOthers(t *testing.T) {
	app := newBlocking()
	h := build(t, newApp(t, app.play), nil)
	var idle []*client
	for range 10 {
		c := h.dial()
		c.get("/p")
		idle = append(idle, c)
	}
	never := h.dial()
	busy := h.dial()
	busy.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n")
	body := h.dial()
	body.send("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nha")
	head := h.dial()
	head.send("GET /head HTTP/1.1\r\nHo")
	h.inFlight(2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.shutdown()
	}()
	for _, c := range append(idle, never) {
		c.ended()
	}
	body.send("lf")
	head.send("st: a\r\n\r\n")
	h.poll("three running requests", func() bool { return app.running.Load() == 3 })
	close(app.free)
	busy.wantBody("/busy")
	body.wantBody("/body")
	head.wantBody("/head")
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("got a Shutdown that hangs, want it over")
	}
}

func TestShutdownsTimeIsItsLimit(t *testing.T) {
	app := newBlocking()
	h := build(t, newApp(t, app.play), func(_ *queue.Proxy, s *settings) { s.Connections = connlimit.New(2) })
	defer close(app.free)
	var clients []*client
	for range 2 {
		c := h.dial()
		c.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n")
		clients = append(clients, c)
	}
	h.poll("running requests", func() bool { return app.running.Load() == 2 })
	h.dial() // there is no place for it
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	h.end.Do(func() {
		if err := h.http1.Shutdown(ctx); err != context.DeadlineExceeded {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		_ = h.http2.Shutdown(ctx)
	})
	for _, c := range clients {
		if _, err := c.r.ReadByte(); err == nil || isTimeout(err) {
			t.Errorf("got %v, want the end of the connection", err)
		}
	}
}

func TestNoMoreConnectionsThanTheLimit(t *testing.T) {
	app := newBlocking()
	h := build(t, newApp(t, app.play), func(_ *queue.Proxy, s *settings) { s.Connections = connlimit.New(2) })
	var clients []*client
	for range 2 {
		c := h.dial()
		c.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n")
		clients = append(clients, c)
	}
	h.poll("running requests", func() bool { return app.running.Load() == 2 })
	third := h.dial()
	third.send("GET /third HTTP/1.1\r\nHost: a\r\n\r\n")
	third.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := third.r.Peek(1); !isTimeout(err) {
		t.Errorf("got %v, want silence while both places are taken", err)
	}
	third.SetReadDeadline(time.Now().Add(patience))
	close(app.free)
	for _, c := range clients {
		c.wantBody("/busy")
	}
	third.wantBody("/third") // and one of the two has been closed for it

	// A connection that was handed over keeps its place until it ends.
	third.send("GET / HTTP/1.1\r\nHost: a\r\nX: a\nY: b\r\n\r\n")
	third.receive("GET")
	third.ended()
	h.dial().get("/d")
	h.dial().get("/e")
}

// A request that the engine has got is answered, whenever Shutdown comes.
func TestNoRequestIsLostInAShutdown(t *testing.T) {
	for round := range 10 {
		var served atomic.Int64
		a := newApp(t, func(p *peer) {
			for m := p.request(); m != nil; m = p.request() {
				served.Add(1)
				p.say(ok(m.target()))
			}
		})
		h := build(t, a, nil)
		var answered atomic.Int64
		var all sync.WaitGroup
		stop := make(chan struct{})
		for n := range 8 {
			all.Go(func() {
				var c net.Conn
				var r *bufio.Reader
				for i := 0; ; i++ {
					if c == nil {
						select {
						case <-stop:
							return
						default:
						}
						var err error
						if c, err = net.Dial("tcp", h.address); err != nil {
							return
						}
						r = bufio.NewReader(c)
						c.SetDeadline(time.Now().Add(patience))
					}
					text := "GET /p HTTP/1.1\r\nHost: a\r\n\r\n"
					if n%2 == 1 {
						text = "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"
					}
					if _, err := io.WriteString(c, text); err != nil {
						return // closed before: nothing was accepted
					}
					if n%2 == 1 {
						io.WriteString(c, "hello")
					}
					_, m, err := readResponse(r, "GET")
					if err != nil { // the connection had been closed before the request came
						c.Close()
						return
					}
					if m.status() != 200 || m.body != "/p" {
						t.Errorf("got %s %q, want 200 /p", m.start, m.body)
					}
					answered.Add(1)
					if m.get("connection") == "close" || i%50 == 49 {
						c.Close()
						c = nil
					}
				}
			})
		}
		time.Sleep(time.Duration(10+7*round) * time.Millisecond)
		h.shutdown()
		close(stop)
		all.Wait()
		if served.Load() != answered.Load() {
			t.Errorf("got %d answers to %d requests at the app, want as many", answered.Load(), served.Load())
		}
		if n := len(h.observed(int(answered.Load()))); int64(n) != answered.Load() {
			t.Errorf("got %d requests that were accepted and %d answers, want as many", n, answered.Load())
		}
	}
}

// What is given to the client is more than all sockets hold.
func TestAClientThatTakesNoHintsIsEndedByTheClocks(t *testing.T) {
	hint := "HTTP/1.1 103 Early Hints\r\nLink: " + strings.Repeat("x", 200<<10) + "\r\n\r\n"
	for name, c := range map[string]struct {
		clocks queue.Clocks
		why    queue.Why
	}{
		"request": {queue.Clocks{Request: time.Second}, queue.RequestTimeout},
		"send":    {queue.Clocks{Send: time.Second}, queue.IdleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t, newApp(t, func(p *peer) {
				p.request()
				for range 90 {
					p.say(hint)
				}
				p.say(ok("it"))
			}), func(p *queue.Proxy, _ *settings) { p.Clocks = c.clocks })
			client := h.dial()
			client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			if o := h.observed(1)[0]; o.Why != c.why || o.Begun {
				t.Errorf("got %v, begun %v, want %v, false", o.Why, o.Begun, c.why)
			}
			h.wantCounts(1, 0)
			client.SetReadDeadline(time.Now().Add(time.Second))
			said, _ := io.ReadAll(client.r)
			if rest := strings.ReplaceAll(string(said), hint, ""); !strings.HasPrefix(hint, rest) && !strings.HasPrefix(rest, "HTTP/1.1 504") {
				t.Errorf("got %.100q behind the hints, want a part of one, or an answer where they were whole", rest)
			}
		})
	}
}

// What has come before the user container's mistake is given to a client, which takes
// nothing of it.
func TestAClientThatTakesNoCutAnswerIsEndedByTheClocks(t *testing.T) {
	begun := make(chan struct{})
	h := build(t, newApp(t, func(p *peer) {
		p.request()
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5000\r\n" + strings.Repeat("x", 0x5000) + "\r\n")
		<-begun // behind so much, all of the next is read at once
		p.say("5000\r\n" + strings.Repeat("x", 0x5000) + "\r\nrubbish\r\n")
	}), func(p *queue.Proxy, s *settings) {
		p.Clocks = queue.Clocks{Send: time.Second}
		s.narrow = true
	})
	client := h.dialBy(&net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error { return raw.Control(narrow) }})
	client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := io.CopyN(io.Discard, client.r, 0x5000); err != nil {
		t.Fatal(err)
	}
	close(begun)
	if o := h.observed(1)[0]; o.Why != queue.AppGarbage {
		t.Errorf("got %v, want %v", o.Why, queue.AppGarbage)
	}
}
