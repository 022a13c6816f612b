package nethttp

import (
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// heads follows the frames that an HTTP/2 client sends and bounds the time in which
// the head of a request arrives, HEADERS and its CONTINUATIONs (RFC 9113 section
// 4.3): in HTTP/2 net/http does not. Nothing else can come on the connection
// meanwhile, so it is the connection that ends.
type heads struct {
	limit time.Duration // 0: none
	cut   func()        // ends the connection

	// Of the reader.
	skip  int // bytes of the preface
	frame [frameHead]byte
	have  int  // bytes of frame
	left  int  // of the payload
	open  bool // a head has begun and not ended
	last  bool // it ends with this frame

	mu    sync.Mutex
	since time.Time   // when the open head began; zero: none is open
	timer *time.Timer // looks whether one is open for too long; nil: not yet needed
	armed bool
	over  bool // the connection has been closed
}

// Of a frame (RFC 9113 sections 4.1, 6.2 and 6.10).
const (
	frameHead         = 9
	frameHeaders      = 1
	frameContinuation = 9
	flagEndHeaders    = 4
)

func newHeads(limit time.Duration, cut func()) *heads {
	return &heads{limit: limit, cut: cut, skip: len(wire.Preface)}
}

// follow takes note of what the client has sent, and reports whether a head began
// or ended there.
func (h *heads) follow(p []byte) bool {
	if h.skip > 0 {
		n := min(h.skip, len(p))
		h.skip -= n
		p = p[n:]
	}
	was, ended := h.open, false
	for len(p) > 0 {
		if h.left == 0 {
			n := copy(h.frame[h.have:], p)
			p = p[n:]
			if h.have += n; h.have < frameHead {
				break
			}
			h.have = 0
			h.left = int(h.frame[0])<<16 | int(h.frame[1])<<8 | int(h.frame[2])
			kind := h.frame[3]
			isHead := kind == frameHeaders || kind == frameContinuation
			h.open = h.open || isHead
			h.last = isHead && h.frame[4]&flagEndHeaders != 0
		}
		n := min(h.left, len(p))
		h.left -= n
		p = p[n:]
		if h.left == 0 && h.last {
			h.open, h.last, ended = false, false, true
		}
	}
	if h.limit > 0 && (h.open != was || h.open && ended) {
		h.note()
	}
	return h.open != was || ended
}

// note starts or ends the time of a head. The timer is left alone between heads:
// it only looks.
func (h *heads) note() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open {
		h.since = time.Time{}
		return
	}
	h.since = time.Now()
	if h.armed || h.over {
		return
	}
	h.armed = true
	if h.timer == nil {
		h.timer = time.AfterFunc(h.limit, h.look)
	} else {
		h.timer.Reset(h.limit)
	}
}

// look ends the connection if a head is late.
func (h *heads) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.since.IsZero() || h.over {
		h.armed = false
	} else if left := h.limit - time.Since(h.since); left > 0 {
		h.timer.Reset(left)
	} else {
		h.cut()
	}
}

// stop forgets the connection.
func (h *heads) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if h.timer != nil {
		h.timer.Stop()
	}
}
