package adapt

import (
	"math"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestLevelsAreInOrderAndNearWhatTheyStandFor(t *testing.T) {
	last := 0
	for n := 1; n <= 5000; n++ {
		level := levelOf(n)
		if level < last || level > last+1 || level >= numLevels {
			t.Fatalf("%d: got level %d behind %d", n, level, last)
		}
		last = level
		if middle := middleOf(level); n <= 1024 && math.Abs(middle-float64(n)) > float64(n)/15 {
			t.Errorf("%d: got %v in the middle of its level", n, middle)
		}
	}
	if last != numLevels-1 {
		t.Errorf("got %d levels, want %d", last+1, numLevels)
	}
}

// curve returns what is seen of an app with so many workers, 10 ms each.
func curve(workers, from, to, requests int) *Curve {
	var c Curve
	for n := from; n <= to; n++ {
		for range requests {
			c.Note(n, 10*time.Millisecond*time.Duration(max(n, workers))/time.Duration(workers))
		}
	}
	return &c
}

func TestSeenJoinsLevelsWithFewRequests(t *testing.T) {
	got := curve(8, 1, 16, 60).Seen()
	harness.Equal(t, len(got), 8, "places")
	for _, s := range got {
		if s.Requests != 120 || s.Throughput < 100 || s.Throughput > 805 {
			t.Errorf("got %+v, want 120 requests, 100 to 800/s", s)
		}
	}
	harness.Equal(t, len(curve(8, 1, 2, 10).Seen()), 0, "places of few requests")
}

func TestAdviceNeedsSettledLimit(t *testing.T) {
	for name, c := range map[string]struct {
		state    State
		adaptive bool
		want     Advice
	}{
		"fixed":     {State{}, false, Advice{Reason: fixedReason}},
		"searching": {State{Base: 8, Missing: "no comparison"}, true, Advice{Reason: "no comparison"}},
		"settled":   {State{Base: 8, Settled: 8}, true, Advice{Limit: 8, Reason: settledReason}},
	} {
		if got := Advise(c.state, c.adaptive); got.Limit != c.want.Limit || got.Reason != c.want.Reason {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestWhatWasSeenLongAgoIsForgotten(t *testing.T) {
	c := curve(8, 1, 16, 100000)
	for range 2 * time.Hour / AgeInterval {
		c.Age()
	}
	harness.Equal(t, len(c.Seen()), 0, "places after two hours")
	c = curve(8, 1, 1, 1000)
	for range 5 * time.Minute / AgeInterval {
		c.Age()
	}
	if got := c.levels[0].requests.Load(); got < 450 || got > 550 {
		t.Errorf("got %d of 1000 requests after five minutes, want half", got)
	}
}

func TestARequestThatLastsForHoursCountsForAMinute(t *testing.T) {
	var c Curve
	c.Note(1, 5*time.Hour)
	c.Note(1, -time.Second)
	c.Note(0, time.Second)
	harness.Equal(t, c.levels[0].micros.Load(), uint64(time.Minute.Microseconds()), "microseconds")
}
