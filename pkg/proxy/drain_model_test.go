package proxy

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// tick is the resolution of time in a run. All events happen at multiples of tick.
const tick = undoAfter / 2

// A drainCase contains the settings and the maximum numbers of events of a run. The test tries every
// order of the events at every tick.
type drainCase struct {
	quiet, deadline, least int // quiet period, deadline and minimum duration in ticks
	ticks                  int // duration of a run
	hooks, signals         int // numbers of calls to Begin(false) and Begin(true), each with a Wait
	requests, probes       int // numbers of requests and of kubelet probes that arrive and end; the probes do not reset the quiet period
	streams                int // number of requests in flight that become streams
	asks                   int // number of queue probes; 0 means that all checks run after each step
	hangUps                int // number of times that all waiters cancel
	runs                   int // expected number of orders; the test fails if it tries another number
}

func (c drainCase) String() string {
	return fmt.Sprintf("quiet %d, deadline %d, least %d, preStops %d, signals %d, requests %d, probes %d, streams %d, asks %d, hang-ups %d, ticks %d",
		c.quiet, c.deadline, c.least, c.hooks, c.signals, c.requests, c.probes, c.streams, c.asks, c.hangUps, c.ticks)
}

// drainModel is a simple model of docs/promises.md 3.5. All times are in ticks.
type drainModel struct {
	drainCase
	now      int
	draining bool
	ending   bool
	began    int
	newest   int // time of the last request that reset the quiet period
	flights  int
	open     int // number of flights that are streams
	closing  bool
	aborted  bool
}

// verdict returns the outcome of a wait that ends now, or "" if the wait continues.
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

// place is the state of a request.
type place int

const (
	outside place = iota
	read
	inFlight
	gone
)

// A request is an exchange that only records whether it was notified.
type request struct {
	transport.Exchange
	state   RequestState
	counts  bool // the request resets the quiet period
	where   place
	since   int // arrival time
	woken   bool
	aborted bool
	stream  bool
}

func (q *request) Notify() { q.woken = true }

// sleeping is a waiter that has called look once.
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

// A waitCall is a call to Drain.Wait.
type waitCall struct {
	outcome chan Outcome
	over    bool
}

// A drainRun contains a drain, the model of this drain and the events of a run.
type drainRun struct {
	drainModel
	drain *Drain
	begun time.Time // start of the run

	ctx      context.Context // context of the waiters
	cancel   func()
	requests []request
	waiters  []*waitCall
	sleepers []sleeping
	contexts []context.Context // contexts that Drain.while returned in the current state
	stops    []func()          // cancel functions of asked
	empty    chan error        // receives the result of Empty
	emptied  bool
	err      error // error that a move found
}

// A drainMove is a possible event.
type drainMove struct {
	name string
	do   func()
}

// run executes the moves that choose selects until the ticks are used up, and compares each step
// with the model. It must be called in a synctest bubble.
func (c drainCase) run(choose func(n int) int) (moves string, err error) {
	r := &drainRun{drainModel: drainModel{drainCase: c}, begun: time.Now(), empty: make(chan error, 1), requests: make([]request, c.requests+c.probes)}
	r.drain = NewDrain(DrainSettings{Quiet: time.Duration(c.quiet) * tick, Deadline: time.Duration(c.deadline) * tick, Min: time.Duration(c.least) * tick})
	r.ctx, r.cancel = context.WithCancel(context.Background())
	defer func() {
		for _, stop := range r.stops {
			stop()
		}
		r.cancel() // the current cancel, which can change
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

// next returns the possible moves.
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
	first := map[bool]bool{true: true, false: true} // by request.counts, because requests that have not arrived are interchangeable
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

// movesOf returns the possible moves of a request.
func (r *drainRun) movesOf(q *request, i int) (next []drainMove) {
	may := func(name string, do func()) { next = append(next, drainMove{fmt.Sprint(name, i), do}) }
	switch q.where {
	case outside:
		if q.counts { // the goroutine may be delayed after it has read the start time
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
				q.state.enter(observation.Tunnelled)
			})
		}
	}
	return next
}

// beginDrain begins the drain and waits for it.
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
		r.err = fmt.Errorf("got a request notified on arrival, want none")
	}
}

// ask checks the result of a queue probe.
func (r *drainRun) ask() {
	r.asks--
	while, stop := r.drain.while(r.ctx)
	defer stop()
	synctest.Wait()
	if over := while.Err() != nil; over != r.draining {
		r.err = fmt.Errorf("readiness check: got canceled %t, want %t", over, r.draining)
	}
	if got := r.drain.Draining(); got != r.draining {
		r.err = fmt.Errorf("got draining %t, want %t", got, r.draining)
	}
}

// cut aborts the requests in flight after the deadline.
func (r *drainRun) cut() {
	r.aborted = true
	for i := range r.requests {
		r.requests[i].aborted = r.requests[i].aborted || r.requests[i].where == inFlight
	}
	r.drain.Abort()
	ctx := r.ctx
	go func() { r.empty <- r.drain.Empty(ctx) }()
}

// checkWaiters checks that Wait returns if and only if the drain is over.
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
			return fmt.Errorf("wait: got %q, want %q", got, want)
		}
	}
	return nil
}

// checkRequests checks that aborted requests have expired and were notified.
func (r *drainRun) checkRequests(move string) error {
	for i := range r.requests {
		q := &r.requests[i]
		want := observation.OK
		if q.aborted {
			want = observation.Draining
		}
		if q.where > outside && q.state.expired() != want {
			return fmt.Errorf("request %d: got expiry %v, want %v", i, q.state.expired(), want)
		}
		if move == "cut" && q.where == inFlight && !q.woken {
			return fmt.Errorf("request %d: got aborted without notification, want notified", i)
		}
	}
	if n, _ := r.drain.Flights(); n != r.flights {
		return fmt.Errorf("got %d requests in flight, want %d", n, r.flights)
	}
	return nil
}

// checkEmpty checks that Empty returns when no request is in flight.
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
		return fmt.Errorf("Empty: got returned %t with %d requests in flight", r.emptied, r.flights)
	}
	return nil
}

// checkState checks Draining and DeadlineAt.
func (r *drainRun) checkState(string) error {
	if got := r.drain.Draining(); got != r.draining {
		return fmt.Errorf("got draining %t, want %t", got, r.draining)
	}
	end := time.Time{}
	if r.draining && r.deadline > 0 {
		end = r.begun.Add(time.Duration(r.began+r.deadline) * tick)
	}
	if got := r.drain.DeadlineAt(); !got.Equal(end) {
		return fmt.Errorf("deadline: got %v, want %v", got, end)
	}
	return nil
}

// checkSleepers checks that a waiter that called look at an earlier step is woken if the drain is
// over now.
func (r *drainRun) checkSleepers(string) error {
	for i := range r.sleepers {
		if r.verdict() != "" && !r.sleepers[i].pending() {
			return fmt.Errorf("waiter of step %d: got no notification, want %q", i, r.verdict())
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
		return fmt.Errorf("look: got %q, want %q", got, r.verdict())
	}
	return nil
}

// checkAsked checks that the contexts of readiness checks are canceled when the drain begins, and
// not before.
func (r *drainRun) checkAsked(string) error {
	for _, while := range r.contexts {
		if r.draining && while.Err() == nil {
			return fmt.Errorf("readiness check before the drain: got no cancel, want canceled")
		}
	}
	if r.draining {
		return nil
	}
	while, stop := r.drain.while(r.ctx)
	r.stops = append(r.stops, stop)
	if while.Err() != nil {
		return fmt.Errorf("readiness check without a drain: got canceled, want no cancel")
	}
	r.contexts = append(r.contexts, while)
	return nil
}

// TestDrainMatchesModelInAllInterleavings tries every order of signals, hooks, requests, the
// deadline and waiters at every tick.
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
