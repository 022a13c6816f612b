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
