package status

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Thresholds for a pod whose readiness changes often. The first two values are the same as in the alert
// QueueProxyReadinessFlaps.
const (
	flapsTime = 15 * time.Minute
	manyFlaps = 4

	maxFlaps = 100 // maximum number of stored changes
)

// flaps contains the times at which the user container became unready. The oldest time is first.
type flaps struct {
	mu    sync.Mutex
	times []time.Time
}

// BecameUnready records that the user container was ready and became unready.
func (b *Board) BecameUnready() {
	f := &b.flaps
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.times = append(f.times, time.Now()); len(f.times) > maxFlaps {
		f.times = slices.Delete(f.times, 0, 1)
	}
}

// latest returns the times in the last flapsTime.
func (f *flaps) latest(now time.Time) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times = slices.DeleteFunc(f.times, func(at time.Time) bool { return now.Sub(at) > flapsTime })
	return slices.Clone(f.times)
}

// checkFlaps detects a user container that became unready at least manyFlaps times in the last flapsTime.
func checkFlaps(e *evidence) (m match, ok bool) {
	times := e.board.flaps.latest(e.now)
	if len(times) < manyFlaps {
		return m, false
	}
	last := times[len(times)-1]
	return match{
		confidence: recentness(e.now, last), since: times[0],
		numbers: fmt.Sprintf("%d times in the last 15 minutes, the last one %v ago", len(times), brief(e.now.Sub(last))),
	}, true
}
