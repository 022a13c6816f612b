//go:build !race

package simulation

import (
	"math"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
)

func TestSearchTimeDependsOnResponseTime(t *testing.T) {
	for took, within := range map[time.Duration]time.Duration{ // docs/limits.md contains the expected times
		20 * time.Millisecond:  30 * time.Second,
		100 * time.Millisecond: 30 * time.Second,
		400 * time.Millisecond: time.Minute,
		2 * time.Second:        10 * time.Minute,
	} {
		for jitter := range uint64(4) {
			c := Case{App: func() App { return &Pool{Workers: 13, Time: took, Spread: 1} }, For: within}
			_, points := c.Adaptive(Requests, jitter)
			if got := points[len(points)-1].State; got.Base < 12 || got.Base > 40 {
				t.Errorf("%v per request, seed %d: got %+v after %v, want a limit from 12 to 40", took, jitter, got, within)
			}
		}
	}
}

func TestLimitDecreasesAfterLossOfCores(t *testing.T) {
	const lost = 45 * time.Second
	share := func(at time.Duration) float64 {
		if at < lost {
			return 1
		}
		return 0.5
	}
	app := func() App { return &CPU{Cores: 10, Time: 10 * time.Millisecond, Switch: 0.002, Share: share} }
	c := Case{App: app, For: lost + 15*time.Second}
	for jitter := range uint64(4) {
		_, points := c.Adaptive(Requests, jitter)
		if got := points[len(points)-1].State; got.Base > 12 {
			t.Errorf("seed %d: got %+v after 15 s, want a limit of at most 12", jitter, got)
		}
	}
}

// pool returns the default application of the other tests. Its 13 workers process 650 requests
// per second.
func pool() *Pool { return &Pool{Workers: 13, Time: 20 * time.Millisecond, Spread: 1} }

func TestUnreachedLimitDoesNotChange(t *testing.T) {
	// The key is the rate. The first limit is 4, and with 100 requests per second, sometimes 4
	// requests run at the same time.
	for rate, most := range map[float64]int{1: 4, 20: 4, 100: 8} {
		l := adapt.New(adapt.Settings{Max: Ceiling})
		follow(&Run{App: pool(), Load: Load{Rate: steadily(rate)}, For: 10 * time.Minute, Seed: 3}, l)
		if got := l.State(); got.Reason != observation.LimitIdle || got.Base < 4 || got.Base > most {
			t.Errorf("%v requests per second: got %+v, want an idle limit from 4 to %d", rate, got, most)
		}
	}
}

func TestLimitStaysAfterIdleHour(t *testing.T) {
	l := adapt.New(adapt.Settings{Max: Ceiling})
	busy := time.Minute
	rate := func(at time.Duration) float64 {
		if at < busy {
			return 800
		}
		return 50
	}
	r := Run{App: pool(), Load: Load{Rate: rate, Depth: 100}, For: time.Hour, Seed: 3}
	_, points := follow(&r, l)
	found := 0
	for _, p := range points {
		if p.At < busy {
			found = p.State.Base
		}
	}
	if got := l.State().Base; got != found || got < 12 || got > 16 {
		t.Errorf("got %d after an hour and %d before, want the same limit, about 13", got, found)
	}
}

func TestLimitUnderOverloadMatchesApplication(t *testing.T) {
	for _, overload := range []float64{1.1, 1.5, 3} {
		load := Load{Rate: steadily(overload * 650), Depth: 130}
		run := func() Run { return Run{App: pool(), Load: load, For: 90 * time.Second, From: Settled, Seed: 5} }
		fixed := run()
		fixed.Gate = Fixed(13)
		want := fixed.Do()
		adaptive := run()
		got, _ := follow(&adaptive, adapt.New(adapt.Settings{Max: Ceiling}))
		if got.Throughput < 0.95*want.Throughput || got.AppP99 > 1.3*want.AppP99 {
			t.Errorf("load of %v times the capacity: got %.0f/s and %.3f s, want at least 0.95 of %.0f/s and at most 1.3 of %.3f s",
				overload, got.Throughput, got.AppP99, want.Throughput, want.AppP99)
		}
	}
}

func TestLimitFitsFastAndSlowRequests(t *testing.T) {
	app := func() App {
		return &Pool{Workers: 10, Time: 60 * time.Millisecond, Spread: 1, Hits: func(int) float64 { return 0.5 }}
	}
	c := Case{App: app, For: 3 * time.Minute}
	limits, results := []int{6, 8, 10, 11, 12, 14, 16, 20}, []Result(nil)
	for _, limit := range limits {
		results = append(results, c.Fixed(limit, Requests))
	}
	limit, best := Best(limits, results)
	got, points := c.Adaptive(Requests, 1)
	if got.Throughput < 0.95*best.Throughput || got.AppP99 > 1.6*best.AppP99 {
		t.Errorf("got %.0f/s and %.3f s, want about %.0f/s and %.3f s, as with the fixed limit %d\n%v", got.Throughput, got.AppP99, best.Throughput, best.AppP99, limit, points)
	}
}

func TestFastErrorsDoNotRaiseLimit(t *testing.T) {
	for name, errors := range map[string]func(at time.Duration, inApp int) float64{
		"application rejects excess requests": func(_ time.Duration, inApp int) float64 {
			if inApp > 16 {
				return 1
			}
			return 0
		},
		"all requests fail":         func(at time.Duration, _ int) float64 { return math.Min(1, at.Seconds()/30) },
		"half of the requests fail": func(at time.Duration, _ int) float64 { return math.Min(0.5, at.Seconds()/30) },
	} {
		app := pool()
		app.Errors = errors
		l := adapt.New(adapt.Settings{Max: Ceiling})
		_, points := follow(&Run{App: app, Load: Load{Clients: clients}, For: 2 * time.Minute, Seed: 2}, l)
		for _, p := range points {
			if p.At > 10*time.Second && p.State.Base > 24 {
				t.Errorf("%s: got %+v at %v, want a limit of at most 24", name, p.State, p.At)
				break
			}
		}
	}
}

func TestRejectionsReduceFirstLimit(t *testing.T) {
	l := adapt.New(adapt.Settings{Max: Ceiling, Start: Ceiling})
	r := Run{App: rejecting(after(0, 13, 13))(), Load: Load{Clients: 60}, For: 60 * time.Second, From: Settled, Seed: 2}
	got, points := follow(&r, l)
	if state := l.State(); got.Throughput < 0.85*650 || state.Base > 16 {
		t.Errorf("got %.1f/s, %+v, want at least 0.85 of 650/s\n%v", got.Throughput, state, points)
	}
}

func TestFewRequestsAreRejected(t *testing.T) {
	for _, start := range []int{0, 32} {
		run := Run{App: &Pool{Workers: 100, Time: 60 * ms, Reject: 13}, Load: Load{Clients: 40, Backoff: 50 * ms}, For: usual, From: Settled, Seed: 2}
		got, points := follow(&run, adapt.New(adapt.Settings{Max: Ceiling, Start: start}))
		failed := float64(got.Failed) / (run.For - run.From).Seconds()
		if got.Throughput < 0.95*216 || failed > 0.1*got.Throughput {
			t.Errorf("first limit %d: got %.1f/s and %.1f errors/s, want at least 0.95 of 216/s, and at most 10 %% errors\n%v", start, got.Throughput, failed, points)
		}
	}
}

func TestLimitStaysWithinBounds(t *testing.T) {
	for _, s := range []adapt.Settings{{Min: 1, Max: 1}, {Min: 3, Max: 3}, {Min: 2, Max: 6}, {Min: 20, Max: 40}} {
		l := adapt.New(s)
		r, points := follow(&Run{App: pool(), Load: Load{Clients: clients}, For: time.Minute, Seed: 4}, l)
		for _, p := range points {
			if p.State.Limit < s.Min || p.State.Limit > s.Max || p.State.Base < s.Min || p.State.Base > s.Max {
				t.Errorf("%+v: got %+v at %v, want a limit within the bounds", s, p.State, p.At)
			}
		}
		if got := l.State(); r.MaxRunning > s.Max || got.Base != s.Max && got.Base > s.Min+4 {
			t.Errorf("%+v: got %d concurrent requests, and %+v at the end, want a limit at its bound", s, r.MaxRunning, got)
		}
	}
}

func TestLimitOfSerialApplicationIsOne(t *testing.T) {
	l := adapt.New(adapt.Settings{Max: Ceiling})
	app := &Pool{Workers: 1, Time: 10 * time.Millisecond, Spread: 0.3}
	_, points := follow(&Run{App: app, Load: Load{Clients: 20}, For: time.Minute, Seed: 4}, l)
	if got := l.State(); got.Base != 1 {
		t.Errorf("got %+v, want a limit of 1\n%v", got, points)
	}
}

func TestSimulationIsDeterministic(t *testing.T) {
	c := Cases()[0]
	c.For = Settled + 5*time.Second
	first, _ := c.Adaptive(Requests, 7)
	second, _ := c.Adaptive(Requests, 7)
	if first != second {
		t.Errorf("same seed: got %+v, then %+v, want equal results", first, second)
	}
	seen := map[Result]uint64{}
	for jitter := range uint64(8) {
		r, _ := c.Adaptive(Requests, jitter)
		if other, ok := seen[r]; ok {
			t.Errorf("got the same result %+v for the seeds %d and %d, want different results", r, other, jitter)
		}
		seen[r] = jitter
	}
}
