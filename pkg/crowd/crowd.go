// Package crowd bounds how many connections a server of net/http keeps, for ports
// that anybody may reach and only a few have to: statistics, metrics, hooks.
package crowd

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bound makes a server that does not serve yet keep at most so many connections
// (1 or more). One too many ends the one that has been without a request for
// longest, be it idle or in the midst of a head: so whoever holds connections
// locks nobody out. Of those that were never answered only half as many are kept
// while there are others to keep: so connections that say nothing end none that
// is in use. One whose request is being served is never ended for another, but
// within [Waiting]; where all are, the newest is.
//
// It uses the server's Handler, ConnContext and ConnState, of which only the first
// may be set before.
func Bound(s *http.Server, most int) {
	c := &crowd{most: most, all: make(map[net.Conn]*visitor), next: s.Handler}
	s.Handler, s.ConnContext, s.ConnState = c, c.context, c.state
}

// crowd are the connections of one server.
type crowd struct {
	most int
	next http.Handler

	mu  sync.Mutex
	all map[net.Conn]*visitor
}

// visitor is a connection; guarded by crowd.mu.
type visitor struct {
	since   time.Time // that it has no request
	serving int       // requests; more than one in HTTP/2
	known   bool      // it has been answered
	ended   bool      // for another
}

// place is a connection in its crowd.
type place struct {
	crowd *crowd
	conn  net.Conn
}

type placeKey struct{}

func (c *crowd) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, placeKey{}, place{c, conn})
}

// Waiting runs f, which waits for the peer of a request: for the body, or until the
// answer is taken. Its connection meanwhile counts as one that has been without that
// request since f began, however little and often the peer moves. ctx is the request's;
// that of a server without bounds does no harm.
func Waiting(ctx context.Context, f func()) {
	if p, ok := ctx.Value(placeKey{}).(place); ok {
		p.crowd.change(p.conn, func(v *visitor) { v.serving-- })
		defer p.crowd.change(p.conn, func(v *visitor) { v.serving++ })
	}
	f()
}

// ServeHTTP implements http.Handler.
func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, _ := r.Context().Value(placeKey{}).(place)
	c.change(p.conn, func(v *visitor) { v.serving++ })
	defer c.change(p.conn, func(v *visitor) { v.serving--; v.known = true })
	c.next.ServeHTTP(w, r)
}

func (c *crowd) change(conn net.Conn, f func(*visitor)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.all[conn]; v != nil {
		f(v)
		v.since = time.Now()
	}
}

// state hears of the beginning and the end of connections, in the goroutine that
// accepts them: it must not block.
func (c *crowd) state(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.all[conn] = &visitor{since: time.Now()}
		if len(c.all) > c.most {
			c.endOne(conn)
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.all, conn)
	}
}

// endOne ends the connection that has been without a request for longest, of those
// that were never answered if they are more than half of all, or else of the others;
// or the newest. c.mu is held.
func (c *crowd) endOne(newest net.Conn) {
	strangers := 0
	oldest := map[bool]net.Conn{} // known or not
	for conn, v := range c.all {
		if v.ended {
			continue
		}
		if !v.known {
			strangers++
		}
		if first := c.all[oldest[v.known]]; conn != newest && v.serving == 0 && (first == nil || v.since.Before(first.since)) {
			oldest[v.known] = conn
		}
	}
	known := strangers <= c.most/2
	conn := cmp.Or(oldest[known], oldest[!known], newest)
	c.all[conn].ended = true
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS would say goodbye first, and wait for that
		conn = t.NetConn()
	}
	conn.Close()
}
