package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// step is an event for one request. Each step locks the limit once, except leave, which locks the
// limit twice if the slot was granted. The first critical section of leave only reads values that do
// not change any more.
type step struct {
	request int
	what    action
}

type action byte

const (
	arrive  action = 'a' // acquire is called
	wake    action = 'w' // Wait returns OK after Notify
	startle action = 's' // Wait returns OK after a Notify for the previous request
	leave   action = 'l' // Wait returns ClientGone
	release action = 'r' // the exchange with the user container has ended
)

// sleeper is an exchange whose method Wait returns when the test sends a result.
type sleeper struct {
	transport.Exchange
	state  *RequestState // reused from a completed request if possible, as in an engine
	asleep chan struct{}
	rouse  chan error
	result chan observation.Reason // receives the result of acquire
	woken  bool
}

func (s *sleeper) Notify() { s.woken = true }

func (s *sleeper) Wait(transport.State) error {
	s.asleep <- struct{}{}
	return <-s.rouse
}

// queueModel is a simple model of a limit.
type queueModel struct {
	slots, depth int
	holders      int
	line         []int
	granted      map[int]bool // requests that are asleep and have a slot
}

// giveBack releases a slot and grants it to the first queued request.
func (m *queueModel) giveBack() {
	if len(m.line) == 0 {
		m.holders--
		return
	}
	m.granted[m.line[0]] = true
	m.line = m.line[1:]
}

// stage is the progress of a request.
type stage int

const (
	notArrived stage = iota
	waiting
	startled // still waiting after a Notify for the previous request
	holding
	served
)

// A limitRun is a limit, its model and the requests of a run.
type limitRun struct {
	queueModel
	limit    *Limit
	stages   []stage
	sleepers []*sleeper
	spare    []*RequestState
}

// runLimit executes the steps that choose selects, and compares each step with the model. It
// returns the steps.
func runLimit(slots, depth, requests int, choose func(n int) int) (steps string, err error) {
	r := &limitRun{
		queueModel: queueModel{slots: slots, depth: depth, granted: map[int]bool{}},
		limit:      NewLimit(slots, depth),
		stages:     make([]stage, requests),
		sleepers:   make([]*sleeper, requests),
	}
	for i := range r.sleepers {
		r.sleepers[i] = &sleeper{asleep: make(chan struct{}), rouse: make(chan error), result: make(chan observation.Reason)}
	}
	for {
		next := r.next()
		if len(next) == 0 {
			if r.limit.first != nil || r.limit.last != nil {
				return steps, fmt.Errorf("got a queued request at the end, want none")
			}
			return steps, nil
		}
		now := next[choose(len(next))]
		steps += fmt.Sprintf(" %d%c", now.request, now.what)
		want := r.do(now)
		if got := r.result(now); got != want {
			return steps, fmt.Errorf("got %q, want %q", got, want)
		}
		if r.stages[now.request] == served {
			r.spare = append(r.spare, r.sleepers[now.request].state)
		}
		if err := r.check(); err != nil {
			return steps, err
		}
	}
}

// next returns the possible steps.
func (r *limitRun) next() (next []step) {
	arrived := false
	for i, s := range r.stages {
		switch {
		case s == notArrived && !arrived: // requests arrive in order, because they are interchangeable
			next = append(next, step{i, arrive})
			arrived = true
		case s == holding:
			next = append(next, step{i, release})
		case s == waiting || s == startled:
			next = append(next, step{i, leave})
			if r.sleepers[i].woken {
				next = append(next, step{i, wake})
			} else if s == waiting {
				next = append(next, step{i, startle})
			}
		}
	}
	return next
}

// do executes a step and returns the expected result for its request.
func (r *limitRun) do(now step) (want string) {
	i, s := now.request, r.sleepers[now.request]
	switch now.what {
	case arrive:
		return r.arrive(i)
	case wake:
		s.rouse <- nil
		return "ok"
	case startle:
		r.stages[i] = startled
		s.rouse <- nil
		return "asleep"
	case leave:
		if r.granted[i] {
			r.giveBack()
		} else {
			r.line = slices.DeleteFunc(slices.Clone(r.line), func(j int) bool { return i == j })
		}
		s.rouse <- transport.FaultClientGone
		return "client-gone"
	}
	r.giveBack()
	r.stages[i] = served
	r.limit.release()
	return ""
}

func (r *limitRun) arrive(i int) (want string) {
	s := r.sleepers[i]
	switch {
	case r.holders < r.slots:
		r.holders++
		want = "ok"
	case len(r.line) == r.depth:
		want = "queue-full"
	default:
		r.line = append(r.line, i)
		r.stages[i] = waiting
		want = "asleep"
	}
	if s.state = new(RequestState); len(r.spare) > 0 {
		s.state, r.spare = r.spare[0], r.spare[1:]
	}
	go func() { s.result <- r.limit.acquire(s, s.state) }()
	return want
}

// result returns the result of a step for its request.
func (r *limitRun) result(now step) string {
	if now.what == release {
		return ""
	}
	i, s := now.request, r.sleepers[now.request]
	select {
	case <-s.asleep:
		return "asleep"
	case reason := <-s.result:
		r.stages[i] = served
		if reason == observation.OK {
			r.stages[i] = holding
		}
		delete(r.granted, i)
		return reason.String()
	}
}

// check compares the limit with the model after a step.
func (r *limitRun) check() error {
	running, waits := r.limit.Load()
	if running != r.holders || waits != len(r.line) {
		return fmt.Errorf("got %d running, %d waiting, want %d, %d", running, waits, r.holders, len(r.line))
	}
	if running > r.slots || waits > 0 && running < r.slots {
		return fmt.Errorf("got %d running and %d waiting requests for %d slots", running, waits, r.slots)
	}
	for j, s := range r.sleepers {
		if asleep := r.stages[j] == waiting || r.stages[j] == startled; asleep && s.woken != r.granted[j] {
			return fmt.Errorf("request %d: got notified %t, want %t", j, s.woken, r.granted[j])
		}
	}
	return nil
}

// everyRun calls run with each possible sequence of choices. It returns the number of sequences, or
// the first error with the moves of its run.
func everyRun(run func(choose func(n int) int) (moves string, err error)) (runs int, err error) {
	var path, branches []int // the choice at each step, and the number of choices
	for {
		at := 0
		moves, err := run(func(n int) int {
			if at == len(path) {
				path, branches = append(path, 0), append(branches, n)
			}
			at++
			return path[at-1]
		})
		if err != nil {
			return runs, fmt.Errorf("%s: %w", moves, err)
		}
		runs++
		for len(path) > 0 && path[len(path)-1]+1 == branches[len(path)-1] {
			path, branches = path[:len(path)-1], branches[:len(path)-1]
		}
		if len(path) == 0 {
			return runs, nil
		}
		path[len(path)-1]++
	}
}

// TestLimitMatchesModelInAllInterleavings tries every order in which a few requests arrive, wait, get
// a slot, leave the queue and release the slot. Each step locks the limit once.
func TestLimitMatchesModelInAllInterleavings(t *testing.T) {
	for _, c := range []struct{ slots, depth, requests, runs int }{
		{1, 0, 3, 4}, {1, 1, 3, 80}, {1, 2, 3, 207}, {2, 0, 3, 11}, {2, 1, 3, 33},
		{1, 1, 4, 986}, {2, 1, 4, 699}, {2, 2, 4, 1683}, {3, 1, 4, 201}, {1, 3, 4, 14630},
	} {
		t.Run(fmt.Sprintf("%d slots, depth %d, %d requests", c.slots, c.depth, c.requests), func(t *testing.T) {
			runs, err := everyRun(func(choose func(n int) int) (string, error) {
				return runLimit(c.slots, c.depth, c.requests, choose)
			})
			harness.NoError(t, err)
			harness.Equal(t, runs, c.runs, "runs")
		})
	}
}

// TestLimitMatchesModelInRandomRuns uses random runs, because the runs are too long to try all orders.
func TestLimitMatchesModelInRandomRuns(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		slots, depth, requests := 1+random.IntN(4), random.IntN(8), 1+random.IntN(30)
		steps, err := runLimit(slots, depth, requests, random.IntN)
		if err != nil {
			t.Fatalf("seed %d: %d slots, depth %d, %s: %v", seed, slots, depth, steps, err)
		}
		if got := strings.Count(steps, "a"); got != requests {
			t.Fatalf("seed %d: got %d arrivals, want %d", seed, got, requests)
		}
	}
}
