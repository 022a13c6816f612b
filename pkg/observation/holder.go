package observation

import "time"

// A Holder describes a request that holds a slot.
type Holder struct {
	Method string    `json:"method"` // truncated for display, like Path
	Path   string    `json:"path"`
	Phase  string    `json:"phase"`
	Since  time.Time `json:"since"` // arrival time of the request
	Slot   time.Time `json:"slot"`  // time at which the request got the slot

	// Uploading is true if the app waits for the request body.
	Uploading bool `json:"uploading,omitempty"`

	Counted string `json:"counted"` // "counted", or the reason for the exemption from the adaptive limit
}

// AppRequests counts the client requests in the user container. The numbers do not include the requests in Held.
//
// A request is pending from the time when it has a slot and its complete body has been received until its response
// begins.
type AppRequests struct {
	Pending    int       // number of pending requests
	Long       int       // number of pending requests that have waited for a long time
	Responding int       // number of requests whose response has begun
	Upgraded   int       // number of upgraded connections
	Oldest     time.Time // start time of the oldest pending request; zero if there is none
	Held       HeldRequests
}

// HeldRequests describes aborted requests whose slots are held while the user container still processes them.
type HeldRequests struct {
	Answered time.Time     // time of the last response to such a request; zero if there was no response
	Expired  time.Time     // time at which the grace period of such a request last expired; zero if no grace period expired
	Method   string        // method of this request, truncated for display, like Path
	Path     string        // path of this request
	Waited   time.Duration // time that the request had spent in the user container at Expired
}
