package bound_test

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

const peer = "10.0.0.1:1234"

func TestNamesAreUnique(t *testing.T) {
	label := regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	seen := map[string]bool{}
	for name := range bound.NumEvents {
		if got := name.String(); !label.MatchString(got) || seen[got] {
			t.Errorf("bound %d: got label %q, want a distinct label in kebab case", name, got)
		}
		seen[name.String()] = true
	}
}

func TestAppBoundsHavePrefix(t *testing.T) {
	for name := range bound.NumNames {
		app := strings.HasPrefix(name.Text(), "The user container ")
		if got := strings.HasPrefix(name.String(), "app-"); got != app {
			t.Errorf("%v: got prefix app-: %v, want %v: %s", name, got, app, name.Text())
		}
	}
}

func TestBoundsHaveText(t *testing.T) {
	for name := range bound.NumEvents {
		switch name.Closes() {
		case bound.Connection, bound.Stream, bound.Request:
		default:
			t.Errorf("%v: got object %q, want connection, stream or request", name, name.Closes())
		}
		if text := name.Text(); strings.Count(text, ". ") == 0 || !strings.HasSuffix(text, ".") {
			t.Errorf("%v: got text %q, want the cause and the action", name, text)
		}
	}
}

func TestNilRecorderRecordsNothing(t *testing.T) {
	var r *bound.Recorder
	r.Hit(bound.ControlFrames, peer)
	harness.Equal(t, r.Count(bound.ControlFrames), 0, "count")
	harness.Equal(t, len(r.States(time.Now())), 0, "states")
}

// reportingRecorder returns a Recorder. next waits until all goroutines are idle and returns the reports since the last
// call to next, in the order of their names.
func reportingRecorder() (r *bound.Recorder, next func() []bound.Event) {
	r = bound.NewRecorder()
	reports := make(chan bound.Event, 10)
	r.Report = func(e bound.Event) { reports <- e }
	return r, func() (events []bound.Event) {
		synctest.Wait()
		for len(reports) > 0 {
			events = append(events, <-reports)
		}
		slices.SortFunc(events, func(a, b bound.Event) int { return cmp.Compare(a.Name, b.Name) })
		return events
	}
}

func TestReportsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, next := reportingRecorder()
		r.Hit(bound.HeaderBlock, "b")
		r.Hit(bound.ControlFrames, "a")
		harness.Equal(t, next(), []bound.Event{
			{Name: bound.ControlFrames, Peer: "a", Count: 1},
			{Name: bound.HeaderBlock, Peer: "b", Count: 1},
		}, "first reports")
		time.Sleep(20 * time.Second)
		r.Hit(bound.ControlFrames, "c")
		time.Sleep(40*time.Second - time.Nanosecond)
		r.Hit(bound.ControlFrames, "d")
		harness.Equal(t, next(), nil, "reports before the minute ends")
		time.Sleep(time.Nanosecond)
		harness.Equal(t, next(), []bound.Event{{Name: bound.ControlFrames, Peer: "d", Count: 2}}, "reports after a minute")
		time.Sleep(time.Hour)
		r.Hit(bound.ControlFrames, "e")
		harness.Equal(t, next(), []bound.Event{{Name: bound.ControlFrames, Peer: "e", Count: 1}}, "reports after an hour")
	})
}

func TestRemainingEventsAreReportedAtEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, next := reportingRecorder()
		r.Hit(bound.ControlFrames, "a")
		harness.Equal(t, next(), []bound.Event{{Name: bound.ControlFrames, Peer: "a", Count: 1}}, "first report")
		r.Hit(bound.ControlFrames, "b")
		harness.Equal(t, next(), nil, "reports before the end")
		r.Flush()
		harness.Equal(t, next(), []bound.Event{{Name: bound.ControlFrames, Peer: "b", Count: 1}}, "reports at the end")
	})
}

func TestStatesReturnCountAndPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := bound.NewRecorder()
		r.Hit(bound.ConcurrentStreams, "a")
		time.Sleep(2 * time.Hour)
		first := time.Now()
		r.Hit(bound.ConcurrentStreams, "a")
		time.Sleep(time.Second)
		r.Hit(bound.ConcurrentStreams, "b")
		last := time.Now()
		time.Sleep(time.Second)
		got := r.States(time.Now())
		harness.Equal(t, got, []bound.State{{
			Name: bound.ConcurrentStreams, Label: "h2-concurrent-streams", Closes: bound.Stream, Count: 3, Recent: 2, Peer: "b", First: first, Last: last,
			Cause: bound.ConcurrentStreams.Text(),
		}}, "states")
	})
}

func TestStatesReturnRecentCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := bound.NewRecorder()
		recent := func() uint64 { return r.States(time.Now())[0].Recent }
		r.Hit(bound.BodyTimeout, peer)
		time.Sleep(30 * time.Minute)
		r.Hit(bound.BodyTimeout, peer)
		harness.Equal(t, recent(), 2, "after 30 minutes")
		time.Sleep(30 * time.Minute)
		harness.Equal(t, recent(), 1, "after an hour")
		time.Sleep(30 * time.Minute)
		harness.Equal(t, recent(), 0, "after 90 minutes")
		time.Sleep(1000 * time.Hour)
		r.Hit(bound.BodyTimeout, peer)
		harness.Equal(t, recent(), 1, "after a long pause")
		harness.Equal(t, r.Count(bound.BodyTimeout), 3, "count")
	})
}

func TestConcurrentHitsAreCounted(t *testing.T) {
	const goroutines, each = 8, 1000
	r := bound.NewRecorder()
	var reported atomic.Uint64
	r.Report = func(e bound.Event) { reported.Add(e.Count) }
	var hits sync.WaitGroup
	for range goroutines {
		hits.Go(func() {
			for range each {
				r.Hit(bound.AppControlFrames, peer)
				r.States(time.Now())
			}
		})
	}
	hits.Wait()
	r.Flush()
	harness.Equal(t, r.Count(bound.AppControlFrames), goroutines*each, "count")
	harness.Equal(t, reported.Load(), goroutines*each, "reported events")
}

func TestHitDoesNotAllocate(t *testing.T) {
	r := bound.NewRecorder()
	harness.Equal(t, testing.AllocsPerRun(100, func() { r.Hit(bound.ControlFrames, peer) }), 0, "allocations")
}
