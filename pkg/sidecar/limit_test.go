package sidecar

import (
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

func TestLogLimitIgnoresShortChanges(t *testing.T) {
	changes := limitChanges{logged: 4}
	now, lines, previous := time.Unix(0, 0), 0, 0
	note := func(base int, reason observation.LimitReason, lasts time.Duration) {
		for range int(lasts / limitInterval) {
			now = now.Add(limitInterval)
			if from, changed := changes.note(now, &observation.LimitState{Base: base, Reason: reason}); changed {
				lines, previous = lines+1, from
			}
		}
	}
	for i, c := range []struct {
		base   int
		reason observation.LimitReason
		lasts  time.Duration
		want   int
		from   int // previous limit in the last line
	}{
		{4, observation.LimitStarting, time.Minute, 0, 0},
		{8, observation.LimitStarting, time.Minute, 1, 4},
		{9, observation.LimitGrowing, 5 * time.Second, 1, 4},
		{8, observation.LimitSteady, time.Minute, 1, 4},
		{12, observation.LimitMeasuring, time.Minute, 1, 4},
		{12, observation.LimitSteady, time.Minute, 2, 8},
	} {
		if note(c.base, c.reason, c.lasts); lines != c.want || previous != c.from {
			t.Errorf("step %d: got %d lines, the last from %d, want %d from %d", i, lines, previous, c.want, c.from)
		}
	}
}
