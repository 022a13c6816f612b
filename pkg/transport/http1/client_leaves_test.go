package http1_test

import (
	"context"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestCloseAfterResponseReportsOK(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	server.LearnProtocol()
	before := len(server.Observed(0))
	const requests = 500
	for range requests {
		c := server.Dial()
		c.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
		c.Receive("GET")
		c.Close()
	}
	for _, o := range server.Observed(before + requests)[before:] {
		if o.Reason != observation.OK {
			t.Fatalf("got %v, want %v", o.Reason, observation.OK)
		}
	}
}

func TestCloseDuringRequestReportsClientGone(t *testing.T) {
	for name, leave := range map[string]func(*harness.Client){
		"FIN":        func(c *harness.Client) { c.Close() },
		"half-close": func(c *harness.Client) { c.CloseWrite() },
		"reset":      func(c *harness.Client) { c.SetLinger(0); c.Close() },
		"after more requests": func(c *harness.Client) {
			c.Send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.1\r\n")
			c.Close()
		},
		"after a full buffer": func(c *harness.Client) {
			c.Send(strings.Repeat("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n", 3000))
			c.Close()
		},
	} {
		for where, request := range map[string]string{
			"queued":                "GET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
			"queued with a body":    "POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
			"forwarded":             "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n",
			"forwarded with a body": "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
			"inside its body":       "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
		} {
			if where == "inside its body" && strings.HasPrefix(name, "after") {
				continue // the following bytes would be part of the body
			}
			t.Run(name+" while "+where, func(t *testing.T) { testLeaving(t, where, request, leave) })
		}
	}
}

// testLeaving sends a request and calls the function leave when the request has reached the
// phase in the parameter where.
func testLeaving(t *testing.T, where, request string, leave func(*harness.Client)) {
	app := newBlocking()
	server := proxytest.Start(t, harness.NewApp(t, app.serve), func(p *proxy.Proxy, _ *proxytest.Options) { p.Limit = proxy.NewLimit(1, 5) })
	defer close(app.free)
	queued, forwarded := strings.HasPrefix(where, "queued"), strings.HasPrefix(where, "forwarded")
	if queued {
		server.Dial().Send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
		app.wantRunning(t, 1)
	}
	c, want := server.Dial(), observation.Waiting
	c.Send(request)
	switch {
	case queued:
		want = observation.Queued
		server.Waiting(1)
	case forwarded:
		app.wantRunning(t, 1)
	default:
		server.InFlight(1)
	}
	leave(c)
	o := server.Observed(1)[0]
	if !queued && !forwarded && o.Phase == observation.Dialling {
		want = observation.Dialling // the phase can also be earlier
	}
	if o.Reason != observation.ClientGone || o.Status != 499 || o.Phase != want {
		t.Errorf("got %v, %d, %v, want %v, 499, %v", o.Reason, o.Status, o.Phase, observation.ClientGone, want)
	}
	if forwarded {
		harness.Until(t, "cancelled request at the app", func() bool { return app.gone.Load() == 1 })
	} else if _, waiting := server.Queue.Limit.Load(); waiting != 0 {
		t.Errorf("got %d waiting, want 0", waiting)
	}
}

func TestCloseDuringResponseReportsClientGone(t *testing.T) {
	ended := make(chan struct{})
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		conn.Request()
		conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		conn.Hang()
		close(ended)
	}), nil)
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := harness.ReadHead(c.In); err != nil {
		t.Fatal(err)
	}
	c.Close()
	harness.Receive(t, ended, "end of the app's connection")
	if o := server.Observed(1)[0]; o.Reason != observation.ClientGone || o.Status != 200 || o.Phase != observation.Streaming {
		t.Errorf("got %v, %d, %v, want %v, 200, %v", o.Reason, o.Status, o.Phase, observation.ClientGone, observation.Streaming)
	}
}

// A canceled client connection cancels the context of http.Request.
func TestCloseCancelsRequestContext(t *testing.T) {
	asked := make(chan struct{})
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(p *proxy.Proxy, _ *proxytest.Options) {
		p.Ready = func(ctx context.Context) error {
			close(asked)
			<-ctx.Done()
			return ctx.Err()
		}
	})
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\n\r\n")
	<-asked
	c.Close()
	harness.Within(t, "end of a probe whose client has gone", func() bool { server.Shutdown(); return true })
}
