package bound

import "time"

// A Pool describes the use of a connection limit.
type Pool struct {
	Open    int       `json:"open"`             // number of open connections
	Limit   int       `json:"limit"`            // maximum of Open; 0 means no limit
	Waiting int       `json:"waiting"`          // number of connections or requests that wait
	Reached time.Time `json:"reached,omitzero"` // last time at which the limit was reached; zero if it was not reached

	// The following fields are set only for client connections. They are totals since the start of the process.
	Accepted uint64  `json:"accepted,omitzero"`      // number of connections that were served
	Evicted  uint64  `json:"evicted,omitzero"`       // number of connections that were closed to make room for another one
	Refused  uint64  `json:"refused,omitzero"`       // number of connections that were still waiting when the listeners were closed
	Waited   float64 `json:"waitedSeconds,omitzero"` // total time that accepted connections waited before they were accepted, in seconds
}
