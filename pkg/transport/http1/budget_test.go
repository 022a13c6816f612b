package http1_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// budget is the memory budget of the tests, in bytes.
const budget = 1 << 20

// withBudget starts a proxy with a memory budget.
func withBudget(t *testing.T, app *harness.App) (*proxytest.Proxy, *netconn.Budget) {
	t.Helper()
	var b *netconn.Budget
	p := proxytest.Start(t, app, func(_ *proxy.Proxy, o *proxytest.Options) {
		b = netconn.NewBudget(budget, o.Bounds)
		o.Memory = b
	})
	return p, b
}

// hanging is an app that does not respond.
func hanging(c *harness.AppConn) {
	if c.Request() != nil {
		c.Idle()
	}
}

func TestLongHeaderWithoutMemoryIsObserved(t *testing.T) {
	p, b := withBudget(t, harness.NewApp(t, harness.Echo))
	proxytest.HoldMemory(b, budget*15/16)
	c := p.Dial()
	c.Send("GET /long HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 100<<10))
	m := c.Receive("GET")
	harness.Equal(t, m.Status(), 503, "status")
	harness.Equal(t, m.Get("retry-after"), "1", "Retry-After")
	c.WantEnd()
	o := p.Observed(1)[0]
	harness.Equal(t, o.Reason, observation.Overload, "reason")
	harness.Equal(t, o.Method+" "+o.Target, "GET /long", "request line")
	p.WantBounds(bound.Memory)
}

func TestUploadWaitsForMemory(t *testing.T) {
	p, b := withBudget(t, harness.NewApp(t, harness.Echo))
	release := proxytest.HoldMemory(b, budget-20<<10-netconn.ConnectionBytes) // the connection of the client is charged
	c := p.Dial()
	c.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
	p.InFlight(1)
	time.AfterFunc(100*time.Millisecond, release)
	c.Send("b")
	harness.Equal(t, c.Receive("POST").Status(), 200, "status")
	harness.Equal(t, p.Observed(1)[0].Reason, observation.OK, "reason")
}

// The app does not respond to the uploads.
func TestUploadMemoryIsReleasedAfterBody(t *testing.T) {
	const upload = 36 << 10 // bytes that Call.ReserveBody charges
	for name, app := range map[string]func(*harness.AppConn){
		"HTTP/1.1": func(c *harness.AppConn) {
			for r := c.Request(); r != nil; r = c.Request() {
				if r.Method() != "GET" {
					c.Idle()
				}
				c.Send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		},
		"HTTP/2": func(c *harness.AppConn) {
			f := c.Frames()
			if f.Greet() != nil {
				return
			}
			f.Follow(func(frame http2.Frame) {
				if r, ok := frame.(*http2.MetaHeadersFrame); ok && r.StreamEnded() {
					_ = f.WriteHead(r.StreamID, true, ":status", "200")
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b *netconn.Budget
			p := proxytest.Start(t, harness.NewApp(t, app), func(_ *proxy.Proxy, o *proxytest.Options) {
				b = netconn.NewBudget(budget, o.Bounds)
				o.Memory, o.UnknownApp = b, true
			})
			c := p.Dial()
			c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n") // the first request starts the protocol detection
			harness.Equal(t, c.Receive("GET").Status(), 200, "status")
			c.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
			harness.Until(t, "the memory is charged", func() bool { used, _ := b.Usage(); return used > upload })
			c.Send("b")
			harness.Until(t, "the memory is released", func() bool { used, _ := b.Usage(); return used < upload })
			p.InFlight(1)
		})
	}
}

func TestRequestOfClosedConnectionReportsOverload(t *testing.T) {
	for name, change := range map[string]func(*proxy.Proxy){
		"in the user container": func(*proxy.Proxy) {},
		"in the queue":          func(p *proxy.Proxy) { p.Limit = proxy.NewLimit(1, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			p, b := withBudget(t, harness.NewApp(t, hanging))
			change(p.Queue)
			p.Dial().Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			p.InFlight(1)
			p.Dial().Send("GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 100<<10) + "\r\n\r\n")
			p.InFlight(2)
			proxytest.HoldMemory(b, budget*7/8)
			harness.Equal(t, p.Observed(1)[0].Reason, observation.Overload, "reason")
			p.WantBounds(bound.Memory)
		})
	}
}

// The app supports only HTTP/2, which has no flow control for informational responses.
func TestUnreadInterimResponsesOfHTTP2AppAreCharged(t *testing.T) {
	const infos, size = 99, 27_000
	app := harness.NewApp(t, func(conn *harness.AppConn) {
		f := conn.Frames()
		if f.Greet() != nil {
			return
		}
		f.Follow(func(frame http2.Frame) {
			if request, ok := frame.(*http2.MetaHeadersFrame); ok {
				for range infos {
					_ = f.WriteLongHead(request.StreamID, false, ":status", "103", "link", strings.Repeat("x", size))
				}
				_ = f.WriteHead(request.StreamID, true, ":status", "200")
			}
		})
	})
	var b *netconn.Budget
	p := proxytest.Start(t, app, func(_ *proxy.Proxy, o *proxytest.Options) {
		b = netconn.NewBudget(budget, o.Bounds)
		o.Memory, o.Narrow, o.UnknownApp = b, true, true
	})
	c := harness.DialBy(t, &net.Dialer{Control: harness.Narrow}, p.Address)
	c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	harness.Until(t, "the budget contains the responses that the client does not read", func() bool {
		used, _ := b.Usage()
		return used > budget/3
	})
	harness.Equal(t, c.Receive("GET").Status(), 503, "status")
	harness.Equal(t, p.Observed(1)[0].Reason, observation.Overload, "reason")
	harness.Until(t, "the memory is released", func() bool {
		used, _ := b.Usage()
		return used == 0
	})
}

func TestUnreadTunnelIsCharged(t *testing.T) {
	for name, bytes := range map[string]int64{"plain": 32 << 10, "TLS": 64 << 10} {
		t.Run(name, func(t *testing.T) {
			app := harness.NewApp(t, func(conn *harness.AppConn) {
				if conn.Request() != nil {
					conn.Send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n" + strings.Repeat("x", 8<<20))
				}
			})
			var b *netconn.Budget
			p := proxytest.Start(t, app, func(_ *proxy.Proxy, o *proxytest.Options) {
				b = netconn.NewBudget(budget, o.Bounds)
				o.Memory, o.Narrow, o.TLS = b, true, name == "TLS"
			})
			c := p.Connect(t)
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			harness.NoError(t, err)
			used := func() int64 {
				used, _ := b.Usage()
				return used
			}
			harness.Until(t, "the budget contains the buffers of the tunnel", func() bool { return used() > bytes })
			c.Close()
			harness.Until(t, "the memory is released", func() bool { return used() == 0 })
		})
	}
}
