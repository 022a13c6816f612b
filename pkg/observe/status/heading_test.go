package status

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestHeadingContainsRateOfRejectedRequests(t *testing.T) {
	ready := observation.Readiness{Phase: observation.PhaseReady}
	reject := func(n int, reason observation.Reason) func(*Board) {
		return func(b *Board) {
			b.sampled(10, func() {
				for range n {
					b.Observe(refused(reason, time.Second))
				}
			})
		}
	}
	for _, c := range []struct {
		readiness observation.Readiness
		drain     Drain
		events    func(*Board)
		heading   string
		level     level
	}{
		{ready, Drain{}, func(*Board) {}, "Ready", levelGood},
		{ready, Drain{}, reject(20, observation.QueueFull), "Ready, rejecting 20/s: queue full", levelWarn},
		{ready, Drain{}, reject(2, observation.QueueTimeout), "Ready, rejecting 2.0/s: queue timeout", levelWarn},
		{ready, Drain{}, reject(20, observation.Overload), "Ready, rejecting 20/s: overload", levelWarn},
		{ready, Drain{}, func(b *Board) {
			reject(20, observation.QueueFull)(b)
			b.observe(100, observation.AppReset, time.Second)
		}, "Ready, rejecting 20/s: queue full", levelBad},
		{observation.Readiness{Phase: observation.PhaseFailing}, Drain{}, reject(20, observation.QueueFull), "Not ready", levelBad},
		{ready, Drain{Draining: true}, reject(20, observation.QueueFull), "Draining", levelWarn},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := board(c.readiness, c.drain)
			c.events(b)
			s := b.snapshot()
			harness.Equal(t, s.Heading, c.heading)
			harness.Equal(t, s.Level, c.level, s.Heading)
		})
	}
}
