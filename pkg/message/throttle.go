package message

import (
	"fmt"
	"sync"
	"time"
)

// throttleInterval is the minimum time between two log messages of a [Throttle].
const throttleInterval = time.Minute

// A Throttle limits the log messages about one kind of event to one per minute, because clients or
// other servers can cause such events at any rate. The zero value is ready to use. A Throttle is safe
// for concurrent use.
//
// A [Tally] is a rate limit that also reports the last events if no further events occur. The prober
// in package probe has a separate rate limit, because it reports the latest state and not a number of
// events.
type Throttle struct {
	mu     sync.Mutex
	events int       // number of events since the last message
	next   time.Time // time of the next message
}

// Add counts an event. If the rate limit allows a message, Add returns the number of events since the
// last message, including this event. Otherwise it returns 0.
func (t *Throttle) Add(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events++
	if now.Before(t.next) {
		return 0
	}
	n := t.events
	t.events, t.next = 0, now.Add(throttleInterval)
	return n
}

// Error counts an error, and calls report if the rate limit allows a message. The reported error
// contains the number of errors since the last message. report may be nil.
func (t *Throttle) Error(err error, report func(error)) {
	n := t.Add(time.Now())
	if n == 0 || report == nil {
		return
	}
	if n > 1 {
		err = fmt.Errorf("%w (%d errors since the last message)", err, n)
	}
	report(err)
}
