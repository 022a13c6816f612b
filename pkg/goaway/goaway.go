// Package goaway sends a Close frame to a WebSocket client between two frames of the user container.
package goaway

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// timeout bounds the writing of the last frame to a client that does not read.
const timeout = time.Second

// closeFrame is a WebSocket Close frame of a server that goes away: status 1001
// (RFC 6455 section 7.4.1).
const closeFrame = "\x88\x02\x03\xe9"

// A stream is a connection of an engine.
type stream interface {
	net.Conn
	CloseWrite() error
	Reset() error
}

// A Conn is a connection on which a server sends WebSocket frames, and at most one Close frame of the
// sidecar. Its methods can be called concurrently.
type Conn struct {
	stream

	mu    sync.Mutex
	head  []byte // the beginning of a frame whose size is not known yet
	left  int64  // bytes of the current frame that were not written
	asked bool   // GoAway was called
	said  bool   // the Close frame was sent
}

// WebSocket returns a connection on which a server sends WebSocket frames.
func WebSocket(c stream) *Conn { return &Conn{stream: c} }

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
		if c.said {
			return written + len(p), nil // nobody listens any more
		}
		n := len(p)
		if c.asked && !c.said {
			n = c.untilNext(p)
		}
		n, err := c.stream.Write(p[:n])
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

// sayWhenDue writes the Close frame after GoAway, if no frame is incomplete.
func (c *Conn) sayWhenDue() error {
	if !c.asked || c.said || !c.between() {
		return nil
	}
	c.said = true
	c.SetWriteDeadline(time.Now().Add(timeout))
	_, err := c.stream.Write([]byte(closeFrame))
	c.SetWriteDeadline(time.Time{})
	return err
}

// between reports whether no frame is incomplete.
func (c *Conn) between() bool { return c.left == 0 && len(c.head) == 0 }

// untilNext returns how many bytes of p belong to the present frame. Without its
// size that is one byte.
func (c *Conn) untilNext(p []byte) int {
	if c.left > 0 {
		return int(min(int64(len(p)), c.left))
	}
	head := append(c.head[:len(c.head):len(c.head)], p[:min(len(p), 14)]...)
	if size, ok := webSocketSize(head); ok {
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
			size, ok := webSocketSize(c.head)
			if !ok {
				continue
			}
			c.left = size - int64(len(c.head))
			c.head = c.head[:0]
		}
		n := min(int64(len(p)), c.left)
		c.left -= n
		p = p[n:]
	}
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
