package http2conn

import (
	"cmp"
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// ring is a FIFO queue of streams that have pending output and are not blocked by their own windows. The streams are
// linked by Stream.next.
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

// prepend inserts the streams of other before the streams of r.
func (r *ring) prepend(other ring) {
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

// enqueue adds a stream to the ring if the stream has pending output and its window is not exhausted. It reports
// whether the stream is in the ring. c.mu must be held.
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

// fill moves pending output from the streams to the output of the connection. It stops if the output is longer than
// outLimit or the windows are exhausted. It adds one frame of each stream in turn, so that a large response does not
// delay small responses. Streams that wait only for the window of the connection keep their order. fill returns the
// streams that have no pending output left. c.mu must be held.
func (c *Conn) fill() (drained []*Stream) {
	var waiting ring // streams that wait only for the window of the connection
	for !c.ring.empty() && len(c.out) < c.outLimit() {
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
	c.ring.prepend(waiting)
	return drained
}

// addPending moves header blocks and one DATA frame from a stream to the output of the connection. If no content is
// left, addPending also moves the trailer section. c.mu must be held.
func (c *Conn) addPending(s *Stream) {
	p := &s.pending
	if len(p.heads) > 0 {
		c.growOut(len(p.heads))
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
		if s.gone { // remove has already subtracted all pending bytes
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
		c.growOut(len(p.tail))
		c.out = append(c.out, p.tail...)
		c.hold(-len(p.tail))
		p.tail = nil
		c.ended(s)
	case p.end:
		c.growOut(frameHeadSize)
		c.out = appendFrameHead(c.out, 0, frameData, flagEndStream, s.id)
		c.ended(s)
	}
}

// addData adds DATA frames with content from p to the output. It stops if the output is longer than outLimit or a
// window is exhausted. If it adds all of p and end is true, it also adds END_STREAM. It returns the remaining content.
// c.mu must be held.
func (c *Conn) addData(s *Stream, p []byte, end bool) []byte {
	for len(p) > 0 && len(c.out) < c.outLimit() {
		n := c.addFrame(s, p, end)
		if n == 0 {
			return p
		}
		p = p[n:]
	}
	if len(p) == 0 && end && !s.localEnded {
		c.growOut(frameHeadSize)
		c.out = appendFrameHead(c.out, 0, frameData, flagEndStream, s.id)
		c.ended(s)
	}
	return p
}

// addFrame adds one DATA frame with content from p to the output. It returns the number of content bytes, which is 0
// if a window is exhausted. The frame has END_STREAM if end is true and the frame contains all of p. c.mu must be held.
func (c *Conn) addFrame(s *Stream, p []byte, end bool) int {
	n := min(len(p), maxFrameSize, c.outLimit(), s.window, c.window)
	if n <= 0 {
		return 0
	}
	flags := byte(0)
	if end = end && n == len(p); end {
		flags = flagEndStream
	}
	c.growOut(n + frameHeadSize)
	c.out = append(appendFrameHead(c.out, n, frameData, flags, s.id), p[:n]...)
	s.window -= n
	c.window -= n
	c.uploads.sent(s, n)
	c.sent++
	if end {
		c.ended(s)
	}
	return n
}

// ended records that END_STREAM was added to the output of a stream, and removes the stream if both sides have ended.
// A server also resets the stream with NO_ERROR if the request is incomplete, because the response no longer depends on
// the rest of the request (RFC 9113 section 8.1). c.mu must be held.
func (c *Conn) ended(s *Stream) {
	s.localEnded = true
	c.uploads.end(s)
	c.signalRoom()
	switch {
	case s.remoteEnded:
		c.remove(s)
	case !c.config.Client && !s.bothWays:
		c.allocateOut()
		c.out = appendReset(c.out, s.id, NoError)
		c.endEarly(s)
		c.remove(s)
	}
}

// notifyDrained calls Drained for the owners of the given streams. by is c if the caller is the reader goroutine of c,
// and otherwise nil. c.mu must not be held, because owners hold their own locks when they call methods that lock c.mu.
func (c *Conn) notifyDrained(by *Conn, drained []*Stream) {
	for _, s := range drained {
		s.events.Lock()
		if s.owner != nil {
			s.owner.Drained(by)
		}
		s.events.Unlock()
	}
}

// allocateOut allocates a buffer for the output if there is none. c.mu must be held.
func (c *Conn) allocateOut() {
	if c.out == nil {
		c.outOf = c.config.Buffers.Get(smallSize)
		c.out = (*c.outOf)[:0]
	}
}

// outLimit returns the length of the output, in bytes, at which additional content stays pending on its stream. It
// also limits the length of a DATA frame. If memory is scarce, the limit is less than half of the buffer size. The
// last frame may exceed the limit, but the whole output then still fits into one buffer.
func (c *Conn) outLimit() int {
	size := c.config.Memory.BufferSize(outSize)
	if size < outSize {
		return size/2 - frameHeadSize
	}
	return size
}

// largeOut is the size of large output buffers in bytes. It is outSize plus the last frame, which may exceed
// outSize.
const largeOut = outSize + maxFrameSize + 2*frameHeadSize

// growOut reserves space for n more bytes in the output, in a pooled buffer if possible. c.mu must be held.
func (c *Conn) growOut(n int) {
	c.allocateOut()
	need := len(c.out) + n
	if need <= cap(c.out) {
		return
	}
	var large *[]byte
	var out []byte
	if need <= largeOut {
		size := need
		if c.outLimit() == outSize {
			size = largeOut
		}
		large = c.config.Buffers.Get(size)
		out = (*large)[:0]
	} else {
		out = make([]byte, 0, need) // not pooled, because only a long header block needs this size
		c.longOut = c.config.Memory.Set(c.longOut, need)
	}
	out = append(out, c.out...)
	c.config.Buffers.Put(c.outOf)
	c.out, c.outOf = out, large
}

// Flush writes the output without waiting until the peer reads it. It does nothing if another goroutine is writing. If
// yield is true, Flush first lets other goroutines run, because they often add output of other streams. One system
// call then writes the output of several requests. A system call costs more than all other work for a small request.
func (c *Conn) Flush(yield bool) {
	c.mu.Lock()
	if c.flushing || len(c.out) == 0 && c.ring.empty() {
		c.mu.Unlock()
		return
	}
	c.flushing = true
	yield = yield && len(c.streams) > 1 && len(c.out) < outSize // no output can be added if the buffer is full
	c.mu.Unlock()
	if yield {
		runtime.Gosched()
	}
	c.writeOut()
}

// writeOut writes all output that the windows allow. If the socket accepts no more bytes, writeOut continues in
// another goroutine.
func (c *Conn) writeOut() {
	for {
		of, ok := c.takeOut()
		if !ok {
			return
		}
		err := c.link.WaitWrite(c.writing) // sets c.writeErr
		err = cmp.Or(err, c.writeErr)
		if err == nil && c.wouldBlock { // the caller must not block, because it may be a reader goroutine
			go c.writeSlowly(of)
			return
		}
		c.config.Buffers.Put(of)
		if err != nil {
			c.cannotWrite(err)
		}
	}
}

// takeOut moves the output to c.left and returns the pooled buffer of the output, or nil if the output is not in a
// pooled buffer. If there is nothing to write, takeOut resets c.flushing and ok is false.
func (c *Conn) takeOut() (of *[]byte, ok bool) {
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
		c.notifyDrained(nil, drained)
		return nil, false
	}
	c.left, of = c.out, c.outOf
	c.out, c.outOf, c.replies = nil, nil, 0
	c.longOut = c.config.Memory.Set(c.longOut, 0)
	c.takes++
	if c.openWaits {
		c.openWaits = false
		c.signalRoom()
	}
	c.mu.Unlock()
	c.notifyDrained(nil, drained)
	return of, true
}

// cannotWrite handles a write error, which ends the connection. However, if the user container closed the connection,
// reading continues, because the receive buffer of the socket may contain a response.
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

// writeSlowly waits until the socket accepts the remaining output, and then continues with writeOut.
func (c *Conn) writeSlowly(of *[]byte) {
	c.limitWrite()
	unread := cap(c.left) + c.outLimit() // the output, and the bytes that can be added to c.out in the meantime
	if c.link.Secure() {
		unread += min(2*cap(c.left), netconn.MaxUnsent)
	}
	c.config.Memory.Add(unread)
	err := c.link.WaitWrite(c.writingSlowly)
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

// limitWrite sets the write deadline to the current time plus Config.SendTimeout.
func (c *Conn) limitWrite() {
	if c.config.SendTimeout > 0 {
		c.link.SetWriteDeadline(time.Now().Add(c.config.SendTimeout))
	}
}

// tryWrite writes as much of c.left as the socket accepts. It is called by RawConn.Write and always returns true, so
// that RawConn.Write does not wait.
func (c *Conn) tryWrite(fd uintptr) (done bool) {
	c.wouldBlock = !c.writeSome(fd)
	return true
}

// tryWriteAll writes c.left. RawConn.Write calls tryWriteAll each time the socket is writable, until done is true. Each
// call that writes bytes extends the write deadline.
func (c *Conn) tryWriteAll(fd uintptr) (done bool) {
	before := len(c.left)
	done = c.writeSome(fd)
	if !done && len(c.left) < before {
		c.limitWrite()
	}
	return done
}

// writeSome writes as much of c.left as the socket accepts. done is false if the socket did not accept all of c.left.
// If done is true, c.writeErr is the result of the write.
func (c *Conn) writeSome(fd uintptr) (done bool) {
	left, _, err := c.link.TryWriteAll(fd, c.left, nil)
	if c.left = left; errors.Is(err, netconn.ErrAgain) {
		return false
	}
	c.writeErr = err
	return true
}
