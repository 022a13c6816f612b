package status

import (
	"cmp"
	"slices"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// boundState contains the events of a bound or a client error.
type boundState struct {
	Bound    string    `json:"bound"`
	Closes   string    `json:"closes"`          // connection, stream or request
	Count    uint64    `json:"count"`           // events since the start of the process
	LastHour uint64    `json:"lastHour"`        // events in the last hour
	Last     time.Time `json:"last"`            // time of the latest event
	Peer     string    `json:"peer"`            // peer address in the latest event
	Error    string    `json:"error,omitempty"` // error of the latest event; empty for a bound
	Cause    string    `json:"cause"`           // cause of the events and the action for an operator

	name bound.Name
}

// boundStates returns the states for the page. The bound with the most events in the last hour is first.
func boundStates(states []bound.State) (all []boundState) {
	slices.SortStableFunc(states, func(a, b bound.State) int {
		return cmp.Or(cmp.Compare(b.Recent, a.Recent), cmp.Compare(b.Count, a.Count))
	})
	for _, s := range states {
		all = append(all, boundState{
			Bound: s.Name.String(), Closes: string(s.Closes), Count: s.Count, LastHour: s.Recent,
			Last: s.Last, Peer: s.Peer, Error: s.Error, Cause: s.Name.Text(), name: s.Name,
		})
	}
	return all
}
