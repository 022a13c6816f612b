package fair

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// Listener returns a listener that counts the bytes of request headers. ln may be the result of
// [Handshakes.Listener].
func (l *PortLimit) Listener(ln net.Listener) net.Listener { return watchedListener{ln, l} }

// maxLines is the maximum number of lines in a request header. net/http uses several hundred bytes
// of memory for each line, even if the line is empty or short. A scraper sends about ten lines.
const maxLines = 100

// errLines makes net/http send a 400 response and close the connection.
var errLines = fmt.Errorf("the header section exceeds %d lines", maxLines)

// A watchedListener counts the header bytes on its connections.
type watchedListener struct {
	net.Listener
	limit *PortLimit
}

// Accept implements net.Listener.
func (w watchedListener) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watched{Conn: conn, limit: w.limit}, nil
}

// A watched connection counts the bytes that are read while no request is being served.
type watched struct {
	net.Conn
	limit   *PortLimit
	tracked *trackedConn // nil before the connection is tracked; guarded by PortLimit.mu
}

// Read implements net.Conn.
func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 && !w.limit.received(w, b[:n]) {
		return 0, errLines
	}
	return n, err
}

// CloseWrite closes the writing side of the connection. net/http calls it before it closes a connection,
// so that the client can still read the last response.
func (w *watched) CloseWrite() error {
	return w.Conn.(interface{ CloseWrite() error }).CloseWrite() // implemented by TCP and TLS connections
}

// NetConn returns the underlying connection without TLS.
func (w *watched) NetConn() net.Conn { return bare(w.Conn) }

// bare returns the connection below TLS.
func bare(conn net.Conn) net.Conn {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = outer.NetConn()
	}
}

// received records that the bytes b were received. It returns false if the incomplete header has
// more than maxLines lines.
func (l *PortLimit) received(w *watched, b []byte) bool {
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

// longestHead returns the connection with the longest incomplete header among the connections of
// the client with the most header bytes. l.mu must be held, and l.all must not be empty.
func (l *PortLimit) longestHead() *trackedConn {
	heads := make(map[netip.Addr]int)
	for _, t := range l.all {
		heads[t.client] += t.head
	}
	return slices.MaxFunc(slices.Collect(maps.Values(l.all)), func(a, b *trackedConn) int {
		return cmp.Or(cmp.Compare(heads[a.client], heads[b.client]), cmp.Compare(a.head, b.head))
	})
}
