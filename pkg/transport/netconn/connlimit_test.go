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
	busy   bool // a request has just come
	slow   bool // the test calls Leave after the connection was closed
}

// members are connections that enter a limit one after the other.
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

// enter returns a connection, and when it is in.
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
	time.Sleep(2 * time.Second) // the maximum time until a connection may be closed for this one
	synctest.Wait()
	return c, in
}

// in enters connections for which there must be room.
func (m *members) in(n int) (all []*member) {
	m.t.Helper()
	for i := range n {
		c, in := m.enter()
		if len(in) != 1 {
			m.t.Fatalf("connection %d of %d waits, want it in", i, n)
		}
		all = append(all, c)
	}
	return all
}

// answered are connections that have been answered and are idle, the first one for
// longest.
func (m *members) answered(n int) []*member {
	m.t.Helper()
	all := m.in(n)
	for _, c := range all {
		c.serve()
	}
	return all
}

// serve serves a request of 1 ms.
func (c *member) serve() {
	c.Serving()
	time.Sleep(time.Millisecond)
	c.Idle(true)
}

func closed(all []*member) (s string) {
	for i, c := range all {
		if c.closed.Load() {
			s += fmt.Sprint(i)
		}
	}
	return s
}

func TestTheConnectionThatIsIdleForLongestMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 3)
		all := m.answered(3)
		all[0].serve()
		all = append(all, m.answered(1)...)
		harness.Equal(t, closed(all), "1", "closed")
		all[2].Serving()
		all = append(all, m.in(1)...)
		harness.Equal(t, closed(all), "01", "closed, with one that is served")
		all[0].Leave() // which has no place any more
		all[3].Leave()
		m.in(1)
		harness.Equal(t, closed(all), "01", "closed, after one has left")
	})
}

func TestOneInTheMidstOfAHeadMakesRoomLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 3)
		all := m.answered(3)
		all[0].Reading()
		all[1].Reading()
		all = append(all, m.in(1)...)
		harness.Equal(t, closed(all), "2", "closed")
		all[3].Reading()
		m.in(1)
		harness.Equal(t, closed(all), "02", "closed, with no idle one left")
	})
}

// Connections that say nothing close one another, and none that is in use.
func TestNewcomersMakeRoomOnceTheyAreMoreThanHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 6)
		all := append(m.answered(3), m.in(3)...)
		all = append(all, m.in(1)...) // three have the half that is theirs
		harness.Equal(t, closed(all), "0", "closed")
		all = append(all, m.in(20)...)
		harness.Equal(t, closed(all[:3]), "0", "closed of those in use")
		harness.Equal(t, len(closed(all[3:13])), 10, "closed of the newcomers")
	})
}

func TestWhereAllAreServedNewOnesWaitInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 2)
		all := m.in(2)
		all[0].Serving()
		all[1].Serving()
		harness.Equal(t, all[0].Wanted(), false, "wanted, before another one waits")
		first, firstIn := m.enter()
		_, secondIn := m.enter()
		harness.Equal(t, all[0].Wanted(), true, "wanted")
		harness.Equal(t, fmt.Sprint(len(firstIn), len(secondIn)), "0 0", "in")
		all[1].Idle(true)
		synctest.Wait()
		harness.Equal(t, fmt.Sprint(len(firstIn), len(secondIn)), "0 0", "in, once one is idle")
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		harness.Equal(t, fmt.Sprint(len(firstIn), len(secondIn)), "1 0", "in, once one is idle for long enough")
		harness.Equal(t, closed(all), "1", "closed")
		first.Serving()
		all[0].Leave()
		synctest.Wait()
		harness.Equal(t, fmt.Sprint(len(firstIn), len(secondIn)), "1 1", "in, once another has left")
		harness.Equal(t, first.Wanted(), false, "wanted, with nobody who waits")
	})
}

func TestWhoWaitsGivesUpWhenItIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 1)
		all := m.in(1)
		all[0].Serving()
		_, in := m.enter()
		close(m.stop)
		harness.Equal(t, <-in, false, "in")
		all[0].Leave()
		harness.Equal(t, len(m.in(1)), 1, "the place is free")
	})
}

// A request may come in the moment of closing: the connection serves it, and another
// one is closed.
func TestOneThatHasJustGotARequestIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 2)
		all := m.answered(2)
		all[0].busy = true
		all = append(all, m.in(1)...)
		harness.Equal(t, closed(all), "1", "closed")
		all[0].busy = false
		all[0].Serving()
		all[0].Idle(true)
		m.answered(1) // more than half were never answered
		m.in(1)
		harness.Equal(t, all[0].closed.Load(), true, "closed, once it is idle again")
	})
}

// A head that comes while a stream is served does not make the connection one that
// may be closed.
func TestAHeadBesideARequestIsNoReasonToClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 1)
		all := m.in(1)
		all[0].Serving()
		all[0].Stir()
		_, in := m.enter()
		harness.Equal(t, len(in), 0, "in")
		all[0].Idle(true)
		harness.Equal(t, <-in, true, "in")
	})
}

func TestNoLimitIsNone(t *testing.T) {
	l := netconn.NewConnLimit(0, nil)
	p, ok := l.Enter("", func() bool { t.Error("closed"); return true }, nil)
	harness.Equal(t, ok, true, "in")
	p.Serving()
	p.Reading()
	p.Stir()
	p.Idle(true)
	p.Handled(nil)
	p.Leave()
}

// Whatever connections do: no more than the limit are open, none that is served is
// closed, and none waits while there is room.
func TestALimitHoldsWhateverConnectionsDo(t *testing.T) {
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
			time.Sleep(time.Duration(len(turns)+1) * 2 * time.Second) // one after the other
			synctest.Wait()
			for len(turns) > 0 && len(turns[0]) == 1 {
				inside, waiting, turns = append(inside, waiting[0]), waiting[1:], turns[1:]
			}
			inside = slices.DeleteFunc(inside, func(c *member) bool { return c.closed.Load() })
			room := slices.ContainsFunc(inside, func(c *member) bool { return !c.busy })
			if len(inside) > most || len(turns) > 0 && (room || len(inside) < most) {
				t.Fatalf("step %d: %d are open and %d wait; one of them could be closed: %t", step, len(inside), len(turns), room)
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
		harness.Equal(t, len(in), 0, "connections beyond the bound")
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
		harness.Equal(t, m.limit.State(), bound.Pool{Open: 2, Limit: 2}, "state")
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

// More than half of the connections were never answered, so the others are not replaced. The new
// connections arrive faster than patience.
func TestManyNewConnectionsDoNotReplaceUsedConnection(t *testing.T) {
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

// Clients of TLS that share a busy processor need more time for their handshakes than a silent client gets.
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
		harness.Equal(t, <-in, true, "new connection in")
		next.Leave()
		close(m.stop)
	})
}
