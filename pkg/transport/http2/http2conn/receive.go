package http2conn

import (
	"encoding/binary"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// beginData handles the frame header of a DATA frame (RFC 9113 section 6.1).
func (c *Conn) beginData(head []byte) error {
	length, flags, id := payload(head), head[4], binary.BigEndian.Uint32(head[5:])&maxStreamID
	switch {
	case length > maxFrameSize:
		return fail(FrameSizeError, "frame too long")
	case c.blockID != 0:
		return fail(ProtocolError, "unexpected frame in a header block")
	case !c.settingsReceived:
		return fail(ProtocolError, "the initial SETTINGS frame is missing")
	}
	// Padding and discarded content also count against the window of the connection (RFC 9113 section 6.9), and are
	// credited to it. Otherwise each reset stream would reduce the window permanently.
	if c.unannounced += length; c.unannounced > c.config.ConnWindow {
		return fail(FlowControlError, "DATA exceeds the connection window")
	}
	s, idle := c.find(id)
	if idle {
		return fail(ProtocolError, "DATA on an idle stream")
	}
	d := &c.data
	*d = dataFrame{left: length, end: flags&flagEndStream != 0, padKnown: flags&flagPadded == 0}
	if !d.padKnown && length == 0 {
		return fail(ProtocolError, "the padding length is missing")
	}
	if s != nil {
		d.stream = s.take(length)
	}
	var err error
	switch {
	case d.stream == nil && s != nil:
		err = c.refuseData(s)
	// A client ignores DATA on a closed stream, because the user container may not have received RST_STREAM yet.
	case s == nil && !c.config.Client && !c.isLate(length):
		err = c.resetStream(id, StreamClosed)
	case length == 0 && !d.end:
		err = c.countControl(1)
	}
	if err == nil && length == 0 {
		err = c.deliver(nil, 0)
	}
	return err
}

// isLate reports whether a client may have sent a DATA frame of the given length on a closed stream before it received
// RST_STREAM (RFC 9113 section 5.1). Such a frame is ignored.
func (c *Conn) isLate(length int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := max(length, 1) // an empty frame with END_STREAM counts as one byte, so that the number of frames is limited
	if c.lateBytes < n {
		return false
	}
	c.lateBytes -= n
	return true
}

// refuseData resets a stream after a DATA frame that exceeds the window or follows END_STREAM.
func (c *Conn) refuseData(s *Stream) error {
	code := FlowControlError
	if s.remoteHasEnded() {
		code = StreamClosed
	}
	return c.streamError(s, code, "unexpected DATA")
}

// streamError resets an open stream because the peer violated the protocol.
func (c *Conn) streamError(s *Stream, code Code, text string) error {
	// The cost includes the controlPerUseful frames that the HEADERS frame of the stream added to the budget, because
	// work on the request may continue after the reset. Otherwise a peer that causes resets could start more work than
	// the limit of concurrent streams allows (CVE-2025-8671).
	if err := c.countControl(1 + controlPerUseful); err != nil {
		return err
	}
	s.Reset(code)
	c.FlushLater(c)
	err := fail(code, text)
	c.recordStreamError(err)
	s.failed(c, err)
	return nil
}

// content handles the part of a DATA payload at the beginning of b and returns the rest of b.
func (c *Conn) content(b []byte) ([]byte, error) {
	d := &c.data
	extra := 0
	if !d.padKnown {
		d.pad, d.padKnown = int(b[0]), true
		d.left--
		if b = b[1:]; d.pad > d.left {
			return nil, fail(ProtocolError, "padding exceeds the payload")
		}
		extra = d.pad + 1
		if d.pad == d.left && !d.end { // the frame has no content
			if err := c.countControl(1); err != nil {
				return nil, err
			}
		}
	}
	n := min(len(b), d.left)
	p := b[:min(n, d.left-min(d.pad, d.left))]
	d.left -= n
	return b[n:], c.deliver(p, extra)
}

// deliver passes content to the owner of the stream. extra is the number of padding bytes, which also
// count against the window.
func (c *Conn) deliver(p []byte, extra int) error {
	d := &c.data
	s, end := d.stream, d.end && d.left == 0
	if s != nil && len(p) > 0 {
		c.received.Add(1)
	}
	if d.left == 0 {
		*d = dataFrame{left: -1}
	}
	if s == nil || len(p)+extra == 0 && !end {
		return nil
	}
	if end {
		s.remoteEnds()
	}
	s.events.Lock()
	defer s.events.Unlock()
	if s.owner != nil {
		s.owner.Data(c, p, len(p)+extra, end)
	}
	return nil
}

// unpad returns the payload of a HEADERS frame without padding (RFC 9113 section 6.2).
func unpad(flags byte, p []byte) ([]byte, error) {
	if flags&flagPadded == 0 {
		return p, nil
	}
	if len(p) == 0 || int(p[0]) >= len(p) {
		return nil, fail(ProtocolError, "padding exceeds the payload")
	}
	return p[1 : len(p)-int(p[0])], nil
}

func (c *Conn) headersFrame(flags byte, id uint32, p []byte) error {
	if id == 0 {
		return fail(ProtocolError, "HEADERS on stream 0")
	}
	p, err := unpad(flags, p)
	if err != nil {
		return err
	}
	c.dependsOnSelf = false
	if flags&flagPriority != 0 { // the priority is deprecated and ignored (RFC 9113 section 5.3.2)
		if len(p) < 5 {
			return fail(FrameSizeError, "HEADERS with incomplete priority")
		}
		c.dependsOnSelf = binary.BigEndian.Uint32(p)&maxStreamID == id
		p = p[5:]
	}
	end := flags&flagEndStream != 0
	if flags&flagEndHeaders == 0 {
		c.blockID, c.blockEnd = id, end
		c.block = append([]byte(nil), p...) // p is part of the input buffer, which is reused before the rest arrives
		return nil
	}
	return c.headers(id, p, end)
}

// continuationFrame appends a CONTINUATION frame to the header block and handles the block if it is complete. The
// length of the block is limited (RFC 9113 section 10.5.1).
func (c *Conn) continuationFrame(flags byte, id uint32, p []byte) error {
	if c.blockID == 0 {
		return fail(ProtocolError, "CONTINUATION without HEADERS")
	}
	if len(c.block)+len(p) > c.maxBlock() {
		return c.exceeded(bound.HeaderBlock, bound.AppHeaderBlock, "header block too long")
	}
	if err := c.growBlock(len(p)); err != nil {
		return err
	}
	c.block = append(c.block, p...)
	if flags&flagEndHeaders == 0 {
		if len(p) == 0 { // maxBlock does not limit the number of empty frames
			return c.countControl(1)
		}
		return nil
	}
	block := c.block
	c.block, c.blockID = nil, 0
	return c.headers(id, block, c.blockEnd)
}

// growBlock reserves space for n more bytes of the header block, and charges the space to the memory budget.
func (c *Conn) growBlock(n int) error {
	n += len(c.block)
	held := cap(c.block)
	if n <= held {
		return nil
	}
	n = max(n, min(2*held, c.maxBlock()))
	if err := c.awaitMemory(n); err != nil {
		return err
	}
	c.block = append(make([]byte, 0, n), c.block...)
	c.config.Memory.Sub(held)
	c.inputBytes += n - held
	return nil
}

// maxBlock returns the maximum length of an encoded header block in bytes. A longer block closes the connection. The
// value exceeds the maximum size of the header list, so that a slightly larger header list fails only its own stream.
func (c *Conn) maxBlock() int { return 2*c.config.MaxHeadBytes + maxFrameSize }

// headers handles a complete header block. A block is decoded even if it is then discarded, because later blocks may
// refer to the entries that it adds to the dynamic table (RFC 9113 section 4.3).
func (c *Conn) headers(id uint32, block []byte, end bool) error {
	h := &c.head
	h.reset()
	defer h.shrink()
	h.lenient = c.config.Client
	if len(block) > longBlock {
		n := decodeFactor * len(block)
		if err := c.awaitMemory(n); err != nil {
			return err
		}
		defer c.config.Memory.Sub(n)
	}
	if _, err := c.decoder.Write(block); err != nil {
		return fail(CompressionError, "failed to decode the header block")
	}
	if err := c.decoder.Close(); err != nil {
		return fail(CompressionError, "incomplete header block")
	}
	s, idle := c.find(id)
	switch {
	case idle && !c.config.Client && id%2 == 1:
		return c.request(id, end)
	case idle:
		return fail(ProtocolError, "HEADERS on an invalid stream")
	case s == nil && c.config.Client: // the stream was reset by this side
		return nil
	case s == nil && !c.expectsLateFrames(): // RFC 9113 section 5.1
		return fail(StreamClosed, "HEADERS on a closed stream")
	case s == nil: // the client may have sent the trailers before it received RST_STREAM
		return c.countControl(1)
	case s.remoteHasEnded():
		return c.streamError(s, StreamClosed, "HEADERS after END_STREAM")
	}
	if c.config.Client && !s.answered {
		return c.response(s, end)
	}
	if !end || h.pseudo() {
		h.Malformed = true
	}
	return c.notifyHead(s, end)
}

// request handles a header block that opens a stream.
func (c *Conn) request(id uint32, end bool) error {
	c.mu.Lock()
	ending, full := c.ending, len(c.streams) >= c.config.MaxStreams
	if c.seen = id; !ending {
		c.last = id
	}
	c.mu.Unlock()
	switch {
	case full:
		c.Hit(bound.ConcurrentStreams)
		fallthrough
	case ending:
		c.Refuse(id, RefusedStream)
		return c.refusalErr
	case c.dependsOnSelf:
		c.RefuseMalformed(id, "the stream depends on itself")
		return c.refusalErr
	}
	if c.head.status != "" {
		c.head.Malformed = true
	}
	c.handler.Request(id, &c.head, end)
	return c.refusalErr
}

// response handles the header block of an informational or final response.
func (c *Conn) response(s *Stream, end bool) error {
	h := &c.head
	h.readStatus()
	if h.Method+h.Scheme+h.Authority+h.Path+h.Protocol != "" {
		h.Malformed = true
	}
	interim := 100 <= h.Status && h.Status < 200
	if interim && end {
		h.Malformed = true
	}
	s.answered = !interim
	c.refusals = 0
	return c.notifyHead(s, end)
}

func (c *Conn) notifyHead(s *Stream, end bool) error {
	c.received.Add(1)
	if end {
		s.remoteEnds()
	}
	s.events.Lock()
	defer s.events.Unlock()
	if s.owner != nil {
		s.owner.Head(c, &c.head, end)
	}
	return nil
}

func (c *Conn) priorityFrame(id uint32, p []byte) error {
	switch {
	case id == 0:
		return fail(ProtocolError, "PRIORITY on stream 0")
	case len(p) != 5:
		return c.endStream(id, FrameSizeError, "PRIORITY with an invalid length")
	case binary.BigEndian.Uint32(p)&maxStreamID == id:
		return c.endStream(id, ProtocolError, "the stream depends on itself")
	}
	return c.countControl(1)
}

// endStream is like streamError, but the stream does not have to be open.
func (c *Conn) endStream(id uint32, code Code, text string) error {
	if s, _ := c.find(id); s != nil {
		return c.streamError(s, code, text)
	}
	c.recordStreamError(fail(code, text))
	return c.resetStream(id, code)
}

func (c *Conn) resetFrame(id uint32, p []byte) error {
	if len(p) != 4 {
		return fail(FrameSizeError, "RST_STREAM with an invalid length")
	}
	s, idle := c.find(id)
	switch {
	case idle && !c.mayReset(id):
		return fail(ProtocolError, "RST_STREAM on an idle stream")
	case s == nil: // the peer sent the frame before it received the end of the stream (RFC 9113 section 5.1)
		return c.countControl(1)
	}
	code := Code(binary.BigEndian.Uint32(p))
	ending := c.refused(s, code)
	s.drop()
	s.failed(c, &ResetError{Code: code, Ending: ending})
	return nil
}

// mayReset reports whether RST_STREAM on an idle stream is ignored. RFC 9113 section 6.4 requires a connection
// error. However, grpcio 1.51 sends the frame if the deadline of a call expires before HEADERS is sent, and a
// connection error would fail the other calls. Therefore the frame is ignored after the first request on the
// connection.
func (c *Conn) mayReset(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.config.Client && id%2 == 1 && c.last > 0
}

func (c *Conn) settingsFrame(flags byte, id uint32, p []byte) error {
	switch {
	case id != 0:
		return fail(ProtocolError, "SETTINGS on a stream")
	case flags&flagAck != 0 && len(p) > 0, len(p)%6 != 0:
		return fail(FrameSizeError, "SETTINGS with an invalid length")
	case flags&flagAck != 0 && !c.settingsReceived:
		return fail(ProtocolError, "the initial SETTINGS frame is missing")
	case flags&flagAck != 0:
		c.settingsAcked()
		return c.countControl(1)
	}
	if c.settingsReceived {
		if err := c.countControl(1); err != nil {
			return err
		}
	} else {
		defer close(c.settingsArrived)
	}
	c.settingsReceived = true
	drained, visited, err := c.apply(p)
	if err != nil {
		return err
	}
	c.notifyDrained(c, drained)
	if err = c.countControl(visited / settingsStreams); err != nil {
		return err
	}
	return c.reply(func(b []byte) []byte { return appendFrameHead(b, 0, frameSettings, flagAck, 0) })
}

// apply applies the settings in p, which is the payload of a SETTINGS frame of the peer. If the initial window occurs
// several times, only the last value is applied, because a change visits all streams. apply ignores the header table
// size, because this side does not use the dynamic table. It also ignores the maximum frame size, because long frames
// would delay other streams. apply returns the streams that have no pending output left, and the number of streams
// that were visited.
func (c *Conn) apply(p []byte) (drained []*Stream, visited int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	initial := c.initial
	for ; len(p) > 0; p = p[6:] {
		value := binary.BigEndian.Uint32(p[2:])
		switch binary.BigEndian.Uint16(p) {
		case settingEnablePush:
			if value > 1 || value == 1 && c.config.Client {
				return nil, 0, fail(ProtocolError, "invalid value of SETTINGS_ENABLE_PUSH")
			}
		case settingMaxStreams:
			c.maxStreams, c.maxStreamsReceived = min(value, maxStreamID), true // the value is converted to int, which can have 32 bits
			c.signalRoom()
		case settingInitialWindow:
			if value > maxWindow {
				return nil, 0, fail(FlowControlError, "invalid value of SETTINGS_INITIAL_WINDOW_SIZE")
			}
			initial = int(value)
		case settingMaxFrameSize:
			if value < maxFrameSize || value > 1<<24-1 {
				return nil, 0, fail(ProtocolError, "invalid value of SETTINGS_MAX_FRAME_SIZE")
			}
		case settingMaxHeaderListSize:
			c.maxHeadSize = int(min(value, maxWindow)) // int can have 32 bits
		case settingConnectProtocol:
			if value > 1 {
				return nil, 0, fail(ProtocolError, "invalid value of SETTINGS_ENABLE_CONNECT_PROTOCOL")
			}
		}
	}
	delta := initial - c.initial
	if c.initial = initial; delta == 0 {
		return nil, 0, nil
	}
	for _, s := range c.streams { // a window may become negative (RFC 9113 section 6.9.2)
		if !addWindow(&s.window, delta) {
			return nil, 0, fail(FlowControlError, "the stream window exceeds 2^31-1")
		}
		c.enqueue(s)
	}
	return c.fill(), len(c.streams), nil
}

func (c *Conn) pingFrame(flags byte, id uint32, p []byte) error {
	switch {
	case len(p) != 8:
		return fail(FrameSizeError, "PING with an invalid length")
	case id != 0:
		return fail(ProtocolError, "PING on a stream")
	}
	if err := c.countControl(1); err != nil {
		return err
	}
	if flags&flagAck != 0 {
		c.pingAcked(binary.BigEndian.Uint64(p))
		return nil
	}
	return c.reply(func(b []byte) []byte { return append(appendFrameHead(b, 8, framePing, flagAck, 0), p...) })
}

func (c *Conn) goAwayFrame(id uint32, p []byte) error {
	switch {
	case id != 0:
		return fail(ProtocolError, "GOAWAY on a stream")
	case len(p) < 8:
		return fail(FrameSizeError, "GOAWAY with an invalid length")
	}
	if c.config.Client {
		c.refuseStreamsAbove(binary.BigEndian.Uint32(p) & maxStreamID)
	}
	c.handler.GoingAway()
	return c.countControl(1)
}

// refuseStreamsAbove removes the streams with an ID above last and prevents new streams. The peer has not processed
// the removed streams (RFC 9113 section 6.8). Their owners receive REFUSED_STREAM, so that requests with any method
// can be retried.
func (c *Conn) refuseStreamsAbove(last uint32) {
	c.mu.Lock()
	c.ending = true
	var untouched []*Stream
	for id, s := range c.streams {
		if id > last {
			untouched = append(untouched, s)
		}
	}
	for _, s := range untouched {
		c.remove(s)
	}
	c.signalRoom()
	c.endIfIdle()
	c.mu.Unlock()
	for _, s := range untouched {
		s.failed(c, &ResetError{Code: RefusedStream, Ending: true})
	}
}

func (c *Conn) windowFrame(id uint32, p []byte) error {
	if len(p) != 4 {
		return fail(FrameSizeError, "WINDOW_UPDATE with an invalid length")
	}
	if err := c.countControl(1); err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint32(p) & maxWindow)
	if id == 0 {
		return c.widen(n)
	}
	s, idle := c.find(id)
	switch {
	case idle:
		return fail(ProtocolError, "WINDOW_UPDATE on an idle stream")
	case s == nil: // the peer sent the frame before it received the end of the stream
		return nil
	case n == 0:
		return c.streamError(s, ProtocolError, "WINDOW_UPDATE with increment 0")
	}
	c.mu.Lock()
	tooLarge := !addWindow(&s.window, n)
	var drained []*Stream
	if !tooLarge && c.enqueue(s) {
		drained = c.fill()
		c.FlushLater(c)
	}
	c.mu.Unlock()
	if tooLarge {
		return c.streamError(s, FlowControlError, "the stream window exceeds 2^31-1")
	}
	c.notifyDrained(c, drained)
	return nil
}

// addWindow adds n to a window. If the sum exceeds maxWindow, it returns false and does not change the
// window. A window can be negative (RFC 9113 section 6.9.2).
func addWindow(window *int, n int) bool {
	sum := int64(*window) + int64(n)
	if sum > maxWindow {
		return false
	}
	*window = int(sum)
	return true
}

// widen adds n to the window of the connection.
func (c *Conn) widen(n int) error {
	c.mu.Lock()
	tooLarge := !addWindow(&c.window, n)
	c.uploads.peak = max(c.uploads.peak, c.window)
	var drained []*Stream
	if !tooLarge && !c.ring.empty() {
		drained = c.fill()
		c.FlushLater(c)
	}
	c.mu.Unlock()
	switch {
	case n == 0:
		return fail(ProtocolError, "WINDOW_UPDATE with increment 0")
	case tooLarge:
		return fail(FlowControlError, "the connection window exceeds 2^31-1")
	}
	c.notifyDrained(c, drained)
	return nil
}
