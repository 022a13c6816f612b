package bound

import (
	"context"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// maxDetail is the maximum length of an error message in bytes.
const maxDetail = 200

// reportInterval is the minimum time between two reports of one bound.
const reportInterval = time.Minute

// Events are counted in slots of slotTime, from which [State.Recent] is computed. The newest slot is
// usually incomplete, so that the count includes events of the last 55 to 60 minutes.
const (
	slotTime = 5 * time.Minute
	slots    = int(time.Hour / slotTime)
)

// An Event reports one or more events for the same bound or client error.
type Event struct {
	Name  Name
	Peer  string // peer address in the latest event
	Error string // error of the latest event; empty for a bound
	Count uint64 // number of events since the last report, 1 or more
}

// A State summarizes the events for one bound or client error since the start of the process.
type State struct {
	Name   Name
	Closes Object
	Count  uint64    // number of events, 1 or more
	Recent uint64    // number of these events in the last hour
	Peer   string    // peer address in the latest event
	Error  string    // error of the latest event; empty for a bound
	Last   time.Time // time of the latest event
}

// A Recorder counts events and reports them. It uses a constant amount of memory. It is safe for
// concurrent use. A nil *Recorder is valid and records nothing.
type Recorder struct {
	start  time.Time
	wake   chan struct{} // wakes Run; has room for one value
	bounds [NumEvents]record
}

// record contains the events of one bound or client error.
type record struct {
	mu         sync.Mutex
	count      uint64
	peer       string
	err        string
	last       time.Time
	unreported uint64
	reported   time.Time     // time of the last report; zero before the first report
	slots      [slots]uint32 // ring buffer with the number of events in each slot
	slot       int           // number of the latest slot, counted from Recorder.start
}

// NewRecorder returns a Recorder without events.
func NewRecorder() *Recorder {
	return &Recorder{start: time.Now(), wake: make(chan struct{}, 1)}
}

// Hit records that a peer exceeded a bound. peer is the address of the peer. Hit retains peer, so the
// memory of the string must not be reused. Hit does not block.
func (r *Recorder) Hit(name Name, peer string) { r.record(name, peer, "") }

// Fail records a client error. It is like Hit, but also stores err for logs and the status page.
func (r *Recorder) Fail(name Name, peer string, err error) {
	if r != nil {
		r.record(name, peer, message.Excerpt(err.Error(), maxDetail))
	}
}

func (r *Recorder) record(name Name, peer, err string) {
	if r == nil {
		return
	}
	now := time.Now()
	if r.bounds[name].add(now, r.slotAt(now), peer, err) {
		select {
		case r.wake <- struct{}{}:
		default: // Run has not processed the previous value.
		}
	}
}

// Run calls report for the recorded events until ctx is done. It reports the first event for a
// bound immediately, and later events for the same bound at most once a minute. When ctx is done, Run
// reports the remaining events and returns nil. It must be called only once.
func (r *Recorder) Run(ctx context.Context, report func(Event)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.wake:
		case <-timer.C:
		case <-ctx.Done():
			r.report(time.Time{}, report)
			return nil
		}
		if next := r.report(time.Now(), report); next > 0 {
			timer.Reset(next)
		}
	}
}

// report reports the events that are due and returns the time until the next report, or 0 if
// no events remain. If now is zero, all events are due.
func (r *Recorder) report(now time.Time, report func(Event)) (next time.Duration) {
	for name := range NumEvents {
		e, wait := r.bounds[name].take(now)
		if e.Count > 0 {
			e.Name = name
			report(e)
		}
		if wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	return next
}

// slotAt returns the number of the slot for a time.
func (r *Recorder) slotAt(now time.Time) int { return int(now.Sub(r.start) / slotTime) }

// add adds an event and reports whether it is the first event since the last report.
func (b *record) add(now time.Time, slot int, peer, err string) (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	b.peer, b.err, b.last = peer, err, now
	b.advance(slot)
	b.slots[slot%slots]++
	b.unreported++
	return b.unreported == 1
}

// take returns the unreported events if a report is due, and an event with a count of 0
// otherwise. wait is the time until the next report is due, or 0 if no events remain.
func (b *record) take(now time.Time) (e Event, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unreported == 0 {
		return Event{}, 0
	}
	if wait = b.reported.Add(reportInterval).Sub(now); wait > 0 && !now.IsZero() {
		return Event{}, wait
	}
	e = Event{Peer: b.peer, Error: b.err, Count: b.unreported}
	b.unreported, b.reported = 0, now
	return e, 0
}

// advance clears the slots after the latest slot, up to the slot with the given number. b.mu must be held.
func (b *record) advance(slot int) {
	for i := max(b.slot, slot-slots) + 1; i <= slot; i++ {
		b.slots[i%slots] = 0
	}
	b.slot = max(b.slot, slot)
}

// Count returns the number of events for a bound or client error since the start of the process.
func (r *Recorder) Count(name Name) uint64 {
	if r == nil {
		return 0
	}
	b := &r.bounds[name]
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// States returns a State for each bound or client error for which an event was recorded, in the order of Name. now
// is the current time.
func (r *Recorder) States(now time.Time) (states []State) {
	if r == nil {
		return nil
	}
	for name := range NumEvents {
		if s := r.bounds[name].state(r.slotAt(now)); s.Count > 0 {
			s.Name, s.Closes = name, name.Closes()
			states = append(states, s)
		}
	}
	return states
}

func (b *record) state(slot int) State {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(slot)
	s := State{Count: b.count, Peer: b.peer, Error: b.err, Last: b.last}
	for _, n := range b.slots {
		s.Recent += uint64(n)
	}
	return s
}
