package h2

import (
	"cmp"
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/link"
)

// ring holds the streams that have something to send, in the order in which they may.
type ring struct{ first, last *Stream }

func (r *ring) empty() bool { return r.first == nil }

func (r *ring) push(s *Stream) {
	s.next = nil
	if r.last == nil {
		r.first = s
	} else {
		r.last.next = s
	}
	r.last = s
}

// before puts another ring in front of this one.
func (r *ring) before(other ring) {
	switch {
	case other.empty():
		return
	case r.empty():
		r.last = other.last
	default:
		other.last.next = r.first
	}
	r.first = other.first
}

func (r *ring) pop() *Stream {
	s := r.first
	if r.first = s.next; r.first == nil {
		r.last = nil
	}
	s.next = nil
	return s
}

// enqueue puts a stream into the ring, if it has something that its own window lets it
// send, and reports whether it is there. c.mu is held.
func (c *Conn) enqueue(s *Stream) bool {
	p := &s.pending
	if s.gone || !p.any || len(p.data) > 0 && len(p.heads) == 0 && s.window <= 0 {
		return false
	}
	if !s.queued {
		s.queued = true
		c.ring.push(s)
	}
	return true
}

// fill adds to the output what waits, as far as there is room and the windows are open:
// one frame of each stream in turn, so that a large response does not delay small ones.
// Streams that wait for the connection's window alone keep their order for when it is
// widened. It returns the streams of which nothing waits any more. c.mu is held.
func (c *Conn) fill() (drained []*Stream) {
	var waiting ring // for the connection's window
	for !c.ring.empty() && len(c.out) < outSize {
		s := c.ring.pop()
		p := &s.pending
		if !s.gone && len(p.heads) == 0 && len(p.data) > 0 && s.window > 0 && c.window <= 0 {
			waiting.push(s)
			continue
		}
		s.queued = false
		if s.gone {
			continue
		}
		c.addPending(s)
		if !p.any {
			drained = append(drained, s)
		} else {
			c.enqueue(s)
		}
	}
	c.ring.before(waiting)
	return drained
}

// addPending adds what waits of a stream to the output, one DATA frame at most. c.mu is
// held.
func (c *Conn) addPending(s *Stream) {
	p := &s.pending
	if len(p.heads) > 0 {
		c.grow(len(p.heads))
		c.out = append(c.out, p.heads...)
		c.hold(-len(p.heads))
		p.heads = nil
		if p.ends {
			p.any = false
			c.ended(s)
			return
		}
	}
	if len(p.data) > 0 {
		n := c.addFrame(s, p.data, p.end && p.tail == nil)
		if s.gone { // the bytes that are pending were released
			return
		}
		c.hold(-n)
		p.data = p.data[n:]
		if s.localEnded {
			p.any = false
			return
		}
		if len(p.data) > 0 {
			return
		}
		p.data = nil
	}
	p.any = false
	switch {
	case p.tail != nil:
		c.grow(len(p.tail))
		c.out = append(c.out, p.tail...)
		c.hold(-len(p.tail))
		p.tail = nil
		c.ended(s)
	case p.end:
		c.grow(frameHeadSize)
		c.out = appendFrameHead(c.out, 0, frameData, flagEndStream, s.id)
		c.ended(s)
	}
}

// addData adds content to the output, as far as there is room and the windows are open,
// and the end where all of it has been added. It returns what is left. c.mu is held.
func (c *Conn) addData(s *Stream, p []byte, end bool) []byte {
	for len(p) > 0 && len(c.out) < outSize {
		n := c.addFrame(s, p, end)
		if n == 0 {
			return p
		}
		p = p[n:]
	}
	if len(p) == 0 && end && !s.localEnded {
		c.grow(frameHeadSize)
		c.out = appendFrameHead(c.out, 0, frameData, flagEndStream, s.id)
		c.ended(s)
	}
	return p
}

// addFrame adds one DATA frame of p to the output and returns how much of p it took, 0 where
// a window is closed. The frame ends the stream's side if end is true and it takes all of
// p. c.mu is held.
func (c *Conn) addFrame(s *Stream, p []byte, end bool) int {
	n := min(len(p), maxFrameSize, s.window, c.window)
	if n <= 0 {
		return 0
	}
	flags := byte(0)
	if end = end && n == len(p); end {
		flags = flagEndStream
	}
	c.grow(n + frameHeadSize)
	c.out = append(appendFrameHead(c.out, n, frameData, flags, s.id), p[:n]...)
	s.window -= n
	c.window -= n
	c.sent++
	if end {
		c.ended(s)
	}
	return n
}

// ended notes that our side of a stream has ended. A request that is not all there when
// its response ends is not waited for (RFC 9113 section 8.1). c.mu is held.
func (c *Conn) ended(s *Stream) {
	s.localEnded = true
	switch {
	case s.remoteEnded:
		c.remove(s)
	case !c.config.Client && !s.bothWays:
		c.room()
		c.out = appendReset(c.out, s.id, NoError)
		c.endEarly(s)
		c.remove(s)
	}
}

// tellDrained tells owners that what they have sent does not wait any more. by is c in the
// goroutine that runs it, and nil in others. c.mu must not be held: owners have locks of
// their own, under which they send.
func (c *Conn) tellDrained(by *Conn, drained []*Stream) {
	for _, s := range drained {
		s.events.Lock()
		if s.owner != nil {
			s.owner.Drained(by)
		}
		s.events.Unlock()
	}
}

// room sees to it that there is a buffer for the output. c.mu is held.
func (c *Conn) room() {
	if c.out == nil {
		c.outOf = c.config.Buffers.Get(smallSize)
		c.out = (*c.outOf)[:0]
	}
}

// largeOut is the size of the large buffers for output: outSize, and the frame that goes
// beyond it.
const largeOut = outSize + maxFrameSize + 2*frameHeadSize

// grow sees to it that there is room for n more bytes in a buffer that can be used again,
// if that is possible. c.mu is held.
func (c *Conn) grow(n int) {
	c.room()
	need := len(c.out) + n
	if need <= cap(c.out) {
		return
	}
	var large *[]byte
	var out []byte
	if need <= largeOut {
		large = c.config.Buffers.Get(largeOut)
		out = (*large)[:0]
	} else {
		out = make([]byte, 0, need) // of a long header block: no more than it needs
		c.longOut = c.config.Memory.Set(c.longOut, need)
	}
	out = append(out, c.out...)
	c.config.Buffers.Put(c.outOf)
	c.out, c.outOf = out, large
}

// Flush writes the output, unless somebody is writing it already, and does not wait for
// the peer to take it. yield lets other goroutines run before, who may have something to
// add: those of the other streams are often ready to run, and a system call costs more
// than all else that is done for a small request.
func (c *Conn) Flush(yield bool) {
	c.mu.Lock()
	if c.flushing || len(c.out) == 0 && c.ring.empty() {
		c.mu.Unlock()
		return
	}
	c.flushing = true
	yield = yield && len(c.streams) > 1 && len(c.out) < outSize // else nobody has anything to add
	c.mu.Unlock()
	if yield {
		runtime.Gosched()
	}
	c.writeOut()
}

// writeOut writes until nothing waits that may be sent, or until the peer takes no more:
// then another goroutine goes on.
func (c *Conn) writeOut() {
	for {
		of, some := c.takeOut()
		if !some {
			return
		}
		err := cmp.Or(c.link.WaitWrite(c.writing), c.writeErr)
		if err == nil && c.again { // who flushes may be the reader of another connection
			go c.writeSlowly(of)
			return
		}
		c.config.Buffers.Put(of)
		if err != nil {
			c.cannotWrite(err)
		}
	}
}

// takeOut makes the output what is to be written. It reports false where there is nothing:
// then nobody writes any more.
func (c *Conn) takeOut() (of *[]byte, some bool) {
	c.mu.Lock()
	drained := c.fill()
	if len(c.out) == 0 || c.broken != nil {
		c.flushing = false
		c.written.Broadcast()
		if c.out != nil && len(c.out) == 0 {
			c.config.Buffers.Put(c.outOf)
			c.out, c.outOf = nil, nil
		}
		c.mu.Unlock()
		c.tellDrained(nil, drained)
		return nil, false
	}
	c.left, of = c.out, c.outOf
	c.out, c.outOf, c.replies = nil, nil, 0
	c.longOut = c.config.Memory.Set(c.longOut, 0)
	c.taken++
	if c.busy {
		c.busy = false
		c.signalRoom()
	}
	c.mu.Unlock()
	c.tellDrained(nil, drained)
	return of, true
}

// cannotWrite notes that writing has failed. Where the peer has closed the connection, what
// it had sent before is still read, a response for example, and its end behind that.
func (c *Conn) cannotWrite(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) && c.Err() == nil {
		c.Hit(bound.SendTimeout)
	}
	if !c.config.Client || !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		c.Close(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
		c.signalRoom()
	}
}

// writeSlowly writes what the peer has not taken at once, and goes on.
func (c *Conn) writeSlowly(of *[]byte) {
	c.limitWrite()
	unread := cap(c.left) + outSize // the output, and what can be added to it in the meantime
	if c.link.Secure() {
		unread += link.MaxUnsent
	}
	c.config.Memory.Add(unread)
	err := c.link.WaitWrite(c.patient)
	c.config.Memory.Sub(unread)
	err = cmp.Or(err, c.writeErr)
	if c.config.SendTimeout > 0 && err == nil {
		c.link.SetWriteDeadline(time.Time{})
	}
	c.config.Buffers.Put(of)
	if err != nil {
		c.cannotWrite(err)
	}
	c.writeOut()
}

// limitWrite gives the peer its time to take the next bytes.
func (c *Conn) limitWrite() {
	if c.config.SendTimeout > 0 {
		c.link.SetWriteDeadline(time.Now().Add(c.config.SendTimeout))
	}
}

// tryWrite is what RawConn.Write calls; it never asks it to wait.
func (c *Conn) tryWrite(fd uintptr) (done bool) {
	c.again = !c.writeSome(fd)
	return true
}

// tryWriteAll is what RawConn.Write calls, again when the peer may have taken some.
func (c *Conn) tryWriteAll(fd uintptr) (done bool) {
	before := len(c.left)
	done = c.writeSome(fd)
	if !done && len(c.left) < before {
		c.limitWrite()
	}
	return done
}

// writeSome writes what is taken at once, and reports whether that was all or writing has
// failed.
func (c *Conn) writeSome(fd uintptr) (done bool) {
	left, _, err := c.link.TryWriteAll(fd, c.left, nil)
	if c.left = left; errors.Is(err, link.ErrAgain) {
		return false
	}
	c.writeErr = err
	return true
}
