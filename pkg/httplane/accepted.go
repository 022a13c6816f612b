package httplane

import (
	"net"

	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/link"
)

// ServeConn serves a connection that another engine has accepted, and on which HTTP/2
// is spoken, from now on: with what has been read from it already. It returns at once.
// place is the connection's, and left when it has been closed.
func (l *Lane) ServeConn(c *link.Conn, early []byte, place *connlimit.Place) {
	g := &guard{
		Conn: c, bare: c.TCP(), secure: c.TLS(), maxHead: l.settings.MaxHeaderBytes, headTime: l.settings.HeaderTimeout, place: place,
	}
	place.Handled(g.evict)
	g.buf, g.w = early, len(early)
	g.onClose = func(g *guard) {
		l.gone(g)
		place.Leave()
	}
	l.open(g)
	if !l.accepted.give(g) {
		g.Close()
	}
}

// accepted is a listener whose connections have been accepted elsewhere.
type accepted struct {
	conns chan net.Conn
	done  chan struct{}
}

func newAccepted() *accepted {
	return &accepted{conns: make(chan net.Conn), done: make(chan struct{})}
}

// give reports whether somebody has taken the connection.
func (l *accepted) give(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.done:
		return false
	}
}

// Accept implements net.Listener.
func (l *accepted) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It may be called once.
func (l *accepted) Close() error {
	close(l.done)
	return nil
}

// Addr implements net.Listener.
func (l *accepted) Addr() net.Addr { return &net.TCPAddr{} }
