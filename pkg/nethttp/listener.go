package nethttp

import (
	"net"

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
			if s.listeners.Stopped() { // net/http would try again
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
		c := &conn{Conn: bytes, headTime: s.settings.HeaderTimeout, onClose: s.gone, secure: l.secure}
		c.watch = s.watcher.Add(bytes.TCP(), c.hangup)
		var ok bool
		if c.place, ok = s.settings.Connections.Enter(nc.RemoteAddr().String(), c.evict, s.listeners.Stopping); !ok {
			c.Close()
			l.Listener.Close()
			return nil, net.ErrClosed
		}
		s.open(c)
		return c, nil
	}
}
