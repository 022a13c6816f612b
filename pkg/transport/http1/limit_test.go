package http1_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestFullQueueReturns503(t *testing.T) {
	for name, v := range map[string]struct {
		text  string
		stays bool
	}{
		"no body":               {"GET /p HTTP/1.1\r\nHost: a\r\n\r\n", true},
		"complete body":         {"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", true},
		"incomplete body":       {"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell", false},
		"complete chunked body": {"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			app := newBlocking()
			server := proxytest.Start(t, harness.NewApp(t, app.serve), func(p *proxy.Proxy, _ *proxytest.Options) { p.Limit = proxy.NewLimit(1, 0) })
			first := server.Dial()
			first.Send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
			app.wantRunning(t, 1)
			c := server.Dial()
			c.Send(v.text)
			m := c.Receive("GET")
			if want := `queue-proxy; error=connection_limit_reached; details="queue-full"`; m.Status() != 503 || m.Get("proxy-status") != want ||
				m.Get("retry-after") != "1" || m.Body != "pending request queue full\n" {
				t.Errorf("got %+v, want 503, %s", m, want)
			}
			harness.Equal(t, m.Get("connection") == "", v.stays, "Connection", m.Get("connection"), "(the connection to stay)")
			close(app.free)
			first.WantBody("/first")
			if v.stays {
				harness.Until(t, "free slot", func() bool { running, _ := server.Queue.Limit.Load(); return running == 0 })
				c.Get("/after")
			} else {
				c.WantEnd()
			}
		})
	}
}

func TestQueuedRequestsAreServedInOrder(t *testing.T) {
	app := newBlocking()
	a := harness.NewApp(t, app.serve)
	server := proxytest.Start(t, a, func(p *proxy.Proxy, _ *proxytest.Options) {
		p.Limit, p.Clocks = proxy.NewLimit(1, 10), proxy.Clocks{Queue: time.Hour, Request: time.Hour}
	})
	var clients []*harness.Client
	for i := range 5 {
		c := server.Dial()
		c.Send(fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", i))
		server.InFlight(i + 1)
		clients = append(clients, c)
	}
	close(app.free)
	for i, c := range clients {
		c.WantBody(fmt.Sprintf("/%d", i))
	}
	harness.Equal(t, strings.Join(a.Requests(), "|"), "POST /0 HTTP/1.1|POST /1 HTTP/1.1|POST /2 HTTP/1.1|POST /3 HTTP/1.1|POST /4 HTTP/1.1", "the app")
}

func TestQueueTimeoutKeepsConnection(t *testing.T) {
	app := newBlocking()
	server := proxytest.Start(t, harness.NewApp(t, app.serve), func(p *proxy.Proxy, _ *proxytest.Options) {
		p.Limit, p.Clocks = proxy.NewLimit(1, 10), proxy.Clocks{Queue: 30 * time.Millisecond}
	})
	first := server.Dial()
	first.Send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
	app.wantRunning(t, 1)
	c := server.Dial()
	c.Send("GET /late HTTP/1.1\r\nHost: a\r\n\r\n")
	if m := c.Receive("GET"); m.Status() != 503 || !strings.Contains(m.Get("proxy-status"), "queue-timeout") {
		t.Errorf("got %s, %s, want 503, queue-timeout", m.Start, m.Get("proxy-status"))
	}
	close(app.free)
	first.WantBody("/first")
	c.Get("/after")
}

func TestConnectionLimitDelaysNewConnection(t *testing.T) {
	app := newBlocking()
	server := proxytest.Start(t, harness.NewApp(t, app.serve), func(_ *proxy.Proxy, s *proxytest.Options) { s.Connections = netconn.NewConnLimit(2, s.Bounds) })
	var clients []*harness.Client
	for range 2 {
		c := server.Dial()
		c.Send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n")
		clients = append(clients, c)
	}
	app.wantRunning(t, 2)
	third := server.Dial()
	third.Send("GET /third HTTP/1.1\r\nHost: a\r\n\r\n")
	third.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := third.In.Peek(1); !harness.IsTimeout(err) {
		t.Errorf("got %v, want silence while both places are taken", err)
	}
	third.SetReadDeadline(time.Now().Add(harness.Patience))
	close(app.free)
	for _, c := range clients {
		c.WantBody("/busy")
	}
	third.WantBody("/third") // one of the two connections was closed

	// A connection that was handed to the HTTP/2 engine keeps its place until it is closed.
	third.Send("GET / HTTP/1.1\r\nHost: a\r\nX: a\nY: b\r\n\r\n")
	third.Receive("GET")
	third.WantEnd()
	server.Dial().Get("/d")
	server.Dial().Get("/e")
}
