package fastlane

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/socket"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

const (
	// lingerTime and lingerBytes bound how long a connection that we end behind an
	// answer still takes what the client sends, so that the client can read the
	// answer before a reset destroys it (RFC 9112 section 9.6).
	lingerTime  = time.Second
	lingerBytes = 8 << 20
	// chunkRoom is the least room behind a head for a body in chunks, in bytes.
	chunkRoom = 4 << 10
)

// past is a deadline that has long gone by.
var past = time.Unix(1, 0)

// conn is a client's connection. One goroutine reads requests from it, tells
// their stories and writes their answers; the sending of a long body has another.
type conn struct {
	lane  *Lane
	nc    *net.TCPConn
	raw   syscall.RawConn
	watch *hangup.Watch
	guest Guest       // made when first needed
	gone  atomic.Bool // the client has closed its side

	// Of the reader. buf[r:w] has been read and not consumed. An idle connection
	// has no buffer.
	pooled  *[]byte
	buf     []byte
	r, w    int
	need    int                // bytes that the next buffer has to have, as far as the last one can tell
	err     error              // of the last raw read
	reading func(uintptr) bool // tryRead, made once
	first   bool               // no request has been served

	// Of the writer.
	left     []byte             // of what is being written,
	then     []byte             // and what comes behind it
	clocked  bool               // the client may take only so long for it
	offered  bool               // and has been found not to take it at once
	writeErr error              //
	writing  func(uintptr) bool // tryWrite, made once

	exchange

	// Of the end.
	mu       sync.Mutex
	idle     bool // the reader waits for the first byte of a head
	owed     bool // the client owes a head, or the rest of one
	retiring bool
}

func newConn(l *Lane, nc *net.TCPConn, raw syscall.RawConn) *conn {
	c := &conn{lane: l, nc: nc, raw: raw}
	c.reading, c.writing = c.tryRead, c.tryWrite
	c.exchange.init(c)
	if l.watcher != nil {
		c.watch = l.watcher.Add(nc, c.hangup)
	}
	return c
}

// hangup notes that the client has closed its side.
func (c *conn) hangup() {
	c.gone.Store(true)
	c.alarm.Wake()
	c.leaveRequest()
	if g := c.atGuest.Load(); g != nil {
		(*g).Hangup()
	}
}

// serve serves requests until the connection ends or, handed over, is not ours
// any more.
func (c *conn) serve() (handed bool) {
	for c.first = true; ; c.first = false {
		what := c.next()
		switch what {
		case plain:
			c.lane.served.Add(1)
			c.lane.proxy.Serve(&c.exchange, &c.life)
			if !c.finish() {
				c.close()
				return false
			}
		case lend:
			c.lane.lent.Add(1)
			rest, back := c.elsewhere().Lend(c.take())
			c.atGuest.Store(nil)
			if !back {
				c.forget()
				return false
			}
			c.put(rest)
		case handOver:
			c.lane.given.Add(1)
			c.elsewhere().HandOver(c.take(), !c.first, c.lane.leavePlace)
			c.forget()
			return true
		case end:
			c.close()
			return false
		}
	}
}

// what is to be done with what the client has sent.
type what uint8

const (
	plain what = iota
	lend
	handOver
	end
)

// next reads the next request's head and decides who serves it.
func (c *conn) next() what {
	owed := c.first // a new connection owes its first head from the beginning
	if owed {
		c.awaitHead()
	}
	for {
		if c.w > c.r {
			if what, known := c.judge(); known {
				if owed {
					c.gotHead()
				}
				return what
			}
			if !owed {
				owed = true
				c.awaitHead()
			}
		}
		if c.wait() != nil {
			return end
		}
	}
}

// judge decides who serves the head that has arrived; not known: it is not
// complete.
func (c *conn) judge() (w what, known bool) {
	b := c.buf[c.r:c.w]
	if c.first {
		if is, maybe := wire.HasPreface(b); is || maybe {
			return handOver, is
		}
	}
	n, err := c.request.Parse(b)
	q := &c.request
	if err != nil {
		var odd *wire.Odd
		if errors.As(err, &odd) && odd.Framed {
			return lend, true // HTTP/1.0, an unusual target or Host
		}
		return handOver, true // and refused there, or judged alone
	}
	switch {
	case n > c.lane.settings.MaxHeaderBytes, n == 0 && len(b) >= c.lane.settings.MaxHeaderBytes:
		return handOver, true // and answered with 431
	case n == 0:
		return 0, false
	case q.Form == wire.Authority, c.lane.app.OnlyH2():
		return handOver, true
	case wantsUpgrade(q):
		return handOver, true
	case q.Expect100:
		return lend, true
	case !c.lane.app.SpeaksH1() && !header.KindOf(&c.exchange).Answered():
		return lend, true // it is net/http's lane that finds out what the app speaks
	case c.lane.settings.FullDuplex && (q.Chunked || q.ContentLength > 0):
		return lend, true
	case q.Chunked && len(c.buf)-c.r-n < chunkRoom:
		c.makeRoom(n + chunkRoom)
		_, _ = q.Parse(c.buf[c.r:c.w]) // again: it has moved
	}
	c.begin(n)
	return plain, true
}

// wantsUpgrade reports whether the request asks for another protocol. Not if that
// is HTTP/2 alone (RFC 9110 section 7.8), nor if it has a body: such offers are
// ignored.
func wantsUpgrade(q *wire.Request) bool {
	if !q.Upgrade || q.Chunked || q.ContentLength > 0 {
		return false
	}
	for _, f := range q.Fields {
		if wire.EqualFold(f.Name, "upgrade") && !wire.EqualFold(f.Value, "h2c") {
			return true
		}
	}
	return false
}

// wait reads more bytes behind those that are there. A connection that retires
// ends here, when it is idle and nothing comes.
func (c *conn) wait() error {
	c.makeRoom(c.w - c.r + 1)
	if c.w > 0 {
		return c.read()
	}
	for {
		last := c.rest()
		err := c.read()
		retiring := c.stir()
		if last || !retiring || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// rest notes that the connection is idle, and reports whether this is its last
// look at what comes.
func (c *conn) rest() (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = true
	if c.retiring {
		c.nc.SetReadDeadline(time.Now().Add(lastLook))
	}
	return c.retiring
}

// stir notes that the connection is not idle any more, and reports whether it
// retires.
func (c *conn) stir() (retiring bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = false
	if c.retiring {
		c.limitHead()
	}
	return c.retiring
}

// awaitHead notes that the client owes the rest of a head, and gives it so much
// time.
func (c *conn) awaitHead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = true
	c.limitHead()
}

// gotHead notes that the head is there.
func (c *conn) gotHead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = false
	c.limitHead()
}

// limitHead sets the deadline of what the client owes. One that is late when we
// end does not hold the pod. c.mu is held.
func (c *conn) limitHead() {
	limit := c.lane.settings.HeaderTimeout
	if c.retiring {
		limit = lingerTime
	}
	if !c.owed || limit == 0 {
		c.nc.SetReadDeadline(time.Time{})
		return
	}
	c.nc.SetReadDeadline(time.Now().Add(limit))
}

// retire makes the connection end once it is idle and nothing is on its way. Any
// goroutine may call it, once.
func (c *conn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retiring = true
	switch {
	case c.idle:
		c.nc.SetReadDeadline(past)
	case c.owed:
		c.limitHead()
	}
}

// abandon ends the connection whatever is going on. Any goroutine may call it.
func (c *conn) abandon() {
	c.hangup()
	c.nc.Close()
}

// makeRoom moves what is there to the front, and sees to it that a buffer, if
// there is one, has room for n bytes in all.
func (c *conn) makeRoom(n int) {
	if c.r > 0 {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	if c.buf == nil || len(c.buf) >= n {
		return
	}
	old, pooled, w := c.buf, c.pooled, c.w
	c.pooled, c.buf = nil, nil
	if n <= bufferSize {
		c.need = n
		c.hold()
	} else {
		c.buf = make([]byte, max(n, 2*len(old)))
	}
	copy(c.buf, old[:w])
	c.lane.putBack(pooled)
}

// hold sees to it that there is a buffer.
func (c *conn) hold() {
	if c.buf != nil {
		return
	}
	c.pooled = c.lane.buffer(c.need)
	c.buf = *c.pooled
}

// read reads what comes next.
func (c *conn) read() error {
	if err := c.raw.Read(c.reading); err != nil {
		return err
	}
	return c.err
}

// tryRead reads what is there. It gives the buffer back before it has to wait
// without a byte in it.
func (c *conn) tryRead(fd uintptr) (done bool) {
	c.hold()
	n, err := socket.Read(fd, c.buf[c.w:])
	switch {
	case errors.Is(err, syscall.EAGAIN):
		if c.w == 0 {
			c.release()
		}
		return false
	case err != nil:
		c.err = err
		return true
	case n == 0:
		c.err = io.EOF
		return true
	}
	c.err = nil
	first := c.w == 0
	c.w += n
	for c.w == len(c.buf) && c.w < bufferSize {
		c.makeRoom(c.w + 1)
		n, _ = socket.Read(fd, c.buf[c.w:]) // an error will be there for the next one
		c.w += n
	}
	if first {
		c.need = min(c.w+1, bufferSize)
	}
	return true
}

// write writes all of p and then all of q.
func (c *conn) write(p, q []byte) (n int, err error) {
	c.left, c.then, c.writeErr = p, q, nil
	err = c.raw.Write(c.writing)
	n = len(p) + len(q) - len(c.left) - len(c.then)
	c.left, c.then = nil, nil
	if c.offered {
		c.offered = false
		c.life.Taken()
	}
	if err == nil {
		err = c.writeErr
	}
	return n, err
}

// tryWrite writes what the socket takes.
func (c *conn) tryWrite(fd uintptr) (done bool) {
	for {
		if len(c.left) == 0 {
			c.left, c.then = c.then, nil
		}
		var n int
		var err error
		switch {
		case len(c.left) == 0:
			return true
		case len(c.then) == 0:
			n, err = socket.Write(fd, c.left)
		default:
			n, err = socket.WriteTwo(fd, c.left, c.then)
		}
		if errors.Is(err, syscall.EAGAIN) {
			c.offer()
			return false
		}
		if err != nil {
			c.writeErr = err
			return true
		}
		behind := max(0, n-len(c.left))
		c.left, c.then = c.left[n-behind:], c.then[behind:]
	}
}

// offer starts the client's time for what is being written.
func (c *conn) offer() {
	if c.clocked && !c.offered {
		c.offered = true
		c.alarm.Offer(&c.life)
	}
}

// release gives the buffer back.
func (c *conn) release() {
	c.lane.putBack(c.pooled)
	c.pooled, c.buf, c.r, c.w = nil, nil, 0, 0
}

// finish lets go of the request that was served, and reports whether another one
// may follow.
func (c *conn) finish() bool {
	if !c.exchange.end() || c.gone.Load() {
		return false
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
		if c.pooled == nil {
			c.release() // one that had grown
		}
	}
	return true
}

// take returns what has been read, for somebody else, and releases the buffer.
func (c *conn) take() []byte {
	early := append([]byte(nil), c.buf[c.r:c.w]...)
	c.release()
	c.request.Reset()
	return early
}

// put takes over what somebody else has read.
func (c *conn) put(rest []byte) {
	if len(rest) > 0 {
		c.buf, c.r, c.w = rest, 0, len(rest)
	}
}

// elsewhere returns the connection as a guest of the lane on net/http.
func (c *conn) elsewhere() Guest {
	if c.guest == nil {
		c.guest = c.lane.settings.Elsewhere(c.nc, c.watch)
	}
	c.atGuest.Store(&c.guest)
	if c.gone.Load() {
		c.guest.Hangup()
	}
	return c.guest
}

// forget lets go of a connection that is not ours any more. The watch goes on for
// the guest.
func (c *conn) forget() {
	c.release()
	c.alarm.Stop()
}

// close closes the connection so that what was answered can be read.
func (c *conn) close() {
	c.watch.Stop()
	if c.last && !c.broken && !c.gone.Load() && c.nc.CloseWrite() == nil {
		c.nc.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.CopyN(io.Discard, onlyReader{c.nc}, lingerBytes)
	}
	c.nc.Close()
	c.release()
	c.alarm.Stop()
}

// onlyReader hides that a connection can do more, which io.Copy would use.
type onlyReader struct{ io.Reader }
