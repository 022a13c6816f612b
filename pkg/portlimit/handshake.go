package portlimit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
)

// Handshakes bound the TLS handshakes on a port. A client that is not known yet decides
// how much it sends in one, and a certificate alone may be 256 KiB for package crypto/tls,
// which keeps it and what it parses of it.
type Handshakes struct {
	// Config is the server's.
	Config *tls.Config

	// Max are unfinished at once, 1 or more. Where there are more, one is closed by the
	// rules of [Bound].
	Max int

	// Bytes may come from a client until its handshake is done. What follows it right
	// away may be among them.
	Bytes int

	// Time is for a handshake.
	Time time.Duration

	// Bounds records the connections that are closed because of Max, Bytes or Time; nil:
	// they are not recorded.
	Bounds *bound.Recorder

	// Failed, if not nil, gets the error of each handshake of which at least a byte came
	// and that was not done. It may be called concurrently.
	Failed func(client net.Addr, err error)
}

// Listener returns a listener whose connections are of type *[tls.Conn], with their
// handshakes done. It accepts from ln from its first Accept on, and then shakes hands with
// several at once: those that are slow keep nobody waiting. Close ends what is unfinished
// and returns when nothing of it runs any more.
//
// Handshakes are done by functions of crypto/tls on a wrapper of the connection that counts
// what is read. It stays between the two when it counts no more, at the cost of one
// comparison a read.
func (h Handshakes) Listener(ln net.Listener) net.Listener {
	unfinished := newLimit(Limits{Connections: h.Max, Bounds: h.Bounds})
	unfinished.patient, unfinished.over = true, bound.PortHandshake
	closing, end := context.WithCancel(context.Background())
	return &handshakes{
		Listener: ln,
		settings: h,
		limit:    unfinished,
		done:     make(chan accepted),
		closing:  closing,
		end:      end,
	}
}

// handshakes are those on one listener.
type handshakes struct {
	net.Listener
	settings Handshakes
	limit    *Limit // of those that are unfinished, or that nobody has accepted yet

	begin   sync.Once
	done    chan accepted
	closing context.Context
	end     context.CancelFunc // of closing
	running sync.WaitGroup
}

// accepted is what Accept returns.
type accepted struct {
	conn net.Conn
	err  error
}

// Accept implements net.Listener.
func (l *handshakes) Accept() (net.Conn, error) {
	l.begin.Do(func() { l.running.Go(l.accept) })
	select {
	case a := <-l.done:
		return a.conn, a.err
	case <-l.closing.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *handshakes) Close() error {
	err := l.Listener.Close()
	l.begin.Do(func() {}) // it never will
	l.end()
	l.limit.mu.Lock()
	for conn := range l.limit.all {
		_ = conn.Close()
	}
	l.limit.mu.Unlock()
	l.running.Wait()
	return err
}

// accept begins handshakes until the listener is closed.
func (l *handshakes) accept() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			if !l.hand(accepted{err: err}) {
				return
			}
			continue // who accepts decides whether that was the end
		}
		c := &countedConn{Conn: conn, left: l.settings.Bytes}
		l.limit.state(c, http.StateNew)
		_ = c.SetDeadline(time.Now().Add(l.settings.Time))
		l.running.Go(func() {
			defer l.limit.state(c, http.StateClosed)
			l.shake(c)
		})
	}
}

// hand gives something to who accepts; false: nobody does any more.
func (l *handshakes) hand(a accepted) bool {
	select {
	case l.done <- a:
		return true
	case <-l.closing.Done():
		return false
	}
}

// shake does one handshake.
func (l *handshakes) shake(c *countedConn) {
	if l.closing.Err() != nil { // and Close may not have seen it
		_ = c.Close()
		return
	}
	secure := tls.Server(c, l.settings.Config)
	if err := secure.Handshake(); err != nil {
		if c.left == 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			l.settings.Bounds.Hit(bound.PortHandshake, peerOf(c))
		}
		_ = c.Close()
		if c.read > 0 && l.settings.Failed != nil {
			l.settings.Failed(c.RemoteAddr(), err)
		}
		return
	}
	l.limit.change(c, func(t *tracked) { // it is not closed for another any more
		t.requests++
		l.limit.wake()
	})
	c.left = -1
	_ = c.SetDeadline(time.Time{})
	if !l.hand(accepted{conn: secure}) {
		_ = c.Close() // TLS would say goodbye first, and wait for that
	}
}

// A countedConn is a connection from which so many bytes can be read, and then only an
// error. Reads must not be concurrent.
type countedConn struct {
	net.Conn
	left int // bytes; negative: any number
	read int // bytes, while they are counted
}

// NetConn returns the connection below.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn.
func (c *countedConn) Read(b []byte) (int, error) {
	if c.left < 0 {
		return c.Conn.Read(b)
	}
	if c.left == 0 {
		return 0, fmt.Errorf("a handshake of more than %d bytes", c.read)
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	c.read += n
	return n, err
}
