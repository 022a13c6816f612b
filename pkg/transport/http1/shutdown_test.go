package http1_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestDrainDeadlineAbortsRequests(t *testing.T) {
	app := newBlocking()
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		if b, _ := conn.In.Peek(6); string(b) == "GET /s" {
			conn.Request()
			conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbegun")
			conn.Hang()
			return
		}
		app.serve(conn)
	}), func(p *proxy.Proxy, _ *proxytest.Options) { p.Limit = proxy.NewLimit(2, 5) })
	defer close(app.free)
	stream := server.Dial()
	stream.Send("GET /s HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := harness.ReadHead(stream.In); err != nil {
		t.Fatal(err)
	}
	waits := server.Dial()
	waits.Send("GET /w HTTP/1.1\r\nHost: a\r\n\r\n")
	app.wantRunning(t, 1)
	queued := server.Dial()
	queued.Send("GET /q HTTP/1.1\r\nHost: a\r\n\r\n")
	server.InFlight(3)
	server.Queue.Drain.Begin(true)
	server.Queue.Drain.Abort()
	for _, c := range []*harness.Client{waits, queued} {
		m := c.Receive("GET")
		if want := `queue-proxy; error=destination_unavailable; details="draining"`; m.Status() != 503 || m.Body != "shutting down\n" || m.Get("proxy-status") != want || m.Get("connection") != "close" {
			t.Errorf("got %+v, want 503, %s, close", m, want)
		}
		c.WantEnd()
	}
	if b, _ := io.ReadAll(stream.In); string(b) != "begun" {
		t.Errorf("got %q, want the stream truncated after \"begun\"", b)
	}
}

func TestDrainingResponsesCloseConnection(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	c, d := server.Dial(), server.Dial()
	c.Get("/before")
	d.Get("/before")
	server.Queue.Drain.Begin(true)
	c.Send("GET /p HTTP/1.1\r\nHost: a\r\n\r\n")
	if m := c.Receive("GET"); m.Status() != 200 || m.Get("connection") != "close" {
		t.Errorf("got %s, Connection: %s, want 200, close", m.Start, m.Get("connection"))
	}
	c.WantEnd()
	d.Send("GET /p HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\n\r\n")
	if m := d.Receive("GET"); m.Status() != 503 || m.Body != "shutting down\n" || m.Get("connection") != "close" {
		t.Errorf("got %s %q, Connection: %s, want 503, close", m.Start, m.Body, m.Get("connection"))
	}
	d.WantEnd()
}

func TestShutdownClosesIdleConnections(t *testing.T) {
	app := newBlocking()
	server := proxytest.Start(t, harness.NewApp(t, app.serve), nil)
	var idle []*harness.Client
	for range 10 {
		c := server.Dial()
		c.Get("/p")
		idle = append(idle, c)
	}
	never := server.Dial()
	busy := server.Dial()
	busy.Send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n")
	body := server.Dial()
	body.Send("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nha")
	head := server.Dial()
	head.Send("GET /head HTTP/1.1\r\nHo")
	server.InFlight(2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Shutdown()
	}()
	for _, c := range append(idle, never) {
		c.WantEnd()
	}
	body.Send("lf")
	head.Send("st: a\r\n\r\n")
	app.wantRunning(t, 3)
	close(app.free)
	busy.WantBody("/busy")
	body.WantBody("/body")
	head.WantBody("/head")
	harness.Receive(t, done, "end of Shutdown")
}

func TestShutdownReturnsDeadlineExceeded(t *testing.T) {
	app := newBlocking()
	server := proxytest.Start(t, harness.NewApp(t, app.serve), func(_ *proxy.Proxy, s *proxytest.Options) { s.Connections = netconn.NewConnLimit(2, s.Bounds) })
	defer close(app.free)
	var clients []*harness.Client
	for range 2 {
		c := server.Dial()
		c.Send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n")
		clients = append(clients, c)
	}
	app.wantRunning(t, 2)
	server.Dial() // the second connection waits for a place
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	harness.Equal(t, server.ShutdownWithin(ctx), context.DeadlineExceeded)
	for _, c := range clients {
		if _, err := c.In.ReadByte(); err == nil || harness.IsTimeout(err) {
			t.Errorf("got %v, want the end of the connection", err)
		}
	}
}

// A received request is served, regardless of when Shutdown is called.
func TestShutdownLosesNoRequests(t *testing.T) {
	for round := range 10 {
		var served, answered atomic.Int64
		app := harness.NewApp(t, func(conn *harness.AppConn) {
			for m := conn.Request(); m != nil; m = conn.Request() {
				served.Add(1)
				conn.Send(harness.OK(m.Target()))
			}
		})
		server := proxytest.Start(t, app, nil)
		var clients sync.WaitGroup
		stop := make(chan struct{})
		for n := range 8 {
			text := "GET /p HTTP/1.1\r\nHost: a\r\n\r\n"
			if n%2 == 1 {
				text = "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
			}
			clients.Go(func() {
				for requestUntilClosed(t, server.Address, text, &answered) {
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		// Each round calls Shutdown later.
		harness.Until(t, "answers", func() bool { return answered.Load() > int64(100*round) })
		server.Shutdown()
		close(stop)
		clients.Wait()
		if served.Load() != answered.Load() {
			t.Errorf("got %d answers to %d requests at the app, want as many", answered.Load(), served.Load())
		}
		if n := len(server.Observed(int(answered.Load()))); int64(n) != answered.Load() {
			t.Errorf("got %d requests that were accepted and %d answers, want as many", n, answered.Load())
		}
	}
}

// requestUntilClosed sends at most 50 requests on a connection. It returns false if the proxy closed
// the connection without a response.
func requestUntilClosed(t *testing.T, address, text string, answered *atomic.Int64) bool {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(harness.Patience))
	in := bufio.NewReader(c)
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	for range 50 {
		if _, err := io.WriteString(c, head+"\r\n\r\n"); err != nil {
			return false // the server closed the connection before the request was sent
		}
		if body != "" {
			io.WriteString(c, body)
		}
		_, m, err := harness.ReadResponse(in, "GET")
		if err != nil {
			return false // the server closed the connection before the request arrived
		}
		if m.Status() != 200 || m.Body != "/p" {
			t.Errorf("got %s %q, want 200 /p", m.Start, m.Body)
		}
		answered.Add(1)
		if m.Get("connection") == "close" {
			break
		}
	}
	return true
}
