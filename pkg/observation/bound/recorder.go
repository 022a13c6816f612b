package bound

import (
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// maxDetail is the maximum length of an error message in bytes.
const maxDetail = 200

// Events are counted in time slots of slotTime. [State.Recent] is the sum of the slots of the last hour.
// Because the newest slot is usually incomplete, the sum covers the last 55 to 60 minutes.
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

// A State summarizes the events for one bound or client error since the start of the process. The JSON names
// are stable.
type State struct {
	Name   Name      `json:"-"`
	Label  string    `json:"bound"` // Name as a string
	Closes Object    `json:"closes"`
	Count  uint64    `json:"count"`           // number of events, 1 or more
	Recent uint64    `json:"lastHour"`        // number of these events in the last hour
	First  time.Time `json:"first"`           // time of the first event after an hour without events
	Last   time.Time `json:"last"`            // time of the latest event
	Peer   string    `json:"peer"`            // address of the peer of the latest event
	Error  string    `json:"error,omitempty"` // error of the latest event; empty for a bound
	Cause  string    `json:"cause"`           // cause of the events and the action for an operator
}

// A Recorder counts events and reports them. It uses a constant amount of memory. It is safe for
// concurrent use. A nil *Recorder is valid and records nothing.
type Recorder struct {
	// Report is called immediately for the first event with a name, and at most once a minute for later events
	// with the same name. It is called on a separate goroutine, or by Flush. It must be set before the first
	// event. It may be nil.
	Report func(Event)

	start  time.Time
	bounds [NumEvents]record
}

// record contains the events of one bound or client error.
type record struct {
	unreported message.Tally

	mu    sync.Mutex
	count uint64
	peer  string
	err   string
	first time.Time
	last  time.Time
	slots [slots]uint32 // ring buffer with the number of events in each slot
	slot  int           // number of the latest slot, counted from Recorder.start
}

// NewRecorder returns a Recorder without events.
func NewRecorder() *Recorder {
	r := &Recorder{start: time.Now()}
	for name := range NumEvents {
		t := &r.bounds[name].unreported
		t.Immediate, t.Report = true, func(events uint64, _ error) { r.report(name, events) }
	}
	return r
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
	b := &r.bounds[name]
	b.add(now, r.slotAt(now), peer, err)
	b.unreported.Add(1, nil)
}

// Flush reports the events that have not been reported yet.
func (r *Recorder) Flush() {
	if r == nil {
		return
	}
	for name := range NumEvents {
		r.bounds[name].unreported.Flush()
	}
}

// report passes events with the given name to Recorder.Report.
func (r *Recorder) report(name Name, events uint64) {
	if r.Report != nil {
		s := r.state(name, time.Now())
		r.Report(Event{Name: name, Peer: s.Peer, Error: s.Error, Count: events})
	}
}

// slotAt returns the number of the slot that contains the time now.
func (r *Recorder) slotAt(now time.Time) int { return int(now.Sub(r.start) / slotTime) }

// add records an event. slot is the number of the slot that contains the time now.
func (b *record) add(now time.Time, slot int, peer, err string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	b.peer, b.err, b.last = peer, err, now
	b.advance(slot)
	if b.slots == [slots]uint32{} {
		b.first = now
	}
	b.slots[slot%slots]++
}

// advance makes slot the latest slot, unless the latest slot is newer. It clears the slots after the previous
// latest slot. b.mu must be held.
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
	return r.state(name, time.Now()).Count
}

// States returns a State for each bound or client error for which an event was recorded, sorted by Name. now is the
// current time.
func (r *Recorder) States(now time.Time) (states []State) {
	if r == nil {
		return nil
	}
	for name := range NumEvents {
		if s := r.state(name, now); s.Count > 0 {
			states = append(states, s)
		}
	}
	return states
}

func (r *Recorder) state(name Name, now time.Time) State {
	b := &r.bounds[name]
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(r.slotAt(now))
	s := State{
		Name: name, Label: name.String(), Closes: name.Closes(), Cause: name.Text(),
		Count: b.count, Peer: b.peer, Error: b.err, First: b.first, Last: b.last,
	}
	for _, n := range b.slots {
		s.Recent += uint64(n)
	}
	return s
}
