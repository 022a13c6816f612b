package observation

import "time"

// A Holder describes a request that holds a slot.
type Holder struct {
	Method  string    `json:"method"` // truncated for display, like Path
	Path    string    `json:"path"`
	Phase   string    `json:"phase"`
	Since   time.Time `json:"since"`   // arrival time of the request
	Counted string    `json:"counted"` // "counted", or the reason for the exemption from the adaptive limit
}

// AppRequests counts the client requests in the user container. It does not include aborted requests for which a slot
// is held.
type AppRequests struct {
	Pending    int       // number of requests without a response
	Responding int       // number of requests whose response has begun, without upgraded connections
	Oldest     time.Time // time when the oldest pending request got its slot; zero if there is none
}
