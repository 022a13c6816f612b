package status

import (
	"fmt"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
)

// adaptive is the state of an adaptive limit.
type adaptive struct {
	Base    int          `json:"base"` // the selected limit; during a comparison, another limit is used
	Reason  adapt.Reason `json:"reason"`
	Settled int          `json:"settled,omitempty"` // 0: see Missing
	Missing string       `json:"missing,omitempty"` // comparison that is required before the limit is settled
}

// text returns the state of the limit for people.
func (a *adaptive) text() string {
	if a.Settled == 0 {
		return fmt.Sprintf("%s; not settled: %s", a.Reason.Words(), a.Missing)
	}
	return fmt.Sprintf("%s; settled at %d", a.Reason.Words(), a.Settled)
}
