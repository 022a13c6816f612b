package proxy

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// A Limit is a maximum number of running requests and a queue with a maximum length. Queued
// requests get slots in the order of their arrival (docs/promises.md 3.1). A nil Limit admits
// all requests without slots. Methods may be called concurrently.
//
// When a request releases its slot and the queue is not empty, the slot passes directly to
// the first queued request. A new request therefore cannot get this slot, and running is at its
// maximum as long as the queue is not empty.
//
// An adaptive limit applies to the requests that are running in the user container. Other requests
// with a slot, such as streams, count only toward maxRunning (docs/promises.md 3.1).
type Limit struct {
	maxRunning, maxWaiting int

	mu          sync.Mutex
	running     int // number of requests with a slot; 0 if the limit is adaptive, because adaptive counts these requests
	waiting     int
	held        int // number of slots that are held for aborted requests; see Proxy.hold
	lastHeld    observation.HeldRequests
	first, last *ticket        // the queue, oldest request first
	adaptive    *adapt.Limiter // nil if the limit is fixed at maxRunning
	timer       *time.Timer    // calls tick while requests are queued; nil if the limit is fixed
	ticking     bool           // the timer is running
	seed        maphash.Seed   // seed of the path hashes; not used if the limit is fixed
}

// ticket is the queue entry of a request, and its slot. All fields except holds are guarded by
// Limit.mu.
type ticket struct {
	exchange   transport.Exchange
	since      time.Time // arrival time of the request
	granted    bool
	holds      bool       // see [RequestState.Holds]; only used by the goroutine that serves the request
	path       uint32     // hash of the path; 0 if the limit is fixed or the path is unknown
	slot       adapt.Slot // only used if the limit is adaptive
	prev, next *ticket
}

// tickInterval is the interval between updates to an adaptive limit while requests are queued.
const tickInterval = 50 * time.Millisecond

// NewLimit returns a fixed limit. running is the maximum number of requests in the user container,
// and waiting is the maximum length of the queue. If running is 0 or less, NewLimit returns nil. If
// waiting is 0 or less, requests are not queued.
func NewLimit(running, waiting int) *Limit {
	if running <= 0 {
		return nil
	}
	return &Limit{maxRunning: running, maxWaiting: max(waiting, 0)}
}

// NewAdaptiveLimit returns a limit that adapts to the capacity of the user container. waiting is
// the maximum length of the queue. If waiting is 0 or less, requests are not queued.
func NewAdaptiveLimit(s adapt.Settings, waiting int) *Limit {
	m := NewLimit(s.Ceiling(), waiting)
	m.adaptive, m.seed = adapt.New(s), maphash.MakeSeed()
	return m
}

// Adaptive returns the state of an adaptive limit and true. It returns false if the limit is fixed or nil.
func (m *Limit) Adaptive() (observation.LimitState, bool) {
	if m == nil || m.adaptive == nil {
		return observation.LimitState{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.adaptive.State(), true
}

// Load returns the number of requests that hold a slot and the number of queued requests.
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

// heldRequests returns the last results of held slots.
func (m *Limit) heldRequests() observation.HeldRequests {
	if m == nil {
		return observation.HeldRequests{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastHeld
}

// Held returns the number of slots that are held for aborted requests because the user container
// still processes them.
func (m *Limit) Held() int {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}

// OldestWaiter returns the arrival time of the first queued request, or the zero time if the queue
// is empty.
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

// acquire waits for a slot. If it returns OK, the request holds a slot and the caller must release
// it. Otherwise acquire returns the reason why the request got no slot.
func (m *Limit) acquire(x transport.Exchange, state *RequestState) observation.Reason {
	if m == nil {
		return observation.OK
	}
	t := &state.ticket
	path := m.hash(&state.seen.Line)
	m.mu.Lock()
	if m.free() {
		t.path = path
		m.admit(t, state.start)
		m.mu.Unlock()
		return observation.OK
	}
	if m.waiting == m.maxWaiting {
		m.mu.Unlock()
		return observation.QueueFull
	}
	*t = ticket{exchange: x, since: state.start, path: path}
	m.push(t)
	m.startTicks()
	m.mu.Unlock()

	for {
		reason := reasonOf(x.Wait(state))
		m.mu.Lock()
		granted := t.granted
		if !granted && reason != observation.OK {
			m.remove(t)
		}
		m.mu.Unlock()
		switch {
		case granted && reason != observation.OK: // the slot was granted after the wait ended
			m.end(t, adapt.Unknown)
			return reason
		case granted || reason != observation.OK:
			return reason
		}
	}
}

// hash returns the hash of a request's path. It returns 0 if the limit is fixed or the path is
// unknown.
func (m *Limit) hash(line *transport.Line) uint32 {
	if m.adaptive == nil || line.Target == "" {
		return 0
	}
	return uint32(maphash.String(m.seed, line.Path()))
}

// free reports whether another request can run. m.mu must be held.
func (m *Limit) free() bool {
	if m.adaptive != nil {
		return m.adaptive.Free()
	}
	return m.running < m.maxRunning
}

// admit gives a free slot to a request. m.mu must be held.
func (m *Limit) admit(t *ticket, now time.Time) {
	if m.adaptive != nil {
		m.adaptive.Admit(now, &t.slot, t.path)
		return
	}
	m.running++
}

// release releases a slot of a fixed limit. The slot passes to the first queued request, if any.
func (m *Limit) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	if m.first != nil {
		m.grant(time.Time{})
	}
}

// grant gives the free slots to the first queued requests. m.mu must be held.
func (m *Limit) grant(now time.Time) {
	for m.first != nil && m.free() {
		t := m.first
		m.remove(t)
		m.admit(t, now)
		t.granted = true
		// Notify is called under the lock, because the ticket may belong to another request after
		// Unlock.
		t.exchange.Notify()
	}
}

// end releases the slot of a request. r is the result of the exchange with the user container.
func (m *Limit) end(t *ticket, r adapt.Result) {
	if m.adaptive == nil {
		m.release()
		return
	}
	m.adapt(func(now time.Time) { m.adaptive.End(now, &t.slot, r) })
}

// adapt calls update, which changes the state of an adaptive limit, and then gives the free slots to
// queued requests. If the limit is fixed, adapt does nothing.
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

// hold moves the slot of t to a new ticket and returns the new ticket. A new ticket is necessary
// because the engine reuses the memory of t for its next request.
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

// endHeld releases the slot of t, which was returned by hold. It also copies the nonzero fields of
// last to lastHeld.
func (m *Limit) endHeld(t *ticket, r adapt.Result, last observation.HeldRequests) {
	m.mu.Lock()
	m.held--
	switch {
	case !last.Answered.IsZero():
		m.lastHeld.Answered = last.Answered
	case !last.Expired.IsZero():
		last.Answered = m.lastHeld.Answered
		m.lastHeld = last
	}
	m.mu.Unlock()
	m.end(t, r)
}

// startTicks starts the timer that updates an adaptive limit until the queue is empty. m.mu must be
// held.
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

// resultOf returns the result of a completed exchange for an adaptive limit.
func resultOf(o *observation.Observation) adapt.Result {
	if o.Excluded || o.Kind != observation.Traffic {
		return adapt.Unknown
	}
	switch o.Reason {
	case observation.OK:
		if o.LoadFailed() {
			return adapt.Failed
		}
		return adapt.Answered
	case observation.ClientGone:
		return adapt.Unfinished
	case observation.RequestTimeout, observation.ResponseStartTimeout:
		return adapt.TimedOut
	case observation.AppUnreachable, observation.AppReset, observation.AppGarbage:
		return adapt.Failed
	default:
		return adapt.Unknown
	}
}

// abortTime determines how long a response is considered a result of the disconnect of the client. If the exchange
// lasted d before the disconnect, this time is d/abortTime.
const abortTime = 8

// heldResult returns the result of a held exchange for an adaptive limit. reason is the reason for
// the abort. took and held are the durations of the exchange before and after the abort.
func heldResult(reason observation.Reason, answered bool, took, held time.Duration) adapt.Result {
	switch {
	case reason == observation.RequestTimeout || reason == observation.ResponseStartTimeout:
		return adapt.TimedOut
	case reason != observation.ClientGone:
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
