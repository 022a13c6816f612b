package http2conn

import (
	"encoding/binary"
	"time"
)

// barrier describes the streams of a client that were abandoned, which means that the client has reset them. A server
// counts a stream against its limit of concurrent streams until it receives RST_STREAM (RFC 9113 section 5.1.2). To
// find out when this happens, the client sends a frame that the server must acknowledge. This frame, PING or SETTINGS,
// is called a barrier. After the acknowledgment, the streams that were reset before the barrier no longer count. The
// fields are guarded by Conn.mu.
type barrier struct {
	abandoned int    // number of abandoned streams that the server may still count
	covered   int    // number of abandoned streams that were reset before the last barrier was sent
	frame     byte   // type of the last barrier: framePing or frameSettings
	active    bool   // the last barrier has not been acknowledged yet
	pings     uint64 // number of PING frames sent, which is the payload of the last PING frame
	pinged    uint64 // value of Conn.received when the last PING frame was sent
	unacked   int    // number of SETTINGS frames that the server has not acknowledged

	recent []time.Time // times at which streams were abandoned in the last recentTime, oldest first

	resets float64   // number of abandoned streams; decreases by resetRate per second until it is 0
	since  time.Time // time at which the last stream was abandoned
	stuck  uint64    // number of streams abandoned since the server last sent HEADERS or DATA
	heard  uint64    // value of Conn.received when the last stream was abandoned
}

// Servers close a connection on which the client resets too many streams. The streams of all clients that share the
// connection then fail. Therefore the connection is replaced before it reaches the limit of the server: no more streams
// are opened on it, and package http2client opens another connection.
const (
	// maxResets is the maximum burst of RST_STREAM frames, and resetRate is the maximum rate per second. The values
	// are lower than the defaults of nghttp2, which Node uses: a burst of 1000 frames and 33 frames per second.
	maxResets = 500
	resetRate = 20
	// stuckFactor limits the number of streams that are reset while the server sends no response. The maximum is
	// stuckFactor times the server's advertised limit of concurrent streams. Go's server closes the connection if its
	// handlers have reached the advertised limit and four times as many requests wait for a handler.
	stuckFactor = 4
	// recentTime is the time for which a server is assumed to process a request after its stream is reset. Go's server
	// counts such requests against its limit of concurrent streams.
	recentTime = 10 * time.Second
	// maxRefusals is the number of consecutive streams that a server can refuse before the connection is replaced.
	maxRefusals = 10
	// replaceTime is the minimum age at which a connection without a response is replaced. It limits the rate of new
	// connections to a server that rejects all streams.
	replaceTime = time.Second
)

// refused is called after the server resets a client stream. If the server rejects streams because of earlier streams
// on the connection, refused causes the connection to be replaced. For example, after 10 MB of canceled responses, Node
// rejects all new streams of the connection with ENHANCE_YOUR_CALM. ending reports whether the connection accepts no
// more streams.
func (c *Conn) refused(s *Stream, code Code) (ending bool) {
	if !c.config.Client {
		return false
	}
	if !s.answered && code == RefusedStream {
		c.refusals++
	}
	rejects := !s.answered && code == EnhanceYourCalm || c.refusals >= maxRefusals
	c.mu.Lock()
	defer c.mu.Unlock()
	if rejects && (c.received.Load() > 0 || time.Since(c.begin) >= replaceTime) {
		c.endStreams()
		c.FlushLater(c)
	}
	return c.ending
}

// Check sends a frame that the server must acknowledge. It does nothing while an earlier such frame is unacknowledged.
func (c *Conn) Check() {
	c.mu.Lock()
	c.addBarrier()
	c.mu.Unlock()
	c.Flush(false)
}

// addBarrier adds a barrier to the output, unless a barrier is active. If HEADERS or DATA was received since the last
// PING frame, the barrier is a PING frame. Otherwise the barrier is an empty SETTINGS frame, because gRPC servers close
// a connection on which they receive too many PING frames without sending data (gRPC proposal A8). c.mu must be held.
func (c *Conn) addBarrier() {
	b := &c.barrier
	if b.active || c.broken != nil {
		return
	}
	c.allocateOut()
	b.active, b.covered = true, b.abandoned
	if received := c.received.Load(); received != b.pinged {
		b.frame, b.pinged = framePing, received
		b.pings++
		c.out = binary.BigEndian.AppendUint64(appendFrameHead(c.out, 8, framePing, 0, 0), b.pings)
		return
	}
	b.frame = frameSettings
	b.unacked++
	c.out = appendFrameHead(c.out, 0, frameSettings, 0, 0)
}

// pingAcked handles the acknowledgment of a PING frame with the given payload.
func (c *Conn) pingAcked(payload uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := &c.barrier; b.active && b.frame == framePing && payload == b.pings {
		c.passBarrier()
	}
}

// settingsAcked handles the acknowledgment of a SETTINGS frame.
func (c *Conn) settingsAcked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &c.barrier
	b.unacked = max(b.unacked-1, 0)
	if b.active && b.frame == frameSettings && b.unacked == 0 {
		c.passBarrier()
	}
}

// passBarrier is called when the barrier is acknowledged. The streams that were reset before the barrier no longer
// count as abandoned. c.mu must be held.
func (c *Conn) passBarrier() {
	b := &c.barrier
	b.active = false
	b.abandoned -= b.covered
	c.signalRoom()
	if c.nearlyFull() {
		c.addBarrier()
		c.FlushLater(c)
	}
}

// nearlyFull reports whether at least one stream is abandoned and the open and abandoned streams use at least half of
// the server's limit. c.mu must be held.
func (c *Conn) nearlyFull() bool {
	return c.maxStreamsReceived && c.barrier.abandoned > 0 && 2*(len(c.streams)+c.barrier.abandoned) >= int(c.maxStreams)
}

// full reports whether the number of streams has reached the server's limit. Abandoned streams count only if the server
// has advertised the limit. If careful is true, all streams that were abandoned in the last recentTime count. c.mu must
// be held.
func (c *Conn) full(careful bool) bool {
	n := len(c.streams)
	switch {
	case c.maxStreamsReceived && careful:
		n += c.recentResets()
	case c.maxStreamsReceived:
		n += c.barrier.abandoned
	}
	return n >= int(c.maxStreams)
}

// recentResets returns the number of streams that were abandoned in the last recentTime, up to maxResets. c.mu must be
// held.
func (c *Conn) recentResets() int {
	b := &c.barrier
	if len(b.recent) == 0 {
		return 0
	}
	now := time.Now()
	for len(b.recent) > 0 && now.Sub(b.recent[0]) > recentTime {
		b.recent = b.recent[1:]
	}
	return len(b.recent)
}

// Abandon resets a client's stream with CANCEL and returns true. If the stream has already ended, Abandon does nothing
// and returns false. The stream counts against the limit of the server until a later barrier is acknowledged.
func (s *Stream) Abandon() bool {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.gone {
		return false
	}
	c.reset(s, Cancel)
	c.barrier.abandoned++
	switch {
	case c.exhausted():
		c.endStreams()
	case c.nearlyFull():
		c.addBarrier()
	}
	return true
}

// exhausted counts an abandoned stream and reports whether the connection must be replaced before more RST_STREAM
// frames cause the server to close it. c.mu must be held.
func (c *Conn) exhausted() bool {
	b, now := &c.barrier, time.Now()
	b.resets = max(0, b.resets-now.Sub(b.since).Seconds()*resetRate) + 1
	b.since = now
	if len(b.recent) < maxResets {
		b.recent = append(b.recent, now)
	}
	if received := c.received.Load(); received != b.heard {
		b.heard, b.stuck = received, 0
	}
	b.stuck++
	return b.resets >= maxResets || c.maxStreamsReceived && b.stuck >= stuckFactor*uint64(c.maxStreams)
}
