package message

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestThrottleAllowsOneMessagePerMinute(t *testing.T) {
	var events Throttle
	start := time.Now()
	for i, row := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {0, 0}, {59 * time.Second, 0}, {time.Minute, 3}, {119 * time.Second, 0}, {time.Hour, 2}} {
		harness.Equal(t, events.Add(start.Add(row.after)), row.want, "event", i+1, "after", row.after)
	}
}

func TestThrottledErrorContainsNumberOfErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failures Throttle
		var reports []string
		report := func(err error) { reports = append(reports, err.Error()) }
		for range 90 {
			failures.Error(errors.New("no route"), report)
			time.Sleep(time.Second)
		}
		harness.Equal(t, reports, []string{"no route", "no route (60 errors since the last message)"}, "messages")
		failures.Error(errors.New("no route"), nil)
	})
}
