// Package goaway tells a client, in the midst of a connection, that the server goes
// away: HTTP/2 has GOAWAY for that, WebSocket a Close frame. net/http sends a GOAWAY
// only with an answer or when it shuts down, and in one phase; of WebSockets it knows
// nothing. So both are written here, between two frames of whoever else writes on the
// connection: that is what is tracked.
package goaway

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// timeout bounds the writing of the last frame to a client that does not read.
const timeout = time.Second

// goAwayFrame announces the end of an HTTP/2 connection without refusing any
// stream: its last stream id is the greatest one, as RFC 9113 section 6.8 asks
// for the first of two.
const goAwayFrame = "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00"

// closeFrame is a WebSocket Close frame of a server that goes away: status 1001
// (RFC 6455 section 7.4.1).
const closeFrame = "\x88\x02\x03\xe9"

// A Conn is a connection on which a server writes frames, and at most one that says
// that it goes away. Its methods may be called from several goroutines.
type Conn struct {
	net.Conn
	size  func(head []byte) (size int64, ok bool) // of the frame that head begins; not ok: more bytes are needed
	last  string
	final bool // nothing may follow it

	mu    sync.Mutex
	head  []byte // the beginning of a frame whose size is not known yet
	left  int64  // of the present frame
	begun bool   // a frame has been written
	asked bool
	said  bool
}

// HTTP2 returns a connection on which a server speaks HTTP/2.
func HTTP2(c net.Conn) *Conn {
	return &Conn{Conn: c, size: h2Size, last: goAwayFrame}
}

// WebSocket returns a connection on which a server speaks WebSocket.
func WebSocket(c net.Conn) *Conn {
	return &Conn{Conn: c, size: webSocketSize, last: closeFrame, final: true, begun: true}
}

// h2Head is the length of the head of an HTTP/2 frame.
const h2Head = 9

// h2Size is the size of a frame by RFC 9113 section 4.1.
func h2Size(head []byte) (int64, bool) {
	if len(head) < 3 {
		return 0, false
	}
	return h2Head + int64(head[0])<<16 + int64(head[1])<<8 + int64(head[2]), true
}

// longestPayload is how much of a WebSocket frame is counted: with its head it still
// fits into 63 bits. No frame that says it is longer ever ends.
const longestPayload = 1 << 62

// webSocketSize is the size of a frame by RFC 6455 section 5.2.
func webSocketSize(head []byte) (int64, bool) {
	if len(head) < 2 {
		return 0, false
	}
	size, payload := 2, int64(head[1]&0x7f)
	switch payload {
	case 126:
		if size += 2; len(head) < size {
			return 0, false
		}
		payload = int64(binary.BigEndian.Uint16(head[2:]))
	case 127:
		if size += 8; len(head) < size {
			return 0, false
		}
		payload = int64(min(binary.BigEndian.Uint64(head[2:]), longestPayload))
	}
	if head[1]&0x80 != 0 {
		size += 4
	}
	return int64(size) + payload, true
}

// Write writes a piece of the frames.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	written := 0
	for len(p) > 0 {
		if err := c.sayWhenDue(); err != nil {
			return written, err
		}
		if c.said && c.final {
			return written + len(p), nil // nobody listens any more
		}
		n := len(p)
		if c.asked && !c.said {
			n = c.untilNext(p)
		}
		n, err := c.Conn.Write(p[:n])
		c.follow(p[:n])
		written += n
		p = p[n:]
		if err != nil {
			return written, err
		}
	}
	return written, c.sayWhenDue()
}

// GoAway says that the server goes away, as soon as a frame has ended, once. It blocks
// while a frame is being written.
func (c *Conn) GoAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = true
	_ = c.sayWhenDue() // who can't get it notices the end of the connection
}

// sayWhenDue writes the last frame, once it is asked for and a frame has ended.
func (c *Conn) sayWhenDue() error {
	if !c.asked || c.said || !c.between() {
		return nil
	}
	c.said = true
	c.Conn.SetWriteDeadline(time.Now().Add(timeout))
	_, err := c.Conn.Write([]byte(c.last))
	c.Conn.SetWriteDeadline(time.Time{})
	return err
}

// between reports whether the last frame has ended, and there was one: the first
// frame of an HTTP/2 server is its SETTINGS.
func (c *Conn) between() bool { return c.begun && c.left == 0 && len(c.head) == 0 }

// untilNext returns how many bytes of p belong to the present frame. Without its
// size that is one byte.
func (c *Conn) untilNext(p []byte) int {
	if c.left > 0 {
		return int(min(int64(len(p)), c.left))
	}
	head := append(c.head[:len(c.head):len(c.head)], p[:min(len(p), 14)]...)
	if size, ok := c.size(head); ok {
		return int(min(int64(len(p)), size-int64(len(c.head))))
	}
	return len(p)
}

// follow takes note of frames that have been written.
func (c *Conn) follow(p []byte) {
	for len(p) > 0 {
		if c.left == 0 {
			c.head = append(c.head, p[0])
			p = p[1:]
			size, ok := c.size(c.head)
			if !ok {
				continue
			}
			c.left = size - int64(len(c.head))
			c.head, c.begun = c.head[:0], true
		}
		n := min(int64(len(p)), c.left)
		c.left -= n
		p = p[n:]
	}
}

// CloseWrite ends our side.
func (c *Conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return net.ErrClosed
}

// Reset ends the connection without an orderly end, if the connection supports that.
func (c *Conn) Reset() error {
	if r, ok := c.Conn.(interface{ Reset() error }); ok {
		return r.Reset()
	}
	return c.Conn.Close()
}

// A Set holds connections that are to be notified at the same time. The zero Set is empty,
// the nil Set stays so. It is safe for concurrent use.
type Set struct {
	conns sync.Map // of *Conn
}

// Add puts a connection into the set, and Remove takes it out.
func (s *Set) Add(c *Conn) {
	if s != nil {
		s.conns.Store(c, nil)
	}
}

// Remove undoes Add.
func (s *Set) Remove(c *Conn) {
	if s != nil {
		s.conns.Delete(c)
	}
}

// GoAway tells all clients. It does not wait for those that do not read.
func (s *Set) GoAway() {
	for c := range s.conns.Range {
		go c.(*Conn).GoAway()
	}
}
