package http2conn

import (
	"errors"
	"sync"
)

// A Stream carries one request and its response. Its exported methods are safe for concurrent use and do
// not block, except Release. The next [Conn.Flush] writes their output.
type Stream struct {
	conn *Conn
	id   uint32

	events sync.Mutex // held while a method of the owner runs
	owner  Owner      // receives the events; nil after Release; guarded by events

	taken    int  // value of Conn.takes when the header block of a client's stream was added to the output
	answered bool // the final response has begun; owned by the reader goroutine

	// The following fields are guarded by conn.mu.
	window      int // number of bytes that this side may send; can be negative
	room        int // number of bytes that the peer may send
	unannounced int // bytes credited since the last WINDOW_UPDATE of the stream
	pending     pending
	queued      bool // the stream is in conn.ring
	next        *Stream
	localEnded  bool // END_STREAM was added to the output
	remoteEnded bool // END_STREAM was received
	gone        bool // the stream was removed from conn.streams
	dropped     bool // output was pending when the stream ended
	cut         bool // bytes were pending when the stream ended
	bothWays    bool // see BothWays
	exclusive   bool // counted in conn.uploads.running
	reserved    int  // number of bytes counted in conn.uploads.reserved
}

// pending is the pending output of a stream. The fields are sent in the order of their declaration.
type pending struct {
	heads []byte // frames of header blocks
	data  []byte
	tail  []byte // frames of the trailer section
	end   bool   // END_STREAM is sent with the last frame or in an empty DATA frame
	ends  bool   // heads contains END_STREAM
	any   bool   // output is pending
}

// size returns the number of pending bytes.
func (p *pending) size() int { return len(p.heads) + len(p.data) + len(p.tail) }

// ErrGone reports that a stream has ended.
var ErrGone = errors.New("http2: stream closed")

// Accept returns the stream of a request. end reports whether the request has no content. Accept
// returns nil if nothing can be sent on the connection. The owner then receives no events. Accept
// must be called from [Handler].Request.
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

// Refuse resets a stream that was not accepted. It must be called from [Handler].Request.
func (c *Conn) Refuse(id uint32, code Code) {
	c.mu.Lock()
	c.lateBytes = min(c.lateBytes+c.config.Window, c.config.ConnWindow)
	c.mu.Unlock()
	c.refusalErr = c.resetStream(id, code)
}

// RefuseMalformed refuses a malformed request with PROTOCOL_ERROR (RFC 9113 section 8.1.1), and records it as
// a client error. text describes the error.
func (c *Conn) RefuseMalformed(id uint32, text string) {
	c.recordStreamError(fail(ProtocolError, text))
	c.Refuse(id, ProtocolError)
}

// Reject refuses a valid request that cannot be served at the moment, with REFUSED_STREAM. Unlike
// Refuse, it counts the request as useful work of the client.
func (c *Conn) Reject(id uint32) {
	c.received.Add(1)
	c.Refuse(id, RefusedStream)
}

// Errors that Open returns. If Open returns one of them, the request was not sent.
var (
	ErrFull   = errors.New("http2: the peer does not accept more streams")
	ErrShut   = errors.New("http2: the peer does not accept streams")
	ErrBusy   = errors.New("http2: the send buffer is full")
	ErrLarge  = errors.New("http2: the header section is longer than the peer accepts")
	ErrInUse  = errors.New("http2: the connection is in use by another client")
	errEnding = errors.New("http2: the connection is closing")
)

// ErrUnsent is joined to the error of a client stream if the connection failed before any byte of the
// request was written.
var ErrUnsent = errors.New("http2: nothing was sent")

// Open opens a stream and sends the header section of a request. The error is ErrFull, ErrShut, ErrBusy, ErrLarge,
// ErrInUse, an unexported error if the connection is shutting down, or the error that ended the connection.
// [Config].Room reports when Open may succeed. The owner may receive events before Open returns. If careful is true,
// all streams that were abandoned within the last recentTime count against the limit of the server.
func (c *Conn) Open(q Request, careful bool) (*Stream, error) {
	s := &Stream{conn: c, owner: q.Owner, room: c.config.Window, localEnded: q.End}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil:
		return nil, c.broken
	case c.ending || c.last >= maxStreamID-2:
		return nil, errEnding
	case c.maxHeadSize > 0 && q.Head.size > c.maxHeadSize: // some servers close the connection (RFC 9113 section 10.5.1)
		return nil, ErrLarge
	case c.maxStreams == 0:
		return nil, ErrShut
	case c.full(careful):
		c.noRoom.Store(c.full(false))
		return nil, ErrFull
	case !c.uploads.admits(q.Upload, c.window):
		return nil, ErrInUse
	case len(c.out) >= outSize: // header blocks can be long
		c.openWaits = true
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
	s.taken = c.takes
	c.uploads.begin(s, q.Upload, c.window)
	c.addHead(s, q.Head, q.End)
	return s, nil
}

// Release stops the events to the owner. It waits until a running method of the owner returns, so the methods of
// the owner must not call Release. It does nothing if s is nil.
func (s *Stream) Release() {
	if s == nil {
		return
	}
	s.events.Lock()
	defer s.events.Unlock()
	s.owner = nil
}

// Conn returns the connection of the stream.
func (s *Stream) Conn() *Conn { return s.conn }

// BothWays marks a stream that carries a tunnel. After END_STREAM is sent, the stream stays open until
// the peer ends its side too.
func (s *Stream) BothWays() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.bothWays = true
}

// SendHead sends the header block of an informational or final response.
func (s *Stream) SendHead(head *Block, end bool) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.gone || s.localEnded:
		return ErrGone
	case s.pending.any || len(c.out) >= c.outLimit():
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

// addHead adds a header block to the output. c.mu must be held.
func (c *Conn) addHead(s *Stream, head *Block, end bool) {
	c.sent++
	c.growOut(len(head.b) + len([]byte{noTable}) + (len(head.b)/maxFrameSize+2)*frameHeadSize)
	c.out = appendHeaders(c.out, s.id, c.withTable(head), end)
}

// withTable returns a header block. The first block of the connection is preceded by a dynamic table size
// update to 0. c.mu must be held.
func (c *Conn) withTable(head *Block) []byte {
	if c.headSent {
		return head.b
	}
	c.headSent = true
	return append([]byte{noTable}, head.b...)
}

// SendData sends content, followed by END_STREAM if end is true. waits reports whether only a part of p was added
// to the output. The rest is copied, and [Owner].Drained is called after the rest is added.
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

// SendTrailer sends a trailer section, which ends this side of the stream. waits has the same meaning
// as for SendData.
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

// wait marks the output of the stream as pending. c.mu must be held.
func (s *Stream) wait() {
	s.pending.any = true
	s.conn.enqueue(s)
}

// Waits reports whether output of the stream is pending.
func (s *Stream) Waits() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.pending.any && !s.gone
}

// Dropped reports whether the stream ended while output was pending. The result is valid after Waits has returned
// false, even if the owner's Failed method has not been called yet.
func (s *Stream) Dropped() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.dropped
}

// Cut is like Dropped but ignores a pending END_STREAM. It reports whether the stream ended before all
// header blocks and all content were added to the output.
func (s *Stream) Cut() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.cut
}

// Closed reports whether the stream is closed (RFC 9113 section 5.1).
func (s *Stream) Closed() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.gone
}

// Ended reports whether END_STREAM was added to the output.
func (s *Stream) Ended() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.localEnded
}

// Reset sends RST_STREAM with the given code and discards pending output. It does nothing if the stream has
// ended.
func (s *Stream) Reset(code Code) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.gone {
		c.reset(s, code)
	}
}

// reset is Reset for a stream that has not ended. c.mu must be held.
func (c *Conn) reset(s *Stream, code Code) {
	c.allocateOut()
	c.out = appendReset(c.out, s.id, code)
	c.countReply(resetSize)
	c.endEarly(s)
	c.remove(s)
}

// endEarly records that frames of a stream may arrive after this side has closed it. The peer may already have sent
// as much content as the window of the stream allows. c.mu must be held.
func (c *Conn) endEarly(s *Stream) {
	if !s.remoteEnded {
		c.closedEarly = true
		c.lateBytes = min(c.lateBytes+s.room, c.config.ConnWindow)
	}
}

// Credit adds n bytes to the window of the peer. due reports whether the caller must call Flush to send
// WINDOW_UPDATE.
func (s *Stream) Credit(n int) (due bool) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.gone || s.remoteEnded {
		return false
	}
	s.room += n
	if s.unannounced += n; s.unannounced >= c.config.Window/2 {
		c.allocateOut()
		c.out = appendWindowUpdate(c.out, s.id, s.unannounced)
		c.countReply(windowUpdateSize)
		s.unannounced = 0
		return true
	}
	return false
}

// take counts n bytes of received content. It returns s, or nil if the peer was not allowed to send the bytes.
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

// remoteEnds records that END_STREAM was received.
func (s *Stream) remoteEnds() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.remoteEnded = true
	if s.localEnded {
		s.conn.remove(s)
	}
}

// drop removes a stream that the peer has reset.
func (s *Stream) drop() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.conn.remove(s)
}

// failed reports err to the owner.
func (s *Stream) failed(by *Conn, err error) {
	s.events.Lock()
	defer s.events.Unlock()
	if s.owner != nil {
		s.owner.Failed(by, err)
	}
}

// end marks the stream as gone. After END_STREAM was sent, dropped and cut stay false, although pending may still
// contain the last frame. conn.mu must be held.
func (s *Stream) end() {
	s.gone = true
	s.dropped = s.pending.any && !s.localEnded
	s.cut = s.dropped && s.pending.size() > 0
}

// remove removes a stream from the connection. c.mu must be held.
func (c *Conn) remove(s *Stream) {
	if !s.gone {
		s.end()
		c.uploads.end(s)
		c.hold(-s.pending.size())
		s.pending = pending{}
		delete(c.streams, s.id)
		c.signalRoom()
		c.endIfIdle()
	}
}
