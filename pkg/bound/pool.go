package bound

import "time"

// A Pool describes connections to the same peers, the number of which is limited.
type Pool struct {
	Open    int       `json:"open"`             // number of open connections
	Limit   int       `json:"limit"`            // maximum of Open; 0 means no limit
	Waiting int       `json:"waiting"`          // number of connections or requests that wait because of Limit
	Reached time.Time `json:"reached,omitzero"` // time when Limit was last reached; zero if it never was
}
