package http1_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestHTTP10CloseReportsClientGone(t *testing.T) {
	for name, leave := range map[string]func(*harness.Client){
		"FIN":   func(c *harness.Client) { c.Close() },
		"reset": func(c *harness.Client) { c.SetLinger(0); c.Close() },
		"after a request": func(c *harness.Client) {
			c.Send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
			c.Close()
		},
	} {
		for _, times := range []int{1, 2} { // also as the second request of a connection
			t.Run(fmt.Sprint(name, ", request ", times), func(t *testing.T) {
				app := newBlocking()
				server := proxytest.Start(t, harness.NewApp(t, app.serve), nil)
				defer close(app.free)
				c := server.Dial()
				for range times - 1 {
					c.Send("GET /p HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
					c.WantBody("/p")
				}
				c.Send("GET /wait HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
				app.wantRunning(t, 1)
				leave(c)
				o := server.Observed(times)[times-1]
				if o.Reason != observation.ClientGone || o.Status != 499 {
					t.Errorf("got %v, %d, want %v, 499", o.Reason, o.Status, observation.ClientGone)
				}
				harness.Until(t, "cancelled request at the app", func() bool { return app.gone.Load() == 1 })
			})
		}
	}
}

func TestHTTP10TimeoutKeepsConnection(t *testing.T) {
	harness.ScaleTime(t, func(scale int) bool { return timeoutsLeaveConnectionOfHTTP10(t, time.Duration(scale)*soon) })
}

// timeoutsLeaveConnectionOfHTTP10 returns false if the timeout expired for a later request.
func timeoutsLeaveConnectionOfHTTP10(t *testing.T, timeout time.Duration) (inTime bool) {
	app := newBlocking()
	server := proxytest.Start(t, harness.NewApp(t, app.serve), func(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks.Request = timeout })
	defer close(app.free)
	c := server.Dial()
	for range 2 {
		c.Send("GET /wait HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
		if m := c.Receive("GET"); m.Status() != 504 || m.Body != "request timeout" {
			t.Errorf("got %s %q, want 504", m.Start, m.Body)
		}
		for range 3 {
			time.Sleep(timeout / 2) // If a deadline of the previous request is still set, it expires here.
			c.Send("GET /p HTTP/1.1\r\nHost: a\r\n\r\n")
			m := c.Receive("GET")
			if m.Status() == 504 {
				return false
			}
			if m.Status() != 200 || m.Body != "/p" {
				t.Errorf("got %s %q, want 200 /p", m.Start, m.Body)
			}
		}
	}
	server.WantCounts(8, 0)
	return true
}

func TestShutdownServesHTTP10Request(t *testing.T) {
	app := newBlocking()
	server := proxytest.Start(t, harness.NewApp(t, app.serve), nil)
	c := server.Dial()
	c.Send("GET /wait HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
	app.wantRunning(t, 1)
	var shutdown sync.WaitGroup
	shutdown.Go(server.Shutdown)
	harness.Until(t, "end of accepting", func() bool {
		c, err := net.Dial("tcp", server.Address)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	close(app.free)
	c.WantBody("/wait")
	c.WantEnd()
	shutdown.Wait()
}
