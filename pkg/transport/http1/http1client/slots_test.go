package http1client

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A gated app responds to a request when the test sends a value to gate.
type gated struct {
	*harness.App
	gate    chan struct{}
	targets chan string // request targets, in order of arrival
}

func newGated(t *testing.T) *gated {
	g := &gated{gate: make(chan struct{}), targets: make(chan string, 100)}
	g.App = harness.NewApp(t, func(conn *harness.AppConn) {
		for {
			r, _ := readRequest(conn)
			if r == nil {
				return
			}
			g.targets <- r.URL.Path
			if _, open := <-g.gate; !open {
				return
			}
			conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	return g
}

// queued sends a request to /busy and n requests to /0, /1 and so on, which wait for the
// connection of the first request.
func (g *gated) queued(t *testing.T, a *App, n int) (calls []*testCall, outcomes []chan outcome) {
	t.Helper()
	for i := range n + 1 {
		k, got := newCall("GET", fmt.Sprintf("/%d", i-1)), make(chan outcome, 1)
		if i == 0 {
			k = newCall("GET", "/busy")
		}
		go func() { got <- k.do(a) }()
		if calls, outcomes = append(calls, k), append(outcomes, got); i == 0 {
			harness.Equal(t, harness.Receive(t, g.targets, "request"), "/busy", "first request")
		} else {
			harness.Until(t, "request in the queue", func() bool { return a.ConnState().Waiting == i })
		}
	}
	return calls, outcomes
}

func TestMaxConnsQueuesRequests(t *testing.T) {
	g := newGated(t)
	var full atomic.Int32
	a := New(Settings{Port: g.Port, MaxConns: 1, OnFull: func() { full.Add(1) }})
	defer a.Close()
	a.versions.setH1(true)
	_, outcomes := g.queued(t, a, 3)
	if s := a.ConnState(); s.Open != 1 || s.Limit != 1 || s.Reached.IsZero() || full.Load() != 3 {
		t.Errorf("got %+v and %d calls of OnFull, want 1 open and 3 calls", s, full.Load())
	}
	var order []string
	for i, got := range outcomes {
		g.gate <- struct{}{}
		harness.Receive(t, got, "response").want(t, 204, "")
		if i < 3 {
			order = append(order, harness.Receive(t, g.targets, "request"))
		}
	}
	harness.Equal(t, strings.Join(order, " "), "/0 /1 /2", "order of the requests")
	harness.Equal(t, g.Connections(), 1, "connections")
	if s := a.ConnState(); s.Open != 1 || s.Waiting != 0 {
		t.Errorf("got %+v, want 1 open and 0 waiting", s)
	}
}

func TestMaxConnsAbortRemovesWaiter(t *testing.T) {
	g := newGated(t)
	a := New(Settings{Port: g.Port, MaxConns: 1})
	defer a.Close()
	a.versions.setH1(true)
	calls, outcomes := g.queued(t, a, 2)
	calls[1].Abort()
	if got := harness.Receive(t, outcomes[1], "end of the aborted call"); transport.FaultOf(got.err) != transport.FaultAborted {
		t.Errorf("got %v, want aborted", got.err)
	}
	harness.Equal(t, a.ConnState().Waiting, 1, "waiting requests")
	for _, i := range []int{0, 2} {
		g.gate <- struct{}{}
		harness.Receive(t, outcomes[i], "response").want(t, 204, "")
	}
}

func TestMaxConnsReleasesSlotOfClosedConnection(t *testing.T) {
	g := newGated(t)
	a := New(Settings{Port: g.Port, MaxConns: 1})
	defer a.Close()
	a.versions.setH1(true)
	_, outcomes := g.queued(t, a, 1)
	close(g.gate) // the app closes both connections without a response
	for _, got := range outcomes {
		if got := harness.Receive(t, got, "end"); transport.FaultOf(got.err) != transport.FaultReset {
			t.Errorf("got %v, want a reset", got.err)
		}
	}
	harness.Equal(t, g.Connections(), 2, "connections")
	harness.Equal(t, a.ConnState().Open, 0, "open connections")
}

func TestMaxConnsClosesIdleConnectionForFreshOne(t *testing.T) {
	g := newGated(t)
	a := New(Settings{Port: g.Port, MaxConns: 1})
	defer a.Close()
	a.versions.setH1(true)
	_, outcomes := g.queued(t, a, 0)
	g.gate <- struct{}{}
	harness.Receive(t, outcomes[0], "response").want(t, 204, "")
	harness.Equal(t, idle(a), 1, "idle connections")
	if n, reserved := a.tryGet(true); n != nil || reserved {
		t.Errorf("got %v, %t, want no connection and no slot", n, reserved)
	}
	n, err := a.await(t.Context(), true)
	if n != nil || err != nil {
		t.Errorf("got %v, %v, want a slot", n, err)
	}
	harness.Equal(t, idle(a), 0, "idle connections")
	harness.Equal(t, a.ConnState().Open, 1, "open connections")
	a.release()
}

func TestMaxConnsReleasesSlotOfFailedDial(t *testing.T) {
	port, _ := harness.ClosedPort(t)
	a := New(Settings{Port: port, MaxConns: 1})
	defer a.Close()
	for range 3 {
		if got := newCall("GET", "/").do(a); transport.FaultOf(got.err) != transport.FaultUnreachable {
			t.Errorf("got %v, want unreachable", got.err)
		}
	}
	harness.Equal(t, a.ConnState().Open, 0, "open connections")
}
