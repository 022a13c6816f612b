package queue

import (
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// A Limit is a maximum number of running requests and a queue with a maximum length. Queued
// requests get slots in the order of their arrival (docs/promises.md 3.1). A nil Limit admits
// all requests without slots. Methods may be called concurrently.
//
// When a request releases its slot and the queue is not empty, the slot passes directly to
// the first queued request. A new request therefore cannot get it, and running is at its
// maximum as long as the queue is not empty.
//
// An adaptive limit applies to the requests that are running in the user container. The
// others only count for maxRunning (docs/promises.md 3.1).
type Limit struct {
	maxRunning, maxWaiting int

	mu          sync.Mutex
	running     int // requests with a slot; 0 if the limit is adaptive, which counts them itself
	waiting     int
	held        int            // number of slots of canceled requests: see Proxy.hold
	first, last *ticket        // the line
	adaptive    *adapt.Limiter // nil: the limit is maxRunning
	timer       *time.Timer    // calls tick while requests are queued; nil if the limit is fixed
	ticking     bool           // the timer is running
}

// ticket is a request's place in the line, and its slot. All but holds is guarded by
// Limit.mu.
type ticket struct {
	exchange   Exchange
	since      time.Time // when the request came
	granted    bool
	holds      bool       // see [RequestState.Holds]; of the goroutine that serves
	slot       adapt.Slot // of an adaptive limit
	prev, next *ticket
}

// tickInterval is the interval between updates of an adaptive limit while requests are queued.
const tickInterval = 50 * time.Millisecond

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
	if m.adaptive != nil {
		running, _ = m.adaptive.Load()
		return running, m.waiting
	}
	return m.running, m.waiting
}

// Held returns the number of slots that are held for a user container that is at work on
// requests whose clients get no response.
func (m *Limit) Held() int {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
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
		m.admit(t, state.start)
		m.mu.Unlock()
		return OK
	}
	if m.waiting == m.maxWaiting {
		m.mu.Unlock()
		return QueueFull
	}
	*t = ticket{exchange: x, since: state.start}
	m.push(t)
	m.startTicks()
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
			m.end(t, adapt.Unknown)
			return reason
		case granted || reason != OK:
			return reason
		}
	}
}

// free reports whether one more request may run.
func (m *Limit) free() bool {
	if m.adaptive != nil {
		return m.adaptive.Free()
	}
	return m.running < m.maxRunning
}

// admit gives a slot to a request.
func (m *Limit) admit(t *ticket, now time.Time) {
	if m.adaptive != nil {
		m.adaptive.Admit(now, &t.slot)
		return
	}
	m.running++
}

// release gives a slot of a fixed limit to the first in line, or back.
func (m *Limit) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	if m.first != nil {
		m.grant(time.Time{})
	}
}

// grant lets in those first in line, as many as may.
func (m *Limit) grant(now time.Time) {
	for m.first != nil && m.free() {
		t := m.first
		m.remove(t)
		m.admit(t, now)
		t.granted = true
		// Under the lock: afterwards the ticket may already serve another request.
		t.exchange.Notify()
	}
}

// end releases the slot of a request whose exchange with the user container has ended with
// this result.
func (m *Limit) end(t *ticket, r adapt.Result) {
	if m.adaptive == nil {
		m.release()
		return
	}
	m.adapt(func(now time.Time) { m.adaptive.End(now, &t.slot, r) })
}

// adapt calls update, which may free slots of an adaptive limit. If the limit is fixed, it
// does nothing.
func (m *Limit) adapt(update func(now time.Time)) {
	if m.adaptive == nil {
		return
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	update(now)
	m.grant(now)
}

// hold keeps the slot of a request whose memory is used again, and returns the ticket that
// has the slot now.
func (m *Limit) hold(t *ticket) *ticket {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held++
	held := &ticket{}
	if m.adaptive != nil {
		m.adaptive.Move(&t.slot, &held.slot)
	}
	return held
}

// endHeld releases the slot of a held ticket.
func (m *Limit) endHeld(t *ticket, r adapt.Result) {
	m.mu.Lock()
	m.held--
	m.mu.Unlock()
	m.end(t, r)
}

// startTicks updates an adaptive limit at intervals until the queue is empty.
func (m *Limit) startTicks() {
	if m.adaptive == nil || m.ticking {
		return
	}
	m.ticking = true
	if m.timer == nil {
		m.timer = time.AfterFunc(tickInterval, m.tick)
	} else {
		m.timer.Reset(tickInterval)
	}
}

func (m *Limit) tick() {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ticking = m.first != nil; m.ticking {
		m.adaptive.Tick(now, now.Sub(m.first.since))
		m.grant(now)
		m.timer.Reset(tickInterval)
	}
}

// resultOf returns the meaning of an ended exchange for an adaptive limit.
func resultOf(o *Observation) adapt.Result {
	if o.Excluded || o.Kind != header.Traffic {
		return adapt.Unknown
	}
	switch o.Reason {
	case OK:
		if o.loadFailed() {
			return adapt.Failed
		}
		return adapt.Answered
	case ClientGone:
		return adapt.Unfinished
	case RequestTimeout, ResponseStartTimeout:
		return adapt.TimedOut
	case AppUnreachable, AppReset, AppGarbage:
		return adapt.Failed
	default:
		return adapt.Unknown
	}
}

// abortTime is the part of the application time within which a response after the
// disconnect of the client is attributed to the disconnect.
const abortTime = 8

// heldResult returns the meaning of a held exchange, which began to be held for the given
// reason after took and ended after held.
func heldResult(reason Reason, answered bool, took, held time.Duration) adapt.Result {
	switch {
	case reason == RequestTimeout || reason == ResponseStartTimeout:
		return adapt.TimedOut
	case reason != ClientGone:
		return adapt.Unknown
	case answered && held > took/abortTime:
		return adapt.Late
	}
	return adapt.Unfinished
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
