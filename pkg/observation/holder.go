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

// AppRequests counts the client requests in the user container. It does not include slots that are held after a
// client disconnected.
type AppRequests struct {
	Pending    int       // number of requests without a response, without requests whose client has not sent the complete body
	Responding int       // number of requests whose response has begun, without upgraded connections
	Oldest     time.Time // earliest time since which a pending request waits for the user container, which is the time of its slot or of the last byte of its body; zero if there is none
}
