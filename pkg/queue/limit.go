package queue

import (
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// A Limit lets at most so many requests run at once and lets at most so many
// wait, strictly first come first served (docs/promises.md 3.1). The nil Limit has no
// limit. It is safe for concurrent use.
//
// A slot that becomes free while somebody waits is never free: it passes to the
// first in line under the lock. So nobody can overtake, and running is at its
// maximum whenever the line is not empty.
//
// An adaptive limit is never above maxRunning. Streams hold a slot, but not one of those
// that the adaptive limit gives: they last as long as people like, and most of the time
// the user container does nothing for them.
type Limit struct {
	maxRunning, maxWaiting int

	mu          sync.Mutex
	running     int
	waiting     int
	first, last *ticket        // the line
	adaptive    *adapt.Limiter // nil: the limit is maxRunning
	streams     int            // of the running ones, where the limit is adaptive
}

// ticket is a request's place in the line, and its slot. All but holds is guarded by
// Limit.mu.
type ticket struct {
	exchange   Exchange
	since      time.Time // when the request came
	granted    bool
	holds      bool   // see [RequestState.Holds]; of the goroutine that serves
	stream     bool   // in Limit.streams
	inFlight   int32  // how many held a slot when it got its own, itself included
	limit      *Limit // whose slot it has; nil: none. Of the goroutine that serves
	prev, next *ticket
}

// NewLimit returns a limit of running requests in the user container (0 or less:
// none, nil is returned) and of waiting ones behind them (0: nobody waits).
func NewLimit(running, waiting int) *Limit {
	if running <= 0 {
		return nil
	}
	return &Limit{maxRunning: running, maxWaiting: max(waiting, 0)}
}

// NewAdaptiveLimit returns a limit that follows what the user container can take, and of
// waiting requests behind it (0: nobody waits).
func NewAdaptiveLimit(s adapt.Settings, waiting int) *Limit {
	m := NewLimit(s.Ceiling(), waiting)
	m.adaptive = adapt.New(s)
	return m
}

// Adaptive returns what an adaptive limit has decided; false: the limit is fixed, or there
// is none.
func (m *Limit) Adaptive() (adapt.State, bool) {
	if m == nil || m.adaptive == nil {
		return adapt.State{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.adaptive.State(), true
}

// Load returns how many requests hold a slot and how many wait for one.
func (m *Limit) Load() (running, waiting int) {
	if m == nil {
		return 0, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running, m.waiting
}

// OldestWaiter returns when the first in line came, the zero time when nobody
// waits.
func (m *Limit) OldestWaiter() time.Time {
	if m == nil {
		return time.Time{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first == nil {
		return time.Time{}
	}
	return m.first.since
}

// acquire returns OK when the request holds a slot, or why it does not. Only
// after OK may and must release be called.
func (m *Limit) acquire(x Exchange, state *RequestState) Reason {
	if m == nil {
		return OK
	}
	t := &state.ticket
	m.mu.Lock()
	if m.free() {
		// Only what counts for whoever was never in the line: this is the way of nearly all.
		t.stream = false
		m.admit(t)
		m.mu.Unlock()
		return OK
	}
	if m.waiting == m.maxWaiting {
		m.mu.Unlock()
		return QueueFull
	}
	*t = ticket{exchange: x, since: state.start}
	m.push(t)
	m.mu.Unlock()

	for {
		reason := x.Wait(state)
		m.mu.Lock()
		granted := t.granted
		if !granted && reason != OK {
			m.remove(t)
		}
		m.mu.Unlock()
		switch {
		case granted && reason != OK: // the slot came in the moment of giving up
			m.release()
			return reason
		case granted || reason != OK:
			return reason
		}
	}
}

// free reports whether one more request may run.
func (m *Limit) free() bool {
	return m.running < m.maxRunning && (m.adaptive == nil || m.running-m.streams < m.adaptive.Limit())
}

// admit gives a slot to a request.
func (m *Limit) admit(t *ticket) {
	m.running++
	t.inFlight = int32(m.running - m.streams)
	t.limit = m
}

// release gives the slot to the first in line, or back.
func (m *Limit) release() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	if m.first != nil {
		m.grant()
	}
}

// grant lets in those first in line, as many as may.
func (m *Limit) grant() {
	for m.first != nil && m.free() {
		t := m.first
		m.remove(t)
		m.admit(t)
		t.granted = true
		// Under the lock: afterwards the ticket may already serve another request.
		t.exchange.Notify()
	}
}

// end releases the slot of a request whose exchange with the user container has ended, or
// leaves it held. An adaptive limit takes note of how that went.
func (m *Limit) end(t *ticket, o *Observation, held bool) {
	if m == nil || m.adaptive == nil {
		if !held {
			m.release()
		}
		return
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.stream {
		m.streams--
	}
	if !held {
		m.running--
	}
	if s, ok := sample(t, o, now); ok {
		m.adaptive.Done(now, s)
	}
	m.grant()
}

// noteStream notes that a request that holds a slot has become a stream.
func (m *Limit) noteStream(t *ticket) {
	if m == nil || m.adaptive == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !t.stream {
		t.stream = true
		m.streams++
		m.grant()
	}
}

// sample returns what an ended exchange says of the user container; false: nothing, as one
// that the client has ended.
func sample(t *ticket, o *Observation, now time.Time) (s adapt.Sample, ok bool) {
	if o.Stream || o.Excluded || o.Kind != header.Traffic {
		return s, false
	}
	s = adapt.Sample{Took: now.Sub(o.Slot), InFlight: int(t.inFlight)}
	switch o.Reason {
	case OK:
		s.Failed = o.AppFailed()
	case RequestTimeout, ResponseStartTimeout, AppUnreachable, AppReset, AppGarbage:
		s.Failed = true
	default:
		return s, false
	}
	return s, true
}

func (m *Limit) push(t *ticket) {
	t.prev = m.last
	if m.last == nil {
		m.first = t
	} else {
		m.last.next = t
	}
	m.last = t
	m.waiting++
}

func (m *Limit) remove(t *ticket) {
	if t.prev == nil {
		m.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		m.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
	m.waiting--
}
