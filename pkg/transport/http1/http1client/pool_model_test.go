package http1client

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// poolTick is the duration of one clock step in a run.
const poolTick = idleTimeout / 2

// A poolCase contains the maximum number of steps of each kind in a run. The test tries every order of
// the steps.
type poolCase struct {
	most   int // MaxIdle
	calls  int // each call takes a connection or dials, and then returns the connection in one of three ways or closes it
	ticks  int
	sweeps int // number of calls to expire in addition to the calls by the timer
	closes int
	runs   int // expected number of orders of the steps; the test fails if it tries fewer orders
}

func (c poolCase) String() string {
	return fmt.Sprintf("most %d, calls %d, ticks %d, sweeps %d, closes %d", c.most, c.calls, c.ticks, c.sweeps, c.closes)
}

// line is a connection that only counts calls to Close.
type line struct {
	net.Conn
	id     int
	closes atomic.Int32
	gate   chan struct{} // if not nil, Close waits until gate is closed
}

func (l *line) Close() error {
	l.closes.Add(1)
	if l.gate != nil {
		<-l.gate
	}
	return nil
}

// A poolRun is a pool on which the steps run one after the other, and the expected content of
// the pool. Each critical section of the pool is one step.
type poolRun struct {
	poolCase      // the remaining steps
	app      *App // owner of the pool
	lines    []*line
	users    []*clientConn // connections in use, at most one for each call
	idle     []*clientConn // expected idle connections in the pool
	closed   bool

	taking chan *clientConn // result of take while it closes an expired connection; nil if take is not running
	thrown *line            // expired connection that the running call to take closes
}

// A poolMove is one possible step.
type poolMove struct {
	name string
	do   func() error
}

// run performs steps until no step is possible. choose returns the index of the next step. After each
// step, run checks the state of every connection. It must be called in a synctest bubble.
func (c poolCase) run(choose func(n int) int) (moves string, err error) {
	r := &poolRun{poolCase: c, app: &App{settings: Settings{Port: 1, MaxIdle: c.most}}}
	defer func() { r.app.Close(); synctest.Wait() }()
	for {
		next := r.next()
		if len(next) == 0 && r.ticks == 0 {
			return moves, r.end()
		}
		if r.ticks > 0 {
			next = append(next, poolMove{"tick", func() error { r.ticks--; time.Sleep(poolTick); return nil }})
		}
		now := next[choose(len(next))]
		moves += " " + now.name
		if err := now.do(); err != nil {
			return moves, err
		}
		synctest.Wait()
		if err := r.check(now.name); err != nil {
			return moves, err
		}
	}
}

// next returns the possible steps, except for a step of the clock.
func (r *poolRun) next() (next []poolMove) {
	may := func(name string, do func() error) { next = append(next, poolMove{name, do}) }
	switch {
	case r.taking != nil:
		may("go-on", func() error {
			gate := r.thrown.gate
			r.pop()
			close(gate)
			return r.taken()
		})
	case r.calls > 0:
		may("call", func() error {
			r.calls--
			r.pop()
			made := make(chan *clientConn, 1)
			r.taking = made
			go func() { made <- r.app.take() }()
			return r.taken()
		})
	}
	for i, u := range r.users {
		id := u.Conn.(*line).id
		may(fmt.Sprint("put", id), func() error { r.put(i, -1, idleTimeout); return nil })
		may(fmt.Sprint("put-short", id), func() error { r.put(i, poolTick+keepAliveMargin, poolTick); return nil })
		may(fmt.Sprint("put-dying", id), func() error { r.put(i, keepAliveMargin, 0); return nil })
		may(fmt.Sprint("die", id), func() error {
			r.users = slices.Delete(r.users, i, i+1)
			u.close()
			return nil
		})
	}
	if r.sweeps > 0 && r.app.sweep != nil {
		may("sweep", func() error { r.sweeps--; r.app.expire(); return nil })
	}
	if r.closes > 0 {
		may("close", func() error { r.closes--; r.closed = true; r.app.Close(); r.idle = nil; return nil })
	}
	return next
}

// pop changes r.idle in the same way as the critical section of take. It removes the last connection if this
// connection has expired.
func (r *poolRun) pop() {
	r.thrown = nil
	if n := len(r.idle); n > 0 {
		if top := r.idle[n-1]; !time.Now().Before(top.expires) {
			r.thrown, r.idle = top.Conn.(*line), r.idle[:n-1]
			r.thrown.gate = make(chan struct{})
		}
	}
}

// taken checks the result of take.
func (r *poolRun) taken() error {
	synctest.Wait()
	var got *clientConn
	select {
	case got = <-r.taking:
	default:
		if r.thrown == nil || r.thrown.closes.Load() == 0 {
			return fmt.Errorf("take is blocked, want it to return")
		}
		return nil // waits at the gate
	}
	r.taking = nil
	switch {
	case r.thrown != nil:
		return fmt.Errorf("got a return, want the expired connection closed first")
	case got == nil && len(r.idle) > 0:
		return fmt.Errorf("got no connection, want one of %d idle connections", len(r.idle))
	case got == nil: // the pool has no connection, so the call opens a connection
		l := &line{id: len(r.lines)}
		r.lines = append(r.lines, l)
		r.users = append(r.users, newClientConn(l, r.app.buffers))
		return nil
	case len(r.idle) == 0 || got != r.idle[len(r.idle)-1]:
		return fmt.Errorf("got connection %d, want the one that was used last", got.Conn.(*line).id)
	case !got.reused:
		return fmt.Errorf("got a used connection that is not marked as reused")
	}
	r.idle = r.idle[:len(r.idle)-1]
	r.users = append(r.users, got)
	return nil
}

// put returns the connection of a user to the pool. life is the maximum time that the connection may
// stay in the pool.
func (r *poolRun) put(i int, keepAlive, life time.Duration) {
	u := r.users[i]
	r.users = slices.Delete(r.users, i, i+1)
	if !r.closed && life > 0 && len(r.idle) < r.most {
		r.idle = append(r.idle, u)
	}
	r.app.put(u, keepAlive)
}

// check compares the pool with the expected state after a step.
func (r *poolRun) check(move string) error {
	r.app.mu.Lock()
	held := slices.Clone(r.app.idle)
	r.app.mu.Unlock()

	// A sweep removes only expired connections.
	if move == "tick" || move == "sweep" {
		r.idle = slices.DeleteFunc(r.idle, func(i *clientConn) bool { return !time.Now().Before(i.expires) && !slices.Contains(held, i) })
		for _, i := range r.idle {
			if !time.Now().Before(i.expires) && move == "sweep" {
				return fmt.Errorf("expired connection %d was not swept, want it closed", i.Conn.(*line).id)
			}
		}
	}
	if !slices.Equal(held, r.idle) {
		return fmt.Errorf("got %d idle connections, want the expected %d", len(held), len(r.idle))
	}
	if len(held) > r.most || r.closed && len(held) > 0 {
		return fmt.Errorf("got %d idle, want at most %d, and none after Close", len(held), r.most)
	}
	for _, l := range r.lines {
		holders := 0
		for _, u := range append(r.users[:len(r.users):len(r.users)], r.idle...) {
			if u.Conn == l {
				holders++
			}
		}
		if closes := int(l.closes.Load()); holders+closes != 1 {
			return fmt.Errorf("connection %d: got %d holders and %d closes, want 1 in total", l.id, holders, closes)
		}
	}
	return nil
}

// end closes the connections that are in use, and checks that the pool closes all others after a while.
func (r *poolRun) end() error {
	for _, u := range r.users {
		u.close()
	}
	time.Sleep(4 * poolTick)
	synctest.Wait()
	for _, l := range r.lines {
		if closes := l.closes.Load(); closes != 1 {
			return fmt.Errorf("connection %d, long after: got closed %d times, want once", l.id, closes)
		}
	}
	return nil
}

// A connection is always in exactly one state: in use by one call, idle, or closed. The test runs
// every interleaving of the calls, the sweeper, the clock and Close. Each critical section is one
// step.
func TestPoolInterleavingsKeepConnections(t *testing.T) {
	for _, c := range []poolCase{
		{most: 1, calls: 2, ticks: 2, closes: 1, runs: 5072},
		{most: 2, calls: 3, closes: 1, runs: 6720},
		{most: 1, calls: 3, runs: 960},
		{most: 2, calls: 2, ticks: 3, sweeps: 1, runs: 4360},
		{most: 2, calls: 1, ticks: 2, sweeps: 1, closes: 1, runs: 160},
	} {
		t.Run(c.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var path, branches []int // the choice at each step, and the number of choices
				runs := 0
				for more := true; more; runs++ {
					at := 0
					moves, err := c.run(func(n int) int {
						if at == len(path) {
							path, branches = append(path, 0), append(branches, n)
						}
						at++
						return path[at-1]
					})
					harness.NoError(t, err, moves)
					for len(path) > 0 && path[len(path)-1]+1 == branches[len(path)-1] {
						path, branches = path[:len(path)-1], branches[:len(path)-1]
					}
					if more = len(path) > 0; more {
						path[len(path)-1]++
					}
				}
				harness.Equal(t, runs, c.runs, "runs")
			})
		})
	}
}
