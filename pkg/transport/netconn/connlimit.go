// This file limits the total number of client connections of an engine on all listeners.

package netconn

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// A ConnLimit limits the number of open connections of all listeners that share it. If the limit
// is reached, a new connection replaces the connection that has been idle for the longest time:
//
//   - Connections on which no request was answered are replaced only if no other connection is idle. However, if
//     more than half of all connections are of this kind, they are replaced first.
//   - A connection with an incomplete header section is replaced only if no connection is idle.
//   - A connection with a request in flight is never replaced. If each connection has a request in
//     flight, new connections wait.
//   - A connection is replaced only if it had no request for at least 20 ms (the constant patience). A TLS client
//     gets more time, because the handshake uses CPU time before the first request.
//
// Each request changes the state of its [Place] without a lock, so that requests on different connections do not
// block each other. The list of connections is sorted only when a connection must be replaced.
//
// A nil ConnLimit means no limit, and only its Enter method may be called. A ConnLimit is safe for concurrent use.
type ConnLimit struct {
	// OnFull is called when new connections wait because each open connection has a request in flight. It is not
	// called again while connections are waiting. It must not block. It may be nil, and must be set before the first
	// call to Enter.
	OnFull func()

	most   int       // maximum number of open connections; math.MaxInt means no limit
	begin  time.Time // the times of all places are relative to begin
	bounds *bound.Recorder
	wanted atomic.Bool // waiting is not empty

	mu            sync.Mutex
	places        []*Place              // the places of the open connections, not sorted
	firstPatience [states]time.Duration // patience before the first answered request of a connection, by state
	closing       int                   // number of connections that were replaced and are still open
	reached       time.Time             // see bound.Pool.Reached
	unknown       int                   // number of connections on which no request was answered
	scan          scan
	waiting       []*Place    // places for which Enter waits, oldest first
	full          bool        // OnFull was called, and connections have been waiting since then
	timer         *time.Timer // calls admit; nil before the first use

	// The following fields are totals since the start of the process. See the fields of bound.Pool.
	accepted, evicted, refused uint64
	waited                     time.Duration
}

// patience is the minimum time between the end of a request and the replacement of its connection. The next request may
// already be in transit. If patience were longer, clients that continuously open connections could delay other clients.
//
// A client can take longer than patience to send its first request, for example because of a slow network. If many
// clients connect at the same time and all of them send a request, no connection may be closed before its request. If
// these clients send nothing, they must not delay other clients. For this reason, the patience for a connection on which
// no request was answered varies between patience and maxPatience. It doubles each time the first request of a
// connection is answered, and halves each time a connection is closed before its first request.
//
// After a valid ClientHello, the patience is between minTLSPatience and maxTLSPatience, which is the timeout of a
// handshake. It is longer because 1000 clients may share a busy CPU, so that the messages of a handshake are delayed by
// the handshakes of other clients.
const (
	patience       = 20 * time.Millisecond
	maxPatience    = 2 * time.Second
	minTLSPatience = 250 * time.Millisecond
	maxTLSPatience = 10 * time.Second
)

// MaxClosing is the maximum number of connections that were replaced, are still open, and do not count against the
// limit. A replaced HTTP/2 connection stays open until GOAWAY is sent.
const MaxClosing = 64

// State returns the state of the connections. Open includes the connections that are being closed.
func (l *ConnLimit) State() bound.Pool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.most
	if limit == math.MaxInt {
		limit = 0
	}
	return bound.Pool{
		Open: len(l.places) + l.closing, Limit: limit, Waiting: len(l.waiting), Reached: l.reached,
		Accepted: l.accepted, Evicted: l.evicted, Refused: l.refused, Waited: l.waited.Seconds(),
	}
}

// A Place is the entry of one connection in a ConnLimit. It is safe for concurrent use.
type Place struct {
	limit *ConnLimit
	peer  string       // address of the client
	since atomic.Int64 // state of the connection and the time at which it began; a [moment]
	known atomic.Bool  // a request was answered on the connection
	tls   bool         // Greeted was called

	// Guarded by limit.mu.
	end       func() bool
	index     int           // index of the place in limit.places
	left      bool          // the connection was closed or is about to be closed
	slow      bool          // the connection was replaced, but Leave was not called yet
	turn      chan struct{} // closed when the connection is admitted; nil if the connection did not wait
	waitStart time.Duration // time of the call to Enter, relative to limit.begin; 0 if the connection did not wait
}

// A moment is a state of a connection and the time at which it began, in nanoseconds since
// ConnLimit.begin.
type moment int64

const stateBits = 3

func (m moment) state() state        { return state(m & (1<<stateBits - 1)) }
func (m moment) time() time.Duration { return time.Duration(m >> stateBits) }

// A state of a connection.
type state uint8

const (
	newcomer state     = iota // idle, and no request was answered
	greeted                   // newcomer with a valid ClientHello
	idle                      // between two requests
	reading                   // a part of a header section has arrived
	serving                   // a request is in flight
	states   = serving        // number of states in which a connection can be replaced
)

// NewConnLimit returns a limit with the given maximum number of open connections. If most is not positive, there is
// no limit. If bounds is not nil, it records the connections that the limit closes.
func NewConnLimit(most int, bounds *bound.Recorder) *ConnLimit {
	if most <= 0 {
		most = math.MaxInt
	}
	l := &ConnLimit{most: most, bounds: bounds, begin: time.Now()}
	l.firstPatience = [states]time.Duration{newcomer: maxPatience / 2, greeted: maxTLSPatience / 2}
	return l
}

// Enter waits for a place for an accepted connection, which is initially idle. It returns false if stop is closed
// before a place is free. peer is the address of the client.
//
// end closes the connection when another connection replaces it. end must not block, and must not
// call a method of the place. It returns false if a request has arrived. If end returns true, the
// connection must be closed immediately without serving another request.
func (l *ConnLimit) Enter(peer string, end func() bool, stop <-chan struct{}) (p *Place, ok bool) {
	if l == nil {
		l = NewConnLimit(0, nil)
	}
	p = &Place{limit: l, peer: peer, end: end}
	if l.tryEnter(p) {
		return p, true
	}
	select {
	case <-p.turn:
		return p, true
	case <-stop:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, p)
	if i < 0 { // the connection was admitted in the meantime
		return p, true
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	l.wanted.Store(len(l.waiting) > 0)
	l.refused++
	return nil, false
}

// tryEnter admits p and returns true, or adds p to the waiting connections.
func (l *ConnLimit) tryEnter(p *Place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.places) >= l.most {
		l.reached = time.Now()
	}
	if len(l.waiting) == 0 && l.makeRoom(l.now()) {
		l.take(p)
		return true
	}
	if len(l.waiting) == 0 {
		l.full = false
	}
	p.turn, p.waitStart = make(chan struct{}), l.now()
	l.waiting = append(l.waiting, p)
	l.wanted.Store(true)
	l.admit()
	return false
}

func (l *ConnLimit) now() time.Duration { return time.Since(l.begin) }

// take adds p to l.places. l.mu must be held.
func (l *ConnLimit) take(p *Place) {
	p.index = len(l.places)
	l.places = append(l.places, p)
	l.accepted++
	l.unknown++
	l.scan.found[newcomer] = true
	p.since.Store(int64(l.moment(newcomer)))
}

// admit admits waiting connections while places are free or can be made free. l.mu must be held.
func (l *ConnLimit) admit() {
	if len(l.waiting) == 0 {
		return
	}
	now := l.now()
	for len(l.waiting) > 0 && l.makeRoom(now) {
		p := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		l.take(p)
		l.waited += now - p.waitStart
		close(p.turn)
	}
	l.wanted.Store(len(l.waiting) > 0)
	if len(l.waiting) == 0 {
		return
	}
	if l.closing < MaxClosing { // otherwise Leave calls admit
		l.admitLater(now)
	}
	if !l.full && l.scan.found == [states]bool{} {
		l.full = true
		if l.OnFull != nil {
			l.OnFull()
		}
	}
}

// makeRoom replaces a connection if no place is free. It reports whether a place is free. l.mu must be held.
func (l *ConnLimit) makeRoom(now time.Duration) bool {
	for len(l.places) >= l.most {
		c := l.next(now)
		if c == nil || now < l.deadline(c) || l.closing >= MaxClosing {
			return false
		}
		p := c.place
		c.place = nil
		if !p.end() { // a request has arrived
			continue
		}
		l.bounds.Hit(bound.MaxConnections, p.peer)
		l.evicted++
		if !p.known.Load() {
			l.reducePatience(c.since.state())
		}
		p.free()
		p.slow = true
		l.closing++
	}
	return true
}

// A candidate is a connection that could be replaced at the time of the scan. If place.since has changed since the scan,
// the candidate is no longer valid.
type candidate struct {
	place *Place // nil after it was used
	since moment
}

// A scan contains the connections that could be replaced at the time of the scan.
type scan struct {
	expires time.Duration       // before this time, only connections in lists can be replaced
	lists   [states][]candidate // oldest first
	found   [states]bool        // the scan found candidates in the state, or Enter has added a connection since then
}

// next returns the connection to be replaced next, or nil if there is none. If no candidate in the preferred state is
// left from the last scan, next scans all places again, but not before the last scan expires. Until then, it returns a
// candidate in a less preferred state only if the last scan has found no candidate in the preferred state. Otherwise,
// connections in the preferred state exist, but they entered this state too recently. l.mu must be held.
func (l *ConnLimit) next(now time.Duration) *candidate {
	order := [...]state{idle, newcomer, greeted, reading}
	if l.unknown > l.most/2 {
		order = [...]state{newcomer, greeted, idle, reading}
	}
	for _, s := range order {
		c := l.scan.first(s)
		if c == nil && now >= l.scan.expires {
			l.scanPlaces(now)
			c = l.scan.first(s)
		}
		if c != nil || l.scan.found[s] {
			return c
		}
	}
	return nil
}

// first returns the oldest valid candidate in a state, or nil if there is none.
func (s *scan) first(of state) *candidate {
	for list := s.lists[of]; len(list) > 0; list = list[1:] {
		c := &list[0]
		if p := c.place; p != nil && !p.left && moment(p.since.Load()) == c.since {
			s.lists[of] = list
			return c
		}
		c.place = nil
	}
	s.lists[of] = nil
	return nil
}

// scanPlaces replaces l.scan with a new scan. l.mu must be held.
func (l *ConnLimit) scanPlaces(now time.Duration) {
	l.scan = scan{expires: now + patience}
	for _, p := range l.places {
		m := moment(p.since.Load())
		if s := m.state(); s != serving {
			l.scan.lists[s] = append(l.scan.lists[s], candidate{p, m})
			l.scan.found[s] = true
		}
	}
	for _, list := range l.scan.lists {
		slices.SortFunc(list, func(a, b candidate) int { return cmp.Compare(a.since, b.since) })
	}
}

// deadline returns the time before which another connection cannot replace c. l.mu must be held.
func (l *ConnLimit) deadline(c *candidate) time.Duration {
	switch {
	case c.place.known.Load():
		return c.since.time() + patience
	case c.since.state() == greeted:
		return c.since.time() + l.firstPatience[greeted]
	}
	return c.since.time() + l.firstPatience[newcomer]
}

// reducePatience halves the patience for a state after a connection in this state was closed before a request was
// answered. l.mu must be held.
func (l *ConnLimit) reducePatience(s state) {
	if s == greeted {
		l.firstPatience[greeted] = max(l.firstPatience[greeted]/2, minTLSPatience)
	} else {
		l.firstPatience[newcomer] = max(l.firstPatience[newcomer]/2, patience)
	}
}

// admitLater schedules a call to admit for the time from which the next connection can be replaced. l.mu must be held.
func (l *ConnLimit) admitLater(now time.Duration) {
	at := l.scan.expires
	if c := l.next(now); c != nil {
		at = l.deadline(c)
	}
	wait := max(at-now, time.Millisecond)
	if l.timer != nil {
		l.timer.Reset(wait)
		return
	}
	l.timer = time.AfterFunc(wait, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.admit()
	})
}

// Handled sets the function that closes the connection when another connection replaces it. The connection must not
// be idle.
func (p *Place) Handled(end func() bool) {
	p.limit.mu.Lock()
	defer p.limit.mu.Unlock()
	p.end = end
}

// Idle records that the connection waits for a request. answered reports whether a request was
// answered on it.
func (p *Place) Idle(answered bool) {
	if answered {
		p.Answered()
	}
	switch {
	case p.known.Load():
		p.move(idle)
	case p.tls:
		p.move(greeted)
	default:
		p.move(newcomer)
	}
}

// Greeted records that the connection waits for the next message of a TLS handshake with a valid ClientHello.
func (p *Place) Greeted() {
	p.tls = true
	p.move(greeted)
}

// Answered records that a request was answered on the connection.
func (p *Place) Answered() {
	if p.known.Load() {
		return
	}
	l := p.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.left || p.known.Swap(true) {
		return
	}
	l.unknown--
	l.firstPatience[newcomer] = min(2*l.firstPatience[newcomer], maxPatience)
	if p.tls {
		l.firstPatience[greeted] = min(2*l.firstPatience[greeted], maxTLSPatience)
	}
}

// Reading records that an incomplete header section has arrived.
func (p *Place) Reading() { p.move(reading) }

// ReadingUnlessServing is like Reading, but has no effect if a request is in flight on the
// connection.
func (p *Place) ReadingUnlessServing() {
	for {
		old := p.since.Load()
		if s := moment(old).state(); s == serving || s == reading || p.since.CompareAndSwap(old, int64(p.limit.moment(reading))) {
			return
		}
	}
}

// Serving records that the connection must not be replaced until Idle, Greeted or Reading is called.
func (p *Place) Serving() { p.since.Store(int64(serving)) }

// move begins a state in which the connection can be replaced. It does not admit a waiting connection, because the
// connection cannot be replaced before patience has elapsed.
func (p *Place) move(s state) {
	if moment(p.since.Load()).state() != s {
		p.since.Store(int64(p.limit.moment(s)))
	}
}

// moment returns a moment with the state s and the current time.
func (l *ConnLimit) moment(s state) moment { return moment(l.now()<<stateBits) | moment(s) }

// Wanted reports whether another connection waits for a place. If Wanted returns true, the caller should close the
// connection after the current response. Otherwise, a client that sends requests without a pause would never release
// its place.
func (p *Place) Wanted() bool { return p.limit.wanted.Load() }

// Leave records that the connection was closed.
func (p *Place) Leave() {
	l := p.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	p.free()
	if p.slow {
		p.slow = false
		l.closing--
	}
	l.admit()
	if len(l.places) < l.most-l.most/8 {
		l.scan = scan{} // allow the places in the scan to be garbage collected
	}
}

// free releases the place. It has no effect if the place was already released. limit.mu must be held.
func (p *Place) free() {
	if p.left {
		return
	}
	p.left = true
	l := p.limit
	last := len(l.places) - 1
	l.places[p.index] = l.places[last]
	l.places[p.index].index = p.index
	l.places[last] = nil
	l.places = l.places[:last]
	if !p.known.Load() {
		l.unknown--
	}
}
