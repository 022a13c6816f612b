// Package portlimit bounds the connections of ports that any client may reach and only a
// few have to: statistics, metrics, hooks.
package portlimit

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
)

// Limits are the bounds of a server's connections.
type Limits struct {
	// Connections are kept at most, 1 or more.
	Connections int

	// HeadBytes may have come on all connections of [Limit.Listener] together, of requests
	// whose heads are not complete. net/http keeps up to ten times as much of them.
	HeadBytes int

	// Bounds records the connections that are closed by these limits; nil: they are not
	// recorded.
	Bounds *bound.Recorder
}

// Bound makes a server that does not serve yet keep to the limits.
//
// A connection beyond the bound waits in the listener's backlog until another connection
// ends. It waits for a second at most, and for a tenth of the time at most; then one
// connection is closed for each that comes:
//
//   - of the client address that has the most connections, so that no client takes the
//     places of another;
//   - of those, one that was never answered, if such are more than half of all, else one
//     that was: connections that send nothing close none that is in use;
//   - of those, the one that has been without a request for longest, be it idle or in the
//     middle of a head.
//
// One that has been without a request for longer than a second is closed at once. One
// whose request is being served is not closed, but see [Waiting].
//
// Where more bytes of heads have come than HeadBytes, the connection with the most is
// closed, of the client with the most.
//
// It uses the server's Handler, ConnContext and ConnState, of which only the first
// may be set before.
func Bound(s *http.Server, b Limits) *Limit {
	l := newLimit(b)
	l.next = s.Handler
	s.Handler, s.ConnContext, s.ConnState = l, l.context, l.state
	return l
}

func newLimit(b Limits) *Limit {
	return &Limit{
		Limits: b,
		over:   bound.PortConnections,
		all:    make(map[net.Conn]*tracked),
		shares: make(map[netip.Addr]int),
		freed:  make(chan struct{}, 1),
	}
}

// grace is how long acceptance pauses at most for a place to become free: until then a
// connection without a request may be about to send one. It costs those who wait behind
// it as much, so it is short.
const grace = time.Second

// A Limit holds the connections of one server.
type Limit struct {
	Limits
	over    bound.Name // of the number of connections
	next    http.Handler
	patient bool // where all are being served none is closed: that is over soon

	mu      sync.Mutex
	all     map[net.Conn]*tracked
	shares  map[netip.Addr]int // how many of all each client has, without those that were closed
	live    int                // the sum of shares
	strange int                // how many of live were never answered
	heads   int                // bytes of heads that are not complete
	pauses  pauses
	freed   chan struct{} // gets something when there may be a place
}

// A tracked connection; guarded by Limit.mu.
type tracked struct {
	conn     net.Conn
	client   netip.Addr
	since    time.Time // that it has no request
	requests int       // that have been read; more than one in HTTP/2
	waiting  int       // of these, for the client
	head     int       // bytes that have come since there was a request,
	lines    int       // and lines
	known    bool      // it has been answered
	closed   bool      // for another, or by its end
}

// idle reports whether nothing is being served on it.
func (t *tracked) idle() bool { return t.waiting >= t.requests }

// place is a connection in its limit.
type place struct {
	limit *Limit
	conn  net.Conn
}

type placeKey struct{}

func (l *Limit) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, placeKey{}, place{l, conn})
}

// Waiting runs f, which waits for the client to send the body of a request. The
// connection meanwhile counts as one that has been without that request since f began,
// however little and often the client sends. Writing an answer counts so too, without
// being notified. ctx is the request's; that of a server without bounds does no harm.
func Waiting(ctx context.Context, f func()) {
	if p, ok := ctx.Value(placeKey{}).(place); ok {
		defer p.waiting()()
	}
	f()
}

// waiting says that the connection waits for its client, until the result is called.
func (p place) waiting() (done func()) {
	p.limit.change(p.conn, func(t *tracked) { t.waiting++ })
	return func() { p.limit.change(p.conn, func(t *tracked) { t.waiting-- }) }
}

// ServeHTTP implements http.Handler.
func (l *Limit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, _ := r.Context().Value(placeKey{}).(place)
	l.change(p.conn, func(t *tracked) {
		t.requests++
		l.heads -= t.head
		t.head, t.lines = 0, 0
	})
	defer l.change(p.conn, func(t *tracked) {
		t.requests--
		if !t.known && !t.closed {
			l.strange--
		}
		t.known = true
	})
	l.next.ServeHTTP(answer{w, p}, r)
}

// An answer is one that its client may be slow to take.
type answer struct {
	http.ResponseWriter
	place place
}

// Write implements http.ResponseWriter.
func (a answer) Write(b []byte) (int, error) {
	defer a.place.waiting()()
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (l *Limit) change(conn net.Conn, f func(*tracked)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.all[conn]; t != nil {
		f(t)
		t.since = time.Now()
	}
}

// state is called at the beginning of a connection by the goroutine that accepts, which
// it makes wait until there is room, and at the end by the connection's own.
func (l *Limit) state(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch state {
	case http.StateNew:
		t := &tracked{conn: conn, client: clientOf(conn), since: time.Now()}
		l.all[conn] = t
		if w, ok := conn.(*watched); ok {
			w.tracked = t
		}
		l.shares[t.client]++
		l.live++
		l.strange++
		l.makeRoom(t)
		t.since = time.Now() // it begins only now
	case http.StateClosed, http.StateHijacked:
		if t := l.all[conn]; t != nil {
			l.forget(t)
			delete(l.all, conn)
		}
		l.wake()
	}
}

// wake makes acceptance look again. l.mu is held.
func (l *Limit) wake() {
	select {
	case l.freed <- struct{}{}:
	default: // it has yet to look
	}
}

// clientOf returns the address of the client; the zero address where it has none.
func clientOf(conn net.Conn) netip.Addr {
	a, _ := conn.RemoteAddr().(*net.TCPAddr) // of nil it is the zero address
	return a.AddrPort().Addr().Unmap()
}

// peerOf returns the address and port of the client; "" if it has none.
func peerOf(conn net.Conn) string {
	if a := conn.RemoteAddr(); a != nil {
		return a.String()
	}
	return ""
}

// forget stops counting a connection. l.mu is held.
func (l *Limit) forget(t *tracked) {
	if t.closed {
		return
	}
	t.closed = true
	l.live--
	l.heads -= t.head
	t.head = 0
	if !t.known {
		l.strange--
	}
	if l.shares[t.client]--; l.shares[t.client] == 0 {
		delete(l.shares, t.client)
	}
}

// makeRoom returns when no more than so many are left: when one has ended, or been
// closed, which may be the newest. l.mu is held, but not while it waits.
func (l *Limit) makeRoom(newest *tracked) {
	for l.live > l.Connections {
		t := l.choose(newest)
		if t == nil && l.patient {
			l.mu.Unlock()
			<-l.freed
			l.mu.Lock()
			continue
		}
		if t == nil {
			t = newest
		}
		now := time.Now()
		pause := min(grace-now.Sub(t.since), l.pauses.left(now))
		if pause <= 0 {
			l.close(t, l.over)
			continue
		}
		l.mu.Unlock()
		select {
		case <-l.freed:
		case <-time.After(pause):
		}
		l.mu.Lock()
		l.pauses.spend(now, time.Now())
	}
}

// close closes a connection for others because of a bound. l.mu is held.
func (l *Limit) close(t *tracked, name bound.Name) {
	l.Bounds.Hit(name, peerOf(t.conn))
	l.forget(t)
	_ = bare(t.conn).Close() // TLS would say goodbye first, and wait for that
}

// choose returns the connection to close for the newest, by the rules of [Bound]: it is
// the newest itself where its client has the most. nil: all are being served. l.mu is
// held.
func (l *Limit) choose(newest *tracked) (chosen *tracked) {
	known := l.strange <= l.Connections/2 // that is to be closed
	before := func(a, b *tracked) bool {
		switch sa, sb := l.shares[a.client], l.shares[b.client]; {
		case sa != sb:
			return sa > sb
		case a.known != b.known:
			return a.known == known
		}
		return a.since.Before(b.since)
	}
	for _, t := range l.all {
		if t != newest && !t.closed && t.idle() && (chosen == nil || before(t, chosen)) {
			chosen = t
		}
	}
	if chosen != nil && l.shares[newest.client] > l.shares[chosen.client] {
		return newest
	}
	return chosen
}

// pauses limit how long acceptance waits: a second at first, and from then on a tenth of
// the time that passes, up to a second. Without it a client that fills every place again
// and again would make acceptance wait all the time.
type pauses struct {
	rest time.Duration
	at   time.Time // rest was then; zero: nothing has been spent yet
}

// left returns how long a pause may be.
func (p *pauses) left(now time.Time) time.Duration {
	if p.at.IsZero() {
		return grace
	}
	return min(grace, p.rest+now.Sub(p.at)/10)
}

// spend notes a pause.
func (p *pauses) spend(from, to time.Time) {
	p.rest, p.at = p.left(from)-to.Sub(from), to
}
