// Package crowd bounds how many connections a server of net/http keeps, for ports
// that anybody may reach and only a few have to: statistics, metrics, hooks.
package crowd

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bound makes a server that does not serve yet keep at most so many connections
// (1 or more). One too many ends the one that has been without a request for
// longest, be it idle or in the midst of a head: so whoever holds connections
// locks nobody out. One whose request is being served is never ended for another;
// where all are, the newest is.
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
	ended   bool      // for another
}

type connKey struct{}

func (c *crowd) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// ServeHTTP implements http.Handler.
func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	c.serving(conn, 1)
	defer c.serving(conn, -1)
	c.next.ServeHTTP(w, r)
}

func (c *crowd) serving(conn net.Conn, change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.all[conn]; v != nil {
		v.serving += change
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
		v := &visitor{since: time.Now()}
		c.all[conn] = v
		if len(c.all) > c.most {
			c.endOne(conn, v)
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.all, conn)
	}
}

// endOne ends the connection that has been without a request for longest, or the
// newest if there is none. c.mu is held.
func (c *crowd) endOne(conn net.Conn, v *visitor) {
	for other, o := range c.all {
		if o.serving == 0 && !o.ended && o.since.Before(v.since) {
			conn, v = other, o
		}
	}
	v.ended = true
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS would say goodbye first, and wait for that
		conn = t.NetConn()
	}
	conn.Close()
}
