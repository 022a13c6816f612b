package h2

import (
	"errors"
	"sync"
)

// A Stream is one request and its response. Its exported methods may be called by any
// goroutine, and do not block. What they send is written by the next [Conn.Flush].
type Stream struct {
	conn *Conn
	id   uint32

	events sync.Mutex // held while a method of the owner runs
	owner  Owner      // nil: it gets no more events; guarded by events

	taken    int  // Conn.taken when the head of a client's stream was added to the output
	answered bool // the final response has begun; of the goroutine that runs the connection

	// Guarded by conn.mu.
	window      int // that the peer has left for us
	room        int // that we have left for the peer
	unsaid      int // of what was credited: has to be said
	pending     pending
	queued      bool // in conn.ring
	next        *Stream
	localEnded  bool // END_STREAM has been sent
	remoteEnded bool // or has come
	gone        bool // it is not in conn.streams any more
	dropped     bool // something was pending when it went
	cut         bool // bytes were pending when it went
	bothWays    bool // see BothWays
}

// pending is what waits to be sent on a stream, in this order.
type pending struct {
	heads []byte // frames of header blocks
	data  []byte
	tail  []byte // frames of the trailer section
	end   bool   // END_STREAM comes with the last of it, or by itself
	ends  bool   // it is in heads
	any   bool   // there is something
}

// size returns the number of bytes that are pending.
func (p *pending) size() int { return len(p.heads) + len(p.data) + len(p.tail) }

// ErrGone says that a stream has ended.
var ErrGone = errors.New("http2: stream closed")

// Accept returns the stream of a request. end reports whether the request has no content.
// It returns nil if nothing can be sent on the connection, and the owner then gets no events.
// It is called by a Handler's Request.
func (c *Conn) Accept(id uint32, owner Owner, end bool) *Stream {
	s := &Stream{conn: c, id: id, owner: owner, room: c.config.Window, remoteEnded: end}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return nil
	}
	s.window = c.initial
	c.streams[id] = s
	c.received.Add(1)
	return s
}

// Refuse ends a stream that was not accepted. It is called by a Handler's Request.
func (c *Conn) Refuse(id uint32, code Code) {
	c.mu.Lock()
	c.lateBytes = min(c.lateBytes+c.config.Window, c.config.ConnWindow)
	c.mu.Unlock()
	c.refusing = c.resetStream(id, code)
}

// Reject is Refuse with REFUSED_STREAM for a valid request that cannot be served at the moment. A
// client that sends many of them has not sent frames without useful work.
func (c *Conn) Reject(id uint32) {
	c.received.Add(1)
	c.Refuse(id, RefusedStream)
}

// Errors of Open: the request has not been sent.
var (
	ErrFull   = errors.New("http2: the peer takes no more streams at the moment")
	ErrShut   = errors.New("http2: the peer takes no streams at all at the moment")
	ErrBusy   = errors.New("http2: what was sent before has not been taken")
	ErrLarge  = errors.New("http2: the header section is longer than the peer accepts")
	errEnding = errors.New("http2: the connection is ending")
)

// ErrUnsent is among what a client's stream has failed with whose connection has broken
// before a byte of the request was written.
var ErrUnsent = errors.New("http2: nothing was sent")

// Open opens a stream by sending the head of a request; end: there is nothing else of it.
// The error is ErrFull, ErrShut, ErrBusy, ErrLarge, ErrEnding, or the error that ended the connection.
// [Config].Room reports when Open may succeed. owner owns the stream from before it is sent. If careful is true, streams
// that were abandoned recently count against the limit of the server.
func (c *Conn) Open(owner Owner, head *Block, end, careful bool) (*Stream, error) {
	s := &Stream{conn: c, owner: owner, room: c.config.Window, localEnded: end}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil:
		return nil, c.broken
	case c.ending || c.last >= maxStreamID-2:
		return nil, errEnding
	case c.mostHead > 0 && head.size > c.mostHead: // some servers close the connection (RFC 9113 section 10.5.1)
		return nil, ErrLarge
	case c.most == 0:
		return nil, ErrShut
	case c.full(careful):
		c.crowded.Store(c.full(false))
		return nil, ErrFull
	case len(c.out) >= outSize: // heads can be long
		c.busy = true
		return nil, ErrBusy
	}
	if c.last == 0 {
		c.last = 1
	} else {
		c.last += 2
	}
	c.seen = c.last
	s.id, s.window = c.last, c.initial
	c.streams[s.id] = s
	s.taken = c.taken
	c.addHead(s, head, end)
	return s, nil
}

// Release ends the events of the owner. It waits for a running one, and must not be
// called by the owner's methods. Nil is no stream.
func (s *Stream) Release() {
	if s == nil {
		return
	}
	s.events.Lock()
	defer s.events.Unlock()
	s.owner = nil
}

// Conn returns the stream's connection.
func (s *Stream) Conn() *Conn { return s.conn }

// BothWays says that a stream lives on after its response has ended, until the peer has
// ended its side too: it carries a tunnel.
func (s *Stream) BothWays() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.bothWays = true
}

// SendHead sends a header block: that of an informational or a final response.
func (s *Stream) SendHead(head *Block, end bool) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.gone || s.localEnded:
		return ErrGone
	case s.pending.any || len(c.out) >= outSize:
		before := len(s.pending.heads)
		s.pending.heads = appendHeaders(s.pending.heads, s.id, c.withTable(head), end)
		s.pending.ends = end
		c.hold(len(s.pending.heads) - before)
		s.wait()
		return nil
	}
	c.addHead(s, head, end)
	if end {
		c.ended(s)
	}
	return nil
}

// addHead adds a header block to the output. c.mu is held.
func (c *Conn) addHead(s *Stream, head *Block, end bool) {
	c.sent++
	c.grow(len(head.b) + len([]byte{noTable}) + (len(head.b)/maxFrameSize+2)*frameHeadSize)
	c.out = appendHeaders(c.out, s.id, c.withTable(head), end)
}

// withTable returns a header block, the first of the connection with the size of our
// dynamic table before it. c.mu is held.
func (c *Conn) withTable(head *Block) []byte {
	if c.begun {
		return head.b
	}
	c.begun = true
	return append([]byte{noTable}, head.b...)
}

// SendData sends content, and END_STREAM behind it where end is true. waits: not all of
// it could be added to the output; it was copied, and the owner is notified when it is gone.
func (s *Stream) SendData(p []byte, end bool) (waits bool, err error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.gone || s.localEnded {
		return false, ErrGone
	}
	if !s.pending.any && c.ring.empty() {
		p = c.addData(s, p, end)
		if len(p) == 0 && (!end || s.localEnded) {
			return false, nil
		}
	}
	s.pending.data = append(s.pending.data, p...)
	s.pending.end = s.pending.end || end
	c.hold(len(p))
	s.wait()
	return true, nil
}

// SendTrailer sends a trailer section, which ends the stream's side. waits is as for
// SendData.
func (s *Stream) SendTrailer(trailer *Block) (waits bool, err error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.gone || s.localEnded:
		return false, ErrGone
	case s.pending.any:
		s.pending.tail = appendHeaders(nil, s.id, c.withTable(trailer), true)
		s.pending.end = true
		c.hold(len(s.pending.tail))
		return true, nil
	}
	c.addHead(s, trailer, true)
	c.ended(s)
	return false, nil
}

// wait notes that something is pending. c.mu is held.
func (s *Stream) wait() {
	s.pending.any = true
	s.conn.enqueue(s)
}

// Waits reports whether something that was sent could not be added to the output yet.
func (s *Stream) Waits() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.pending.any && !s.gone
}

// Dropped reports whether the stream ended before all that was sent could be added to the
// output. It is known from when Waits becomes false, before the owner is notified that
// the stream has failed.
func (s *Stream) Dropped() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.dropped
}

// Cut is Dropped without END_STREAM: it reports whether the stream ended before all header blocks
// and all content could be added to the output.
func (s *Stream) Cut() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.cut
}

// Ended reports whether all has been sent, and the end.
func (s *Stream) Ended() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.localEnded
}

// Reset ends the stream at once, and tells the peer why. What waits is dropped.
func (s *Stream) Reset(code Code) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.gone {
		c.reset(s, code)
	}
}

// reset is Reset for a stream that has not ended. c.mu is held.
func (c *Conn) reset(s *Stream, code Code) {
	c.room()
	c.out = appendReset(c.out, s.id, code)
	c.caused(resetSize)
	c.endEarly(s)
	c.remove(s)
}

// endEarly records that frames of a stream may arrive after its end. The peer can have sent
// as much content as the stream's window allows. c.mu is held.
func (c *Conn) endEarly(s *Stream) {
	if !s.remoteEnded {
		c.early = true
		c.lateBytes = min(c.lateBytes+s.room, c.config.ConnWindow)
	}
}

// Credit lets the peer send n more bytes of content. It reports whether the peer has to be
// notified now, by the next Flush.
func (s *Stream) Credit(n int) (due bool) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.gone || s.remoteEnded {
		return false
	}
	s.room += n
	if s.unsaid += n; s.unsaid >= c.config.Window/2 {
		c.room()
		c.out = appendWindowUpdate(c.out, s.id, s.unsaid)
		c.caused(windowUpdateSize)
		s.unsaid = 0
		return true
	}
	return false
}

// take counts content that comes, and returns s if it may; nil: not.
func (s *Stream) take(n int) *Stream {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.remoteEnded || n > s.room {
		return nil
	}
	s.room -= n
	return s
}

func (s *Stream) remoteHasEnded() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.remoteEnded
}

// remoteEnds notes that END_STREAM has come.
func (s *Stream) remoteEnds() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.remoteEnded = true
	if s.localEnded {
		s.conn.remove(s)
	}
}

// drop forgets a stream that the peer has ended.
func (s *Stream) drop() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.conn.remove(s)
}

// failed tells the owner.
func (s *Stream) failed(by *Conn, err error) {
	s.events.Lock()
	defer s.events.Unlock()
	if s.owner != nil {
		s.owner.Failed(by, err)
	}
}

// end marks the stream as gone. After END_STREAM nothing is dropped, although the last frame may
// still be in pending. conn.mu is held.
func (s *Stream) end() {
	s.gone = true
	s.dropped = s.pending.any && !s.localEnded
	s.cut = s.dropped && s.pending.size() > 0
}

// remove forgets a stream. c.mu is held.
func (c *Conn) remove(s *Stream) {
	if !s.gone {
		s.end()
		c.hold(-s.pending.size())
		s.pending = pending{}
		delete(c.streams, s.id)
		c.signalRoom()
		c.endIfIdle()
	}
}
