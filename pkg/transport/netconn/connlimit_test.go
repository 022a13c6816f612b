package netconn_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// member is a connection in a limit.
type member struct {
	*netconn.Place
	closed atomic.Bool
	busy   bool // a request has arrived, so that the connection cannot be closed
	slow   bool // the test calls Leave after the connection was closed
}

// members opens connections that share a limit.
type members struct {
	t      *testing.T
	limit  *netconn.ConnLimit
	stop   chan struct{}
	bounds *bound.Recorder
}

func newMembers(t *testing.T, most int) *members {
	bounds := bound.NewRecorder()
	return &members{t, netconn.NewConnLimit(most, bounds), make(chan struct{}), bounds}
}

// enter opens a connection. The channel receives the result of Enter.
func (m *members) enter() (*member, <-chan bool) {
	c, in := &member{}, make(chan bool, 1)
	go func() {
		var ok bool
		c.Place, ok = m.limit.Enter("10.0.0.1:1234", func() bool {
			closes := !c.busy
			c.closed.Store(closes)
			if closes && !c.slow {
				go c.Leave()
			}
			return closes
		}, m.stop)
		in <- ok
	}()
	synctest.Wait()
	time.Sleep(2 * time.Second) // maxPatience
	synctest.Wait()
	return c, in
}

// in opens n connections, which must be admitted.
func (m *members) in(n int) (all []*member) {
	m.t.Helper()
	for i := range n {
		c, in := m.enter()
		if len(in) != 1 {
			m.t.Fatalf("connection %d of %d is waiting, want admitted", i, n)
		}
		all = append(all, c)
	}
	return all
}

// answered opens n connections and serves a request on each of them. The first one has been idle
// longest.
func (m *members) answered(n int) []*member {
	m.t.Helper()
	all := m.in(n)
	for _, c := range all {
		c.serve()
	}
	return all
}

// serve serves a request that takes 1 ms.
func (c *member) serve() {
	c.Serving()
	time.Sleep(time.Millisecond)
	c.Idle(true)
}

// closed returns the indexes of the closed connections.
func closed(all []*member) (s string) {
	for i, c := range all {
		if c.closed.Load() {
			s += fmt.Sprint(i)
		}
	}
	return s
}

func TestLongestIdleConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 3)
		all := m.answered(3)
		all[0].serve()
		all = append(all, m.answered(1)...)
		harness.Equal(t, closed(all), "1", "closed")
		all[2].Serving()
		all = append(all, m.in(1)...)
		harness.Equal(t, closed(all), "01", "closed while a connection serves a request")
		all[0].Leave() // has no effect
		all[3].Leave()
		m.in(1)
		harness.Equal(t, closed(all), "01", "closed after a connection has left")
	})
}

func TestReadingConnectionIsReplacedLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 3)
		all := m.answered(3)
		all[0].Reading()
		all[1].Reading()
		all = append(all, m.in(1)...)
		harness.Equal(t, closed(all), "2", "closed")
		all[3].Reading()
		m.in(1)
		harness.Equal(t, closed(all), "02", "closed without an idle connection")
	})
}

// If more than half of the connections are silent, they are replaced before the connections that clients use.
func TestSilentConnectionsAboveHalfAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 6)
		all := append(m.answered(3), m.in(3)...)
		all = append(all, m.in(1)...) // at most half of the connections are silent
		harness.Equal(t, closed(all), "0", "closed")
		all = append(all, m.in(20)...)
		harness.Equal(t, closed(all[:3]), "0", "closed among the used connections")
		harness.Equal(t, len(closed(all[3:13])), 10, "closed new connections")
	})
}

func TestConnectionsAtLimitWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 2)
		all := m.in(2)
		all[0].Serving()
		all[1].Serving()
		harness.Equal(t, all[0].Wanted(), false, "Wanted before another connection waits")
		first, firstIn := m.enter()
		_, secondIn := m.enter()
		harness.Equal(t, all[0].Wanted(), true, "Wanted")
		harness.Equal(t, fmt.Sprint(len(firstIn), len(secondIn)), "0 0", "admitted")
		all[1].Idle(true)
		synctest.Wait()
		harness.Equal(t, fmt.Sprint(len(firstIn), len(secondIn)), "0 0", "admitted when a connection becomes idle")
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		harness.Equal(t, fmt.Sprint(len(firstIn), len(secondIn)), "1 0", "admitted after 20 ms without a request")
		harness.Equal(t, closed(all), "1", "closed")
		first.Serving()
		all[0].Leave()
		synctest.Wait()
		harness.Equal(t, fmt.Sprint(len(firstIn), len(secondIn)), "1 1", "admitted after a connection has left")
		harness.Equal(t, first.Wanted(), false, "Wanted while no connection waits")
	})
}

func TestStopEndsWaitForPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 1)
		all := m.in(1)
		all[0].Serving()
		_, in := m.enter()
		close(m.stop)
		harness.Equal(t, <-in, false, "admitted")
		all[0].Leave()
		harness.Equal(t, len(m.in(1)), 1, "connections after Leave")
	})
}

// A request can arrive while the connection is being replaced. The connection serves the request, and another
// connection is closed.
func TestActiveConnectionIsNotClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 2)
		all := m.answered(2)
		all[0].busy = true
		all = append(all, m.in(1)...)
		harness.Equal(t, closed(all), "1", "closed")
		all[0].busy = false
		all[0].Serving()
		all[0].Idle(true)
		m.answered(1) // no request was answered on more than half
		m.in(1)
		harness.Equal(t, all[0].closed.Load(), true, "closed after it is idle again")
	})
}

// A connection with a running stream must not be replaced, even if it also has an incomplete header
// section.
func TestActiveConnectionIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 1)
		all := m.in(1)
		all[0].Serving()
		all[0].ReadingUnlessServing()
		_, in := m.enter()
		harness.Equal(t, len(in), 0, "admitted while a request runs")
		all[0].Idle(true)
		harness.Equal(t, <-in, true, "admitted")
	})
}

func TestZeroLimitAdmitsConnection(t *testing.T) {
	l := netconn.NewConnLimit(0, nil)
	p, ok := l.Enter("", func() bool { t.Error("closed"); return true }, nil)
	harness.Equal(t, ok, true, "admitted")
	p.Serving()
	p.Reading()
	p.ReadingUnlessServing()
	p.Idle(true)
	p.Handled(nil)
	p.Leave()
}

// The number of open connections does not exceed the limit, a connection that serves a request is not closed, and no
// connection waits while another one can be replaced.
func TestRandomConnectionsStayWithinLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 5
		random := rand.New(rand.NewPCG(1, 2))
		m := newMembers(t, most)
		var inside, waiting []*member
		var turns []<-chan bool
		for step := range 3000 {
			switch n := random.IntN(7); {
			case n < 2 && len(waiting) < 10:
				c, in := m.enter()
				waiting, turns = append(waiting, c), append(turns, in)
			case len(inside) == 0:
			default:
				c := inside[random.IntN(len(inside))]
				switch c.busy = n == 5; n {
				case 2, 3:
					c.Idle(true)
				case 4:
					c.Reading()
				case 5:
					c.Serving()
				case 6:
					c.Leave()
					inside = slices.DeleteFunc(inside, func(other *member) bool { return other == c })
				}
			}
			time.Sleep(time.Duration(len(turns)+1) * 2 * time.Second) // enough time for successive replacements
			synctest.Wait()
			for len(turns) > 0 && len(turns[0]) == 1 {
				inside, waiting, turns = append(inside, waiting[0]), waiting[1:], turns[1:]
			}
			inside = slices.DeleteFunc(inside, func(c *member) bool { return c.closed.Load() })
			room := slices.ContainsFunc(inside, func(c *member) bool { return !c.busy })
			if len(inside) > most || len(turns) > 0 && (room || len(inside) < most) {
				t.Fatalf("step %d: got %d open and %d waiting connections; one can be replaced: %t", step, len(inside), len(turns), room)
			}
		}
		close(m.stop)
	})
}

func TestClosingConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 2 * netconn.MaxClosing
		m := newMembers(t, most)
		all := m.answered(most)
		for _, c := range all {
			c.slow = true
		}
		m.in(netconn.MaxClosing)
		_, in := m.enter()
		harness.Equal(t, len(in), 0, "connections above the maximum")
		harness.Equal(t, m.limit.State().Open, most+netconn.MaxClosing, "open connections")
		harness.Equal(t, m.limit.State().Waiting, 1, "waiting connections")
		all[0].Leave()
		harness.Equal(t, <-in, true, "connection after Leave")
		all[0].Leave() // has no effect
		harness.Equal(t, m.limit.State().Open, most+netconn.MaxClosing, "open connections after Leave")
	})
}

func TestFullLimitCallsOnFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 2)
		full := 0
		m.limit.OnFull = func() { full++ }
		all := m.in(2)
		harness.Equal(t, m.limit.State(), bound.Pool{Open: 2, Limit: 2, Accepted: 2}, "state")
		all[0].Serving()
		m.in(1)
		harness.Equal(t, full, 0, "calls while a connection is idle")
		harness.Equal(t, m.limit.State().Reached.IsZero(), false, "Reached is zero")
		all[0].Leave()
		for _, c := range m.in(1) {
			c.Serving()
		}
		for _, c := range m.in(1) {
			c.Serving()
		}
		m.enter()
		harness.Equal(t, full, 1, "calls while all connections are busy")
		close(m.stop)
	})
}

// The last scan has found an idle connection, which was replaced.
func TestFullLimitCallsOnFullAfterReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 2)
		var full atomic.Int32
		m.limit.OnFull = func() { full.Add(1) }
		all := m.answered(2)
		time.Sleep(time.Second)
		all[1].Serving()
		p, ok := m.limit.Enter("10.0.0.1:1234", func() bool { return false }, m.stop)
		harness.Equal(t, ok, true, "connection that replaces the idle one")
		p.Serving()
		for range 2 {
			go m.limit.Enter("10.0.0.1:1234", func() bool { return false }, m.stop)
		}
		time.Sleep(time.Second)
		harness.Equal(t, full.Load(), 1, "calls while two connections wait")
		close(m.stop)
	})
}

// The new connections arrive at intervals shorter than patience. On more than half of the open connections, no
// request was answered.
func TestUnansweredMajorityIsReplacedBeforeIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 4)
		all := append(m.answered(1), m.in(3)...)
		for range 6 {
			go m.limit.Enter("10.0.0.1:1234", func() bool { return true }, m.stop)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		harness.Equal(t, closed(all), "123", "closed")
		close(m.stop)
	})
}

func TestFullLimitCallsOnFullForEachWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 1)
		full := 0
		m.limit.OnFull = func() { full++ }
		m.in(1)[0].Serving()
		for want := 1; want <= 2; want++ {
			stop := make(chan struct{})
			go m.limit.Enter("10.0.0.1:1234", nil, stop)
			synctest.Wait()
			harness.Equal(t, full, want, "calls")
			close(stop)
			synctest.Wait()
		}
	})
}

// On a busy processor, TLS handshakes take longer than the patience for silent connections.
func TestHandshakeOutlivesSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 2)
		all := m.in(2)
		for _, c := range all {
			c.Serving() // the handshake is in the queue
		}
		next, in := m.enter()
		for _, c := range all {
			c.Greeted()
		}
		time.Sleep(4 * time.Second)
		harness.Equal(t, closed(all), "", "closed after 4 s")
		all[0].Serving() // the handshake continues
		all[0].Idle(false)
		time.Sleep(2 * time.Second)
		harness.Equal(t, closed(all), "1", "closed after 6 s")
		harness.Equal(t, <-in, true, "new connection admitted")
		next.Leave()
		close(m.stop)
	})
}

func TestConnectionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 2)
		all := m.answered(2)
		m.in(1)[0].Serving() // replaces a connection
		all[1].Serving()
		waited, in := m.enter()
		time.Sleep(time.Second)
		all[1].Leave()
		harness.Equal(t, <-in, true, "admitted")
		waited.Serving()
		_, in = m.enter()
		close(m.stop)
		harness.Equal(t, <-in, false, "admitted after the stop")
		s := m.limit.State()
		harness.Equal(t, fmt.Sprintf("%d %d %d %.1f", s.Accepted, s.Evicted, s.Refused, s.Waited), "4 1 1 3.0", "accepted, evicted, refused and seconds waited")
	})
}
