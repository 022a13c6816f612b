// This file implements sending a Close frame to a WebSocket client between two frames of the user
// container.

package netconn

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// timeout is the maximum time for writing the Close frame to a client that does not read.
const timeout = time.Second

// closeFrame is an unmasked WebSocket Close frame with status 1001, going away (RFC 6455 section
// 7.4.1).
const closeFrame = "\x88\x02\x03\xe9"

// A stream is a client connection of an engine.
type stream interface {
	net.Conn
	CloseWrite() error
	Reset() error
}

// A WebSocket is a connection on which a server sends WebSocket frames. The sidecar can add one Close
// frame. Its methods are safe for concurrent use.
type WebSocket struct {
	stream

	mu        sync.Mutex
	head      []byte // incomplete header of the current frame
	left      int64  // unwritten bytes of the current frame
	closing   bool   // GoAway was called
	closeSent bool   // the Close frame was sent, or sending it failed
}

// NewWebSocket returns a connection on which a server sends WebSocket frames.
func NewWebSocket(c stream) *WebSocket { return &WebSocket{stream: c} }

// longestPayload is an upper bound for the payload length of a frame in bytes, so that the frame size fits into an
// int64. It is never reached in practice.
const longestPayload = 1 << 62

// webSocketSize returns the size of the frame that starts with head (RFC 6455 section 5.2). It returns
// false if head is an incomplete frame header.
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

// Write implements net.Conn. p contains the next bytes of the frames that the server sends. If GoAway was called, Write
// sends the Close frame after the current frame, and discards all later bytes.
func (c *WebSocket) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	written := 0
	for len(p) > 0 {
		if err := c.sendCloseWhenDue(); err != nil {
			return written, err
		}
		if c.closeSent {
			return written + len(p), nil // the client ignores frames after a Close frame
		}
		n := len(p)
		if c.closing && !c.closeSent {
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
	return written, c.sendCloseWhenDue()
}

// GoAway sends the Close frame as soon as the current frame is complete. Later calls have no effect. GoAway blocks
// while Write is running.
func (c *WebSocket) GoAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	_ = c.sendCloseWhenDue() // ignore the error, because the client detects that the connection ends
}

// sendCloseWhenDue writes the Close frame if GoAway was called and the output ends between two frames.
func (c *WebSocket) sendCloseWhenDue() error {
	if !c.closing || c.closeSent || !c.between() {
		return nil
	}
	c.closeSent = true
	c.SetWriteDeadline(time.Now().Add(timeout))
	_, err := c.stream.Write([]byte(closeFrame))
	c.SetWriteDeadline(time.Time{})
	return err
}

// between reports whether the output ends between two frames.
func (c *WebSocket) between() bool { return c.left == 0 && len(c.head) == 0 }

// untilNext returns the number of bytes of p that belong to the current frame. If p ends within the frame header,
// untilNext returns len(p).
func (c *WebSocket) untilNext(p []byte) int {
	if c.left > 0 {
		return int(min(int64(len(p)), c.left))
	}
	head := append(c.head[:len(c.head):len(c.head)], p[:min(len(p), 14)]...)
	if size, ok := webSocketSize(head); ok {
		return int(min(int64(len(p)), size-int64(len(c.head))))
	}
	return len(p)
}

// follow updates the frame position after p was written.
func (c *WebSocket) follow(p []byte) {
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

// WebSockets is a set of WebSocket connections to which GoAway sends a Close frame. The zero value is an empty set.
// Add and Remove do nothing on a nil *WebSockets. A WebSockets is safe for concurrent use.
type WebSockets struct {
	conns sync.Map // keys of type *WebSocket
}

// Add adds a connection to the set.
func (s *WebSockets) Add(c *WebSocket) {
	if s != nil {
		s.conns.Store(c, nil)
	}
}

// Remove removes a connection from the set.
func (s *WebSockets) Remove(c *WebSocket) {
	if s != nil {
		s.conns.Delete(c)
	}
}

// GoAway sends a Close frame on each connection. It does not wait for clients that do not read.
func (s *WebSockets) GoAway() {
	for c := range s.conns.Range {
		go c.(*WebSocket).GoAway()
	}
}
