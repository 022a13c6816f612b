package queue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// tick is the grain of time of the stories: all moments of theirs are multiples
// of it.
const tick = undoAfter / 2

// drainCase is what may happen in a story, and how often at most. Every order is
// tried, at every tick.
type drainCase struct {
	quiet, deadline, least int // ticks
	ticks                  int // the story's length
	hooks, signals         int // Begin(false) and Begin(true), each with a Wait
	requests, probes       int // that arrive and leave; those of the kubelet don't count against quiet
	streams                int // requests in flight that become streams
	asks                   int // a probe of ours; where it is 0, all is looked at after each step
	hangUps                int // everybody who waits for the drain goes away
	stories                int // how many there are: that it shrinks must not go unnoticed
}

func (c drainCase) String() string {
	return fmt.Sprintf("quiet %d, deadline %d, least %d, preStops %d, signals %d, requests %d, probes %d, streams %d, asks %d, hang-ups %d, ticks %d",
		c.quiet, c.deadline, c.least, c.hooks, c.signals, c.requests, c.probes, c.streams, c.asks, c.hangUps, c.ticks)
}

// drainModel is docs/promises.md 3.5, told naively. Time is in ticks.
type drainModel struct {
	drainCase
	now      int
	draining bool
	ending   bool
	began    int
	newest   int // when the last request came that counts
	flights  int
	open     int // of the flights, streams
	closing  bool
	aborted  bool
}

// verdict says how a wait for the drain ends now; "" is that it goes on.
func (m *drainModel) verdict() string {
	switch {
	case !m.draining:
		return "undone"
	case m.deadline > 0 && m.now >= m.began+m.deadline:
		return "deadline"
	case m.flights > m.open && !m.closing, !m.closing && (m.now < m.newest+m.quiet || m.now < m.began+m.least):
		return ""
	case m.flights > 0:
		return "only streams are left"
	}
	return "drained"
}

func (m *drainModel) begin(ending bool) {
	if !m.draining {
		m.draining, m.began, m.newest = true, m.now, m.now
	}
	m.ending = m.ending || ending
}

func (m *drainModel) tick() {
	m.now++
	if m.draining && !m.ending && m.now == m.began+2 {
		m.draining = false
	}
}

// guest is an exchange that only notes whether it was woken.
type guest struct {
	Exchange
	life    Life
	counts  bool
	where   int // outside, read, in flight, gone
	since   int
	woken   bool
	aborted bool
	stream  bool
}

func (g *guest) Wake() { g.woken = true }

// sleeping is one who has looked, was told to wait and has not looked again.
type sleeping struct {
	emptied <-chan struct{}
	next    time.Time
}

func (s *sleeping) pending() bool {
	select {
	case <-s.emptied:
		return true
	default:
		return !s.next.IsZero() && !time.Now().Before(s.next)
	}
}

// told is one who waits by Drain.Wait.
type told struct {
	outcome chan Outcome
	over    bool
}

// runDrain lets happen what choose says among all that may happen next, until
// the ticks are used up, and compares each step with the model. It runs in a
// bubble.
func runDrain(c drainCase, choose func(n int) int) (story string, err error) {
	d := NewDrain(DrainSettings{Quiet: time.Duration(c.quiet) * tick, Deadline: time.Duration(c.deadline) * tick, Min: time.Duration(c.least) * tick})
	m := drainModel{drainCase: c}
	begin := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); synctest.Wait() }() // the one of then

	guests := make([]guest, c.requests+c.probes)
	for i := range guests {
		guests[i].counts = i < c.requests
	}
	var waiters []*told
	var sleepers []sleeping
	var asked []context.Context // of While, each in the present time of serving
	empty, emptied := make(chan error, 1), false

	begun := func(ending bool) {
		m.begin(ending)
		d.Begin(ending)
		w := &told{outcome: make(chan Outcome, 1)}
		go func() { w.outcome <- d.Wait(ctx) }()
		waiters = append(waiters, w)
	}
	arrive := func(g *guest) {
		g.where, g.aborted = 2, m.aborted || m.closing
		m.flights++
		if g.counts {
			m.newest = max(m.newest, g.since)
		}
		d.arrive(g, &g.life, g.counts)
		if g.woken {
			err = fmt.Errorf("got one woken that had not slept")
		}
	}
	watched := c.asks == 0
	for m.now < c.ticks {
		type move struct {
			word string
			do   func()
		}
		next := []move{{"tick", func() {
			time.Sleep(tick)
			m.tick()
		}}}
		if c.hooks > 0 {
			next = append(next, move{"preStop", func() { c.hooks--; begun(false) }})
		}
		if c.signals > 0 {
			next = append(next, move{"SIGTERM", func() { c.signals--; begun(true) }})
		}
		if c.asks > 0 {
			next = append(next, move{"ask", func() {
				c.asks--
				while, stop := d.While(ctx)
				defer stop()
				synctest.Wait()
				if over := while.Err() != nil; over != m.draining {
					err = fmt.Errorf("who asks while the drain has not begun: got it ended %t, want %t", over, m.draining)
				}
				if got := d.Draining(); got != m.draining {
					err = fmt.Errorf("got draining %t, want %t", got, m.draining)
				}
			}})
		}
		if c.hangUps > 0 && len(waiters) > 0 {
			next = append(next, move{"hang-up", func() {
				c.hangUps--
				cancel()
				ctx, cancel = context.WithCancel(context.Background())
			}})
		}
		if m.ending && m.verdict() == "deadline" && !m.aborted {
			next = append(next, move{"cut", func() {
				m.aborted = true
				for i := range guests {
					guests[i].aborted = guests[i].aborted || guests[i].where == 2
				}
				d.Abort()
				go func() { empty <- d.Empty(ctx) }()
			}})
		}
		first := map[bool]bool{true: true, false: true} // outside: they have no names
		for i := range guests {
			g := &guests[i]
			switch g.where {
			case 0:
				if !first[g.counts] {
					continue
				}
				first[g.counts] = false
				if g.counts { // its clock is read, and then its goroutine may be late
					next = append(next, move{fmt.Sprint("read", i), func() {
						g.where, g.since = 1, m.now
						g.life.begin(&Clocks{}, time.Now())
					}})
					continue
				}
				next = append(next, move{fmt.Sprint("arrive", i), func() {
					g.life.begin(&Clocks{}, time.Now())
					arrive(g)
				}})
			case 1:
				next = append(next, move{fmt.Sprint("arrive", i), func() { arrive(g) }})
			case 2:
				next = append(next, move{fmt.Sprint("leave", i), func() {
					g.where = 3
					m.flights--
					if g.stream {
						m.open--
					}
					d.leave(&g.life)
				}})
				if c.streams > 0 && !g.stream && !g.aborted {
					next = append(next, move{fmt.Sprint("stream", i), func() {
						c.streams--
						g.stream = true
						m.open++
						g.life.Enter(Tunnelled)
					}})
				}
			}
		}

		now := next[choose(len(next))]
		story += " " + now.word
		now.do()
		if err != nil {
			return story, err
		}
		synctest.Wait()
		m.closing = m.closing || m.ending && m.verdict() == "only streams are left"

		// Who waits is told when, and only when, it is over.
		for _, w := range waiters {
			if w.over {
				continue
			}
			got := ""
			select {
			case o := <-w.outcome:
				got, w.over = o.String(), true
			default:
			}
			want := m.verdict()
			if now.word == "hang-up" {
				want = "gave up"
			}
			if got != want {
				return story, fmt.Errorf("who waits: got %q, want %q", got, want)
			}
		}
		for i := range guests {
			g := &guests[i]
			want := OK
			if g.aborted {
				want = Draining
			}
			if g.where > 0 && g.life.Over() != want {
				return story, fmt.Errorf("request %d: got over %v, want %v", i, g.life.Over(), want)
			}
			if now.word == "cut" && g.where == 2 && !g.woken {
				return story, fmt.Errorf("request %d: got cut asleep, want it woken", i)
			}
		}
		if m.aborted && !emptied {
			select {
			case <-empty:
				emptied = true
			default:
			}
			if emptied != (m.flights == 0) {
				return story, fmt.Errorf("who waits for nothing in flight: got told %t with %d in flight", emptied, m.flights)
			}
		}
		if n, _ := d.Flights(); n != m.flights {
			return story, fmt.Errorf("got %d in flight, want %d", n, m.flights)
		}
		if !watched {
			continue
		}

		if got := d.Draining(); got != m.draining {
			return story, fmt.Errorf("got draining %t, want %t", got, m.draining)
		}
		end := time.Time{}
		if m.draining && c.deadline > 0 {
			end = begin.Add(time.Duration(m.began+c.deadline) * tick)
		}
		if got := d.DeadlineAt(); !got.Equal(end) {
			return story, fmt.Errorf("got the deadline at %v, want %v", got, end)
		}
		// Who looked at any step before, and is late, must have been woken too.
		for i := range sleepers {
			if m.verdict() != "" && !sleepers[i].pending() {
				return story, fmt.Errorf("who looked at step %d sleeps on, want to be told %q", i, m.verdict())
			}
		}
		d.mu.Lock()
		outcome, wake, over := d.look(time.Now())
		emptied := d.untilSettled()
		d.mu.Unlock()
		got := ""
		if over {
			got = outcome.String()
		} else {
			sleepers = append(sleepers, sleeping{emptied, wake})
		}
		if got != m.verdict() {
			return story, fmt.Errorf("who looks: got %q, want %q", got, m.verdict())
		}
		for _, while := range asked {
			if m.draining && while.Err() == nil {
				return story, fmt.Errorf("who asked before the drain asks on")
			}
		}
		if !m.draining {
			while, stop := d.While(ctx)
			defer stop()
			if while.Err() != nil {
				return story, fmt.Errorf("who asks while nothing drains is sent away")
			}
			asked = append(asked, while)
		}
	}
	return story, nil
}

// Every order in which signals, hooks, requests, the deadline and those who wait
// can come, tick by tick.
func TestEveryInterleavingOfASmallDrainEndsAsPromised(t *testing.T) {
	for _, c := range []drainCase{
		{quiet: 1, deadline: 3, ticks: 4, hooks: 1, signals: 1, requests: 1, stories: 3087},
		{quiet: 1, deadline: 3, ticks: 4, hooks: 1, requests: 1, asks: 1, stories: 2163},
		{quiet: 0, deadline: 1, ticks: 2, signals: 1, requests: 1, probes: 1, stories: 2176},
		{quiet: 2, deadline: 0, ticks: 4, signals: 1, probes: 1, stories: 99},
		{quiet: 2, deadline: 0, ticks: 5, hooks: 2, signals: 1, stories: 161},
		{quiet: 2, deadline: 0, ticks: 4, hooks: 2, signals: 1, asks: 2, stories: 3183},
		{quiet: 2, deadline: 0, ticks: 4, hooks: 2, asks: 2, hangUps: 1, stories: 2099},
		{quiet: 1, deadline: 1, least: 2, ticks: 3, hooks: 1, signals: 1, requests: 1, stories: 2498},
		{quiet: 1, deadline: 4, least: 3, ticks: 5, signals: 1, requests: 1, stories: 596},
		{quiet: 1, deadline: 3, ticks: 4, signals: 1, requests: 1, streams: 1, stories: 958},
		{quiet: 1, deadline: 3, ticks: 3, signals: 1, requests: 1, probes: 1, streams: 1, stories: 22359},
		{quiet: 1, deadline: 0, ticks: 3, hooks: 1, signals: 1, requests: 1, streams: 1, stories: 2517},
	} {
		t.Run(c.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stories, err := everyStory(func(choose func(n int) int) (string, error) { return runDrain(c, choose) })
				if err != nil {
					t.Fatal(err)
				}
				expect(t, "stories", stories, c.stories)
			})
		})
	}
}
