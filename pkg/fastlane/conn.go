package fastlane

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

const (
	// lingerTime and lingerBytes bound how long a connection that is closed in the
	// middle of a request's body still takes what the client sends, so that the
	// client can read the answer before a reset destroys it (RFC 9112 section 9.6).
	lingerTime  = time.Second
	lingerBytes = 8 << 20
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
	n       int                // of the last raw read
	err     error              //
	reading func(uintptr) bool // tryRead, made once
	cut     bool               // the connection ends with the present request, whose body is not read to its end

	exchange

	// Of the end.
	idle     atomic.Bool // the reader waits for the first byte of a head
	retiring atomic.Bool
	nudged   atomic.Bool // retire has ended a read
}

func newConn(l *Lane, nc *net.TCPConn, raw syscall.RawConn) *conn {
	c := &conn{lane: l, nc: nc, raw: raw}
	c.reading = c.tryRead
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
	for {
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
			c.elsewhere().HandOver(c.take(), c.lane.leavePlace)
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
	deadline := false
	for {
		if b := c.buf[c.r:c.w]; len(b) > 0 {
			if is, maybe := wire.HasPreface(b); is {
				return handOver
			} else if !maybe {
				n, err := c.request.Parse(b)
				if what, known := c.judge(n, err); known {
					if deadline {
						c.nc.SetReadDeadline(time.Time{})
					}
					return what
				}
			}
			if len(b) >= c.lane.settings.MaxHeaderBytes {
				c.request.Reset()
				return handOver // which answers 431
			}
			if !deadline && c.lane.settings.HeaderTimeout > 0 {
				c.nc.SetReadDeadline(time.Now().Add(c.lane.settings.HeaderTimeout))
				deadline = true
			}
		}
		if c.wait() != nil {
			return end
		}
	}
}

// judge decides who serves a head of n bytes; not known: it is not complete.
func (c *conn) judge(n int, err error) (w what, known bool) {
	q := &c.request
	var odd *wire.Odd
	switch {
	case errors.As(err, &odd) && odd.Framed:
		return lend, true // HTTP/1.0, an unusual target or Host
	case err != nil:
		return handOver, true // and refused there, or judged alone
	case n == 0:
		return 0, false
	case n > c.lane.settings.MaxHeaderBytes, q.Form == wire.Authority, c.lane.app.OnlyH2():
		return handOver, true
	case q.Upgrade && !onlyH2C(q):
		return handOver, true
	case q.Expect100:
		return lend, true
	case !c.lane.app.SpeaksH1() && !header.KindOf(&c.exchange).Answered():
		return lend, true // it is net/http's lane that finds out what the app speaks
	case c.lane.settings.FullDuplex && (q.Chunked || q.ContentLength > 0):
		return lend, true
	}
	c.begin(n)
	return plain, true
}

// onlyH2C reports whether the only protocol that the client would upgrade to is
// HTTP/2, which is ignored (RFC 9110 section 7.8).
func onlyH2C(q *wire.Request) bool {
	protocol, ok := wire.Find(q.Fields, "upgrade")
	return ok && wire.EqualFold(protocol, "h2c")
}

// wait reads more bytes behind those that are there. A connection that retires
// ends here, when it is idle and nothing comes.
func (c *conn) wait() error {
	if c.r > 0 {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	if c.buf != nil && c.w == len(c.buf) {
		grown := make([]byte, 2*len(c.buf))
		copy(grown, c.buf)
		c.release()
		c.buf, c.w = grown, len(grown)/2
	}
	c.idle.Store(c.w == 0)
	defer c.idle.Store(false)
	for looked := false; ; looked = true {
		looking := c.retiring.Load() && c.w == 0
		if looking {
			c.nc.SetReadDeadline(time.Now().Add(lastLook))
		}
		err := c.raw.Read(c.reading)
		if looking {
			c.nc.SetReadDeadline(time.Time{})
		}
		switch {
		case err == nil && c.err == nil && c.n > 0:
			c.w += c.n
			return nil
		case err == nil && c.err != nil:
			return c.err
		case err == nil:
			return io.EOF
		case looking || !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case looked || !c.nudged.Swap(false):
			return err
		case c.w > 0: // the nudge came too late, in the middle of a head
			c.nc.SetReadDeadline(time.Now().Add(lingerTime))
		}
	}
}

// tryRead reads what is there. It gives the buffer back before it has to wait
// without a byte in it.
func (c *conn) tryRead(fd uintptr) bool {
	if c.buf == nil {
		c.pooled = c.lane.buffers.Get().(*[]byte)
		c.buf = *c.pooled
	}
	for {
		n, err := syscall.Read(int(fd), c.buf[c.w:])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			if c.w == 0 {
				c.release()
			}
			return false
		case err != nil:
			n, err = 0, os.NewSyscallError("read", err)
		}
		c.n, c.err = n, err
		return true
	}
}

// release gives the buffer back.
func (c *conn) release() {
	if c.pooled != nil {
		c.lane.buffers.Put(c.pooled)
	}
	c.pooled, c.buf, c.r, c.w = nil, nil, 0, 0
}

// finish consumes the request that was served, and reports whether another one
// may follow.
func (c *conn) finish() bool {
	ok := c.exchange.end()
	if !ok || c.cut || c.gone.Load() {
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
	if c.cut && c.nc.CloseWrite() == nil {
		c.nc.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.CopyN(io.Discard, onlyReader{c.nc}, lingerBytes)
	}
	c.nc.Close()
	c.release()
	c.alarm.Stop()
}

// onlyReader hides that a connection can do more, which io.Copy would use.
type onlyReader struct{ io.Reader }

// retire makes the connection end once it is idle and nothing is on its way. Any
// goroutine may call it.
func (c *conn) retire() {
	c.retiring.Store(true)
	if c.idle.Load() {
		c.nudged.Store(true)
		c.nc.SetReadDeadline(past)
	}
}
