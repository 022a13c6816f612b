// Package portlimit limits the connections of ports that any client can reach and that only a few
// clients need: statistics, metrics, hooks.
package portlimit

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/fair"
)

// Limits are the limits of the connections of a server.
type Limits struct {
	// Connections is the maximum number of connections, 1 or more.
	Connections int

	// HeadBytes is the maximum number of bytes of incomplete header sections on all connections of
	// [Limit.Listener]. net/http holds up to ten times as much.
	HeadBytes int

	// Bounds records the connections that are closed by these limits. It may be nil.
	Bounds *bound.Recorder
}

const (
	// maxPatience is the maximum time that the server waits until it closes a connection without a
	// request for another one, because a request can be in transit.
	maxPatience = time.Second
	// maxWait is the maximum time that the server waits if each connection is being served.
	maxWait = 2 * maxPatience
	// minPatience is the minimum of maxPatience, and the time for used connections and clients with many
	// connections.
	minPatience = 20 * time.Millisecond
)

// Bound applies limits to a server that does not serve yet.
//
// If there are too many connections, a new one waits in the backlog of the listener until another one
// ends, or is closed by the rules of [fair.Semaphore]. A connection is idle if it waits for a request or
// for a part of it, or for the client to read the response. If each connection is served for longer than
// two seconds, the new connection is closed.
//
// If there are more than HeadBytes, the connection with the most bytes is closed, of the client with
// the most.
//
// Bound uses the Handler, ConnContext and ConnState of the server. Set only the Handler before the call.
func Bound(s *http.Server, b Limits) *Limit {
	l := &Limit{
		Limits: b,
		next:   s.Handler,
		slots:  fair.New(fair.Options{Slots: b.Connections, Queue: 1, MinPatience: minPatience, MaxPatience: maxPatience}),
		all:    make(map[net.Conn]*tracked),
	}
	s.Handler, s.ConnContext, s.ConnState = l, l.context, l.state
	return l
}

// A Limit limits the connections of one server.
type Limit struct {
	Limits
	next  http.Handler
	slots *fair.Semaphore

	mu    sync.Mutex
	all   map[net.Conn]*tracked
	heads int // bytes of incomplete header sections
}

// A tracked is a connection with its state. The fields are guarded by Limit.mu.
type tracked struct {
	conn     net.Conn
	client   netip.Addr
	slot     *fair.Slot
	requests int // number of requests that are being served
	waiting  int // number of calls that wait for the client
	head     int // bytes of an incomplete header section
	lines    int // lines of an incomplete header section
}

// place is a connection and its limit.
type place struct {
	limit *Limit
	conn  net.Conn
}

type placeKey struct{}

func (l *Limit) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, placeKey{}, place{l, conn})
}

// Waiting calls f, which waits for the body of a request. In the meantime, the connection is idle,
// regardless of the number of bytes that arrive. The same applies when a response is written. ctx is the
// context of the request. Waiting also works for a server without limits.
func Waiting(ctx context.Context, f func()) {
	if p, ok := ctx.Value(placeKey{}).(place); ok {
		defer p.waiting()()
	}
	f()
}

// waiting records that the connection waits for its client until done is called.
func (p place) waiting() (done func()) {
	p.limit.change(p.conn, func(t *tracked) { t.waiting++ })
	return func() { p.limit.change(p.conn, func(t *tracked) { t.waiting-- }) }
}

// ServeHTTP implements http.Handler.
func (l *Limit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, _ := r.Context().Value(placeKey{}).(place)
	l.change(p.conn, func(t *tracked) {
		t.requests++
		l.forgetHead(t)
	})
	defer l.change(p.conn, func(t *tracked) {
		t.requests--
		t.slot.Answered()
	})
	l.next.ServeHTTP(answer{w, p}, r)
}

// An answer is a response that the client can be slow to read.
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

// change changes a connection, and begins a new idle time if it waits for its client afterwards.
func (l *Limit) change(conn net.Conn, f func(*tracked)) {
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

// state is called at the beginning of a connection by the goroutine that accepts connections, which
// waits until there is a slot, and at the end of the connection.
func (l *Limit) state(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		ctx, cancel := context.WithTimeout(context.Background(), maxWait)
		defer cancel()
		client := fair.Address(peerOf(conn))
		slot, err := l.slots.Acquire(ctx, fair.Request{Client: client, End: func() bool {
			return l.close(conn, bound.PortConnections)
		}})
		if err != nil {
			l.close(conn, bound.PortConnections)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		t := &tracked{conn: conn, client: client, slot: slot}
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

// forgetHead subtracts the incomplete header section of a connection. l.mu must be held.
func (l *Limit) forgetHead(t *tracked) {
	l.heads -= t.head
	t.head, t.lines = 0, 0
}

// close closes a connection for others because of a bound. It returns true.
func (l *Limit) close(conn net.Conn, name bound.Name) bool {
	l.Bounds.Hit(name, peerOf(conn))
	_ = bare(conn).Close() // tls.Conn.Close would wait until an alert is sent
	return true
}

// peerOf returns the address and port of the client.
func peerOf(conn net.Conn) string { return conn.RemoteAddr().String() }
