package status

import (
	"fmt"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
)

// adaptive is what an adaptive limit has decided.
type adaptive struct {
	Base    int          `json:"base"` // the selected limit; during a comparison, another limit is used
	Reason  adapt.Reason `json:"reason"`
	Settled int          `json:"settled,omitempty"` // 0: see Missing
	Missing string       `json:"missing,omitempty"` // the comparison without which the limit is not settled
}

// text returns the state of the limit for people.
func (a *adaptive) text() string {
	if a.Settled == 0 {
		return fmt.Sprintf("%s; not settled: %s", a.Reason.Words(), a.Missing)
	}
	return fmt.Sprintf("%s; settled at %d", a.Reason.Words(), a.Settled)
}
