package message

import (
	"sync"
	"sync/atomic"
	"time"
)

// tallyDelay is the time between the first item of a Tally and its first report, unless Immediate is set.
const tallyDelay = time.Second

// A Tally reports the number of items, such as lost log lines, at most once per minute. Unlike a [Throttle], it also
// reports the last items if no further items are added. The zero value is ready to use. A Tally is safe for
// concurrent use.
type Tally struct {
	// The following fields must not be changed after the first call to Add.

	// Report is called with the number of items since the previous report. err is the last error that was
	// passed to Add since then, or Usual if there was no error. Report is called on a separate
	// goroutine, or by Flush. It may be nil.
	Report func(items uint64, err error)
	Usual  error

	// If Immediate is set, the first item is reported without a delay.
	Immediate bool

	// Restored is called by End with the number of lost items if items were reported since the last call to End. The
	// number includes items that have not been reported yet. Restored may be nil.
	Restored func(items uint64)

	reporting sync.Mutex            // held while Report or Restored is called
	pending   atomic.Uint64         // number of items that have not been reported
	failure   atomic.Pointer[error] // last error that has not been reported
	armed     atomic.Bool           // timer will call Flush; changed only while mu is held

	mu       sync.Mutex
	reported uint64      // number of items that were reported since the last call to End
	timer    *time.Timer // nil before the first item
	next     time.Time   // earliest time of the next report
}

// Add counts items that were lost because of err, which may be nil. It takes a lock only for the
// first item after a report, and allocates memory only if err is not nil.
func (t *Tally) Add(items uint64, err error) {
	if items == 0 {
		return
	}
	if err != nil {
		failure := err
		t.failure.Store(&failure)
	}
	t.pending.Add(items)
	if t.armed.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.armed.Load() {
		return
	}
	t.armed.Store(true)
	delay := tallyDelay
	if t.Immediate {
		delay = 0
	}
	t.timer = time.AfterFunc(max(delay, time.Until(t.next)), t.Flush)
}

// Flush reports the items that have not been reported yet.
func (t *Tally) Flush() {
	t.reporting.Lock()
	defer t.reporting.Unlock()
	items := t.take()
	if items == 0 || t.Report == nil {
		return
	}
	err := t.Usual
	if failure := t.failure.Swap(nil); failure != nil {
		err = *failure
	}
	t.Report(items, err)
}

// take returns the number of pending items, and records them as reported. t.reporting must be held.
func (t *Tally) take() (items uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.armed.Store(false) // must precede Swap, so that the items of a concurrent Add are either included here or start a timer
	if items = t.pending.Swap(0); items > 0 {
		t.reported, t.next = t.reported+items, time.Now().Add(throttleInterval)
	}
	return items
}

// End records that an item was not lost. It calls Restored if items were reported since the last call to
// End.
func (t *Tally) End() {
	if !t.reporting.TryLock() {
		return // a report is still being written; a later call to End calls Restored
	}
	defer t.reporting.Unlock()
	if items := t.end(); items > 0 && t.Restored != nil {
		t.Restored(items)
	}
}

// end returns the number of lost items if items were reported, and resets the number.
func (t *Tally) end() (items uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reported > 0 {
		items, t.reported = t.reported+t.pending.Swap(0), 0
		t.failure.Store(nil)
	}
	return items
}
