package nethttp

import (
	"net"

	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/link"
)

// listener is one of clients, within the limit of their connections.
type listener struct {
	net.Listener
	server *Server
	secure *link.Server // nil: plain
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	s := l.server
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			if s.hasStopped() { // net/http would try again
				l.Listener.Close()
				err = net.ErrClosed
			}
			return nil, err
		}
		bytes, err := link.New(nc.(*net.TCPConn))
		if err != nil {
			nc.Close()
			continue
		}
		c := s.newConn(bytes)
		c.secure = l.secure
		c.watch = s.watcher.Add(bytes.TCP(), c.hangup)
		var ok bool
		if c.place, ok = s.settings.Connections.Enter(c.evict, s.stop); !ok {
			c.Close()
			l.Listener.Close()
			return nil, net.ErrClosed
		}
		s.open(c)
		return c, nil
	}
}

func (s *Server) newConn(bytes *link.Conn) *conn {
	return &conn{Conn: bytes, headTime: s.settings.HeaderTimeout, onClose: s.gone}
}

// ServeConn serves a connection that another engine has accepted, and on which HTTP/2
// is spoken, from now on: with what has been read from it already. It returns at once.
// place is the connection's, and left when it has been closed.
func (s *Server) ServeConn(bytes *link.Conn, early []byte, place *connlimit.Place) {
	c := s.newConn(bytes)
	c.early, c.place = early, place
	place.Handled(c.evict)
	s.open(c)
	if !s.accepted.give(c) {
		c.Close()
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
