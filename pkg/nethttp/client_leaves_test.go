package nethttp_test

import (
	"io"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestAClientThatLeavesIsNoticed(t *testing.T) {
	leave := map[string]func(*harness.Client){
		"FIN":        func(c *harness.Client) { c.Close() },
		"half-close": func(c *harness.Client) { c.CloseWrite() },
		"reset":      func(c *harness.Client) { c.SetLinger(0); c.Close() },
		"behind more requests": func(c *harness.Client) {
			io.WriteString(c, "GET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.1\r\n")
			c.Close()
		},
	}
	for name, leave := range leave {
		for _, where := range []string{"waiting", "forwarded", "with a body"} {
			t.Run(name+" while "+where, func(t *testing.T) {
				app := &blocking{free: make(chan struct{})}
				defer close(app.free)
				proxy := startHandler(t, app, func(p *queue.Proxy, _ *proxytest.Options) { p.Limit = queue.NewLimit(1, 5) })
				first := proxy.Dial()
				first.Send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
				harness.Until(t, "running request", func() bool { return app.running.Load() == 1 })
				c, want := first, queue.Waiting
				if where != "forwarded" {
					c, want = proxy.Dial(), queue.Queued
					if c.Send("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"); where == "with a body" {
						c.Send("abc")
					}
					proxy.Waiting(1)
				}
				leave(c)
				o := proxy.Observed(1)[0]
				if o.Reason != queue.ClientGone || o.Status != 499 || o.Phase != want {
					t.Errorf("got %v, %d, %v, want %v, 499, %v", o.Reason, o.Status, o.Phase, queue.ClientGone, want)
				}
				if where == "forwarded" {
					harness.Until(t, "cancelled request at the app", func() bool { return app.gone.Load() == 1 })
				} else if _, waiting := proxy.Queue.Limit.Load(); waiting != 0 {
					t.Errorf("got %d waiting, want 0", waiting)
				}
			})
		}
	}
}

func TestAClientThatLeavesWithItsAnswerIsNoFailure(t *testing.T) {
	proxy := startHandler(t, &targets{}, nil)
	const requests = 300
	for range requests {
		c := proxy.Dial()
		c.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
		c.Receive("GET")
		c.Close()
	}
	for _, o := range proxy.Observed(requests) {
		if o.Reason != queue.OK {
			t.Fatalf("got %v, want %v", o.Reason, queue.OK)
		}
	}
}
