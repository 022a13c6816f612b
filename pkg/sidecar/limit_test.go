package sidecar

import (
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
)

func TestLogLimitIgnoresShortChanges(t *testing.T) {
	changes := limitChanges{logged: 4}
	now, lines, previous := time.Unix(0, 0), 0, 0
	note := func(base int, reason adapt.Reason, lasts time.Duration) {
		for range int(lasts / limitInterval) {
			now = now.Add(limitInterval)
			if from, changed := changes.note(now, &adapt.State{Base: base, Reason: reason}); changed {
				lines, previous = lines+1, from
			}
		}
	}
	for i, c := range []struct {
		base   int
		reason adapt.Reason
		lasts  time.Duration
		want   int
		from   int // of the last line
	}{
		{4, adapt.Starting, time.Minute, 0, 0},
		{8, adapt.Starting, time.Minute, 1, 4},
		{9, adapt.Growing, 5 * time.Second, 1, 4},
		{8, adapt.Steady, time.Minute, 1, 4},
		{12, adapt.Measuring, time.Minute, 1, 4},
		{12, adapt.Steady, time.Minute, 2, 8},
	} {
		if note(c.base, c.reason, c.lasts); lines != c.want || previous != c.from {
			t.Errorf("step %d: got %d lines, the last from %d, want %d from %d", i, lines, previous, c.want, c.from)
		}
	}
}
