package message

import (
	"sync"
	"sync/atomic"
	"time"
)

// tallyDelay is the time between the first item of a Tally and its first report.
const tallyDelay = time.Second

// A Tally reports the number of lost items, at most once per minute. In contrast to a [Throttle], it
// also reports the last items if no further item is lost. The zero value is ready for use. It is safe
// for concurrent use.
type Tally struct {
	// Report is called with the number of items since the last call. It must not be changed after
	// the first call of Add. It is called on a separate goroutine, or by Flush. It can be nil.
	Report func(items uint64)

	reporting sync.Mutex    // held while Report is called
	pending   atomic.Uint64 // number of items that were not reported
	armed     atomic.Bool   // timer will call Flush

	mu       sync.Mutex
	reported uint64      // number of items that were reported since the last call of End
	timer    *time.Timer // nil before the first item
	next     time.Time   // earliest time of the next report
}

// Add counts items. It only takes a lock for the first item after a report.
func (t *Tally) Add(items uint64) {
	t.pending.Add(items)
	if items == 0 || !t.armed.CompareAndSwap(false, true) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(max(tallyDelay, time.Until(t.next)), t.Flush)
}

// Flush reports the items that were not reported yet.
func (t *Tally) Flush() {
	t.reporting.Lock()
	defer t.reporting.Unlock()
	if items := t.take(); items > 0 && t.Report != nil {
		t.Report(items)
	}
}

// take returns the number of pending items, and records that they are reported.
func (t *Tally) take() (items uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.armed.Store(false) // before the next line, so that items of a concurrent Add are counted now or start a timer
	if items = t.pending.Swap(0); items > 0 {
		t.reported, t.next = t.reported+items, time.Now().Add(throttleInterval)
	}
	return items
}

// End is called if an item was not lost. If items were reported since the last call, End returns the
// number of lost items, including items that were not reported. Otherwise it returns 0, so that each
// message about the end follows a report.
func (t *Tally) End() (items uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reported > 0 {
		items, t.reported = t.reported+t.pending.Swap(0), 0
	}
	return items
}
