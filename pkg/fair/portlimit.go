// This file limits the connections to ports that any client can reach but only a few clients need,
// such as ports for statistics, metrics and hooks.

package fair

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// PortLimits holds the connection limits of a server.
type PortLimits struct {
	// Connections is the maximum number of connections, at least 1.
	Connections int

	// HeadBytes is the maximum total size of incomplete headers on all connections of
	// [PortLimit.Listener], in bytes. net/http uses up to ten times as much memory.
	HeadBytes int

	// Bounds records the connections closed by these limits. It may be nil.
	Bounds *bound.Recorder
}

const (
	// maxPatience is the maximum time that a connection must be idle before it can be closed to make room
	// for another connection. The connection is not closed immediately, because a request may be in transit.
	maxPatience = time.Second
	// maxWait is the maximum time that a new connection waits for a slot.
	maxWait = 2 * maxPatience
	// minPatience is the minimum time that a connection must be idle before it is closed to make room for
	// another connection. It applies to connections that have served a request, and to clients with many
	// connections.
	minPatience = 20 * time.Millisecond
)

// LimitPort applies the limits b to a server. It must be called before the server accepts connections.
//
// If the server has too many connections, a new connection waits until another connection is closed by
// the peer or according to the rules of [Semaphore]. During this time, further connections wait in the
// listener backlog. A connection is idle while the server waits for a request, for the rest of a request,
// or for the client to read the response. If no other connection is closed within two seconds, the new
// connection is closed.
//
// If HeadBytes is exceeded, the server selects the client with the most header bytes, and closes the
// connection of this client that has the longest incomplete header.
//
// LimitPort replaces the fields Handler, ConnContext and ConnState of the server. ConnContext and
// ConnState must not be set before the call.
func LimitPort(s *http.Server, b PortLimits) *PortLimit {
	l := &PortLimit{
		PortLimits: b,
		next:       s.Handler,
		slots:      New(Options{Slots: b.Connections, Queue: 1, MinPatience: minPatience, MaxPatience: maxPatience}),
		all:        make(map[net.Conn]*trackedConn),
	}
	s.Handler, s.ConnContext, s.ConnState = l, l.context, l.state
	return l
}

// A PortLimit limits the connections of one server.
type PortLimit struct {
	PortLimits
	next  http.Handler
	slots *Semaphore

	mu    sync.Mutex
	all   map[net.Conn]*trackedConn
	heads int // total size of incomplete headers in bytes
}

// A trackedConn stores the state of a connection. Its fields are guarded by PortLimit.mu.
type trackedConn struct {
	conn     net.Conn
	client   netip.Addr
	slot     *Slot
	requests int // number of requests being served
	waiting  int // number of body reads and response writes in progress
	head     int // size of the incomplete header in bytes
	lines    int // number of lines in the incomplete header
}

// place identifies a connection and its limit.
type place struct {
	limit *PortLimit
	conn  net.Conn
}

type placeKey struct{}

func (l *PortLimit) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, placeKey{}, place{l, conn})
}

// Waiting calls f, which waits for a request body. The connection counts as idle until f returns, even
// if bytes arrive. A connection also counts as idle while a response is written. ctx is the context of
// the request. If the server has no limits, Waiting only calls f.
func Waiting(ctx context.Context, f func()) {
	if p, ok := ctx.Value(placeKey{}).(place); ok {
		defer p.waiting()()
	}
	f()
}

// waiting records that the connection waits for its client until done is called.
func (p place) waiting() (done func()) {
	p.limit.change(p.conn, func(t *trackedConn) { t.waiting++ })
	return func() { p.limit.change(p.conn, func(t *trackedConn) { t.waiting-- }) }
}

// ServeHTTP implements http.Handler.
func (l *PortLimit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, _ := r.Context().Value(placeKey{}).(place)
	l.change(p.conn, func(t *trackedConn) {
		t.requests++
		l.forgetHead(t)
	})
	defer l.change(p.conn, func(t *trackedConn) {
		t.requests--
		t.slot.Answered()
	})
	l.next.ServeHTTP(answer{w, p}, r)
}

// An answer is a ResponseWriter that marks the connection as waiting for the client during each write.
type answer struct {
	http.ResponseWriter
	place place
}

// Write implements http.ResponseWriter.
func (a answer) Write(b []byte) (int, error) {
	defer a.place.waiting()()
	return a.ResponseWriter.Write(b)
}

// Unwrap returns the underlying ResponseWriter for http.ResponseController.
func (a answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// change calls f to update the state of a connection. If the connection is idle after the update, its
// idle time restarts.
func (l *PortLimit) change(conn net.Conn, f func(*trackedConn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.all[conn]
	if t == nil {
		return
	}
	f(t)
	if t.waiting >= t.requests {
		t.slot.Idle()
	} else {
		t.slot.Active()
	}
}

// state is the ConnState hook of the server. For a new connection, it runs on the goroutine that
// accepts connections, and waits for a slot. For a closed connection, it releases the slot.
func (l *PortLimit) state(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		ctx, cancel := context.WithTimeout(context.Background(), maxWait)
		defer cancel()
		client := Address(peerOf(conn))
		slot, err := l.slots.Acquire(ctx, Request{Client: client, End: func() bool {
			return l.close(conn, bound.PortConnections)
		}})
		if err != nil {
			l.close(conn, bound.PortConnections)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		t := &trackedConn{conn: conn, client: client, slot: slot}
		l.all[conn] = t
		if w, ok := conn.(*watched); ok {
			w.tracked = t
		}
		slot.Idle()
	case http.StateClosed, http.StateHijacked:
		l.mu.Lock()
		defer l.mu.Unlock()
		if t := l.all[conn]; t != nil {
			l.forgetHead(t)
			delete(l.all, conn)
			t.slot.Release()
		}
	}
}

// forgetHead subtracts the size of t's incomplete header from l.heads and resets the size. l.mu must be held.
func (l *PortLimit) forgetHead(t *trackedConn) {
	l.heads -= t.head
	t.head, t.lines = 0, 0
}

// close records that the named bound was exceeded and closes the connection. It always returns true.
func (l *PortLimit) close(conn net.Conn, name bound.Name) bool {
	l.Bounds.Hit(name, peerOf(conn))
	_ = bare(conn).Close() // tls.Conn.Close would wait until an alert is sent
	return true
}

// peerOf returns the address and port of the client.
func peerOf(conn net.Conn) string { return conn.RemoteAddr().String() }
