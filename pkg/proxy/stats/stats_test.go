package stats

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

var start = time.Now()

// at returns start plus d.
func at(d time.Duration) time.Time { return start.Add(d) }

func TestReportBeforeFirstSecondContainsOnlyInFlight(t *testing.T) {
	s := New(start)
	s.In(at(time.Second/4), true)
	s.In(at(time.Second/2), false)
	got := s.Report(at(time.Second - 1))
	want := Report{InFlight: 2, ProxiedInFlight: 1}
	harness.Equal(t, got, want)
}

func TestRequestAtBoundaryBelongsToNextSecond(t *testing.T) {
	s := New(start)
	s.In(at(0), false)
	s.Out(at(time.Second-1), false)
	s.In(at(time.Second), false) // start of the next second
	got := s.Report(at(time.Second)).Last
	want := Window{Concurrency: 1 - 1e-9, Requests: 1}
	harness.Equal(t, got, want)
}

func TestConcurrencyIsWeightedByTime(t *testing.T) {
	s := New(start)
	s.In(at(0), false)
	s.In(at(time.Second/2), true)
	s.Out(at(3*time.Second/4), true)
	s.Out(at(time.Second), false)
	got := s.Report(at(time.Second))
	want := Window{Concurrency: 1.25, ProxiedConcurrency: 0.25, Requests: 2, ProxiedRequests: 1}
	if got.Last != want || got.Last6 != want || got.Last60 != want {
		t.Errorf("got %+v, want %+v in all three windows", got, want)
	}
	harness.Equal(t, got.Uptime, time.Second, "uptime")
}

func TestEndlessRequestIsCountedEachSecond(t *testing.T) {
	s := New(start)
	s.In(at(time.Second/2), true)
	for _, c := range []struct {
		at               time.Duration
		last, six, sixty float64
		uptime           time.Duration
	}{
		{time.Second, 0.5, 0.5, 0.5, time.Second},
		{2 * time.Second, 1, 0.75, 0.75, 2 * time.Second},
		{6*time.Second + 1, 1, 5.5 / 6, 5.5 / 6, 6 * time.Second},
		{7*time.Second - 1, 1, 5.5 / 6, 5.5 / 6, 6 * time.Second},
		{7 * time.Second, 1, 1, 6.5 / 7, 7 * time.Second},
		{60 * time.Second, 1, 1, 59.5 / 60, 60 * time.Second},
		{61 * time.Second, 1, 1, 1, 61 * time.Second},
		{1e6 * time.Second, 1, 1, 1, 1e6 * time.Second}, // 11 days without calls
		{200 * 365 * 24 * time.Hour, 1, 1, 1, 200 * 365 * 24 * time.Hour},
	} {
		r := s.Report(at(c.at))
		if r.Last.Concurrency != c.last || r.Last6.Concurrency != c.six || r.Last60.Concurrency != c.sixty || r.Uptime != c.uptime {
			t.Errorf("after %v: got %v, %v, %v, uptime %v; want %v, %v, %v, uptime %v", c.at,
				r.Last.Concurrency, r.Last6.Concurrency, r.Last60.Concurrency, r.Uptime, c.last, c.six, c.sixty, c.uptime)
		}
		if r.Last.ProxiedConcurrency != c.last || r.Last60.ProxiedConcurrency != c.sixty {
			t.Errorf("after %v: proxied: got %v, %v; want %v, %v", c.at, r.Last.ProxiedConcurrency, r.Last60.ProxiedConcurrency, c.last, c.sixty)
		}
	}
}

func TestOldRequestsLeaveWindow(t *testing.T) {
	s := New(start)
	for i := range 600 {
		now := at(time.Duration(i) * time.Second / 10)
		s.In(now, true)
		s.Out(now, true)
	}
	if got := s.Report(at(60 * time.Second)).Last60.Requests; got != 10 {
		t.Fatalf("after 60 s of load: got %v requests per second, want 10", got)
	}
	if got := s.Report(at(90 * time.Second)).Last60; got.Requests != 5 || got.ProxiedRequests != 5 {
		t.Errorf("after 30 s without requests: got %+v, want 5 requests per second, all proxied", got)
	}
	want := Window{}
	harness.Equal(t, s.Report(at(120*time.Second)).Last60, want, "after 60 s without requests")
}

func TestEarlierTimeIsReplacedByLaterTime(t *testing.T) {
	s := New(start)
	s.In(at(-time.Second), false) // before the start, so the start is used
	s.In(at(time.Second/2), false)
	s.Out(at(time.Second/4), false) // before the previous call, so second/2 is used
	got := s.Report(at(time.Second)).Last
	want := Window{Concurrency: 1, Requests: 2}
	harness.Equal(t, got, want)
	s.In(at(time.Second-1), false) // the first second has ended, so the request is counted in the second one
	harness.Equal(t, s.Report(at(time.Second/2)).Last, want, "second that has ended")
	want = Window{Concurrency: 2, Requests: 1}
	harness.Equal(t, s.Report(at(2*time.Second)).Last, want)
}

// change is the start or the end of a request.
type change struct {
	at      time.Duration
	in      bool
	proxied bool
}

// TestWindowsMatchNaiveSum compares each window with a floating-point sum over all events, which are random.
func TestWindowsMatchNaiveSum(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 42))
		s := New(start)
		var events []change
		var direct, proxied int
		now := time.Duration(0)
		for range 300 {
			switch random.IntN(20) {
			case 0:
				now = now.Truncate(time.Second) + time.Second // exactly at a boundary
			case 1:
				now += time.Duration(random.Int64N(int64(90 * time.Second))) // time without events
			case 2: // two events at the same time
			default:
				now += time.Duration(random.Int64N(int64(time.Second)))
			}
			c := change{at: now, in: random.IntN(2) == 0, proxied: random.IntN(3) == 0}
			if !c.in && c.proxied && proxied == 0 || !c.in && !c.proxied && direct == 0 {
				c.in = true
			}
			n := map[bool]int{true: 1, false: -1}[c.in]
			if c.proxied {
				proxied += n
			} else {
				direct += n
			}
			events = append(events, c)
			if c.in {
				s.In(at(now), c.proxied)
			} else {
				s.Out(at(now), c.proxied)
			}
			if random.IntN(10) == 0 {
				compare(t, seed, s.Report(at(now)), events, now)
			}
			if t.Failed() {
				return
			}
		}
	}
}

func compare(t *testing.T, seed uint64, got Report, events []change, now time.Duration) {
	t.Helper()
	full := int(now / time.Second)
	harness.Equal(t, got.Uptime, time.Duration(full)*time.Second, "seed", seed, "at", now, "uptime")
	for _, c := range []struct {
		name string
		got  Window
		of   int
	}{{"last", got.Last, 1}, {"6 s", got.Last6, 6}, {"60 s", got.Last60, 60}} {
		want := naive(events, max(0, full-c.of), full)
		if !same(c.got, want) {
			t.Errorf("seed %d, at %v, %s: got %+v, want %+v", seed, now, c.name, c.got, want)
		}
	}
}

// naive computes a window as the sum over events. The window contains the seconds in the half-open interval [from, to).
func naive(events []change, from, to int) Window {
	var w Window
	if from == to {
		return w
	}
	n := float64(to - from)
	for _, c := range events {
		sign := -1.0
		if c.in {
			sign = 1
			if c.at >= time.Duration(from)*time.Second && c.at < time.Duration(to)*time.Second {
				w.Requests += 1 / n
				if c.proxied {
					w.ProxiedRequests += 1 / n
				}
			}
		}
		// lasts is the fraction of the window after the change.
		lasts := math.Min(n, math.Max(0, float64(to)-c.at.Seconds())) / n
		w.Concurrency += sign * lasts
		if c.proxied {
			w.ProxiedConcurrency += sign * lasts
		}
	}
	return w
}

func same(a, b Window) bool {
	near := func(x, y float64) bool { return math.Abs(x-y) < 1e-9 }
	return near(a.Concurrency, b.Concurrency) && near(a.ProxiedConcurrency, b.ProxiedConcurrency) &&
		near(a.Requests, b.Requests) && near(a.ProxiedRequests, b.ProxiedRequests)
}

func TestConcurrentCallsCountAllRequests(t *testing.T) {
	const callers, each = 8, 2000
	s := New(start)
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range each {
				now := at(time.Duration(i) * time.Second / each) // the callers pass different times
				s.In(now, c%2 == 0)
				s.Report(now)
				s.Out(now, c%2 == 0)
			}
		})
	}
	all.Wait()
	got := s.Report(at(time.Second))
	if got.Last.Requests != callers*each || got.Last.ProxiedRequests != callers*each/2 {
		t.Errorf("got %v requests, %v proxied; want %d, %d", got.Last.Requests, got.Last.ProxiedRequests, callers*each, callers*each/2)
	}
	if got.InFlight != 0 || got.ProxiedInFlight != 0 {
		t.Errorf("got %d requests in flight, %d proxied; want none", got.InFlight, got.ProxiedInFlight)
	}
}

func TestStatsDoNotAllocate(t *testing.T) {
	s := New(start)
	now := start
	harness.Equal(t, testing.AllocsPerRun(1000, func() {
		s.In(now, true)
		now = now.Add(time.Second / 3)
		s.Out(now, true)
		s.Report(now)
	}), 0, "allocations")
}

func BenchmarkInAndOut(b *testing.B) {
	s := New(start)
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(10 * time.Microsecond)
		s.In(now, false)
		s.Out(now, false)
	}
}

func BenchmarkInAndOutParallel(b *testing.B) {
	s := New(start)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := start
		for pb.Next() {
			now = now.Add(10 * time.Microsecond)
			s.In(now, false)
			s.Out(now, false)
		}
	})
}

func BenchmarkInAfterIdleMinute(b *testing.B) {
	s := New(start)
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Minute)
		s.In(now, false)
		s.Out(now, false)
	}
}
