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

// AppRequests counts the client requests in the user container. The numbers do not include slots that
// are held after a client disconnected.
type AppRequests struct {
	Pending    int       // number of requests without a response, without requests whose client has not sent the complete body
	Responding int       // number of requests whose response has begun, without upgraded connections
	Oldest     time.Time // earliest time since which a pending request waits for the user container, which is the time of its slot or of the last byte of its body; zero if there is none
	Held       HeldRequests
}

// HeldRequests describes the last requests whose slot was held after an abort.
type HeldRequests struct {
	Answered time.Time     // time of the last response; zero if there was none
	Expired  time.Time     // last time when the hold of a slot reached its maximum; zero if there was none
	Waited   time.Duration // time in the user container of the request whose hold ended at Expired
}
