package bound

import "time"

// A Pool describes a limited number of connections.
type Pool struct {
	Open    int       `json:"open"`             // number of open connections
	Limit   int       `json:"limit"`            // maximum of Open; 0 means no limit
	Waiting int       `json:"waiting"`          // number of connections or requests that wait
	Reached time.Time `json:"reached,omitzero"` // last time at which the limit was reached; zero if it was not reached
}
