package http2conn

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// Config contains the settings of a connection. HeadTimeout and SendTimeout are ignored for a client.
type Config struct {
	Client       bool             // this side opens the streams
	Window       int              // initial window of a stream for received content, in bytes
	ConnWindow   int              // window of the connection for received content, in bytes
	MaxStreams   int              // advertised limit of concurrent streams (RFC 9113 section 5.1.2); 0 for a client
	MaxHeadBytes int              // maximum size of a header list (RFC 9113 section 6.5.2), in bytes
	HeadTimeout  time.Duration    // maximum time to receive the rest of a header block or non-DATA frame; 0 means no limit
	SendTimeout  time.Duration    // maximum time to wait until the peer reads more output; 0 means no limit
	Connect      bool             // enables extended CONNECT (RFC 8441)
	Buffers      *netconn.Buffers // returned by NewBuffers
	Memory       *netconn.Account // account of the connection; nil means no limit
	Bounds       *bound.Recorder  // if nil, events are not recorded

	// Room receives a value when a call to Open may succeed after an earlier call failed, and when the connection
	// ends. The send does not block, so the channel must be buffered. Only a client uses Room, which may be nil.
	Room chan<- struct{}
}

// A Handler receives the events of a connection. Its methods are called by the reader goroutine,
// which is the goroutine that runs [Conn.Run]. They must not block.
type Handler interface {
	// Request is called when the peer opens a stream. end reports whether the request has no
	// content. The head is valid only during the call. Request is never called for a client.
	Request(id uint32, h *Head, end bool)

	// Full reports whether the handler serves the maximum number of requests. If Full returns true, the connection does
	// not handle the next HEADERS frame until [Conn.Resume] is called. Full is never called for a client.
	Full() bool

	// Received is called after the available input is handled. partly reports whether the input ends within a frame or
	// a header block.
	Received(partly bool)

	// Waiting is called when the connection begins to wait for the preface, the first SETTINGS frame, or the rest
	// of a frame or header block.
	Waiting()

	// GoingAway is called when a GOAWAY frame is received. For a client, the streams that the server does not process
	// have already failed (RFC 9113 section 6.8).
	GoingAway()
}

// An Owner receives the events of a stream. The reader goroutine of the connection calls all methods
// except Drained. The methods must not block. They are not called after [Stream.Release]
// returns.
type Owner interface {
	// Head is called for each informational response, the final response, and the trailer section. h is valid only
	// during the call. end reports whether the header block has END_STREAM.
	Head(by *Conn, h *Head, end bool)

	// Data is called with received content. p is valid only during the call. After the owner has processed p, it
	// must call [Stream.Credit] with n, which is len(p) plus the length of the padding. end reports whether the peer
	// ends its side of the stream with p.
	Data(by *Conn, p []byte, n int, end bool)

	// Failed is called if the stream ends before it is complete. err is a *[ResetError] if the peer reset the stream,
	// an *[Error] if the peer violated the protocol, or the error that ended the connection. It is joined with
	// ErrUnsent if no byte of the request was written. Nothing can be sent on the stream after the call.
	Failed(by *Conn, err error)

	// Drained is called after all pending output of the stream is added to the output of the connection. by is the
	// connection of the stream if the reader goroutine calls Drained, and otherwise nil.
	Drained(by *Conn)
}

const (
	// smallSize is the initial size of the read buffer in bytes. It is small because hundreds of connections may
	// read at the same time.
	smallSize = 4 << 10
	// readSize is the size of the read buffer in bytes after a read has filled a buffer of smallSize bytes.
	readSize = 32 << 10
	// outSize is the maximum result of Conn.outLimit in bytes.
	outSize = 64 << 10
	// maxReplies is the maximum number of unwritten bytes in replies to frames from the peer. Replies are
	// acknowledgments and, for a server, RST_STREAM and WINDOW_UPDATE.
	maxReplies = 64 << 10
	// unknownMost is the maximum number of open streams if the peer has not advertised a limit. RFC 9113 section
	// 6.5.2 recommends that peers accept at least this number.
	unknownMost = 100
	// throttleTime is the delay after a read of readSize bytes if the connection holds more than its share of the
	// memory budget. The delay is proportional to the number of bytes.
	throttleTime = 100 * time.Millisecond
	// tlsRecords is the number of TLS records that crypto/tls may buffer: the current record and a part of the next
	// record.
	tlsRecords = 2
	// If a header block is longer than longBlock bytes, the memory to decode the block counts against the memory
	// budget. This memory is decodeFactor times the length of the block.
	longBlock    = 32 << 10
	decodeFactor = 2
)

// NewBuffers returns a pool of buffers for any number of connections.
func NewBuffers() *netconn.Buffers { return netconn.NewBuffers(smallSize, readSize, largeOut) }

// Conn is an HTTP/2 connection. Its exported methods are safe for concurrent use.
type Conn struct {
	link    *netconn.Conn
	config  Config
	handler Handler

	// The following fields are owned by the reader goroutine.
	decoder          *hpack.Decoder
	head             Head
	pooled           *[]byte // input buffer; nil while the reader waits
	bulk             bool    // the next read uses a buffer of readSize
	n                int     // number of bytes that the last read returned
	err              error   // error of the last read
	reading          func(fd uintptr) (done bool)
	preface          int           // number of bytes of the client preface that have not been received yet
	partial          []byte        // received part of an incomplete frame
	frameIncomplete  bool          // a frame or a header block is incomplete, and its timeout is running
	data             dataFrame     // the DATA frame that is being received
	block            []byte        // received part of an incomplete header block
	blockID          uint32        // stream of the incomplete header block; 0 if there is none
	blockEnd         bool          // the header block ends the stream
	refusals         int           // consecutive streams that the server refused without a response
	dependsOnSelf    bool          // the last HEADERS frame makes its stream depend on itself
	settingsReceived bool          // the first SETTINGS frame of the peer was received
	settingsArrived  chan struct{} // closed when settingsReceived is set or the connection ends
	unannounced      int           // DATA bytes received since the last WINDOW_UPDATE for the connection
	toFlush          []*Conn       // connections to flush after the input is handled; see FlushLater
	refusalErr       error         // error of the last call to Refuse
	budget           budget
	inputBytes       int // bytes of incomplete input in config.Memory

	noRoom   atomic.Bool   // Open returns ErrFull until Config.Room receives a value
	begin    time.Time     // time of the call to New
	received atomic.Uint64 // number of useful frames received; see budget.go
	resume   chan struct{} // receives a value from Resume or Close

	mu          sync.Mutex
	streams     map[uint32]*Stream // open streams
	last        uint32             // highest ID of the streams that were opened before ending was set
	seen        uint32             // highest ID of all streams
	broken      error              // error that makes further writes impossible; nil until then
	endErr      error              // error that ended the connection; nil until then
	closedEarly bool               // a stream was closed before the peer closed its side of the stream
	lateBytes   int                // number of DATA bytes that may still arrive on streams that were closed early
	barrier     barrier            // used only by a client
	leaving     bool               // GoAway was called
	ending      bool               // new streams are rejected; the connection closes after its last stream ends

	// The following fields describe the output and are guarded by mu.
	out                []byte    // output that takeOut has not passed to the writer yet
	outOf              *[]byte   // pooled buffer of out; nil if there is none
	longOut            int       // bytes charged to config.Memory if out is longer than pooled buffers; otherwise 0
	replies            int       // number of bytes in out that count against maxReplies
	sent               uint64    // number of useful frames added to out; see budget.go
	takes              int       // number of calls to takeOut that returned output
	openWaits          bool      // Open has returned ErrBusy since the last call to takeOut
	flushing           bool      // a writer is active
	written            sync.Cond // signals that flushing is false
	window             int       // number of content bytes that this side may send on the connection
	initial            int       // initial window of streams in bytes, as set by the peer
	maxStreams         uint32    // maximum number of open streams that the peer accepts
	maxStreamsReceived bool      // the peer has sent SETTINGS_MAX_CONCURRENT_STREAMS
	maxHeadSize        int       // maximum size of a header list that the peer accepts, in bytes; 0 means no limit
	headSent           bool      // a header block was sent
	uploads            uploads   // used only by a client
	ring               ring      // streams that wait for space in out or for the window of the connection
	pendingBytes       int       // sum of pending.size over all streams, as charged to config.Memory

	// The following fields are owned by the writer.
	left          []byte // unwritten remainder of the output
	wouldBlock    bool   // the last write returned ErrAgain
	writeErr      error
	writing       func(fd uintptr) (done bool)
	writingSlowly func(fd uintptr) (done bool)
}

// dataFrame is a DATA frame that is being received. Its content is delivered in parts as it arrives.
type dataFrame struct {
	stream   *Stream // nil if the content is discarded
	left     int     // remaining bytes of the payload; -1 between frames
	pad      int     // length of the padding
	padKnown bool    // pad was received, or there is no padding
	end      bool    // the frame ends the stream
}

// New returns an HTTP/2 connection on l. The first call to Flush sends SETTINGS. On a client, it sends the preface
// first.
func New(l *netconn.Conn, config Config, handler Handler) *Conn {
	if config.Client { // the callers limit the duration of requests to the user container
		config.HeadTimeout, config.SendTimeout = 0, 0
	}
	c := &Conn{
		link: l, config: config, handler: handler, begin: time.Now(),
		streams: make(map[uint32]*Stream), window: defaultWindow, initial: defaultWindow, maxStreams: unknownMost,
		uploads: uploads{peak: defaultWindow}, settingsArrived: make(chan struct{}), resume: make(chan struct{}, 1),
	}
	c.budget = budget{left: controlBurst * c.factor(), refilled: time.Now()}
	c.barrier.unacked = 1
	c.data.left = -1
	c.reading, c.writing, c.writingSlowly = c.tryRead, c.tryWrite, c.tryWriteAll
	c.written.L = &c.mu
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) { c.head.add(f, config.MaxHeadBytes) })
	// The decoder must accept each string that fits into a block of maxBlock bytes, even after Huffman decoding,
	// because a decoder error closes the connection. A string that exceeds the maximum size of the header list fails
	// only its own stream.
	c.decoder.SetMaxStringLength(2 * c.maxBlock())
	if !config.Client {
		c.preface = len(wire.Preface)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allocateOut()
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

// SettingsArrived returns a channel that is closed when the first SETTINGS frame of the peer arrives, which
// shows that the peer supports HTTP/2, or when the connection ends.
func (c *Conn) SettingsArrived() <-chan struct{} { return c.settingsArrived }

// signalRoom sends a value on Config.Room, because a call to Open may succeed now. c.mu must be held.
func (c *Conn) signalRoom() {
	if c.config.Room == nil {
		return
	}
	if c.noRoom.Load() {
		c.noRoom.Store(false)
	}
	select {
	case c.config.Room <- struct{}{}:
	default: // the channel still contains the last value
	}
}

// NoRoom reports whether each call to Open would return ErrFull. If NoRoom returns false, Open can still fail. NoRoom
// is cheaper than Open.
func (c *Conn) NoRoom() bool { return c.noRoom.Load() }

// ReceivedSettings reports whether the peer sent SETTINGS. It must be called only after Run returns, by the goroutine
// that called Run.
func (c *Conn) ReceivedSettings() bool { return c.settingsReceived }

// Err returns an error if the connection can no longer open streams, and nil if it can open streams now or later.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil:
		return c.broken
	case c.endErr != nil:
		return c.endErr
	case c.ending:
		return errEnding
	}
	return nil
}

// Streams returns the number of open streams.
func (c *Conn) Streams() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams)
}

// Link returns the underlying connection.
func (c *Conn) Link() *netconn.Conn { return c.link }

// Run reads frames until the connection ends. It then calls Failed for the owners of the open streams, closes the
// connection, and returns the error that ended the connection. early contains bytes that were already read from the
// connection. Run must be called only once.
func (c *Conn) Run(early []byte) error {
	if c.config.Client {
		c.Flush(false)
	}
	c.setFrameIncomplete(true)
	err := c.handle(early)
	for err == nil {
		c.throttle()
		if err = c.link.WaitRead(c.reading); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = c.handleDeadline()
			}
			continue
		}
		if err = c.err; err == nil {
			err = c.handle((*c.pooled)[:c.n])
			c.bulk = c.n == len(*c.pooled) || c.bulk && c.n > smallSize
		}
		c.config.Buffers.Put(c.pooled)
		c.pooled = nil
		if c.bulk {
			// More input is probably available. Let the goroutines of other connections run first, because this
			// goroutine might continue for 10 ms. Their output can then be written by one system call.
			runtime.Gosched()
		}
	}
	c.end(err)
	return err
}

// throttle delays the next read if the memory budget is exceeded or if the connection holds more than its share. The
// delay is limited, because the connection may release memory only after it reads more input, for example WINDOW_UPDATE
// or the rest of a body.
func (c *Conn) throttle() {
	c.config.Memory.AwaitLimit()
	if !c.config.Memory.Over() {
		return
	}
	select {
	case <-c.resume:
	case <-time.After(throttleTime * time.Duration(c.n) / readSize):
	}
}

// awaitMemory waits until the connection can hold n more bytes and charges these bytes to the memory budget. If the
// memory is not available in time, it returns an error, and the connection must be closed.
func (c *Conn) awaitMemory(n int) error {
	if c.config.Memory.Await(n) {
		return nil
	}
	c.Hit(bound.Memory)
	return errLongBlock
}

// ErrMemory is the error of a connection that is closed because the memory budget is exhausted.
var ErrMemory = errors.New("http2: memory budget exhausted")

// errLongBlock is returned if no memory is available for a long header block. It wraps ErrMemory.
var errLongBlock = &Error{Code: EnhanceYourCalm, Text: "not enough memory for the header block", Cause: ErrMemory}

// chargeInput charges the memory of the current input to the memory budget: an incomplete frame, an incomplete header
// block, the fields of a block with many fields, and the records that crypto/tls may buffer.
func (c *Conn) chargeInput() {
	n := cap(c.partial) + cap(c.block)
	if fields := cap(c.head.Fields); fields > manyFields {
		n += fields * fieldSize
	}
	if c.pooled != nil && c.n == len(*c.pooled) && c.link.Secure() { // crypto/tls may hold the rest of a record
		n += tlsRecords * netconn.MaxRecord
	}
	c.inputBytes = c.config.Memory.Set(c.inputBytes, n)
}

// hold adds n to pendingBytes. n may be negative. c.mu must be held.
func (c *Conn) hold(n int) {
	c.pendingBytes = c.config.Memory.Set(c.pendingBytes, c.pendingBytes+n)
}

// errPreface reports that the client did not send the connection preface (RFC 9113 section 3.4).
var errPreface = errors.New("http2: the connection preface is missing")

// errEnded reports that the connection was closed after its last stream ended.
var errEnded = errors.New("http2: connection closed")

// handleDeadline is called when the read deadline expires. It returns nil if the connection stays open.
func (c *Conn) handleDeadline() error {
	err := c.lateCause()
	if errors.Is(err, errFrameTimeout) {
		c.Hit(bound.FrameTimeout)
	}
	return err
}

var errFrameTimeout = fail(ProtocolError, "timeout while reading a frame")

// lateCause returns the reason why the read deadline was set. If the reason no longer applies, lateCause removes the
// deadline and returns nil.
func (c *Conn) lateCause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil:
		return c.broken
	case c.ending && len(c.streams) == 0:
		return errEnded
	case c.frameIncomplete:
		return errFrameTimeout
	}
	c.link.SetReadDeadline(time.Time{}) // mu is held, because endIfIdle also sets the deadline
	return nil
}

// tryRead reads available input into c.pooled. RawConn.Read calls tryRead each time the socket is readable, until
// done is true.
func (c *Conn) tryRead(fd uintptr) (done bool) {
	if c.pooled == nil {
		size := smallSize
		if c.bulk && !c.config.Memory.Scarce() {
			size = readSize
		}
		c.pooled = c.config.Buffers.Get(size)
	}
	c.n, c.err = c.link.TryRead(fd, *c.pooled)
	if errors.Is(c.err, netconn.ErrAgain) {
		c.config.Buffers.Put(c.pooled)
		c.pooled = nil
		return false
	}
	return true
}

// handle processes all of b. It waits while Handler.Full returns true.
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

// pause waits until Handler.Full returns false or the connection is closed.
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

// Resume causes the connection to call Handler.Full again if the connection waits because Full returned true. It does
// not block.
func (c *Conn) Resume() {
	select {
	case c.resume <- struct{}{}:
	default:
	}
}

// receive processes input and flushes the resulting output. While Handler.Full returns true, it stops before a HEADERS
// frame and returns the remaining bytes.
func (c *Conn) receive(b []byte) (rest []byte, err error) {
	rest, err = c.frames(b)
	c.mu.Lock()
	if c.unannounced >= c.config.ConnWindow/4 {
		c.allocateOut()
		c.out = appendWindowUpdate(c.out, 0, c.unannounced)
		c.countReply(windowUpdateSize)
		c.unannounced = 0
		c.FlushLater(c)
	}
	unread := c.replies > maxReplies && c.broken == nil
	c.mu.Unlock()
	if err == nil {
		err = c.checkReplies(unread)
	}
	c.chargeInput()
	c.handler.Received(c.frameIncomplete)
	for i, d := range c.toFlush {
		c.toFlush[i] = nil
		d.Flush(d != c)
	}
	c.toFlush = c.toFlush[:0]
	return rest, err
}

// countReply counts n bytes of RST_STREAM or WINDOW_UPDATE frames against maxReplies. It does nothing for a client,
// because a user container may stop reading temporarily. c.mu must be held.
func (c *Conn) countReply(n int) {
	if !c.config.Client {
		c.replies += n
	}
}

// FlushLater flushes d after the available input of c is handled. It must be called by the reader goroutine of c. If c
// is nil, FlushLater starts a goroutine that flushes d, because the caller may hold a lock that the Drained method of
// an owner acquires.
func (c *Conn) FlushLater(d *Conn) {
	if c == nil {
		go d.Flush(false)
		return
	}
	if !slices.Contains(c.toFlush, d) {
		c.toFlush = append(c.toFlush, d)
	}
}

// frames processes the frames in b. An incomplete frame is stored until the next call, but DATA frames are processed in
// parts. While Handler.Full returns true, frames stops before a HEADERS frame and returns the remaining bytes.
func (c *Conn) frames(b []byte) (rest []byte, err error) {
	if c.preface > 0 {
		n := min(c.preface, len(b))
		if at := len(wire.Preface) - c.preface; string(b[:n]) != wire.Preface[at:at+n] {
			return nil, errPreface
		}
		c.preface -= n
		b = b[n:]
		if c.preface == 0 {
			c.FlushLater(c) // send SETTINGS only after a valid preface
		}
	}
	for len(b) > 0 {
		switch {
		case c.data.left >= 0:
			b, err = c.content(b)
		case !c.config.Client && len(c.partial) == 0 && len(b) >= frameHeadSize && b[3] == frameHeaders && c.handler.Full():
			c.setFrameIncomplete(false)
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
	c.setFrameIncomplete(c.preface > 0 || len(c.partial) > 0 || c.blockID != 0 || !c.settingsReceived)
	return nil, nil
}

// payload returns the payload length, in bytes, of the first frame in b.
func payload(b []byte) int { return int(b[0])<<16 | int(b[1])<<8 | int(b[2]) }

// whole reports whether b begins with a complete frame.
func whole(b []byte) bool { return len(b) >= frameHeadSize && len(b) >= frameHeadSize+payload(b) }

// collect appends input to c.partial, handles the frame if it is complete, and returns the remaining input. For a DATA
// frame, it collects only the frame header.
func (c *Conn) collect(b []byte) ([]byte, error) {
	if len(c.partial) < frameHeadSize {
		n := min(frameHeadSize-len(c.partial), len(b))
		c.partial = append(c.partial, b[:n]...)
		if b = b[n:]; len(c.partial) < frameHeadSize {
			return b, nil
		}
		if payload(c.partial) > maxFrameSize {
			return nil, fail(FrameSizeError, "frame too long")
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

// setFrameIncomplete sets c.frameIncomplete. If the value changes, it starts or stops Config.HeadTimeout.
func (c *Conn) setFrameIncomplete(incomplete bool) {
	if incomplete == c.frameIncomplete {
		return
	}
	c.frameIncomplete = incomplete
	if incomplete {
		c.handler.Waiting()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil, c.ending && len(c.streams) == 0: // the deadline was set to end the connection
	case !incomplete:
		c.link.SetReadDeadline(time.Time{})
	case c.config.HeadTimeout > 0:
		c.link.SetReadDeadline(time.Now().Add(c.config.HeadTimeout))
	}
}

// frame handles a complete frame other than DATA.
func (c *Conn) frame(f []byte) error {
	kind, flags, id := f[3], f[4], binary.BigEndian.Uint32(f[5:])&maxStreamID
	p := f[frameHeadSize:]
	switch {
	case len(p) > maxFrameSize:
		return fail(FrameSizeError, "frame too long")
	case c.blockID != 0 && (kind != frameContinuation || id != c.blockID):
		return fail(ProtocolError, "unexpected frame in a header block")
	case !c.settingsReceived && kind != frameSettings:
		return fail(ProtocolError, "the initial SETTINGS frame is missing")
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
		return fail(ProtocolError, "unexpected PUSH_PROMISE")
	}
	return c.countControl(1) // frames of unknown types are ignored (RFC 9113 section 4.1)
}

// reply adds a response to a frame of the peer to the output. add appends the response to its argument.
func (c *Conn) reply(add func(b []byte) []byte) error {
	c.mu.Lock()
	unread := false
	if c.broken == nil {
		c.allocateOut()
		n := len(c.out)
		c.out = add(c.out)
		c.replies += len(c.out) - n
		unread = c.replies > maxReplies
		c.FlushLater(c)
	}
	c.mu.Unlock()
	return c.checkReplies(unread)
}

// checkReplies returns a connection error if unread is true.
func (c *Conn) checkReplies(unread bool) error {
	if unread {
		return c.exceeded(bound.UnreadReplies, bound.AppUnreadReplies, "the peer does not read replies")
	}
	return nil
}

// resetStream sends RST_STREAM for a stream of the peer that is not in c.streams.
func (c *Conn) resetStream(id uint32, code Code) error {
	if err := c.countControl(1); err != nil {
		return err
	}
	c.mu.Lock()
	c.closedEarly = true
	c.mu.Unlock()
	return c.reply(func(b []byte) []byte { return appendReset(b, id, code) })
}

// expectsLateFrames reports whether frames may arrive on streams that this side has already closed.
func (c *Conn) expectsLateFrames() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closedEarly
}

// find returns the open stream with the given ID, or nil if there is none. idle reports whether the
// stream was never opened.
func (c *Conn) find(id uint32) (s *Stream, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s = c.streams[id]
	ours := id%2 == 1 // only clients open streams, and their IDs are odd (RFC 9113 section 5.1.1)
	return s, s == nil && (!ours || id > c.seen)
}

// end calls Failed with err for the owners of all open streams, and closes the connection.
func (c *Conn) end(err error) {
	wrong, isWrong := errors.AsType[*Error](err)
	polite := isWrong || errors.Is(err, errEnded)
	c.recordError(wrong, err)
	c.mu.Lock()
	c.ending, c.endErr = true, err
	if !polite && c.broken == nil {
		c.broken = err
	}
	c.signalRoom()
	streams := c.streams
	c.streams, c.ring = nil, ring{}
	for _, s := range streams {
		s.end()
		s.pending = pending{}
	}
	c.hold(-c.pendingBytes)
	c.longOut = c.config.Memory.Set(c.longOut, 0)
	if wrong != nil {
		c.allocateOut()
		c.out = appendGoAway(c.out, c.lastOfPeer(), wrong.Code)
	}
	taken := c.takes
	c.mu.Unlock()
	unsent := func(s *Stream) bool { return c.config.Client && !polite && s.taken == taken }
	if !c.settingsReceived {
		close(c.settingsArrived)
	}
	for _, s := range streams {
		if unsent(s) {
			s.failed(c, errors.Join(ErrUnsent, err))
		} else {
			s.failed(c, err)
		}
	}
	for i, d := range c.toFlush {
		c.toFlush[i] = nil
		d.Flush(false)
	}
	c.partial, c.block, c.head.Fields = nil, nil, nil
	c.chargeInput()
	if polite {
		c.linger(err)
	}
	if errors.Is(err, io.EOF) || polite {
		c.link.Close()
	} else {
		c.link.Cut()
	}
}

// linger writes the remaining output and then discards input, so that the peer can read the output before the
// connection is closed. If the peer violated the protocol or exceeded a bound, the output must be written within
// netconn.LingerTime. Otherwise Config.SendTimeout applies.
func (c *Conn) linger(err error) {
	if !errors.Is(err, errEnded) {
		c.link.SetDeadline(time.Now().Add(netconn.LingerTime))
	}
	c.Flush(false)
	c.mu.Lock()
	for c.flushing {
		c.written.Wait()
	}
	failed := c.broken != nil && !errors.Is(c.broken, err)
	c.broken = err
	c.signalRoom()
	c.mu.Unlock()
	if !failed {
		c.link.Linger(!errors.Is(err, errEnded))
	}
}

// Close closes the connection without writing the remaining output. The owners of open streams receive err. Close can
// be called more than once. It also ends a graceful shutdown, which could otherwise wait for SendTimeout if the peer
// does not read.
func (c *Conn) Close(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endErr != nil && c.broken != nil { // Run is closing the connection, and linger limits the remaining time
		return
	}
	if c.broken == nil {
		c.broken = err
		c.signalRoom()
	}
	c.link.SetDeadline(past) // needed even if broken was set by a write error, because the reader may still wait
	c.Resume()
}

var past = time.Unix(1, 0)

// GoAway starts a graceful shutdown (RFC 9113 section 6.8). It sends GOAWAY, but still serves all streams that the peer
// opens before End is called.
func (c *Conn) GoAway() {
	c.mu.Lock()
	if c.broken == nil && !c.ending && !c.leaving {
		c.leaving = true
		c.allocateOut()
		c.out = appendGoAway(c.out, maxStreamID, NoError)
	}
	c.mu.Unlock()
	c.Flush(false)
}

// End completes a graceful shutdown. It sends GOAWAY with the ID of the last stream that is served. New streams are
// refused, and the connection is closed after the last open stream ends.
func (c *Conn) End() {
	c.mu.Lock()
	c.endStreams()
	c.mu.Unlock()
	c.Flush(false)
}

// endStreams is End without the flush. c.mu must be held.
func (c *Conn) endStreams() {
	if c.broken == nil && !c.ending {
		c.ending = true
		c.signalRoom()
		c.allocateOut()
		c.out = appendGoAway(c.out, c.lastOfPeer(), NoError)
		c.endIfIdle()
	}
}

// lastOfPeer returns the last stream ID for a GOAWAY frame. The ID is 0 for a client, because servers open no
// streams. c.mu must be held.
func (c *Conn) lastOfPeer() uint32 {
	if c.config.Client {
		return 0
	}
	return c.last
}

// endIfIdle makes the reader close the connection if the connection is ending and has no streams. c.mu must be
// held.
func (c *Conn) endIfIdle() {
	if c.ending && len(c.streams) == 0 {
		c.link.SetReadDeadline(past)
	}
}
