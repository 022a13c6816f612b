package nethttp

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/goaway"
	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/link"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// past is a deadline that has long gone by.
var past = time.Unix(1, 0)

// conn is a client's connection as net/http has it: without TLS, which is taken off
// here. HTTP/1 passes as it is. Of HTTP/2 the frames are followed, because net/http
// neither bounds the time of a request's head there nor says GOAWAY when it is asked to.
type conn struct {
	*link.Conn
	secure   *link.Server // makes it a TLS connection with the first Read; nil: it is plain, or has been made one
	headTime time.Duration
	onClose  func(*conn)
	closing  sync.Once
	reset    atomic.Bool // close with a reset
	place    *connlimit.Place
	watch    *hangup.Watch
	gone     atomic.Bool              // the client has closed its side
	current  atomic.Pointer[exchange] // the request that is served (HTTP/1)
	answered atomic.Bool              // a request has been served on the connection
	yields   atomic.Bool              // GOAWAY has been sent to an HTTP/2 client because another one waits for its place

	// Of the reader.
	begun  bool                 // it is known what is spoken
	broken bool                 // nothing that is served
	early  []byte               // has been read from Conn and not been given out
	tls    *tls.ConnectionState // nil: plain; set before the first byte is given out

	talker atomic.Pointer[goaway.Conn] // nil: it has not turned out to be HTTP/2
	heads  atomic.Pointer[heads]       // likewise

	// Of what is written (see hurry).
	sending   sync.Mutex
	writing   bool      // to an HTTP/2 client
	overdue   int       // its requests that are over and have not ended
	sendEnd   time.Time // when that has to be done with; zero: sendLimit decides
	sendLimit time.Time // as net/http has set it

	// Of the end.
	ending  sync.Mutex
	active  bool // a request is being served
	evicted bool // it ends, so that another connection can be served
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if !c.begun {
		if err := c.begin(); err != nil {
			return 0, err
		}
	}
	if c.broken {
		return 0, io.EOF
	}
	n, err := c.receive(p)
	if h := c.heads.Load(); h != nil && h.follow(p[:n]) {
		c.place.Stir() // before net/http sees the head
	}
	return n, err
}

// begin makes the handshake, if there is one, and finds out whether HTTP/2 is spoken,
// before net/http sees a byte (RFC 9113 section 3.4).
func (c *conn) begin() error {
	if c.secure != nil {
		if err := c.Handshake(c.secure); err != nil {
			c.begun, c.broken = true, true
			return io.EOF // or net/http would answer
		}
		c.secure = nil
	}
	agreed := ""
	if c.tls = c.TLS(); c.tls != nil {
		agreed = c.tls.NegotiatedProtocol
	}
	is, maybe := wire.HasPreface(c.early)
	for maybe {
		var more [len(wire.Preface)]byte
		n, err := c.Conn.Read(more[:len(more)-len(c.early)])
		if err != nil {
			return err
		}
		c.early = append(c.early, more[:n]...)
		is, maybe = wire.HasPreface(c.early)
	}
	c.begun = true
	if is {
		c.talker.Store(goaway.HTTP2(c.Conn))
		c.heads.Store(newHeads(c.headTime, func() { c.SetReadDeadline(past) }))
	}
	c.broken = is && agreed == "http/1.1" || !is && agreed == "h2" // not what was agreed on
	return nil
}

// receive reads what has not been given out yet.
func (c *conn) receive(p []byte) (n int, err error) {
	if len(c.early) == 0 {
		return c.Conn.Read(p)
	}
	n = copy(p, c.early)
	if c.early = c.early[n:]; len(c.early) == 0 {
		c.early = nil
	}
	return n, nil
}

// evict ends the connection, so that another one can be served, and reports whether
// it does: not while a request is being served, nor when one is about to be read.
// Any goroutine may call it. An HTTP/2 client gets GOAWAY, and has link.LastLook for
// what has been written to it.
func (c *conn) evict() bool {
	c.ending.Lock()
	defer c.ending.Unlock()
	t := c.talker.Load()
	switch {
	case c.evicted:
	case t != nil:
		go t.GoAway()
		time.AfterFunc(link.LastLook, func() { c.Cut() })
	case c.active || !c.Secure() && !c.Silent(): // inside TLS nobody can tell: what comes may be no part of a request
		return false
	default:
		c.Cut()
	}
	c.evicted = true
	return true
}

// becomes follows what net/http says of the connection.
func (c *conn) becomes(s http.ConnState) {
	switch s {
	case http.StateActive:
		c.setActive(true)
		c.place.Serving()
	case http.StateIdle:
		c.setActive(false)
		c.place.Idle(c.answered.Load())
		if c.yields.Load() { // whatever streams it opens behind the GOAWAY
			c.evict()
		}
	case http.StateNew, http.StateHijacked, http.StateClosed:
	}
}

func (c *conn) setActive(active bool) {
	c.ending.Lock()
	defer c.ending.Unlock()
	c.active = active
}

// goAway tells an HTTP/2 client to send its next request elsewhere. What it has
// sent and will send on this connection is served.
func (c *conn) goAway() {
	if t := c.talker.Load(); t != nil {
		t.GoAway()
	}
}

// hurry bounds the writes that an HTTP/2 client holds up, until calm: a request that
// is over must not wait for them for as long as others may. It is all of the
// connection that ends then, which others use as well.
func (c *conn) hurry() {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.overdue++
	if c.writing {
		_ = c.limitSend() // of a connection that has been closed
	}
}

// calm says that a request that was over has ended.
func (c *conn) calm() {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.overdue--
}

// SetWriteDeadline implements net.Conn. net/http moves it away with each piece that
// an HTTP/2 client takes.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.sendLimit = t
	return c.limitSend()
}

// limitSend sets the time until which what is written has to be taken. c.sending is
// held.
func (c *conn) limitSend() error {
	if c.overdue > 0 && c.sendEnd.IsZero() {
		c.sendEnd = time.Now().Add(forward.AnswerTimeout)
	}
	return c.Conn.SetWriteDeadline(earlier(c.sendLimit, c.sendEnd))
}

// earlier returns the earlier of two deadlines, of which a zero one is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	t := c.talker.Load()
	if t == nil {
		return c.Conn.Write(p)
	}
	c.sending.Lock()
	c.writing = true
	c.sending.Unlock()
	n, err := t.Write(p)
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.writing = false; err == nil {
		c.sendEnd = time.Time{}
	} else {
		c.reset.Store(true) // TLS would say goodbye, and wait for that as well
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		if h := c.heads.Load(); h != nil {
			h.stop()
		}
		c.watch.Stop()
		if c.reset.Load() {
			err = c.Reset()
		} else {
			err = c.Conn.Close()
		}
		c.onClose(c)
	})
	return err
}

// hangup notes that the client has closed its side. net/http does not notice it while a
// body, or another request, is there to be read.
func (c *conn) hangup() {
	c.gone.Store(true)
	if x := c.current.Load(); x != nil {
		x.Notify()
	}
}
