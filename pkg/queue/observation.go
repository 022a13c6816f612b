package queue

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// Observation is what there is to say about a request that has ended. It is
// valid until Observe returns.
type Observation struct {
	Exchange Exchange
	Line
	Kind     header.Kind // Traffic or KubeletRequest
	TraceID  string      // "": not traced
	Excluded bool        // by EXCLUDE_*: neither counted nor logged (docs/promises.md 3.10)
	Proxied  bool        // came through the activator
	Start    time.Time   // when the request had been read
	Slot     time.Time   // when it got a slot; zero: it never did
	End      time.Time
	Phase    Phase // how far it came
	Result
}

// Queued returns how long the request waited for a slot.
func (o *Observation) Queued() time.Duration {
	if o.Slot.IsZero() {
		return o.End.Sub(o.Start)
	}
	return o.Slot.Sub(o.Start)
}
