package sidecar

import (
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
)

func TestLogLimitIgnoresShortChanges(t *testing.T) {
	var changes limitChanges
	now, lines := time.Unix(0, 0), 0
	note := func(base int, reason adapt.Reason, lasts time.Duration) {
		for range int(lasts / limitInterval) {
			now = now.Add(limitInterval)
			if _, changed := changes.note(now, &adapt.State{Base: base, Reason: reason}); changed {
				lines++
			}
		}
	}
	for i, c := range []struct {
		base   int
		reason adapt.Reason
		lasts  time.Duration
		want   int
	}{
		{4, adapt.Starting, 5 * time.Second, 0},
		{8, adapt.Starting, time.Minute, 1},
		{9, adapt.Growing, 5 * time.Second, 1},
		{8, adapt.Steady, time.Minute, 1},
		{12, adapt.Measuring, time.Minute, 1},
		{12, adapt.Steady, time.Minute, 2},
	} {
		if note(c.base, c.reason, c.lasts); lines != c.want {
			t.Errorf("step %d: got %d lines, want %d", i, lines, c.want)
		}
	}
}
