package sidecar

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// Intervals for logging an adaptive limit.
const (
	limitInterval = time.Second
	limitSettled  = 10 * time.Second // time without a change before a new limit is logged
)

// logLimit logs each change to the adaptive limit that lasts for limitSettled, until ctx is done.
func (s *sidecar) logLimit(ctx context.Context) error {
	if _, adaptive := s.proxy.Limit.Adaptive(); !adaptive {
		return nil
	}
	tick := time.NewTicker(limitInterval)
	defer tick.Stop()
	state, _ := s.proxy.Limit.Adaptive()
	changes := limitChanges{logged: state.Base}
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			state, _ := s.proxy.Limit.Adaptive()
			if from, changed := changes.note(now, &state); changed {
				s.log.Info("concurrency limit changed", zap.Int("from", from), zap.Int("to", state.Base),
					zap.String("reason", state.Reason.Words()), zap.Int("settled", state.Settled))
			}
		}
	}
}

// limitChanges detects changes to an adaptive limit that last for limitSettled. It ignores shorter
// changes to bound the number of log lines.
type limitChanges struct {
	logged int       // the last logged limit, or the initial limit if none was logged
	base   int       // the current limit
	since  time.Time // when base was last changed
}

// note reports whether a changed limit has been stable for limitSettled, and returns the last logged
// limit. While the reason is LimitMeasuring, note reports no change, because this reason does not
// describe the limit.
func (l *limitChanges) note(now time.Time, state *observation.LimitState) (from int, changed bool) {
	if state.Base != l.base {
		l.base, l.since = state.Base, now
	}
	if l.base == l.logged || state.Reason == observation.LimitMeasuring || now.Sub(l.since) < limitSettled {
		return 0, false
	}
	from, l.logged = l.logged, l.base
	return from, true
}
