//go:build !race

package simulation

import (
	"flag"
	"slices"
	"testing"
	"time"
)

// jitters is the number of adaptive limits for each row.
var jitters = flag.Int("jitters", 3, "number of adaptive limits per row")

// outage is the minimum goodput for each seed, relative to the goodput with the best fixed
// limit.
const outage = 0.5

// noise is the standard error of a row's goodput with few seeds.
const noise = 0.01

// median returns the result with the median goodput.
func median(results []Result) Result {
	slices.SortFunc(results, func(a, b Result) int {
		switch {
		case a.Throughput < b.Throughput:
			return -1
		case a.Throughput > b.Throughput:
			return 1
		}
		return 0
	})
	return results[len(results)/2]
}

// adaptive runs the row with several adaptive limits and returns the median.
func (r *Row) adaptive(t *testing.T, best *Result) Result {
	t.Helper()
	var results []Result
	for jitter := range uint64(*jitters) {
		got, points := r.Adaptive(jitter)
		if r.Avoid == "" && got.Throughput < outage*best.Throughput {
			t.Errorf("seed %d: got %.1f/s, want at least half of %.1f/s\n%v", jitter, got.Throughput, best.Throughput, points)
		}
		results = append(results, got)
	}
	return median(results)
}

func TestAdaptiveLimitMeetsCriteriaInEachRow(t *testing.T) {
	for _, r := range Rows() {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			limit, best, ceiling := r.Best()
			got := r.adaptive(t, &best)
			ceiling.Throughput *= 1 - noise
			missed := Criteria(&got, &best, &ceiling)
			t.Logf("fixed limit %d: %.1f/s, %.3f s; adaptive: %.1f/s, %.3f s; %s", limit, best.Throughput, best.P99, got.Throughput, got.P99, missed)
			if missed != "" && r.Avoid == "" {
				t.Error(missed)
			}
		})
	}
}

func TestBestLimitExcludesErrors(t *testing.T) {
	for name, c := range map[string]struct {
		all  []Measurement
		want int
	}{
		"greatest goodput":         {[]Measurement{{500, 0.1, 0}, {600, 0.2, 0}}, 1},
		"shortest 99th percentile": {[]Measurement{{600, 0.2, 0}, {599, 0.1, 0}}, 1},
		"many errors":              {[]Measurement{{600, 0.2, 0}, {615, 0.1, 0.97}}, 0},
		"errors with all limits":   {[]Measurement{{600, 0.2, 0.12}, {615, 0.1, 0.13}}, 1},
	} {
		if got := Choose(c.all); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func TestHostileClientsHaveLittleEffect(t *testing.T) {
	for _, r := range HostileRows() {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			_, best, _ := r.Best()
			got := r.adaptive(t, &best)
			share := got.Throughput / best.Throughput
			t.Logf("goodput: %.2f of the best fixed limit", share)
			if share < LeastOfBest {
				t.Errorf("goodput relative to the best fixed limit: got %.2f, want at least %v", share, LeastOfBest)
			}
		})
	}
}

func TestSettledLimitKeepsGoodput(t *testing.T) {
	settled := false
	for _, r := range append(AdviceRows(), usualRows()...) {
		t.Run(r.Name, func(t *testing.T) {
			none := r.Compare(Fixed(Ceiling))
			state := r.State()
			if state.Settled == 0 {
				t.Logf("settled limit is unknown: %s", state.Missing)
				if state.Missing == "" {
					t.Error("got no reason for the unknown limit")
				}
				return
			}
			settled = true
			got := r.Compare(Fixed(state.Settled))
			t.Logf("settled limit %d: %.1f/s, without the limit %.1f/s", state.Settled, got.Throughput, none.Throughput)
			if got.Throughput < 0.95*none.Throughput {
				t.Errorf("settled limit %d: got %.1f/s, want at least 0.95 of %.1f/s", state.Settled, got.Throughput, none.Throughput)
			}
		})
	}
	if !settled {
		t.Error("got no settled limit, want at least 1")
	}
}

func TestGoodputWithin30SecondsOfStart(t *testing.T) {
	for name, app := range map[string]func() App{
		"5 ms":   poolOf(16, 5*time.Millisecond),
		"100 ms": poolOf(32, 100*time.Millisecond),
		"400 ms": poolOf(16, 400*time.Millisecond),
	} {
		r := Row{App: app, Load: Load{Clients: 100}, Warm: 25 * time.Second, For: 40 * time.Second}
		best := r.Compare(Fixed(Ceiling))
		got := r.adaptive(t, &best)
		if got.Throughput < 0.8*best.Throughput {
			t.Errorf("%s: got %.1f/s, want at least 0.8 of %.1f/s", name, got.Throughput, best.Throughput)
		}
	}
}
