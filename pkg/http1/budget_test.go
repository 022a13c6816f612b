package http1_test

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/memory"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// budget is the memory budget of the tests, in bytes.
const budget = 1 << 20

// withBudget starts a proxy with a memory budget.
func withBudget(t *testing.T, app *harness.App) (*proxytest.Proxy, *memory.Budget) {
	t.Helper()
	var b *memory.Budget
	p := proxytest.Start(t, app, func(_ *queue.Proxy, o *proxytest.Options) {
		b = memory.New(budget, o.Bounds)
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
	proxytest.HoldMemory(b, budget*7/8)
	c := p.Dial()
	c.Send("GET /long HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 100<<10))
	m := c.Receive("GET")
	harness.Equal(t, m.Status(), 503, "status")
	harness.Equal(t, m.Get("retry-after"), "1", "Retry-After")
	c.WantEnd()
	o := p.Observed(1)[0]
	harness.Equal(t, o.Reason, queue.Overload, "reason")
	harness.Equal(t, o.Method+" "+o.Target, "GET /long", "request line")
	p.WantBounds(bound.Memory)
}

func TestRequestOfClosedConnectionReportsOverload(t *testing.T) {
	for name, change := range map[string]func(*queue.Proxy){
		"in the user container": func(*queue.Proxy) {},
		"in the queue":          func(p *queue.Proxy) { p.Limit = queue.NewLimit(1, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			p, b := withBudget(t, harness.NewApp(t, hanging))
			change(p.Queue)
			p.Dial().Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			p.InFlight(1)
			p.Dial().Send("GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 100<<10) + "\r\n\r\n")
			p.InFlight(2)
			proxytest.HoldMemory(b, budget*7/8)
			harness.Equal(t, p.Observed(1)[0].Reason, queue.Overload, "reason")
			p.WantBounds(bound.Memory)
		})
	}
}
