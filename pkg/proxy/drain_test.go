package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// aDrain contains the settings of a drain for the Knative request timeout of 300 s.
var aDrain = DrainSettings{Quiet: 30 * time.Second, Deadline: 297 * time.Second}

// flight adds a request in flight to a drain.
func flight(d *Drain, fresh bool) *fake {
	f := newFake("/")
	f.state.begin(&Clocks{}, time.Now())
	d.arrive(f, &f.state, fresh)
	return f
}

// ended contains the outcome and the duration of a call to Drain.Wait.
type ended struct {
	outcome Outcome
	after   time.Duration
}

func (e ended) String() string { return fmt.Sprintf("%v after %v", e.outcome, e.after) }

// wait calls Drain.Wait in a goroutine and sends the result to the returned channel.
func wait(d *Drain) <-chan ended {
	c := make(chan ended, 1)
	start := time.Now()
	go func() {
		outcome := d.Wait(context.Background())
		c <- ended{outcome, time.Since(start)}
	}()
	synctest.Wait()
	return c
}

func TestDrainNotBegunIsServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		flight(d, true)
		time.Sleep(time.Hour)
		harness.Equal(t, d.Draining(), false, "draining")
		harness.Equal(t, <-wait(d), ended{Undone, 0}, "wait")
	})
}

func TestDrainAfterSIGTERMIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		d.Begin(true)
		harness.Equal(t, d.Draining(), true, "draining")
		harness.Equal(t, <-wait(d), ended{Drained, 30 * time.Second}, "wait")
		harness.Equal(t, d.Draining(), true, "draining after the drain")
		harness.Equal(t, <-wait(d), ended{Drained, 0}, "wait again")
		time.Sleep(time.Hour)
		harness.Equal(t, d.Draining(), true, "draining much later")
	})
}

func TestDrainWithoutSIGTERMIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		flight(d, true)
		for round := range 3 { // the app is restarted several times
			d.Begin(false)
			preStop := wait(d)
			time.Sleep(time.Second - 1)
			harness.Equal(t, d.Draining(), true, "draining just before undoAfter")
			time.Sleep(1 * time.Nanosecond)
			harness.Equal(t, d.Draining(), false, "draining")
			harness.Equal(t, <-preStop, ended{Undone, time.Second}, "wait of the preStop hook")
			time.Sleep(time.Duration(round) * time.Second)
			harness.Equal(t, <-wait(d), ended{Undone, 0}, "wait")
		}
	})
}

func TestDrainSIGTERMAfterPreStopIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		d.Begin(false)
		preStop := wait(d)
		time.Sleep(time.Second - 1)
		d.Begin(true)
		time.Sleep(1 * time.Nanosecond)
		harness.Equal(t, d.Draining(), true, "draining after undoAfter")
		sigterm := wait(d)
		// Both calls wait for the same drain, which began with the preStop hook.
		harness.Equal(t, <-preStop, ended{Drained, 30 * time.Second}, "wait of the preStop hook")
		harness.Equal(t, <-sigterm, ended{Drained, 29 * time.Second}, "wait after SIGTERM")
	})
}

func TestDrainSIGTERMAfterUndoStartsNewDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		d.Begin(false)
		time.Sleep(time.Second)
		d.Begin(true)
		harness.Equal(t, <-wait(d), ended{Drained, 30 * time.Second}, "wait")
	})
}

func TestDrainPreStopAfterSIGTERMIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		d.Begin(true)
		time.Sleep(10 * time.Second)
		d.Begin(false)
		time.Sleep(2 * time.Second)
		harness.Equal(t, d.Draining(), true, "draining")
		harness.Equal(t, <-wait(d), ended{Drained, 18 * time.Second}, "wait")
	})
}

func TestDrainPreStopsShareOneDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		d.Begin(false)
		first := wait(d)
		time.Sleep(600 * time.Millisecond)
		d.Begin(false)
		second := wait(d)
		harness.Equal(t, <-first, ended{Undone, time.Second}, "first")
		harness.Equal(t, <-second, ended{Undone, 400 * time.Millisecond}, "second")
		harness.Equal(t, d.Draining(), false, "draining")

		d.Begin(false)
		first = wait(d)
		d.Begin(false)
		second = wait(d)
		time.Sleep(time.Second / 2)
		d.Begin(true)
		harness.Equal(t, <-first, ended{Drained, 30 * time.Second}, "first, with a SIGTERM")
		harness.Equal(t, <-second, ended{Drained, 30 * time.Second}, "second, with a SIGTERM")
	})
}

func TestDrainQuietPeriodRestartsOnTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			fresh bool
			want  time.Duration
		}{{true, 35 * time.Second}, {false, 30 * time.Second}} {
			d := NewDrain(aDrain)
			d.Begin(true)
			drained := wait(d)
			for range 5 {
				time.Sleep(time.Second)
				d.leave(&flight(d, c.fresh).state)
			}
			harness.Equal(t, <-drained, ended{Drained, c.want}, "wait")
		}
	})
}

func TestDrainQuietPeriodIgnoresEarlierRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		d.leave(&flight(d, true).state)
		time.Sleep(20 * time.Second)
		d.Begin(true)
		harness.Equal(t, <-wait(d), ended{Drained, 30 * time.Second}, "wait")
	})
}

func TestDrainQuietPeriodIgnoresLateArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		f := newFake("/")
		f.state.begin(&Clocks{}, time.Now())
		time.Sleep(5 * time.Second) // the goroutine is delayed
		d.Begin(true)
		d.arrive(f, &f.state, true)
		d.leave(&f.state)
		harness.Equal(t, <-wait(d), ended{Drained, 30 * time.Second}, "wait")
	})
}

func TestDrainWaitsForRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fresh := range []bool{true, false} { // false for a kubelet probe
			d := NewDrain(aDrain)
			one, two := flight(d, fresh), flight(d, fresh)
			d.Begin(true)
			drained := wait(d)
			time.Sleep(100 * time.Second)
			d.leave(&one.state)
			time.Sleep(10 * time.Second)
			d.leave(&two.state)
			harness.Equal(t, <-drained, ended{Drained, 110 * time.Second}, "wait")
		}
	})
}

func TestDrainDeadlineEndsDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		flight(d, true)
		d.Begin(false)
		time.Sleep(time.Second / 2)
		d.Begin(true)
		harness.Equal(t, <-wait(d), ended{Deadline, 297*time.Second - time.Second/2}, "a request that never ends")

		d = NewDrain(aDrain)
		d.Begin(true)
		drained := wait(d)
		for range 30 {
			time.Sleep(10 * time.Second)
			d.leave(&flight(d, true).state)
		}
		harness.Equal(t, <-drained, ended{Deadline, 297 * time.Second}, "requests without an end")
	})
}

func TestDrainWithoutDeadlineWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(DrainSettings{Quiet: time.Second})
		f := flight(d, true)
		d.Begin(true)
		drained := wait(d)
		time.Sleep(24 * time.Hour)
		d.leave(&f.state)
		harness.Equal(t, <-drained, ended{Drained, 24 * time.Hour}, "wait")
	})
}

func TestDrainLastsMinimumDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			settings DrainSettings
			want     ended
		}{
			{DrainSettings{}, ended{Drained, 0}},
			{DrainSettings{Min: 5 * time.Second}, ended{Drained, 5 * time.Second}},
			{DrainSettings{Min: 5 * time.Second, Quiet: 4 * time.Second}, ended{Drained, 5 * time.Second}},
			{DrainSettings{Min: 5 * time.Second, Quiet: 6 * time.Second}, ended{Drained, 6 * time.Second}},
			{DrainSettings{Min: 5 * time.Second, Deadline: 3 * time.Second}, ended{Deadline, 3 * time.Second}},
		} {
			d := NewDrain(c.settings)
			d.Begin(true)
			harness.Equal(t, <-wait(d), c.want, c.settings)
		}
	})
}

func TestDrainWaitReturnsOnCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		d.Begin(true)
		drained := wait(d)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		start := time.Now()
		harness.Equal(t, d.Wait(ctx), GaveUp, "wait with a timeout")
		harness.Equal(t, time.Since(start), 5*time.Second, "duration of the wait with a timeout")
		harness.Equal(t, <-drained, ended{Drained, 30 * time.Second}, "wait without a timeout")
		harness.Equal(t, d.Wait(ctx), Drained, "wait with an expired timeout after the drain")
	})
}

func TestAbortEndsAndNotifiesRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		gone := flight(d, true)
		here := []*fake{flight(d, true), flight(d, false)}
		d.leave(&gone.state)
		d.Begin(true)
		why := make(chan observation.Reason, len(here))
		for _, f := range here {
			go func() { why <- reasonOf(f.Wait(&f.state)) }()
		}
		synctest.Wait()
		d.Abort()
		for range here {
			harness.Equal(t, <-why, observation.Draining, "waiting request")
		}
		harness.Equal(t, gone.state.expired(), observation.OK, "request that ended before Abort")
		harness.Equal(t, flight(d, true).state.expired(), observation.Draining, "request after Abort")
	})
}

// looker is an exchange whose method Notify records whether another request has ended.
type looker struct {
	*fake
	other *RequestState
	saw   observation.Reason
}

func (l *looker) Notify() { l.saw = l.other.expired() }

func TestAbortEndsAllBeforeNotify(t *testing.T) {
	d := NewDrain(aDrain)
	one, two := &looker{fake: newFake("/")}, &looker{fake: newFake("/")}
	one.other, two.other = &two.state, &one.state
	for _, l := range []*looker{one, two} {
		l.state.begin(&Clocks{}, time.Now())
		d.arrive(l, &l.state, true)
	}
	d.Abort()
	harness.Equal(t, one.saw, observation.Draining, "second request when the first is notified")
	harness.Equal(t, two.saw, observation.Draining, "first request when the second is notified")
}

func TestEmptyWaitsForLastRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		harness.Equal(t, d.Empty(context.Background()), nil, "no request in flight")
		one, two := flight(d, true), flight(d, true)
		d.Begin(true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := d.Empty(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Empty with a timeout: got %v, want %v", err, context.DeadlineExceeded)
		}
		empty := make(chan error, 1)
		go func() { empty <- d.Empty(context.Background()) }()
		d.leave(&one.state)
		synctest.Wait()
		select {
		case err := <-empty:
			t.Errorf("Empty with a request in flight: got %v, want no result", err)
		default:
		}
		d.leave(&two.state)
		harness.Equal(t, <-empty, nil, "Empty after the last request")
	})
}

func TestEmptyDoesNotRequireDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		f := flight(d, true)
		d.Begin(false)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		empty := make(chan error, 1)
		go func() { empty <- d.Empty(ctx) }()
		time.Sleep(2 * time.Second)
		harness.Equal(t, d.Draining(), false, "draining")
		d.leave(&f.state)
		harness.Equal(t, <-empty, nil, "empty")
	})
}

func TestFlightsReturnsOldestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrain(aDrain)
		start := time.Now()
		check := func(what string, n int, oldest time.Time) {
			t.Helper()
			if gotN, got := d.Flights(); gotN != n || !got.Equal(oldest) {
				t.Errorf("%s: got %d, oldest at %v, want %d, %v", what, gotN, got, n, oldest)
			}
		}
		check("nothing", 0, time.Time{})
		var ff []*fake
		for range 4 {
			ff = append(ff, flight(d, true))
			time.Sleep(time.Second)
		}
		check("four", 4, start)
		d.leave(&ff[1].state)
		check("without one of the middle", 3, start)
		d.leave(&ff[0].state)
		check("without the oldest", 2, start.Add(2*time.Second))
		d.leave(&ff[3].state)
		check("without the newest", 1, start.Add(2*time.Second))
		ff[0] = flight(d, true)
		check("with a new one", 2, start.Add(2*time.Second))
		d.leave(&ff[2].state)
		check("the new one", 1, start.Add(4*time.Second))
		d.leave(&ff[0].state)
		check("nothing again", 0, time.Time{})
		if d.head != nil || d.tail != nil {
			t.Error("list of requests: got an entry, want none")
		}
	})
}

func TestOutcomeStrings(t *testing.T) {
	for outcome, want := range map[Outcome]string{Drained: "drained", Deadline: "deadline", Undone: "undone", GaveUp: "gave up"} {
		harness.Equal(t, outcome.String(), want, "outcome")
	}
}

// event is an action, such as SIGTERM, and its time.
type event struct {
	at time.Duration
	do string
}

// whenOver is a simple model of docs/promises.md 3.5. It returns the outcome of a wait that
// begins with the first drain.
func whenOver(s DrainSettings, events []event) ended {
	var began, arrived, from time.Duration
	running, ending, flights := false, false, 0
	for i, e := range events {
		switch {
		case e.do == "preStop" || e.do == "SIGTERM":
			if !running {
				running, began, arrived, from = true, e.at, e.at, e.at
			}
			ending = ending || e.do == "SIGTERM"
		case e.do == "request":
			arrived, flights = e.at, flights+1
		case e.do == "probe":
			flights++
		case e.do == "end" && flights > 0:
			flights--
		}
		if !running {
			continue
		}
		quiet := max(arrived+s.Quiet, began+s.Min)
		moments := []time.Duration{e.at, quiet, began + time.Second, began + s.Deadline}
		slices.Sort(moments)
		for _, now := range moments {
			if now < e.at || i+1 < len(events) && now >= events[i+1].at {
				continue
			}
			switch {
			case !ending && now >= began+time.Second:
				return ended{Undone, now - from}
			case s.Deadline > 0 && now >= began+s.Deadline:
				return ended{Deadline, now - from}
			case now >= quiet && flights == 0:
				return ended{Drained, now - from}
			}
		}
	}
	return ended{}
}

// randomEvents returns events in the order of their times. The last event ends the drain.
func randomEvents(random *rand.Rand) (events []event) {
	some := func() time.Duration { return 1 + time.Duration(random.Int64N(int64(time.Second))) }
	flights := 0
	at := time.Duration(0)
	words := []string{"preStop", "SIGTERM", "request", "request", "probe", "end", "end", "end"}
	for range 1 + random.IntN(30) {
		at += some()
		e := event{at, words[random.IntN(len(words))]}
		switch e.do {
		case "request", "probe":
			flights++
		case "end":
			if flights == 0 {
				continue
			}
			flights--
		}
		events = append(events, e)
	}
	return append(events, event{at + some(), "SIGTERM"})
}

// drainBy executes events and returns a channel that receives the result of the first wait.
func drainBy(d *Drain, events []event, random *rand.Rand) (over <-chan ended) {
	start := time.Now()
	var flying []*fake
	for _, e := range events {
		time.Sleep(time.Until(start.Add(e.at)))
		synctest.Wait() // a wait that ends at this time must return before the event
		switch e.do {
		case "preStop", "SIGTERM":
			d.Begin(e.do == "SIGTERM")
			if over == nil {
				over = wait(d)
			}
		case "request", "probe":
			flying = append(flying, flight(d, e.do == "request"))
		case "end":
			i := random.IntN(len(flying))
			d.leave(&flying[i].state)
			flying = slices.Delete(flying, i, i+1)
		}
	}
	return over
}

// TestDrainMatchesModelForRandomEvents uses random signals, hooks, requests and probes. A lost
// notification or a missing rule changes the outcome or the duration of the wait.
func TestDrainMatchesModelForRandomEvents(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	some := func(most time.Duration) time.Duration { return time.Duration(random.Int64N(int64(most))) }
	outcomes := map[Outcome]int{}
	for round := range 1000 {
		s := DrainSettings{Quiet: some(3 * time.Second), Deadline: 1 + some(12*time.Second), Min: some(2 * time.Second)}
		if random.IntN(4) == 0 {
			s.Quiet = 0
		}
		events := randomEvents(random)
		synctest.Test(t, func(t *testing.T) {
			over := drainBy(NewDrain(s), events, random)
			got, want := <-over, whenOver(s, events)
			if got != want {
				t.Fatalf("seed %d, round %d: %+v, %v:\n got %v, want %v", seed, round, s, events, got, want)
			}
			outcomes[got.outcome]++
		})
	}
	for _, o := range []Outcome{Drained, Deadline, Undone} {
		if outcomes[o] == 0 {
			t.Errorf("got no drain with outcome %v in 1000 runs, want some", o)
		}
	}
}

func TestDrainIsSafeForConcurrentUse(t *testing.T) {
	d := NewDrain(DrainSettings{Deadline: time.Minute})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				f := flight(d, true)
				d.Draining()
				d.Flights()
				d.leave(&f.state)
			}
		})
	}
	for range 2 {
		all.Go(func() {
			d.Begin(false)
			d.Begin(true)
			harness.Equal(t, d.Wait(context.Background()), Drained)
			d.Abort()
			harness.Equal(t, d.Empty(context.Background()), nil, "no request in flight")
		})
	}
	all.Wait()
}
