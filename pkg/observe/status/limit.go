package status

import (
	"fmt"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// adaptive is the state of an adaptive limit.
type adaptive struct {
	Base    int                     `json:"base"` // selected limit; another limit is used during a comparison
	Reason  observation.LimitReason `json:"reason"`
	Settled int                     `json:"settled,omitempty"` // 0 means that the comparison in Missing is required
	Missing string                  `json:"missing,omitempty"` // comparison that is required before the limit is settled
}

// text returns the state of the limit for the output of `queue-proxy why`.
func (a *adaptive) text() string {
	if a.Settled == 0 {
		return fmt.Sprintf("%s; not settled: %s", a.Reason.Words(), a.Missing)
	}
	return fmt.Sprintf("%s; settled at %d", a.Reason.Words(), a.Settled)
}
