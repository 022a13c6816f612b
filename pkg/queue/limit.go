package queue

import (
	"sync"
	"time"
)

// A Limit lets at most so many requests run at once and lets at most so many
// wait, strictly first come first served (docs/promises.md 3.1). The nil Limit has no
// limit. It is safe for concurrent use.
//
// A slot that becomes free while somebody waits is never free: it passes to the
// first in line under the lock. So nobody can overtake, and running is at its
// maximum whenever the line is not empty.
type Limit struct {
	maxRunning, maxWaiting int

	mu          sync.Mutex
	running     int
	waiting     int
	first, last *ticket // the line
}

// ticket is a place in the line.
type ticket struct {
	exchange   Exchange
	since      time.Time // when the request came
	granted    bool
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
	m.mu.Lock()
	if m.running < m.maxRunning {
		m.running++
		m.mu.Unlock()
		return OK
	}
	if m.waiting == m.maxWaiting {
		m.mu.Unlock()
		return QueueFull
	}
	t := &state.ticket
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

// release gives the slot to the first in line, or back.
func (m *Limit) release() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.first
	if t == nil {
		m.running--
		return
	}
	m.remove(t)
	t.granted = true
	// Under the lock: afterwards the ticket may already serve another request.
	t.exchange.Notify()
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
