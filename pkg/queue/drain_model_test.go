package queue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// tick is the grain of time of the runs: all moments of theirs are multiples of it.
const tick = undoAfter / 2

// A drainCase is what may happen in a run, and how often at most. Every order is
// tried, at every tick.
type drainCase struct {
	quiet, deadline, least int // ticks
	ticks                  int // the run's length
	hooks, signals         int // Begin(false) and Begin(true), each with a Wait
	requests, probes       int // that arrive and leave; those of the kubelet don't count against quiet
	streams                int // requests in flight that become streams
	asks                   int // a probe of ours; where it is 0, all is looked at after each step
	hangUps                int // everybody who waits for the drain goes away
	runs                   int // how many orders there are: a test that tries fewer must be noticed
}

func (c drainCase) String() string {
	return fmt.Sprintf("quiet %d, deadline %d, least %d, preStops %d, signals %d, requests %d, probes %d, streams %d, asks %d, hang-ups %d, ticks %d",
		c.quiet, c.deadline, c.least, c.hooks, c.signals, c.requests, c.probes, c.streams, c.asks, c.hangUps, c.ticks)
}

// drainModel is docs/promises.md 3.5, written naively. Time is in ticks.
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

// place is where a request is.
type place int

const (
	outside place = iota
	read
	inFlight
	gone
)

// A request is an exchange that only notes whether it was woken.
type request struct {
	Exchange
	state   RequestState
	counts  bool // against the quiet period
	where   place
	since   int // when it was read
	woken   bool
	aborted bool
	stream  bool
}

func (q *request) Notify() { q.woken = true }

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

// A waitCall is a call of Drain.Wait.
type waitCall struct {
	outcome chan Outcome
	over    bool
}

// A drainRun is a drain to which one thing happens after the other, and what ought to
// come of it.
type drainRun struct {
	drainModel
	drain *Drain
	begun time.Time // when the run did

	ctx      context.Context // of those who wait
	cancel   func()
	requests []request
	waiters  []*waitCall
	sleepers []sleeping
	asked    []context.Context // of While, each in the present time of serving
	stops    []func()          // of asked
	empty    chan error        // what Empty has returned
	emptied  bool
	err      error // what a move has found wrong
}

// A drainMove is something that may happen.
type drainMove struct {
	name string
	do   func()
}

// run lets happen what choose says among all that may happen next, until the ticks are
// used up, and compares each step with the model. It runs in a bubble.
func (c drainCase) run(choose func(n int) int) (moves string, err error) {
	r := &drainRun{drainModel: drainModel{drainCase: c}, begun: time.Now(), empty: make(chan error, 1), requests: make([]request, c.requests+c.probes)}
	r.drain = NewDrain(DrainSettings{Quiet: time.Duration(c.quiet) * tick, Deadline: time.Duration(c.deadline) * tick, Min: time.Duration(c.least) * tick})
	r.ctx, r.cancel = context.WithCancel(context.Background())
	defer func() {
		for _, stop := range r.stops {
			stop()
		}
		r.cancel() // the one of then
		synctest.Wait()
	}()
	for i := range r.requests {
		r.requests[i].counts = i < c.requests
	}
	for r.now < c.ticks {
		next := r.next()
		now := next[choose(len(next))]
		moves += " " + now.name
		now.do()
		if r.err != nil {
			return moves, r.err
		}
		synctest.Wait()
		r.closing = r.closing || r.ending && r.verdict() == "only streams are left"
		checks := []func(move string) error{r.checkWaiters, r.checkRequests, r.checkEmpty}
		if c.asks == 0 {
			checks = append(checks, r.checkState, r.checkSleepers, r.checkAsked)
		}
		for _, check := range checks {
			if err := check(now.name); err != nil {
				return moves, err
			}
		}
	}
	return moves, nil
}

// next returns what may happen.
func (r *drainRun) next() []drainMove {
	next := []drainMove{{"tick", func() {
		time.Sleep(tick)
		r.tick()
	}}}
	may := func(name string, do func()) { next = append(next, drainMove{name, do}) }
	if r.hooks > 0 {
		may("preStop", func() { r.hooks--; r.beginDrain(false) })
	}
	if r.signals > 0 {
		may("SIGTERM", func() { r.signals--; r.beginDrain(true) })
	}
	if r.asks > 0 {
		may("ask", r.ask)
	}
	if r.hangUps > 0 && len(r.waiters) > 0 {
		may("hang-up", func() {
			r.hangUps--
			r.cancel()
			r.ctx, r.cancel = context.WithCancel(context.Background())
		})
	}
	if r.ending && r.verdict() == "deadline" && !r.aborted {
		may("cut", r.cut)
	}
	first := map[bool]bool{true: true, false: true} // outside: they have no names
	for i := range r.requests {
		q := &r.requests[i]
		if q.where == outside && !first[q.counts] {
			continue
		}
		if q.where == outside {
			first[q.counts] = false
		}
		next = append(next, r.movesOf(q, i)...)
	}
	return next
}

// movesOf returns what may happen to a request.
func (r *drainRun) movesOf(q *request, i int) (next []drainMove) {
	may := func(name string, do func()) { next = append(next, drainMove{fmt.Sprint(name, i), do}) }
	switch q.where {
	case outside:
		if q.counts { // its clock is read, and then its goroutine may be late
			may("read", func() {
				q.where, q.since = read, r.now
				q.state.begin(&Clocks{}, time.Now())
			})
			break
		}
		may("arrive", func() {
			q.state.begin(&Clocks{}, time.Now())
			r.arrive(q)
		})
	case read:
		may("arrive", func() { r.arrive(q) })
	case inFlight:
		may("leave", func() {
			q.where = gone
			r.flights--
			if q.stream {
				r.open--
			}
			r.drain.leave(&q.state)
		})
		if r.streams > 0 && !q.stream && !q.aborted {
			may("stream", func() {
				r.streams--
				q.stream = true
				r.open++
				q.state.Enter(Tunnelled)
			})
		}
	}
	return next
}

// beginDrain begins the drain, and waits for it.
func (r *drainRun) beginDrain(ending bool) {
	r.begin(ending)
	r.drain.Begin(ending)
	w := &waitCall{outcome: make(chan Outcome, 1)}
	ctx := r.ctx
	go func() { w.outcome <- r.drain.Wait(ctx) }()
	r.waiters = append(r.waiters, w)
}

func (r *drainRun) arrive(q *request) {
	q.where, q.aborted = inFlight, r.aborted || r.closing
	r.flights++
	if q.counts {
		r.newest = max(r.newest, q.since)
	}
	r.drain.arrive(q, &q.state, q.counts)
	if q.woken {
		r.err = fmt.Errorf("got one woken that had not slept")
	}
}

// ask compares what a probe of ours gets.
func (r *drainRun) ask() {
	r.asks--
	while, stop := r.drain.while(r.ctx)
	defer stop()
	synctest.Wait()
	if over := while.Err() != nil; over != r.draining {
		r.err = fmt.Errorf("who asks while the drain has not begun: got it ended %t, want %t", over, r.draining)
	}
	if got := r.drain.Draining(); got != r.draining {
		r.err = fmt.Errorf("got draining %t, want %t", got, r.draining)
	}
}

// cut ends what is in flight at the deadline.
func (r *drainRun) cut() {
	r.aborted = true
	for i := range r.requests {
		r.requests[i].aborted = r.requests[i].aborted || r.requests[i].where == inFlight
	}
	r.drain.Abort()
	ctx := r.ctx
	go func() { r.empty <- r.drain.Empty(ctx) }()
}

// checkWaiters: who waits returns when, and only when, the drain is over.
func (r *drainRun) checkWaiters(move string) error {
	for _, w := range r.waiters {
		if w.over {
			continue
		}
		got := ""
		select {
		case o := <-w.outcome:
			got, w.over = o.String(), true
		default:
		}
		want := r.verdict()
		if move == "hang-up" {
			want = "gave up"
		}
		if got != want {
			return fmt.Errorf("who waits: got %q, want %q", got, want)
		}
	}
	return nil
}

// checkRequests: those that the deadline has cut are over, and woken.
func (r *drainRun) checkRequests(move string) error {
	for i := range r.requests {
		q := &r.requests[i]
		want := OK
		if q.aborted {
			want = Draining
		}
		if q.where > outside && q.state.expired() != want {
			return fmt.Errorf("request %d: got over %v, want %v", i, q.state.expired(), want)
		}
		if move == "cut" && q.where == inFlight && !q.woken {
			return fmt.Errorf("request %d: got cut asleep, want it woken", i)
		}
	}
	if n, _ := r.drain.Flights(); n != r.flights {
		return fmt.Errorf("got %d in flight, want %d", n, r.flights)
	}
	return nil
}

// checkEmpty: who waits behind the deadline until nothing is in flight returns then.
func (r *drainRun) checkEmpty(string) error {
	if !r.aborted || r.emptied {
		return nil
	}
	select {
	case <-r.empty:
		r.emptied = true
	default:
	}
	if r.emptied != (r.flights == 0) {
		return fmt.Errorf("who waits for nothing in flight: got an end %t with %d in flight", r.emptied, r.flights)
	}
	return nil
}

// checkState compares what the drain says of itself.
func (r *drainRun) checkState(string) error {
	if got := r.drain.Draining(); got != r.draining {
		return fmt.Errorf("got draining %t, want %t", got, r.draining)
	}
	end := time.Time{}
	if r.draining && r.deadline > 0 {
		end = r.begun.Add(time.Duration(r.began+r.deadline) * tick)
	}
	if got := r.drain.DeadlineAt(); !got.Equal(end) {
		return fmt.Errorf("got the deadline at %v, want %v", got, end)
	}
	return nil
}

// checkSleepers: who looked at any step before, and is late, must have been woken too.
func (r *drainRun) checkSleepers(string) error {
	for i := range r.sleepers {
		if r.verdict() != "" && !r.sleepers[i].pending() {
			return fmt.Errorf("who looked at step %d sleeps on, want %q", i, r.verdict())
		}
	}
	r.drain.mu.Lock()
	outcome, wake, over := r.drain.look(time.Now())
	emptied := r.drain.untilSettled()
	r.drain.mu.Unlock()
	got := ""
	if over {
		got = outcome.String()
	} else {
		r.sleepers = append(r.sleepers, sleeping{emptied, wake})
	}
	if got != r.verdict() {
		return fmt.Errorf("who looks: got %q, want %q", got, r.verdict())
	}
	return nil
}

// checkAsked: what a probe asks ends when the drain begins, and not before.
func (r *drainRun) checkAsked(string) error {
	for _, while := range r.asked {
		if r.draining && while.Err() == nil {
			return fmt.Errorf("who asked before the drain asks on")
		}
	}
	if r.draining {
		return nil
	}
	while, stop := r.drain.while(r.ctx)
	r.stops = append(r.stops, stop)
	if while.Err() != nil {
		return fmt.Errorf("who asks while nothing drains is sent away")
	}
	r.asked = append(r.asked, while)
	return nil
}

// Every order in which signals, hooks, requests, the deadline and those who wait
// can come, tick by tick.
func TestDrainMatchesModelInAllInterleavings(t *testing.T) {
	for _, c := range []drainCase{
		{quiet: 1, deadline: 3, ticks: 4, hooks: 1, signals: 1, requests: 1, runs: 3087},
		{quiet: 1, deadline: 3, ticks: 4, hooks: 1, requests: 1, asks: 1, runs: 2163},
		{quiet: 0, deadline: 1, ticks: 2, signals: 1, requests: 1, probes: 1, runs: 2176},
		{quiet: 2, deadline: 0, ticks: 4, signals: 1, probes: 1, runs: 99},
		{quiet: 2, deadline: 0, ticks: 5, hooks: 2, signals: 1, runs: 161},
		{quiet: 2, deadline: 0, ticks: 4, hooks: 2, signals: 1, asks: 2, runs: 3183},
		{quiet: 2, deadline: 0, ticks: 4, hooks: 2, asks: 2, hangUps: 1, runs: 2099},
		{quiet: 1, deadline: 1, least: 2, ticks: 3, hooks: 1, signals: 1, requests: 1, runs: 2498},
		{quiet: 1, deadline: 4, least: 3, ticks: 5, signals: 1, requests: 1, runs: 596},
		{quiet: 1, deadline: 3, ticks: 4, signals: 1, requests: 1, streams: 1, runs: 958},
		{quiet: 1, deadline: 3, ticks: 3, signals: 1, requests: 1, probes: 1, streams: 1, runs: 22359},
		{quiet: 1, deadline: 0, ticks: 3, hooks: 1, signals: 1, requests: 1, streams: 1, runs: 2517},
	} {
		t.Run(c.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs, err := everyRun(c.run)
				harness.NoError(t, err)
				harness.Equal(t, runs, c.runs, "runs")
			})
		})
	}
}
