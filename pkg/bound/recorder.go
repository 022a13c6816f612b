package bound

import (
	"sync"
	"time"
)

// reportInterval is the minimum time between two reports of one bound.
const reportInterval = time.Minute

// Events are counted in slots of slotTime, so that [State.Recent] covers the last hour. The
// oldest slot is incomplete: the count includes events of the last 55 to 60 minutes.
const (
	slotTime = 5 * time.Minute
	slots    = int(time.Hour / slotTime)
)

// An Event is a report of events of one bound.
type Event struct {
	Name  Name
	Peer  string // address of the peer of the latest event
	Count uint64 // number of events since the last report, 1 or more
}

// A State contains the events of one bound since the start of the process.
type State struct {
	Name   Name
	Closes Object
	Count  uint64    // number of events, 1 or more
	Recent uint64    // number of these events in the last hour
	Peer   string    // address of the peer of the latest event
	Last   time.Time // time of the latest event
}

// A Recorder counts events and reports them. Its size is constant. It is safe for concurrent
// use. A nil *Recorder is valid and records nothing.
type Recorder struct {
	report func(Event)
	start  time.Time
	bounds [NumNames]record
}

// record contains the events of one bound.
type record struct {
	mu         sync.Mutex
	count      uint64
	peer       string
	last       time.Time
	unreported uint64
	reported   time.Time     // time of the last report; zero: no report yet
	slots      [slots]uint32 // events by slot; a ring
	slot       int           // number of the latest slot, counted from Recorder.start
}

// NewRecorder returns a Recorder without events. It calls report at most once a minute for
// each bound: for the first event, and then for the first event after each minute. The
// goroutine that calls [Recorder.Hit] calls report, which must not block. nil disables reports.
func NewRecorder(report func(Event)) *Recorder {
	return &Recorder{report: report, start: time.Now()}
}

// Hit records that a bound acted on a peer. peer is the address of the peer. It is retained,
// so it must not refer to memory that is reused.
func (r *Recorder) Hit(name Name, peer string) {
	if r == nil {
		return
	}
	now := time.Now()
	if n := r.bounds[name].add(now, r.slotAt(now), peer); n > 0 && r.report != nil {
		r.report(Event{Name: name, Peer: peer, Count: n})
	}
}

// slotAt returns the number of the slot that contains now.
func (r *Recorder) slotAt(now time.Time) int { return int(now.Sub(r.start) / slotTime) }

// add adds an event. It returns the number of unreported events if a report is due, 0
// otherwise.
func (b *record) add(now time.Time, slot int, peer string) (report uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	b.peer, b.last = peer, now
	b.advance(slot)
	b.slots[slot%slots]++
	b.unreported++
	if !b.reported.IsZero() && now.Sub(b.reported) < reportInterval {
		return 0
	}
	report = b.unreported
	b.unreported, b.reported = 0, now
	return report
}

// advance clears the slots between the latest slot and slot. b.mu is held.
func (b *record) advance(slot int) {
	for i := max(b.slot, slot-slots) + 1; i <= slot; i++ {
		b.slots[i%slots] = 0
	}
	b.slot = max(b.slot, slot)
}

// Count returns the number of events of a bound since the start of the process.
func (r *Recorder) Count(name Name) uint64 {
	if r == nil {
		return 0
	}
	b := &r.bounds[name]
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// States returns the bounds that have events, in the order of their names. now is the current
// time.
func (r *Recorder) States(now time.Time) (states []State) {
	if r == nil {
		return nil
	}
	for name := range NumNames {
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
	s := State{Count: b.count, Peer: b.peer, Last: b.last}
	for _, n := range b.slots {
		s.Recent += uint64(n)
	}
	return s
}
