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

func TestTheAdviceIsWhereThroughputStopsGrowing(t *testing.T) {
	for _, c := range []struct {
		workers, from, to, requests int
		limit                       int
		sure                        Sureness
	}{
		{8, 1, 16, 1000, 8, High},
		{1, 1, 4, 2000, 1, High},
		{8, 1, 16, 150, 8, Medium},
		{8, 1, 10, 200, 8, Low},
		{8, 1, 6, 1000, 0, No},
		{8, 12, 20, 1000, 0, No},
		{8, 1, 16, 3, 0, No},
		{200, 1, 400, 100, 200, High},
	} {
		got := curve(c.workers, c.from, c.to, c.requests).Advice()
		near := math.Abs(float64(got.Limit-c.limit)) <= 0.07*float64(c.limit)
		if !near || got.Sure != c.sure || got.Reason == "" {
			t.Errorf("%+v: got %d, %s: %s", c, got.Limit, got.Sure, got.Reason)
		}
	}
}

func TestWhatWasSeenLongAgoIsForgotten(t *testing.T) {
	c := curve(8, 1, 16, 100000)
	for range 2 * time.Hour / AgeInterval {
		c.Age()
	}
	if got := c.Advice(); len(got.Seen) != 0 || got.Sure != No {
		t.Errorf("got %+v, want nothing", got)
	}
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
