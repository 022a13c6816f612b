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

// poolTick is the grain of time of the runs.
const poolTick = idleTimeout / 2

// A poolCase is what may happen in a run, and how often at most. Every order is tried.
type poolCase struct {
	most   int // MaxIdle
	calls  int // each takes a connection, or dials; it puts it back in one of three ways, or it dies
	ticks  int
	sweeps int // expire, at any other time than its own
	closes int
	runs   int // how many orders there are: a test that tries fewer must be noticed
}

func (c poolCase) String() string {
	return fmt.Sprintf("most %d, calls %d, ticks %d, sweeps %d, closes %d", c.most, c.calls, c.ticks, c.sweeps, c.closes)
}

// line is a connection that only notes where it is.
type line struct {
	net.Conn
	id     int
	closes atomic.Int32
	gate   chan struct{} // Close waits for it; nil: it does not
}

func (l *line) Close() error {
	l.closes.Add(1)
	if l.gate != nil {
		<-l.gate
	}
	return nil
}

// A poolRun is a pool to which one thing happens after the other, at the grain of its
// lock, and what it ought to hold.
type poolRun struct {
	poolCase      // what may still happen
	app      *App // whose pool it is
	lines    []*line
	users    []*clientConn // in use, one for each call
	idle     []*clientConn // what the pool ought to hold
	closed   bool

	taking chan *clientConn // a call that throws away what has expired; nil: none
	thrown *line            // what it is closing
}

// A poolMove is something that may happen.
type poolMove struct {
	name string
	do   func() error
}

// run lets happen what choose says among all that may happen next, and looks after each
// step where every connection is. It runs in a bubble.
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

// next returns what may happen, but for the time that passes.
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

// pop is what take does under the lock: it has another one in hand.
func (r *poolRun) pop() {
	r.thrown = nil
	if n := len(r.idle); n > 0 {
		if top := r.idle[n-1]; !time.Now().Before(top.expires) {
			r.thrown, r.idle = top.Conn.(*line), r.idle[:n-1]
			r.thrown.gate = make(chan struct{})
		}
	}
}

// taken looks at what take has come to.
func (r *poolRun) taken() error {
	synctest.Wait()
	var got *clientConn
	select {
	case got = <-r.taking:
	default:
		if r.thrown == nil || r.thrown.closes.Load() == 0 {
			return fmt.Errorf("got a take that waits, want it to return")
		}
		return nil // waits at the gate
	}
	r.taking = nil
	switch {
	case r.thrown != nil:
		return fmt.Errorf("got an end, want what has expired thrown away first")
	case got == nil && len(r.idle) > 0:
		return fmt.Errorf("got nothing of %d idle connections", len(r.idle))
	case got == nil: // the call dials
		l := &line{id: len(r.lines)}
		r.lines = append(r.lines, l)
		r.users = append(r.users, newClientConn(l, r.app.buffers))
		return nil
	case len(r.idle) == 0 || got != r.idle[len(r.idle)-1]:
		return fmt.Errorf("got connection %d, want the one that was used last", got.Conn.(*line).id)
	case !got.reused:
		return fmt.Errorf("got a used connection that does not say so")
	}
	r.idle = r.idle[:len(r.idle)-1]
	r.users = append(r.users, got)
	return nil
}

// put gives back the connection of a user; life is how long it may stay in the pool.
func (r *poolRun) put(i int, keepAlive, life time.Duration) {
	u := r.users[i]
	r.users = slices.Delete(r.users, i, i+1)
	if !r.closed && life > 0 && len(r.idle) < r.most {
		r.idle = append(r.idle, u)
	}
	r.app.put(u, keepAlive)
}

// check compares the pool with what it ought to hold behind a move.
func (r *poolRun) check(move string) error {
	r.app.mu.Lock()
	held := slices.Clone(r.app.idle)
	r.app.mu.Unlock()

	// A sweep takes what has expired, and nothing else.
	if move == "tick" || move == "sweep" {
		r.idle = slices.DeleteFunc(r.idle, func(i *clientConn) bool { return !time.Now().Before(i.expires) && !slices.Contains(held, i) })
		for _, i := range r.idle {
			if !time.Now().Before(i.expires) && move == "sweep" {
				return fmt.Errorf("got connection %d swept over, want it closed", i.Conn.(*line).id)
			}
		}
	}
	if !slices.Equal(held, r.idle) {
		return fmt.Errorf("got %d idle, want %d, or others", len(held), len(r.idle))
	}
	if len(held) > r.most || r.closed && len(held) > 0 {
		return fmt.Errorf("got %d idle, want at most %d, after Close none", len(held), r.most)
	}
	for _, l := range r.lines {
		holders := 0
		for _, u := range append(r.users[:len(r.users):len(r.users)], r.idle...) {
			if u.Conn == l {
				holders++
			}
		}
		if closes := int(l.closes.Load()); holders+closes != 1 {
			return fmt.Errorf("connection %d: got %d that hold it and closed %d times, want one or the other once", l.id, holders, closes)
		}
	}
	return nil
}

// end closes what is in use. What is left alone is closed in the end.
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
// every order of the calls, the sweeper, the clock and Close, with the granularity of the lock.
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
				var path, branches []int // the choice at each step, and out of how many
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
