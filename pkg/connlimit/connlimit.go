// Package connlimit bounds how many connections of clients an engine serves at once, over all
// its listeners.
package connlimit

import (
	"container/ring"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
)

// A Limit bounds how many connections are open at once, over all listeners that
// share it. When it is reached, a new connection takes the place of the one that has
// been idle for longest. Of those that were never answered only half as many are kept
// while there are others to close, so that connections that say nothing close none
// that is in use. One in the midst of a request's head is closed only where none is
// idle. One whose request is being served never is: where all are, new ones wait. They
// also wait until the one that is to be closed has waited for its client for a moment.
//
// The nil Limit has no bound. It is safe for concurrent use.
type Limit struct {
	// OnFull is called if a new connection waits because each open connection has a request in
	// flight. It must not block. It may be nil, and must be set before the first Enter.
	OnFull func()

	most   int
	bounds *bound.Recorder

	mu      sync.Mutex
	open    int               // places that are taken
	trust   time.Duration     // patience with connections that were never answered
	closing int               // closed for other connections, and the descriptor is still open
	reached time.Time         // see State.Reached
	unknown int               // of these, of connections that were never answered
	lists   [states]ring.Ring // of places, behind one that has none: the one that has been there for longest first
	waiting []*Place          // those in Enter, first come first served
	wanted  atomic.Bool       // there are some
	timer   *time.Timer       // looks whether there is room for them; nil: it was never needed
}

// patience is the minimum time between the end of a request and the closing of the connection for
// another one, so that a request in transit is served. With a longer time, clients that open
// connections continuously could keep others waiting.
//
// The patience with connections that were never answered is between patience and maxPatience. A
// client may need much longer than patience until its first request, for example for a TLS
// handshake over a slow network. If 345 clients connect at the same time and all of them send a
// request, none may be closed. If they are silent, they must not keep others waiting. The patience
// therefore doubles with each first answer and halves with each connection that is closed.
const (
	patience     = 20 * time.Millisecond
	maxPatience  = 2 * time.Second
	initPatience = maxPatience / 2
)

// MaxClosing is the maximum number of open connections that have been closed for other
// connections and that do not count against the limit. An HTTP/2 connection needs some time to
// send GOAWAY.
const MaxClosing = 64

// A State describes the connections of a Limit.
type State struct {
	Open    int       // open connections, including those that are being closed
	Max     int       // the limit; 0 means no limit
	Waiting int       // accepted connections that wait for a place
	Reached time.Time // time of the latest connection that did not find a free place; zero if there was none
}

// State returns the state of the connections.
func (l *Limit) State() State {
	if l == nil {
		return State{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{Open: l.open + l.closing, Max: l.most, Waiting: len(l.waiting), Reached: l.reached}
}

// A Place is one connection's part of a Limit. The nil Place is that of a connection
// without a limit. Its methods may be called concurrently.
type Place struct {
	limit *Limit
	peer  string // address of the client

	// Guarded by limit.mu.
	end   func() bool
	state state
	since time.Time     // when it came into the list of its state
	known bool          // the connection has been answered
	left  bool          // the place is free, because the connection was closed or is about to be
	slow  bool          // the connection was closed for another one, and Leave was not called
	turn  chan struct{} // closed when there is room for it; nil if it did not wait
	ring  ring.Ring     // its element in that list, alone while it is in none
}

// state is what a connection does, and so the list in which its place stands.
type state uint8

const (
	newcomer state = iota // idle, and never answered
	idle                  // between two requests
	reading               // in the midst of a head
	serving               // a request is being served; in no list
	states   = serving
)

// New returns a limit of most open connections. If most is not positive, New returns nil,
// and the number of connections is not limited. If bounds is not nil, it records the
// connections that the limit closes.
func New(most int, bounds *bound.Recorder) *Limit {
	if most <= 0 {
		return nil
	}
	return &Limit{most: most, bounds: bounds, trust: initPatience}
}

// Enter waits for a place for an accepted connection that is idle. It returns false if stop
// is closed before a place is free. peer is the address of the client.
//
// end is how the connection is closed for another one. It must not block nor call
// the place, and returns false where a request has come in the meantime. After true
// the connection must not serve another request, and is closed at once.
func (l *Limit) Enter(peer string, end func() bool, stop <-chan struct{}) (p *Place, ok bool) {
	if l == nil {
		return nil, true
	}
	p = &Place{limit: l, peer: peer, end: end}
	p.ring.Value = p
	if admitted, full := l.tryEnter(p); admitted {
		return p, true
	} else if full && l.OnFull != nil {
		l.OnFull()
	}
	select {
	case <-p.turn:
		return p, true
	case <-stop:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, p)
	if i < 0 { // its turn came in the same moment
		return p, true
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	l.wanted.Store(len(l.waiting) > 0)
	return nil, false
}

// tryEnter admits p, or adds p to the waiting connections. full reports whether no connection can
// be closed for p.
func (l *Limit) tryEnter(p *Place) (admitted, full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.open >= l.most {
		l.reached = now
	}
	if len(l.waiting) == 0 && l.makeRoom(now) {
		l.take(p, now)
		return true, false
	}
	p.turn = make(chan struct{})
	l.waiting = append(l.waiting, p)
	l.admit()
	return false, l.next() == nil
}

// take gives p a free place. l.mu is held.
func (l *Limit) take(p *Place, now time.Time) {
	l.open++
	l.unknown++
	p.since = now
	l.push(p)
}

// admit lets those in for whom there is room. l.mu is held.
func (l *Limit) admit() {
	if len(l.waiting) == 0 {
		return
	}
	defer func() { l.wanted.Store(len(l.waiting) > 0) }()
	now := time.Now()
	for len(l.waiting) > 0 && l.makeRoom(now) {
		p := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		l.take(p, now)
		close(p.turn)
	}
	if len(l.waiting) > 0 {
		l.lookAgain(now)
	}
}

// makeRoom sees to it that a place is free, and reports whether there is one. l.mu
// is held.
func (l *Limit) makeRoom(now time.Time) bool {
	for l.open >= l.most {
		p := l.next()
		switch {
		case p == nil, now.Before(l.deadline(p)), l.closing >= MaxClosing:
			return false
		case p.end():
			l.bounds.Hit(bound.MaxConnections, p.peer)
			if !p.known {
				l.trust = max(l.trust/2, patience)
			}
			p.free()
			p.slow = true
			l.closing++
		default:
			p.move(serving)
		}
	}
	return true
}

// next returns the connection to be closed next, nil: all are served. l.mu is held.
func (l *Limit) next() *Place {
	order := [...]state{idle, newcomer, reading}
	if l.unknown > l.most/2 {
		order = [...]state{newcomer, idle, reading}
	}
	for _, s := range order {
		if p, ok := l.lists[s].Next().Value.(*Place); ok {
			return p
		}
	}
	return nil
}

// deadline returns the time before which p is not closed for another connection. l.mu is held.
func (l *Limit) deadline(p *Place) time.Time {
	if p.known {
		return p.since.Add(patience)
	}
	return p.since.Add(l.trust)
}

// lookAgain sees to it that admit is called when the next connection may be closed.
// l.mu is held.
func (l *Limit) lookAgain(now time.Time) {
	p := l.next()
	if p == nil || l.closing >= MaxClosing {
		return // Idle, Reading or Leave calls admit
	}
	wait := l.deadline(p).Sub(now)
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

// locked runs f with the limit locked, unless there is none.
func (p *Place) locked(f func()) {
	if p == nil {
		return
	}
	p.limit.mu.Lock()
	defer p.limit.mu.Unlock()
	f()
}

// Handled replaces how the connection is closed for another one, because somebody
// else serves it now. The connection must not be idle.
func (p *Place) Handled(end func() bool) { p.locked(func() { p.end = end }) }

// Idle says that the connection waits for a request; answered, that it has had one.
func (p *Place) Idle(answered bool) {
	p.locked(func() {
		if answered {
			p.answered()
		}
		if p.known {
			p.move(idle)
		} else {
			p.move(newcomer)
		}
		p.limit.admit()
	})
}

// Answered records that a request was answered on the connection.
func (p *Place) Answered() { p.locked(func() { p.answered() }) }

// answered is Answered. limit.mu is held.
func (p *Place) answered() {
	if p.known || p.left {
		return
	}
	p.known = true
	p.limit.unknown--
	p.limit.trust = min(2*p.limit.trust, maxPatience)
}

// Reading says that a part of a request's head is there.
func (p *Place) Reading() {
	p.locked(func() {
		p.move(reading)
		p.limit.admit()
	})
}

// Stir is Reading for a connection that may serve other requests at the same time:
// these go on.
func (p *Place) Stir() {
	p.locked(func() {
		if p.state != serving {
			p.move(reading)
		}
	})
}

// Serving says that the connection is not to be closed for another one, until Idle
// or Reading.
func (p *Place) Serving() { p.locked(func() { p.move(serving) }) }

// Wanted reports whether another connection waits for a place: then this one had
// better end with its response. Else those that send one request right behind the
// other would keep their places for ever.
func (p *Place) Wanted() bool { return p != nil && p.limit.wanted.Load() }

// Leave says that the connection has been closed.
func (p *Place) Leave() {
	p.locked(func() {
		p.free()
		if p.slow {
			p.slow = false
			p.limit.closing--
		}
		p.limit.admit()
	})
}

// move puts the place into the list of its new state. limit.mu is held.
func (p *Place) move(s state) {
	if p.left || p.state == s {
		return
	}
	p.ring.Prev().Unlink(1)
	if p.state = s; s != serving {
		p.since = time.Now()
		p.limit.push(p)
	}
}

// push puts a place behind the others of its state. l.mu is held.
func (l *Limit) push(p *Place) { l.lists[p.state].Prev().Link(&p.ring) }

// free gives the place back, once. limit.mu is held.
func (p *Place) free() {
	if p.left {
		return
	}
	p.move(serving)
	p.left = true
	p.limit.open--
	if !p.known {
		p.limit.unknown--
	}
}
