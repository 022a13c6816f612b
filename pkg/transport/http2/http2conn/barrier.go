package http2conn

import (
	"encoding/binary"
	"time"
)

// barrier tracks the streams that a client has reset. After RST_STREAM, the client sends a frame that the server
// must acknowledge. The acknowledgment shows that the server has closed the stream, so that the stream no longer
// counts against the limit of the server (RFC 9113 section 5.1.2). The fields are guarded by Conn.mu.
type barrier struct {
	abandoned int    // streams that were reset and that the server may still count
	covered   int    // abandoned streams that were reset before the outstanding barrier
	frame     byte   // type of the outstanding barrier, framePing or frameSettings
	active    bool   // a barrier is outstanding
	pings     uint64 // number of PING frames sent, and the payload of the last one
	pinged    uint64 // Conn.received when the last PING was sent
	unacked   int    // SETTINGS frames that the server has not acknowledged

	recent []time.Time // times of the RST_STREAM frames in the last recentTime, oldest first

	resets float64   // RST_STREAM frames sent, less resetRate per second
	since  time.Time // time of the last RST_STREAM
	stuck  uint64    // RST_STREAM frames since the server sent HEADERS or DATA
	heard  uint64    // Conn.received at the last RST_STREAM
}

// Servers close a connection on which the client resets too many streams, and the streams of all clients that share
// the connection fail. Therefore the client replaces the connection before it reaches such a limit.
const (
	// maxResets and resetRate, per second, are lower than the default bound of nghttp2, which
	// Node uses: a burst of 1000 and 33 per second.
	maxResets = 500
	resetRate = 20
	// stuckFactor, multiplied by the advertised number of streams, is the number of streams that can be reset while
	// the server sends no response. Go's server closes the connection if a handler runs for each stream and four
	// times as many requests wait for a handler.
	stuckFactor = 4
	// recentTime is how long a server is assumed to process a request after its stream was reset. Go's server
	// counts such requests against its limit.
	recentTime = 10 * time.Second
	// maxRefusals is the number of consecutive streams that a server can refuse before the
	// connection is replaced. Only refusals within the limit of the server count.
	maxRefusals = 10
	// replaceTime is the minimum age of a connection that is replaced and on which no response was
	// received. It limits the rate of new connections to a server that rejects all streams.
	replaceTime = time.Second
)

// refused handles a client stream that the server has reset. If the server rejects new streams because of earlier
// streams, the connection is replaced. For example, Node rejects new streams with ENHANCE_YOUR_CALM after 10 MB
// of canceled responses, until the connection is closed. refused reports whether the connection accepts no more
// streams.
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

// Check sends a frame that the server must acknowledge, unless one is outstanding.
func (c *Conn) Check() {
	c.mu.Lock()
	c.addBarrier()
	c.mu.Unlock()
	c.Flush(false)
}

// addBarrier adds to the output a frame that the server must acknowledge, unless such a frame is outstanding. The
// frame is a PING only if HEADERS or DATA was received since the last PING, because gRPC servers close a connection
// on which they receive more PING frames (gRPC proposal A8). Otherwise it is an empty SETTINGS frame. c.mu must be
// held.
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

// pingAcked handles an acknowledgment of PING with the given payload.
func (c *Conn) pingAcked(payload uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := &c.barrier; b.active && b.frame == framePing && payload == b.pings {
		c.passBarrier()
	}
}

// settingsAcked handles an acknowledgment of SETTINGS.
func (c *Conn) settingsAcked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &c.barrier
	b.unacked = max(b.unacked-1, 0)
	if b.active && b.frame == frameSettings && b.unacked == 0 {
		c.passBarrier()
	}
}

// passBarrier releases the streams that were reset before the barrier. c.mu must be held.
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

// nearlyFull reports whether streams are abandoned, and the number of open and abandoned streams is at least
// half of the server's limit. c.mu must be held.
func (c *Conn) nearlyFull() bool {
	return c.maxStreamsReceived && c.barrier.abandoned > 0 && 2*(len(c.streams)+c.barrier.abandoned) >= int(c.maxStreams)
}

// full reports whether the server accepts no more streams now. Abandoned streams count only against a limit that
// the server has advertised. If careful is true, all streams that were abandoned in the last recentTime count. c.mu
// must be held.
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

// recentResets returns the number of streams that were abandoned in the last recentTime. c.mu
// must be held.
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

// Abandon resets a client's stream with CANCEL, unless it has ended, and reports whether it
// did. The stream counts against the limit of the server until a barrier was acknowledged.
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

// exhausted counts an RST_STREAM frame and reports whether the connection must be replaced because the server may
// close it. c.mu must be held.
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
