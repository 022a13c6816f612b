package sidecar

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
)

// Times of the log lines about an adaptive limit.
const (
	limitInterval = time.Second
	limitSettled  = 10 * time.Second // without a change, before a new limit is logged
)

// logLimit logs each change of the adaptive limit that lasts.
func (s *sidecar) logLimit(ctx context.Context) error {
	if _, adaptive := s.proxy.Limit.Adaptive(); !adaptive {
		return nil
	}
	tick := time.NewTicker(limitInterval)
	defer tick.Stop()
	var changes limitChanges
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

// limitChanges finds the changes of an adaptive limit that last, so that their number is
// bounded.
type limitChanges struct {
	logged int       // the last limit that was logged; 0: none
	base   int       // the limit now
	since  time.Time // base has this value
}

// note reports whether the limit changed and has been the same for some time, and returns
// the previous limit, or 0 the first time. The reason of a state that is being measured is
// not the reason of the limit.
func (l *limitChanges) note(now time.Time, state *adapt.State) (from int, changed bool) {
	if state.Base != l.base {
		l.base, l.since = state.Base, now
	}
	if l.base == l.logged || state.Reason == adapt.Measuring || now.Sub(l.since) < limitSettled {
		return 0, false
	}
	from, l.logged = l.logged, l.base
	return from, true
}
