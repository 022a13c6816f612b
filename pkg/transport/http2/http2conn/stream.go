package http2conn

import (
	"errors"
	"sync"
)

// A Stream carries one request and its response. Its exported methods are safe for concurrent use. They do not block,
// except Release. The frames that they send are added to the output of the connection, and the next [Conn.Flush]
// writes the output.
type Stream struct {
	conn *Conn
	id   uint32

	events sync.Mutex // held while a method of the owner runs
	owner  Owner      // nil after Release; guarded by events

	taken    int  // value of Conn.takes when the header block of a client's stream was added to the output
	answered bool // the header section of the final response was received; owned by the reader goroutine

	// The following fields are guarded by conn.mu.
	window      int // number of content bytes that this side may send; can be negative
	room        int // number of content bytes that the peer may send
	unannounced int // number of bytes credited since the last WINDOW_UPDATE for the stream
	pending     pending
	queued      bool // the stream is in conn.ring
	next        *Stream
	localEnded  bool // END_STREAM was added to the output
	remoteEnded bool // END_STREAM was received
	gone        bool // the stream was removed from conn.streams
	dropped     bool // result of Dropped
	cut         bool // result of Cut
	bothWays    bool // BothWays was called
	exclusive   bool // counted in conn.uploads.running
	reserved    int  // number of bytes counted in conn.uploads.reserved
}

// pending is the output of a stream that has not been added to the output of the connection yet. heads, data and tail
// are sent in this order.
type pending struct {
	heads []byte // frames of header blocks
	data  []byte
	tail  []byte // frames of the trailer section
	end   bool   // END_STREAM is sent with the last frame or in an empty DATA frame
	ends  bool   // the last frame in heads has END_STREAM
	any   bool   // output is pending
}

// size returns the number of pending bytes.
func (p *pending) size() int { return len(p.heads) + len(p.data) + len(p.tail) }

// ErrGone reports that a stream has ended.
var ErrGone = errors.New("http2: stream closed")

// Accept opens the stream of a request and returns it. end is the argument of [Handler].Request, which must be the
// caller. If nothing can be sent on the connection, Accept returns nil, and the owner receives no events.
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

// RefuseMalformed refuses a malformed request with PROTOCOL_ERROR (RFC 9113 section 8.1.1) and records a client error
// with the given text.
func (c *Conn) RefuseMalformed(id uint32, text string) {
	c.recordStreamError(fail(ProtocolError, text))
	c.Refuse(id, ProtocolError)
}

// Reject refuses a valid request that cannot be served now, with REFUSED_STREAM. Unlike Refuse, Reject counts the
// header block as a useful frame, which increases the number of control frames that the client may send.
func (c *Conn) Reject(id uint32) {
	c.received.Add(1)
	c.Refuse(id, RefusedStream)
}

// Open returns these errors if it did not send the request.
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
// ErrInUse, an unexported error if the connection is shutting down, or the error that ended the connection. After
// ErrFull, ErrShut or ErrBusy, [Config].Room receives a value when another call may succeed. The owner may receive
// events before Open returns. If careful is true, all streams that were abandoned in the last 10 seconds count
// against the limit of the server.
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
	case len(c.out) >= outSize: // addHead does not limit the length of the output
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

// Release ensures that no more methods of the owner are called. It waits until a running method of the owner returns,
// so a method of the owner must not call Release. Release does nothing if s is nil.
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

// BothWays marks the stream of a tunnel. After a server sends END_STREAM, such a stream stays open until the client
// also sends END_STREAM.
func (s *Stream) BothWays() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.bothWays = true
}

// SendHead sends the header block of an informational or final response, with END_STREAM if end is true. It returns
// ErrGone if the stream or this side of the stream has ended.
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

// withTable returns the bytes of a header block. The first block that is sent on the connection begins with noTable.
// c.mu must be held.
func (c *Conn) withTable(head *Block) []byte {
	if c.headSent {
		return head.b
	}
	c.headSent = true
	return append([]byte{noTable}, head.b...)
}

// SendData sends content, followed by END_STREAM if end is true. If the windows or the output buffer do not have enough
// space, SendData copies the rest of p, and waits is true. [Owner].Drained is called after the rest is added to the
// output. SendData returns ErrGone if the stream or this side of the stream has ended.
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

// SendTrailer sends a trailer section with END_STREAM. The results are the same as for SendData.
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

// wait marks the stream as a stream with pending output. c.mu must be held.
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

// Dropped reports whether the stream ended while output, including END_STREAM, was pending. The result is valid after
// Waits returns false, even if [Owner].Failed has not been called yet.
func (s *Stream) Dropped() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.dropped
}

// Cut is like Dropped, but ignores a pending END_STREAM. It reports whether the stream ended while a header block or
// content was pending.
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

// Reset sends RST_STREAM with the given code and discards the pending output of the stream. It does nothing if the
// stream has ended.
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

// endEarly is called before this side closes a stream. If the peer has not sent END_STREAM, endEarly records that
// frames of the stream may still arrive, with as much content as the window of the stream allows. c.mu must be held.
func (c *Conn) endEarly(s *Stream) {
	if !s.remoteEnded {
		c.closedEarly = true
		c.lateBytes = min(c.lateBytes+s.room, c.config.ConnWindow)
	}
}

// Credit allows the peer to send n more bytes on the stream. due reports whether a WINDOW_UPDATE frame was added to the
// output, so that the caller must flush the connection.
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

// take subtracts n bytes of received content, including padding, from the window. It returns s, or nil if the peer was
// not allowed to send the bytes.
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

// end marks the stream as gone and sets dropped and cut. If END_STREAM was added to the output, dropped and cut stay
// false, because the caller of ended may not have cleared pending yet. conn.mu must be held.
func (s *Stream) end() {
	s.gone = true
	s.dropped = s.pending.any && !s.localEnded
	s.cut = s.dropped && s.pending.size() > 0
}

// remove removes a stream from the connection. It does nothing if the stream was already removed. c.mu must be held.
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
