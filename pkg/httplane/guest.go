package httplane

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/hangup"
)

// A Guest is a connection that another lane has accepted and that is served here
// for one request or for good.
type Guest struct {
	lane    *Lane
	bare    *net.TCPConn
	watch   *hangup.Watch
	current atomic.Pointer[guard]
	gone    atomic.Bool // the client has closed its side
}

// Guest makes a connection a guest. The watch, which may be nil, is stopped when
// the connection is closed here.
func (l *Lane) Guest(c *net.TCPConn, w *hangup.Watch) *Guest {
	return &Guest{lane: l, bare: c, watch: w}
}

// HandOver serves the connection from now on, with what has been read from it
// already. begun says that a request has been served on it, so that HTTP/2 cannot
// begin any more. closed is called when it has been closed.
func (t *Guest) HandOver(early []byte, begun bool, closed func()) {
	t.enter(early, begun, nil, closed)
}

// Lend serves the request that early begins with, whose framing is certain, and
// returns when it has ended: back with what the client has sent behind it, or not
// back, when the connection has been closed.
func (t *Guest) Lend(early []byte) (rest []byte, back bool) {
	done := make(chan struct{})
	g := t.enter(early, true, &loan{poke: make(chan struct{}, 1)}, func() { close(done) })
	<-done
	return g.loan.rest, g.loan.back
}

// Hangup says that the client has closed its side. Any goroutine may call it, also
// before the connection is lent or handed over.
func (t *Guest) Hangup() {
	t.gone.Store(true)
	if g := t.current.Load(); g != nil {
		g.hangup()
		if g.loan != nil {
			g.loan.gone.Store(true)
			g.loan.wake()
		}
	}
}

// enter gives the connection to net/http.
func (t *Guest) enter(early []byte, begun bool, lent *loan, closed func()) *guard {
	l := t.lane
	g := &guard{Conn: t.bare, bare: t.bare, maxHead: l.settings.MaxHeaderBytes, headTime: l.settings.HeaderTimeout, watch: t.watch, begun: begun, loan: lent}
	g.buf, g.w = early, len(early)
	g.onClose = func(g *guard) {
		l.gone(g)
		closed()
	}
	t.current.Store(g)
	if t.gone.Load() {
		t.Hangup()
	}
	l.open(g)
	if !l.guests.give(g) {
		g.Close()
	}
	return g
}

// A loan is the part of a guard whose connection comes back: it shows net/http one
// request and then silence, until net/http says that the connection is idle, and
// then its end.
type loan struct {
	spent   bool        // the request has been given out
	idle    atomic.Bool // net/http is done with it
	gone    atomic.Bool // the client has closed its side
	expired atomic.Bool // the read deadline is in the past
	poke    chan struct{}
	rest    []byte
	back    bool
}

// silence is a read behind the request. It ends with the loan, or when net/http
// wants to have its reader back.
func (o *loan) silence() error {
	for {
		switch {
		case o.idle.Load(), o.gone.Load():
			return io.EOF
		case o.expired.Load():
			return os.ErrDeadlineExceeded
		}
		<-o.poke
	}
}

func (o *loan) wake() {
	select {
	case o.poke <- struct{}{}:
	default:
	}
}

// SetReadDeadline implements net.Conn, also for the silence of a loan.
func (g *guard) SetReadDeadline(t time.Time) error {
	if g.loan != nil {
		g.loan.expired.Store(!t.IsZero() && !t.After(time.Now()))
		g.loan.wake()
	}
	return g.Conn.SetReadDeadline(t)
}

// guests is a listener whose connections have been accepted elsewhere.
type guests struct {
	conns chan net.Conn
	done  chan struct{}
}

func newGuests() *guests {
	return &guests{conns: make(chan net.Conn), done: make(chan struct{})}
}

// give reports whether somebody has taken the connection.
func (l *guests) give(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.done:
		return false
	}
}

// Accept implements net.Listener.
func (l *guests) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It may be called once.
func (l *guests) Close() error {
	close(l.done)
	return nil
}

// Addr implements net.Listener.
func (l *guests) Addr() net.Addr { return &net.TCPAddr{} }
