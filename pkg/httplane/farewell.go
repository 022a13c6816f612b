package httplane

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// How a client is told that its connection has no future, in the midst of it.
// HTTP/2 has GOAWAY for that, WebSocket a Close frame. net/http sends a GOAWAY
// only with an answer or when it shuts down, and in one phase; of WebSockets it
// knows nothing. So both are written here, between two frames of whoever else
// writes on the connection: that is what is tracked.

// farewellTimeout bounds the writing of a farewell to a client that does not read.
const farewellTimeout = time.Second

// goAwayFrame announces the end of an HTTP/2 connection without refusing any
// stream: its last stream id is the greatest one, as RFC 9113 section 6.8 asks
// for the first of two.
const goAwayFrame = "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00"

// closeFrame is a WebSocket Close frame of a server that goes away: status 1001
// (RFC 6455 section 7.4.1).
const closeFrame = "\x88\x02\x03\xe9"

// A talker is a connection on which frames are written by one side, and at most
// one farewell by another, between two frames. Its methods may be called from
// several goroutines.
type talker struct {
	net.Conn
	size     func(head []byte) (size int64, ok bool) // of the frame that head begins; not ok: more bytes are needed
	farewell string
	final    bool // nothing may follow the farewell

	mu    sync.Mutex
	head  []byte // the beginning of a frame whose size is not known yet
	left  int64  // of the present frame
	begun bool   // a frame has been written
	asked bool
	said  bool
}

// h2Talker returns a connection on which a server speaks HTTP/2.
func h2Talker(c net.Conn) *talker {
	return &talker{Conn: c, size: h2Size, farewell: goAwayFrame}
}

// webSocketTalker returns a connection on which a server speaks WebSocket.
func webSocketTalker(c net.Conn) *talker {
	return &talker{Conn: c, size: webSocketSize, farewell: closeFrame, final: true, begun: true}
}

// h2Size is the size of a frame by RFC 9113 section 4.1.
func h2Size(head []byte) (int64, bool) {
	if len(head) < 3 {
		return 0, false
	}
	return frameHead + int64(head[0])<<16 + int64(head[1])<<8 + int64(head[2]), true
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
func (t *talker) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	written := 0
	for len(p) > 0 {
		if t.asked && !t.said && t.between() {
			if err := t.say(); err != nil {
				return written, err
			}
		}
		if t.said && t.final {
			return written + len(p), nil // nobody listens any more
		}
		n := len(p)
		if t.asked && !t.said {
			n = t.untilNext(p)
		}
		n, err := t.Conn.Write(p[:n])
		t.follow(p[:n])
		written += n
		p = p[n:]
		if err != nil {
			return written, err
		}
	}
	if t.asked && !t.said && t.between() {
		return written, t.say()
	}
	return written, nil
}

// leave says the farewell as soon as a frame has ended, once.
func (t *talker) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = true
	if !t.said && t.between() {
		_ = t.say() // who can't hear it is told by the end of the connection
	}
}

// say writes the farewell.
func (t *talker) say() error {
	t.said = true
	t.Conn.SetWriteDeadline(time.Now().Add(farewellTimeout))
	_, err := t.Conn.Write([]byte(t.farewell))
	t.Conn.SetWriteDeadline(time.Time{})
	return err
}

// between reports whether the last frame has ended, and there was one: the first
// frame of an HTTP/2 server is its SETTINGS.
func (t *talker) between() bool { return t.begun && t.left == 0 && len(t.head) == 0 }

// untilNext returns how many bytes of p belong to the present frame. Without its
// size that is one byte.
func (t *talker) untilNext(p []byte) int {
	if t.left > 0 {
		return int(min(int64(len(p)), t.left))
	}
	head := append(t.head[:len(t.head):len(t.head)], p[:min(len(p), 14)]...)
	if size, ok := t.size(head); ok {
		return int(min(int64(len(p)), size-int64(len(t.head))))
	}
	return len(p)
}

// follow takes note of frames that have been written.
func (t *talker) follow(p []byte) {
	for len(p) > 0 {
		if t.left == 0 {
			t.head = append(t.head, p[0])
			p = p[1:]
			size, ok := t.size(t.head)
			if !ok {
				continue
			}
			t.left = size - int64(len(t.head))
			t.head, t.begun = t.head[:0], true
		}
		n := min(int64(len(p)), t.left)
		t.left -= n
		p = p[n:]
	}
}

// CloseWrite ends our side.
func (t *talker) CloseWrite() error {
	if w, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return net.ErrClosed
}
