package queue

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// waiter is a request at a limit, in a goroutine of its own.
type waiter struct {
	*fake
	why chan Why // what acquire said
}

// queueUp starts acquire. Inside a bubble it returns when the request holds a
// slot, waits, or was turned away.
func queueUp(m *Limit, c *Clocks) *waiter {
	w := &waiter{newFake("/"), make(chan Why, 1)}
	w.life.begin(c, time.Now())
	go func() { w.why <- m.acquire(w, &w.life) }()
	synctest.Wait()
	return w
}

// said returns what acquire said, "still waiting" when it has not returned.
func (w *waiter) said() string {
	synctest.Wait()
	select {
	case why := <-w.why:
		return why.String()
	default:
		return "still waiting"
	}
}

func (m *Limit) String() string {
	running, waiting := m.Load()
	return fmt.Sprintf("%d running, %d waiting", running, waiting)
}

func expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestSlotsPassInTheOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(2, 10)
		var ww []*waiter
		for range 8 {
			ww = append(ww, queueUp(m, &Clocks{}))
		}
		expect(t, "first", ww[0].said(), "ok")
		expect(t, "second", ww[1].said(), "ok")
		for i := 2; i < len(ww); i++ {
			expect(t, fmt.Sprint("before its turn ", i), ww[i].said(), "still waiting")
			m.release()
			expect(t, fmt.Sprint("in its turn ", i), ww[i].said(), "ok")
		}
		m.release()
		m.release()
		expect(t, "at the end", m.String(), "0 running, 0 waiting")
	})
}

func TestANewcomerCannotOvertakeOneWhoHasNotWokenYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(1, 2)
		queueUp(m, &Clocks{})
		first := queueUp(m, &Clocks{})
		m.release() // first has the slot, and may not know it yet
		second := &waiter{newFake("/"), make(chan Why, 1)}
		second.life.begin(&Clocks{}, time.Now())
		go func() { second.why <- m.acquire(second, &second.life) }()
		expect(t, "first", first.said(), "ok")
		expect(t, "second", second.said(), "still waiting")
		m.release()
		expect(t, "second", second.said(), "ok")
		m.release()
	})
}

func TestWhoLeavesTheQueueFreesItsPlaceAtOnce(t *testing.T) {
	for i, place := range []string{"head", "middle", "tail"} {
		t.Run(place, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewLimit(1, 3)
				queueUp(m, &Clocks{})
				line := []*waiter{queueUp(m, &Clocks{}), queueUp(m, &Clocks{}), queueUp(m, &Clocks{})}
				expect(t, "one too many", queueUp(m, &Clocks{}).said(), "queue-full")

				line[i].hangUp()
				expect(t, "the leaver", line[i].said(), "client-gone")
				expect(t, "after it", m.String(), "1 running, 2 waiting")
				line = append(slices.Delete(line, i, i+1), queueUp(m, &Clocks{}))
				for _, w := range line {
					expect(t, "before its turn", w.said(), "still waiting")
					m.release()
					expect(t, "in its turn", w.said(), "ok")
				}
				m.release()
				expect(t, "at the end", m.String(), "0 running, 0 waiting")
			})
		})
	}
}

func TestAllMayLeaveAndTheSlotIsFreeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(1, 3)
		queueUp(m, &Clocks{})
		for range 3 {
			queueUp(m, &Clocks{}).hangUp()
		}
		synctest.Wait()
		m.release()
		expect(t, "all gone", m.String(), "0 running, 0 waiting")
		expect(t, "a newcomer", queueUp(m, &Clocks{}).said(), "ok")
	})
}

func TestWhoLeavesWhileItIsGrantedPassesTheSlotOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(1, 3)
		queueUp(m, &Clocks{})
		leaver, next := queueUp(m, &Clocks{}), queueUp(m, &Clocks{})
		leaver.hangUp() // in one moment, and either may be first:
		m.release()     // every interleaving is tried below
		expect(t, "the leaver", leaver.said(), "client-gone")
		expect(t, "the next", next.said(), "ok")
		m.release()
		expect(t, "at the end", m.String(), "0 running, 0 waiting")
	})
}

func TestAClockEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(1, 2)
		queueUp(m, &Clocks{})
		w := queueUp(m, &Clocks{Queue: 2 * time.Second, Request: 3 * time.Second})
		time.Sleep(2*time.Second - 1)
		expect(t, "just before", w.said(), "still waiting")
		time.Sleep(1 * time.Nanosecond)
		expect(t, "then", w.said(), "queue-timeout")
		expect(t, "after it", m.String(), "1 running, 0 waiting")
	})
}

func TestNobodyWaitsBehindALimitOfDepthZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, depth := range []int{0, -1} {
			m := NewLimit(2, depth)
			expect(t, "first", queueUp(m, &Clocks{}).said(), "ok")
			expect(t, "second", queueUp(m, &Clocks{}).said(), "ok")
			expect(t, "third", queueUp(m, &Clocks{}).said(), "queue-full")
			m.release()
			expect(t, "fourth", queueUp(m, &Clocks{}).said(), "ok")
			expect(t, "then", m.String(), "2 running, 0 waiting")
		}
	})
}

func TestTheNilLimitHasNoLimit(t *testing.T) {
	for _, running := range []int{0, -1} {
		m := NewLimit(running, 10)
		if m != nil {
			t.Fatalf("NewLimit(%d): got %v, want nil", running, m)
		}
		for range 100 {
			f := newFake("/")
			expect(t, "acquire", m.acquire(f, &f.life), OK)
		}
		m.release()
		expect(t, "load", m.String(), "0 running, 0 waiting")
	}
}

// step is one thing that happens to one request at a limit, at the grain of the
// limit's lock. Only leave takes the lock twice, when the slot has come meanwhile;
// the first time it but reads what nobody else changes any more.
type step struct {
	request int
	what    action
}

type action byte

const (
	arrive  action = 'a' // acquire is called
	wake    action = 'w' // Sleep returns OK after Wake
	startle action = 's' // Sleep returns OK after a Wake that was meant for the request before
	leave   action = 'l' // Sleep returns that the client has gone
	release action = 'r' // the exchange with the user container has ended
)

// sleeper is an exchange whose Sleep returns when and what the test says.
type sleeper struct {
	Exchange
	life   *Life // that of a request which has ended, if there is one, as in an engine
	asleep chan struct{}
	rouse  chan Why
	said   chan Why // by acquire
	woken  bool
}

func (s *sleeper) Wake() { s.woken = true }

func (s *sleeper) Sleep(*Life) Why {
	s.asleep <- struct{}{}
	return <-s.rouse
}

// queueModel is what a limit ought to be, told naively.
type queueModel struct {
	slots, depth int
	holders      int
	line         []int
	granted      map[int]bool // asleep, but a slot is theirs
}

// giveBack takes a slot back and gives it to the first in line.
func (m *queueModel) giveBack() {
	if len(m.line) == 0 {
		m.holders--
		return
	}
	m.granted[m.line[0]] = true
	m.line = m.line[1:]
}

// run drives requests through a limit, one step after the other, as choose says
// among all that may happen next, and compares each with the model. It returns
// the story.
func run(slots, depth, requests int, choose func(n int) int) (story string, err error) {
	limit := NewLimit(slots, depth)
	model := queueModel{slots: slots, depth: depth, granted: map[int]bool{}}
	const (
		outside = iota
		waiting
		startled // and waiting
		holding
		ended
	)
	state := make([]int, requests)
	sleepers := make([]*sleeper, requests)
	var spare []*Life
	for i := range sleepers {
		sleepers[i] = &sleeper{asleep: make(chan struct{}), rouse: make(chan Why), said: make(chan Why)}
	}
	for {
		var next []step
		arrived := false
		for i, s := range state {
			switch {
			case s == outside && !arrived: // in this order: requests have no names
				next = append(next, step{i, arrive})
				arrived = true
			case s == holding:
				next = append(next, step{i, release})
			case s == waiting || s == startled:
				next = append(next, step{i, leave})
				if sleepers[i].woken {
					next = append(next, step{i, wake})
				} else if s == waiting {
					next = append(next, step{i, startle})
				}
			}
		}
		if len(next) == 0 {
			if limit.first != nil || limit.last != nil {
				return story, fmt.Errorf("somebody is still in line")
			}
			return story, nil
		}
		now := next[choose(len(next))]
		i, s := now.request, sleepers[now.request]
		story += fmt.Sprintf(" %d%c", i, now.what)

		want := "asleep"
		switch now.what {
		case arrive:
			switch {
			case model.holders < slots:
				model.holders++
				want = "ok"
			case len(model.line) == depth:
				want = "queue-full"
			default:
				model.line = append(model.line, i)
				state[i] = waiting
			}
			if s.life = new(Life); len(spare) > 0 {
				s.life, spare = spare[0], spare[1:]
			}
			go func() { s.said <- limit.acquire(s, s.life) }()
		case wake:
			want = "ok"
			s.rouse <- OK
		case startle:
			state[i] = startled
			s.rouse <- OK
		case leave:
			want = "client-gone"
			if model.granted[i] {
				model.giveBack()
			} else {
				model.line = slices.DeleteFunc(slices.Clone(model.line), func(j int) bool { return i == j })
			}
			s.rouse <- ClientGone
		case release:
			want = ""
			model.giveBack()
			state[i] = ended
			limit.release()
		}

		got := ""
		if now.what != release {
			select {
			case <-s.asleep:
				got = "asleep"
			case why := <-s.said:
				got = why.String()
				state[i] = ended
				if why == OK {
					state[i] = holding
				}
				delete(model.granted, i)
			}
		}
		if got != want {
			return story, fmt.Errorf("got %q, want %q", got, want)
		}
		if state[i] == ended {
			spare = append(spare, s.life)
		}
		running, waits := limit.Load()
		if running != model.holders || waits != len(model.line) {
			return story, fmt.Errorf("got %d running, %d waiting, want %d, %d", running, waits, model.holders, len(model.line))
		}
		if running > slots || waits > 0 && running < slots {
			return story, fmt.Errorf("%d run and %d wait for %d slots", running, waits, slots)
		}
		for j, s := range sleepers {
			if asleep := state[j] == waiting || state[j] == startled; asleep && s.woken != model.granted[j] {
				return story, fmt.Errorf("request %d: got woken %t, want %t", j, s.woken, model.granted[j])
			}
		}
	}
}

// everyStory calls tell with each sequence of choices there is, and returns how
// many there are, or the first error with its story.
func everyStory(tell func(choose func(n int) int) (story string, err error)) (stories int, err error) {
	var path, branches []int // the choice at each step, and out of how many
	for {
		at := 0
		story, err := tell(func(n int) int {
			if at == len(path) {
				path, branches = append(path, 0), append(branches, n)
			}
			at++
			return path[at-1]
		})
		if err != nil {
			return stories, fmt.Errorf("story%s: %w", story, err)
		}
		stories++
		for len(path) > 0 && path[len(path)-1]+1 == branches[len(path)-1] {
			path, branches = path[:len(path)-1], branches[:len(path)-1]
		}
		if len(path) == 0 {
			return stories, nil
		}
		path[len(path)-1]++
	}
}

// Every order in which a few requests can arrive, wait, be granted a slot, leave
// and release, one lock after the other, is tried.
func TestEveryInterleavingOfAFewRequestsIsInOrder(t *testing.T) {
	for _, c := range []struct{ slots, depth, requests, stories int }{
		{1, 0, 3, 4}, {1, 1, 3, 80}, {1, 2, 3, 207}, {2, 0, 3, 11}, {2, 1, 3, 33},
		{1, 1, 4, 986}, {2, 1, 4, 699}, {2, 2, 4, 1683}, {3, 1, 4, 201}, {1, 3, 4, 14630},
	} {
		t.Run(fmt.Sprintf("%d slots, %d places, %d requests", c.slots, c.depth, c.requests), func(t *testing.T) {
			stories, err := everyStory(func(choose func(n int) int) (string, error) {
				return run(c.slots, c.depth, c.requests, choose)
			})
			if err != nil {
				t.Fatal(err)
			}
			expect(t, "stories", stories, c.stories)
		})
	}
}

// Longer stories than can all be tried, by chance.
func TestLongRandomStoriesAreInOrder(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		slots, depth, requests := 1+random.IntN(4), random.IntN(8), 1+random.IntN(30)
		story, err := run(slots, depth, requests, random.IntN)
		if err != nil {
			t.Fatalf("seed %d: %d slots, %d places, story%s: %v", seed, slots, depth, story, err)
		}
		if got := strings.Count(story, "a"); got != requests {
			t.Fatalf("seed %d: got %d arrivals, want %d", seed, got, requests)
		}
	}
}

func TestUnderStressNoMoreThanTheLimitRunAndNothingIsLost(t *testing.T) {
	const (
		slots, depth = 3, 8
		clients      = 16
		rounds       = 300
	)
	m := NewLimit(slots, depth)
	var inside, most, served, full, left atomic.Int64
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(client)))
			var life *Life
			for range rounds {
				f := newFake("/")
				if life == nil || random.IntN(2) == 0 {
					life = &f.life // else the memory of the request before, as in an engine
				}
				life.begin(&Clocks{}, time.Now())
				gone := make(chan struct{})
				if random.IntN(3) == 0 {
					go func() { f.hangUp(); close(gone) }()
				} else {
					close(gone)
				}
				switch why := m.acquire(f, life); why {
				case OK:
					n := inside.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
					}
					served.Add(1)
					runtime.Gosched()
					inside.Add(-1)
					m.release()
				case QueueFull:
					full.Add(1)
				case ClientGone:
					left.Add(1)
				default:
					t.Errorf("got %v, want ok, queue-full or client-gone", why)
				}
				<-gone
			}
		})
	}
	all.Wait()
	if got := most.Load(); got > slots {
		t.Errorf("got %d at once, want at most %d", got, slots)
	}
	if got := served.Load() + full.Load() + left.Load(); got != clients*rounds {
		t.Errorf("got %d ends, want %d", got, clients*rounds)
	}
	expect(t, "at the end", m.String(), "0 running, 0 waiting")
	if m.first != nil || m.last != nil {
		t.Error("somebody is still in line, want nobody")
	}
	t.Logf("%d served, %d turned away, %d left, %d at once", served.Load(), full.Load(), left.Load(), most.Load())
}
