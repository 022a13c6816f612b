package upstream

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// poolTick is the grain of time of the stories.
const poolTick = idleTimeout / 2

// poolCase is what may happen in a story, and how often at most. Every order is
// tried.
type poolCase struct {
	most    int // MaxIdle
	calls   int // each takes a connection, or dials; it puts it back in one of three ways, or it dies
	ticks   int
	sweeps  int // expire, at any other time than its own
	closes  int
	stories int // how many there are: that it shrinks must not go unnoticed
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

// runPool lets happen what choose says among all that may happen next, at the
// grain of the pool's lock, and looks after each step where every connection is.
// It runs in a bubble.
func runPool(c poolCase, choose func(n int) int) (story string, err error) {
	a := &App{settings: Settings{Port: 1, MaxIdle: c.most}}
	defer func() { a.Close(); synctest.Wait() }()
	var (
		lines  []*line
		users  []*conn // in use, one for each call
		idle   []*conn // what the pool ought to hold
		closed bool

		taking chan *conn // a call that throws away what has expired; nil: none
		thrown *line      // what it is closing
	)
	dial := func() *conn {
		l := &line{id: len(lines)}
		lines = append(lines, l)
		return newConn(l, &a.buffers)
	}
	// pop is what take does under the lock: it has another one in hand.
	pop := func() {
		thrown = nil
		if n := len(idle); n > 0 {
			if top := idle[n-1]; !time.Now().Before(top.expires) {
				thrown, idle = top.Conn.(*line), idle[:n-1]
				thrown.gate = make(chan struct{})
			}
		}
	}
	// taken looks at what take has come to.
	taken := func() error {
		synctest.Wait()
		var got *conn
		select {
		case got = <-taking:
		default:
			if thrown == nil || thrown.closes.Load() == 0 {
				return fmt.Errorf("got a take that waits, want it to return")
			}
			return nil // waits at the gate
		}
		taking = nil
		switch {
		case thrown != nil:
			return fmt.Errorf("got an end, want what has expired thrown away first")
		case got == nil && len(idle) > 0:
			return fmt.Errorf("got nothing of %d idle connections", len(idle))
		case got == nil:
			users = append(users, dial())
			return nil
		case len(idle) == 0 || got != idle[len(idle)-1]:
			return fmt.Errorf("got connection %d, want the one that was used last", got.Conn.(*line).id)
		case !got.reused:
			return fmt.Errorf("got a used connection that does not say so")
		}
		idle = idle[:len(idle)-1]
		users = append(users, got)
		return nil
	}
	put := func(i int, keepAlive time.Duration, life time.Duration) {
		u := users[i]
		users = slices.Delete(users, i, i+1)
		if !closed && life > 0 && len(idle) < c.most {
			idle = append(idle, u)
		}
		a.put(u, keepAlive)
	}

	for step := 0; ; step++ {
		type move struct {
			word string
			do   func() error
		}
		var next []move
		may := func(word string, do func() error) { next = append(next, move{word, do}) }
		switch {
		case taking != nil:
			may("go-on", func() error {
				gate := thrown.gate
				pop()
				close(gate)
				return taken()
			})
		case c.calls > 0:
			may("call", func() error {
				c.calls--
				pop()
				made := make(chan *conn, 1)
				taking = made
				go func() { made <- a.take() }()
				return taken()
			})
		}
		for i, u := range users {
			id := u.Conn.(*line).id
			may(fmt.Sprint("put", id), func() error { put(i, -1, idleTimeout); return nil })
			may(fmt.Sprint("put-short", id), func() error { put(i, poolTick+keepAliveMargin, poolTick); return nil })
			may(fmt.Sprint("put-dying", id), func() error { put(i, keepAliveMargin, 0); return nil })
			may(fmt.Sprint("die", id), func() error {
				users = slices.Delete(users, i, i+1)
				u.close()
				return nil
			})
		}
		if c.sweeps > 0 && a.sweep != nil {
			may("sweep", func() error { c.sweeps--; a.expire(); return nil })
		}
		if c.closes > 0 {
			may("close", func() error { c.closes--; closed = true; a.Close(); idle = nil; return nil })
		}
		if len(next) == 0 && c.ticks == 0 {
			break
		}
		if c.ticks > 0 {
			may("tick", func() error { c.ticks--; time.Sleep(poolTick); return nil })
		}
		now := next[choose(len(next))]
		story += " " + now.word
		if err := now.do(); err != nil {
			return story, err
		}
		synctest.Wait()

		a.mu.Lock()
		held := slices.Clone(a.idle)
		a.mu.Unlock()

		// A sweep takes what has expired, and nothing else.
		if now.word == "tick" || now.word == "sweep" {
			idle = slices.DeleteFunc(idle, func(i *conn) bool { return !time.Now().Before(i.expires) && !slices.Contains(held, i) })
			for _, i := range idle {
				if !time.Now().Before(i.expires) && now.word == "sweep" {
					return story, fmt.Errorf("got connection %d swept over, want it closed", i.Conn.(*line).id)
				}
			}
		}
		if !slices.Equal(held, idle) {
			return story, fmt.Errorf("got %d idle, want %d, or others", len(held), len(idle))
		}
		if len(held) > c.most || closed && len(held) > 0 {
			return story, fmt.Errorf("got %d idle, want at most %d, after Close none", len(held), c.most)
		}
		for _, l := range lines {
			holders := 0
			for _, u := range append(users[:len(users):len(users)], idle...) {
				if u.Conn == l {
					holders++
				}
			}
			if closes := int(l.closes.Load()); holders+closes != 1 {
				return story, fmt.Errorf("connection %d: got %d that hold it and closed %d times, want one or the other once", l.id, holders, closes)
			}
		}
	}

	// Who is left alone is closed in the end.
	for _, u := range users {
		u.close()
	}
	time.Sleep(4 * poolTick)
	synctest.Wait()
	for _, l := range lines {
		if closes := l.closes.Load(); closes != 1 {
			return story, fmt.Errorf("connection %d, long after: got closed %d times, want once", l.id, closes)
		}
	}
	return story, nil
}

// A connection is in use by one call, or idle, or closed, once; never two of
// these and never none. Every order is tried in which a few calls, the sweeper,
// the clock and Close can come, one lock after the other.
func TestEveryInterleavingOfASmallPoolLosesNoConnection(t *testing.T) {
	for _, c := range []poolCase{
		{most: 1, calls: 2, ticks: 2, closes: 1, stories: 5072},
		{most: 2, calls: 3, closes: 1, stories: 6720},
		{most: 1, calls: 3, stories: 960},
		{most: 2, calls: 2, ticks: 3, sweeps: 1, stories: 4360},
		{most: 2, calls: 1, ticks: 2, sweeps: 1, closes: 1, stories: 160},
	} {
		t.Run(c.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var path, branches []int // the choice at each step, and out of how many
				stories := 0
				for more := true; more; stories++ {
					at := 0
					story, err := runPool(c, func(n int) int {
						if at == len(path) {
							path, branches = append(path, 0), append(branches, n)
						}
						at++
						return path[at-1]
					})
					if err != nil {
						t.Fatalf("story%s: %v", story, err)
					}
					for len(path) > 0 && path[len(path)-1]+1 == branches[len(path)-1] {
						path, branches = path[:len(path)-1], branches[:len(path)-1]
					}
					if more = len(path) > 0; more {
						path[len(path)-1]++
					}
				}
				if stories != c.stories {
					t.Errorf("got %d stories, want %d", stories, c.stories)
				}
			})
		})
	}
}
