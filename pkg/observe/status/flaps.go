package status

import (
	"fmt"
	"slices"
	"time"
)

// Thresholds for a user container whose readiness changes often. flapsTime and manyFlaps are the same as in
// the alert QueueProxyReadinessFlaps.
const (
	flapsTime = 15 * time.Minute
	manyFlaps = 4

	maxFlaps = 100 // maximum number of stored changes
)

// BecameUnready records that the user container was ready and became unready.
func (b *Board) BecameUnready() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unready = append(b.unready, time.Now()); len(b.unready) > maxFlaps {
		b.unready = slices.Delete(b.unready, 0, 1)
	}
}

// checkFlaps detects a user container that became unready at least manyFlaps times in the last flapsTime.
func checkFlaps(e *evidence) (m match, ok bool) {
	times := e.board.unready
	for len(times) > 0 && e.now.Sub(times[0]) > flapsTime {
		times = times[1:]
	}
	if len(times) < manyFlaps {
		return m, false
	}
	last := times[len(times)-1]
	return match{
		confidence: recentness(e.now, last), since: times[0],
		numbers: fmt.Sprintf("%d times in the last 15 minutes, most recently %v ago", len(times), brief(e.now.Sub(last))),
	}, true
}
