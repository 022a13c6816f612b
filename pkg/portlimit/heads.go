package portlimit

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
)

// Listener returns a listener for the server, whose connections count what is read of
// heads. The connections of ln may be those of [Handshakes].
func (l *Limit) Listener(ln net.Listener) net.Listener { return watchedListener{ln, l} }

// maxLines are in a head at most: net/http keeps some hundred bytes for each, however
// short it is. A scraper's has ten.
const maxLines = 100

// errLines makes net/http answer 400 and close the connection.
var errLines = fmt.Errorf("a head of more than %d lines", maxLines)

// A watchedListener accepts connections on which bytes of heads are counted.
type watchedListener struct {
	net.Listener
	limit *Limit
}

// Accept implements net.Listener.
func (w watchedListener) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watched{Conn: conn, limit: w.limit}, nil
}

// A watched connection counts what is read while no request is being served on it.
type watched struct {
	net.Conn
	limit   *Limit
	tracked *tracked // nil: not yet; guarded by Limit.mu
}

// Read implements net.Conn.
func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 && !w.limit.came(w, b[:n]) {
		return 0, errLines
	}
	return n, err
}

// CloseWrite lets net/http end a connection so that its last answer can be read.
func (w *watched) CloseWrite() error {
	return w.Conn.(interface{ CloseWrite() error }).CloseWrite() // TCP and TLS
}

// NetConn returns the connection below, without TLS.
func (w *watched) NetConn() net.Conn { return bare(w.Conn) }

// bare returns the connection below all others.
func bare(conn net.Conn) net.Conn {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = outer.NetConn()
	}
}

// came counts what has come on a connection. It reports false if it is not to be taken.
func (l *Limit) came(w *watched, b []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := w.tracked
	if t == nil || t.requests > 0 {
		return true
	}
	if t.lines += bytes.Count(b, []byte("\n")); t.lines > maxLines {
		l.Bounds.Hit(bound.PortHeaderSection, peerOf(w))
		return false
	}
	t.head += len(b)
	l.heads += len(b)
	for l.heads > l.HeadBytes {
		longest := l.longestHead()
		l.forgetHead(longest)
		l.close(longest.conn, bound.PortHeaderSection)
	}
	return true
}

// longestHead returns the connection with the most bytes of a head, of the client with
// the most. l.mu is held, and there are such bytes.
func (l *Limit) longestHead() *tracked {
	heads := make(map[netip.Addr]int)
	for _, t := range l.all {
		heads[t.client] += t.head
	}
	return slices.MaxFunc(slices.Collect(maps.Values(l.all)), func(a, b *tracked) int {
		return cmp.Or(cmp.Compare(heads[a.client], heads[b.client]), cmp.Compare(a.head, b.head))
	})
}
