package h2

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/link"
	"github.com/queue-proxy/queue-proxy/pkg/socket"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// Config says how a connection behaves.
type Config struct {
	Client       bool            // we open the streams
	Window       int             // bytes of a stream that may come before they are credited
	ConnWindow   int             // the same for all streams of the connection together; they are credited at once
	MaxStreams   int             // maximum number of open streams of the peer, which is advertised; 0 for a client
	MaxHeadBytes int             // of a header block, decoded as RFC 9113 section 6.5.2 counts, and encoded
	HeadTimeout  time.Duration   // for the rest of a header block, or of another frame that is no DATA, once it has begun; 0: none
	SendTimeout  time.Duration   // for the peer to take the next bytes of what is written; 0: none
	Connect      bool            // extended CONNECT is understood (RFC 8441)
	Buffers      *socket.Buffers // of NewBuffers
	Bounds       *bound.Recorder // nil: events are not recorded
}

// A Handler gets the events of the connection. All methods are called by the
// goroutine that runs it and must not block.
type Handler interface {
	// Request says that the peer has opened a stream; end: all of the request is there. It is
	// never called for a client. The head is valid during the call.
	Request(id uint32, h *Head, end bool)

	// Full reports whether the handler accepts no request at the moment. The connection then
	// reads no header block until Resume is called. It is never called for a client.
	Full() bool

	// Received says that all has been handled that had come; partly: Waiting was called, and
	// the rest has still not come.
	Received(partly bool)

	// Waiting says that a header block, or another frame, is there in part.
	Waiting()

	// GoingAway says that the peer wants no more streams. Those of a client that it will not
	// serve have failed (RFC 9113 section 6.8).
	GoingAway()
}

// An Owner of a stream gets what comes on it, by the goroutine that runs the
// connection; by is that connection. Its methods must not block, and are not called any
// more once [Stream.Release] has returned.
type Owner interface {
	// Head is called for a response, an informational one included, and for a trailer
	// section. The head is valid during the call.
	Head(by *Conn, h *Head, end bool)

	// Data is called with a piece of the content, valid during the call. The owner gives the
	// peer room for n more bytes by [Stream.Credit]; n may be greater than len(p), by padding.
	Data(by *Conn, p []byte, n int, end bool)

	// Failed is called when the stream has ended before its time: with a *[ResetError], or
	// with what has ended the connection, joined with ErrUnsent. Nothing can be sent on it.
	Failed(by *Conn, err error)

	// Drained is called when all has been taken of what a Send has left waiting. by is nil
	// where another goroutine calls it.
	Drained(by *Conn)
}

// Bounds of what a peer may do.
const (
	// readSize is how much is read at once, in bytes, behind a read of smallSize that was
	// full.
	readSize = 32 << 10
	// smallSize is how much is read, or written, at once on a connection on which little
	// comes. With a thousand connections some hundred read at a time.
	smallSize = 4 << 10
	// outSize is how much is written at once; content waits while so much is waiting.
	outSize = 64 << 10
	// maxReplies is how much may wait of what the peer makes us send by its frames alone
	// (acknowledgements, resets, window updates), in bytes: it does not read them.
	maxReplies = 64 << 10
	// unknownMost is how many streams a peer may be thought to take that has not said it (RFC
	// 9113 section 6.5.2).
	unknownMost = 100
	// lingerTime is how long a connection that we end still takes what the peer sends, so
	// that it can read what was written (RFC 9112 section 9.6).
	lingerTime  = time.Second
	lingerBytes = 8 << 20
)

// NewBuffers returns buffers for connections, which may share them.
func NewBuffers() *socket.Buffers { return socket.NewBuffers(smallSize, readSize, largeOut) }

// Conn is a connection. Its exported methods may be called by any goroutine.
type Conn struct {
	link    *link.Conn
	config  Config
	handler Handler

	// Of the goroutine that reads.
	decoder  *hpack.Decoder
	head     Head
	pooled   *[]byte // what is read into; nil while nothing is there
	bulk     bool    // much comes
	n        int     // bytes of it, of the last read,
	err      error   // or what was wrong
	reading  func(fd uintptr) (done bool)
	preface  int    // bytes of it that have not come
	partial  []byte // of a frame that has come in part
	owing    bool   // the rest of a frame or of a block has a deadline
	data     dataFrame
	block    []byte        // of a header block in several frames
	blockID  uint32        // 0: there is none
	blockEnd bool          // of the stream, with the block
	selfish  bool          // the stream of HEADERS depends on itself
	settled  bool          // SETTINGS have come,
	agreed   chan struct{} // and then it is closed
	unsaid   int           // bytes that the connection's window has to be widened by
	touched  []*Conn
	refusing error // what was wrong with a Refuse
	budget   budget

	received atomic.Uint64 // useful frames that were received; see control
	resume   chan struct{} // holds a signal from Resume or Close

	mu        sync.Mutex
	streams   map[uint32]*Stream
	last      uint32  // the highest id that was opened: by the peer, or by a client itself
	seen      uint32  // the same, with streams that were refused because the connection is ending
	broken    error   // why nothing can be sent any more; nil: it can
	over      error   // why the connection has ended; nil: it has not
	early     bool    // a stream was ended before the peer had ended its side
	lateBytes int     // bytes of DATA that the peer may have sent on such streams
	barrier   barrier // of a client
	leaving   bool    // GOAWAY has been sent
	ending    bool    // no streams are opened any more; the connection ends with the last one

	// Of what is sent, guarded by mu.
	out        []byte        // waits
	outOf      *[]byte       // what out was taken from; nil: it has grown, or there is none
	replies    int           // bytes of out that the peer has caused by frames alone
	sent       uint64        // useful frames that were added to the output; see control
	taken      int           // how often out has been taken to be written
	writable   chan struct{} // closed when out has been taken; nil: nobody waits
	flushing   bool          // somebody writes,
	written    sync.Cond     // until this is signalled
	window     int           // of the connection
	initial    int           // window of a new stream
	most       uint32        // maximum number of open streams that the peer accepts
	advertised bool          // the peer has sent most
	begun      bool          // a header block has been sent
	ring       ring          // streams with something that waits for room, or for the connection's window

	// Of who writes.
	left     []byte
	again    bool
	writeErr error
	writing  func(fd uintptr) (done bool)
	patient  func(fd uintptr) (done bool)
}

// dataFrame is what has to come of a DATA frame. Its content is not collected.
type dataFrame struct {
	stream   *Stream // nil: nobody wants it
	left     int     // bytes of the payload, -1: no frame is open
	pad      int     // bytes of padding at the end of them
	padKnown bool    // pad has come, or there is none
	end      bool    // of the stream, behind it
}

// New returns a connection on l. What opens it is sent by the first Flush.
func New(l *link.Conn, config Config, handler Handler) *Conn {
	c := &Conn{
		link: l, config: config, handler: handler,
		streams: make(map[uint32]*Stream), window: defaultWindow, initial: defaultWindow, most: unknownMost,
		agreed: make(chan struct{}), resume: make(chan struct{}, 1),
	}
	c.budget = budget{left: controlBurst * c.factor(), refilled: time.Now()}
	c.barrier.unacked = 1
	c.data.left = -1
	c.reading, c.writing, c.patient = c.tryRead, c.tryWrite, c.tryWriteAll
	c.written.L = &c.mu
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) { c.head.add(f, config.MaxHeadBytes) })
	c.decoder.SetMaxStringLength(max(config.MaxHeadBytes, 1))
	if !config.Client {
		c.preface = len(wire.Preface)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room()
	if config.Client {
		c.out = append(c.out, wire.Preface...)
	}
	c.out = c.appendSettings(c.out)
	c.out = appendWindowUpdate(c.out, 0, config.ConnWindow-defaultWindow)
	return c
}

func (c *Conn) appendSettings(b []byte) []byte {
	at := len(b)
	b = appendFrameHead(b, 0, frameSettings, 0, 0)
	b = appendSetting(b, settingInitialWindow, c.config.Window)
	b = appendSetting(b, settingMaxHeaderListSize, c.config.MaxHeadBytes)
	if c.config.Client {
		b = appendSetting(b, settingEnablePush, 0)
	} else {
		b = appendSetting(b, settingMaxStreams, c.config.MaxStreams)
	}
	if c.config.Connect {
		b = appendSetting(b, settingConnectProtocol, 1)
	}
	b[at+2] = byte(len(b) - at - frameHeadSize)
	return b
}

// Settled returns a channel that is closed when the peer has sent its SETTINGS, the first
// sign that it speaks HTTP/2, or when the connection has ended.
func (c *Conn) Settled() <-chan struct{} { return c.agreed }

// Writable returns a channel that is closed when there may be room for another request,
// or the connection has ended.
func (c *Conn) Writable() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writable == nil {
		c.writable = make(chan struct{})
	}
	if c.broken != nil || len(c.out) < outSize {
		c.tellWritable()
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return c.writable
}

// tellWritable tells those who wait for Writable. c.mu is held.
func (c *Conn) tellWritable() {
	if c.writable != nil {
		close(c.writable)
		c.writable = nil
	}
}

// Spoke reports whether the peer has sent its SETTINGS. It is for who has called Run, when
// it has returned.
func (c *Conn) Spoke() bool { return c.settled }

// Err returns why no stream can be opened any more; nil: one can, unless the peer takes no
// more at the moment.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil:
		return c.broken
	case c.over != nil:
		return c.over
	case c.ending:
		return errEnding
	}
	return nil
}

// Streams returns how many streams are open.
func (c *Conn) Streams() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams)
}

// Link returns the connection beneath.
func (c *Conn) Link() *link.Conn { return c.link }

// Run reads until the connection ends, tells the owners of its streams, closes it, and
// returns why. early was read before. It is called once.
func (c *Conn) Run(early []byte) error {
	if c.config.Client {
		c.Flush(false)
	}
	c.owe(true)
	err := c.handle(early)
	for err == nil {
		if err = c.link.WaitRead(c.reading); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = c.late()
			}
			continue
		}
		if err = c.err; err == nil {
			err = c.handle((*c.pooled)[:c.n])
			c.bulk = c.n == len(*c.pooled) || c.bulk && c.n > smallSize
		}
		c.config.Buffers.Put(c.pooled)
		c.pooled = nil
	}
	c.end(err)
	return err
}

// errPreface says that the peer speaks another protocol (RFC 9113 section 3.4).
var errPreface = errors.New("http2: no preface")

// errEnded says that the connection has ended as it should.
var errEnded = errors.New("http2: the connection has ended")

// late decides what a read deadline means: that a frame is late, or that somebody has
// ended the connection.
func (c *Conn) late() error {
	err := c.lateCause()
	if errors.Is(err, errFrameTimeout) {
		c.hit(bound.FrameTimeout)
	}
	return err
}

var errFrameTimeout = fail(ProtocolError, "the rest of a frame did not arrive in time")

// lateCause returns the reason for an expired read deadline, or removes a deadline that has
// none.
func (c *Conn) lateCause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil:
		return c.broken
	case c.ending && len(c.streams) == 0:
		return errEnded
	case c.owing:
		return errFrameTimeout
	}
	c.link.SetReadDeadline(time.Time{}) // under mu, because endIfIdle sets it too
	return nil
}

// tryRead is what RawConn.Read calls when bytes may have come.
func (c *Conn) tryRead(fd uintptr) (done bool) {
	if c.pooled == nil {
		size := smallSize
		if c.bulk {
			size = readSize
		}
		c.pooled = c.config.Buffers.Get(size)
	}
	c.n, c.err = c.link.TryRead(fd, *c.pooled)
	if errors.Is(c.err, link.ErrAgain) {
		c.config.Buffers.Put(c.pooled)
		c.pooled = nil
		return false
	}
	return true
}

// handle handles input. It pauses while the handler is full.
func (c *Conn) handle(b []byte) error {
	for {
		rest, err := c.receive(b)
		if err != nil || len(rest) == 0 {
			return err
		}
		if err = c.pause(); err != nil {
			return err
		}
		b = rest
	}
}

// pause waits until the handler is no longer full, or the connection is closed.
func (c *Conn) pause() error {
	for c.handler.Full() {
		c.mu.Lock()
		err := c.broken
		c.mu.Unlock()
		if err != nil {
			return err
		}
		<-c.resume
	}
	return nil
}

// Resume makes the connection ask the handler again whether it is full.
func (c *Conn) Resume() {
	select {
	case c.resume <- struct{}{}:
	default:
	}
}

// receive handles input up to a frame for which the connection has to pause, and returns
// the rest.
func (c *Conn) receive(b []byte) (rest []byte, err error) {
	rest, err = c.frames(b)
	c.mu.Lock()
	if c.unsaid >= c.config.ConnWindow/4 {
		c.room()
		c.out = appendWindowUpdate(c.out, 0, c.unsaid)
		c.caused(windowUpdateSize)
		c.unsaid = 0
		c.FlushLater(c)
	}
	unread := c.replies > maxReplies && c.broken == nil
	c.mu.Unlock()
	if err == nil {
		err = c.checkReplies(unread)
	}
	c.handler.Received(c.owing)
	for i, d := range c.touched {
		c.touched[i] = nil
		d.Flush(d != c)
	}
	c.touched = c.touched[:0]
	return rest, err
}

// caused counts bytes of the output that a peer has caused by frames alone. A user
// container that does not read for a while is borne. c.mu is held.
func (c *Conn) caused(n int) {
	if !c.config.Client {
		c.replies += n
	}
}

// FlushLater flushes d once all has been handled that has come on c. It is for those
// who are called by the goroutine that runs c. With a nil c another goroutine flushes at
// once: who calls may hold what owners wait for that a flush tells of their streams.
func (c *Conn) FlushLater(d *Conn) {
	if c == nil {
		go d.Flush(false)
		return
	}
	for _, t := range c.touched {
		if t == d {
			return
		}
	}
	c.touched = append(c.touched, d)
}

// frames handles the frames in b. What there is of one that is not complete is kept, but
// for DATA. It stops before HEADERS if the handler is full, and returns the rest.
func (c *Conn) frames(b []byte) (rest []byte, err error) {
	if c.preface > 0 {
		n := min(c.preface, len(b))
		if at := len(wire.Preface) - c.preface; string(b[:n]) != wire.Preface[at:at+n] {
			return nil, errPreface
		}
		c.preface -= n
		b = b[n:]
		if c.preface == 0 {
			c.FlushLater(c) // our SETTINGS: who speaks another protocol gets none
		}
	}
	for len(b) > 0 {
		switch {
		case c.data.left >= 0:
			b, err = c.content(b)
		case !c.config.Client && len(c.partial) == 0 && len(b) >= frameHeadSize && b[3] == frameHeaders && c.handler.Full():
			c.owe(false)
			return b, nil
		case len(c.partial) == 0 && len(b) >= frameHeadSize && b[3] == frameData:
			err = c.beginData(b[:frameHeadSize])
			b = b[frameHeadSize:]
		case len(c.partial) > 0 || !whole(b):
			b, err = c.collect(b)
		default:
			n := frameHeadSize + payload(b)
			frame := b[:n]
			b = b[n:]
			err = c.frame(frame)
		}
		if err != nil {
			return nil, err
		}
	}
	c.owe(c.preface > 0 || len(c.partial) > 0 || c.blockID != 0 || !c.settled)
	return nil, nil
}

// payload returns the length of the payload of the frame that b begins with.
func payload(b []byte) int { return int(b[0])<<16 | int(b[1])<<8 | int(b[2]) }

// whole reports whether b begins with a whole frame.
func whole(b []byte) bool { return len(b) >= frameHeadSize && len(b) >= frameHeadSize+payload(b) }

// collect adds to a frame that has come in part, and handles it when it is whole. Of DATA
// only the head is collected.
func (c *Conn) collect(b []byte) ([]byte, error) {
	if len(c.partial) < frameHeadSize {
		n := min(frameHeadSize-len(c.partial), len(b))
		c.partial = append(c.partial, b[:n]...)
		if b = b[n:]; len(c.partial) < frameHeadSize {
			return b, nil
		}
		if payload(c.partial) > maxFrameSize {
			return nil, fail(FrameSizeError, "a frame is too long")
		}
		if c.partial[3] == frameData {
			head := c.partial
			c.partial = nil
			return b, c.beginData(head)
		}
	}
	n := min(frameHeadSize+payload(c.partial)-len(c.partial), len(b))
	c.partial = append(c.partial, b[:n]...)
	if len(c.partial) < frameHeadSize+payload(c.partial) {
		return nil, nil
	}
	frame := c.partial
	c.partial = nil
	return b[n:], c.frame(frame)
}

// owe starts or stops the clock for what the peer has begun.
func (c *Conn) owe(owes bool) {
	if owes == c.owing {
		return
	}
	c.owing = owes
	if owes {
		c.handler.Waiting()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil, c.ending && len(c.streams) == 0: // the deadline is that of the end
	case !owes:
		c.link.SetReadDeadline(time.Time{})
	case c.config.HeadTimeout > 0:
		c.link.SetReadDeadline(time.Now().Add(c.config.HeadTimeout))
	}
}

// frame handles a frame that is no DATA.
func (c *Conn) frame(f []byte) error {
	kind, flags, id := f[3], f[4], binary.BigEndian.Uint32(f[5:])&maxStreamID
	p := f[frameHeadSize:]
	switch {
	case len(p) > maxFrameSize:
		return fail(FrameSizeError, "a frame is too long")
	case c.blockID != 0 && (kind != frameContinuation || id != c.blockID):
		return fail(ProtocolError, "another frame within a header block")
	case !c.settled && kind != frameSettings:
		return fail(ProtocolError, "no SETTINGS first")
	}
	switch kind {
	case frameHeaders:
		return c.headersFrame(flags, id, p)
	case frameContinuation:
		return c.continuationFrame(flags, id, p)
	case framePriority:
		return c.priorityFrame(id, p)
	case frameReset:
		return c.resetFrame(id, p)
	case frameSettings:
		return c.settingsFrame(flags, id, p)
	case framePing:
		return c.pingFrame(flags, id, p)
	case frameGoAway:
		return c.goAwayFrame(id, p)
	case frameWindowUpdate:
		return c.windowFrame(id, p)
	case framePushPromise:
		return fail(ProtocolError, "PUSH_PROMISE")
	}
	return c.control(1) // unknown types are ignored (RFC 9113 section 4.1)
}

// reply adds a frame to the output that the peer has caused.
func (c *Conn) reply(add func(b []byte) []byte) error {
	c.mu.Lock()
	unread := false
	if c.broken == nil {
		c.room()
		n := len(c.out)
		c.out = add(c.out)
		c.replies += len(c.out) - n
		unread = c.replies > maxReplies
		c.FlushLater(c)
	}
	c.mu.Unlock()
	return c.checkReplies(unread)
}

// checkReplies returns an error if too many replies are unread.
func (c *Conn) checkReplies(unread bool) error {
	if unread {
		return c.exceeded(bound.UnreadReplies, bound.UnreadReplies, "replies to frames are not read")
	}
	return nil
}

// resetStream ends a stream of the peer's that is not, or not any more, among ours.
func (c *Conn) resetStream(id uint32, code Code) error {
	if err := c.control(1); err != nil {
		return err
	}
	c.mu.Lock()
	c.early = true
	c.mu.Unlock()
	return c.reply(func(b []byte) []byte { return appendReset(b, id, code) })
}

// mayComeLate reports whether frames may be on their way of a stream that we have ended.
func (c *Conn) mayComeLate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.early
}

// find returns the stream with that id; nil: there is none any more. idle: there has
// never been one.
func (c *Conn) find(id uint32) (s *Stream, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s = c.streams[id]
	ours := id%2 == 1 // of the client, and servers open none
	return s, s == nil && (!ours || id > c.seen)
}

// end tells all that the connection has ended, and closes it.
func (c *Conn) end(err error) {
	wrong, isWrong := errors.AsType[*Error](err)
	polite := isWrong || errors.Is(err, errEnded)
	c.mu.Lock()
	c.ending, c.over = true, err
	if !polite && c.broken == nil {
		c.broken = err
	}
	c.tellWritable()
	streams := c.streams
	c.streams, c.ring = nil, ring{}
	for _, s := range streams {
		s.gone, s.dropped = true, s.pending.any
	}
	if wrong != nil {
		c.room()
		c.out = appendGoAway(c.out, c.lastOfPeer(), wrong.Code)
	}
	taken := c.taken
	c.mu.Unlock()
	unsent := func(s *Stream) bool { return c.config.Client && !polite && s.taken == taken }
	if !c.settled {
		close(c.agreed)
	}
	for _, s := range streams {
		if unsent(s) {
			s.failed(c, errors.Join(ErrUnsent, err))
		} else {
			s.failed(c, err)
		}
	}
	for i, d := range c.touched {
		c.touched[i] = nil
		d.Flush(false)
	}
	if polite {
		c.linger(err)
	}
	if errors.Is(err, io.EOF) || polite {
		c.link.Close()
	} else {
		c.link.Cut()
	}
}

// linger writes what waits and lets the peer read it, then nothing more can be sent. A
// peer that has done nothing wrong has as long for it as for other responses.
func (c *Conn) linger(err error) {
	if !errors.Is(err, errEnded) {
		c.link.SetDeadline(time.Now().Add(lingerTime))
	}
	c.Flush(false)
	c.mu.Lock()
	for c.flushing {
		c.written.Wait()
	}
	failed := c.broken != nil && !errors.Is(c.broken, err)
	c.broken = err
	c.tellWritable()
	c.mu.Unlock()
	c.link.SetDeadline(time.Now().Add(lingerTime))
	if !failed && c.link.CloseWrite() == nil {
		c.link.Discard(lingerBytes)
	}
}

// Close ends the connection at once; it may be called more than once. The error is what
// the owners of its streams are notified.
func (c *Conn) Close(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over != nil {
		return
	}
	if c.broken == nil {
		c.broken = err
	}
	c.link.SetDeadline(past) // also after a write error, because the reader may still wait
	c.Resume()
}

var past = time.Unix(1, 0)

// GoAway tells the peer to open no more streams, without refusing one: the first of the two
// steps of a graceful end (RFC 9113 section 6.8).
func (c *Conn) GoAway() {
	c.mu.Lock()
	if c.broken == nil && !c.ending && !c.leaving {
		c.leaving = true
		c.room()
		c.out = appendGoAway(c.out, maxStreamID, NoError)
	}
	c.mu.Unlock()
	c.Flush(false)
}

// End is the second step: streams that are opened from now on are not served, and the
// connection ends with the last of those that are.
func (c *Conn) End() {
	c.mu.Lock()
	c.endStreams()
	c.mu.Unlock()
	c.Flush(false)
}

// endStreams is End without the flush. c.mu is held.
func (c *Conn) endStreams() {
	if c.broken == nil && !c.ending {
		c.ending = true
		c.room()
		c.out = appendGoAway(c.out, c.lastOfPeer(), NoError)
		c.endIfIdle()
	}
}

// lastOfPeer is what a GOAWAY says of the peer's streams, of which a server has none. c.mu
// is held.
func (c *Conn) lastOfPeer() uint32 {
	if c.config.Client {
		return 0
	}
	return c.last
}

// endIfIdle makes the reader end a connection that is ending and has no streams. c.mu is
// held.
func (c *Conn) endIfIdle() {
	if c.ending && len(c.streams) == 0 {
		c.link.SetReadDeadline(past)
	}
}
