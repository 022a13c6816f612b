package link

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
)

const (
	// maxHandshakes is how many handshakes of a listener may go on at once: with what
	// crypto/tls holds for each, up to 32 KiB, 8 MiB.
	maxHandshakes = 256
	// extraBytes is the number of bytes that all handshakes in progress can receive in addition
	// to helloBytes or chainBytes each. crypto/tls holds up to four times as much.
	extraBytes = 1 << 20
	// extension is the number of bytes that a handshake takes from extraBytes at a time.
	extension = 8 << 10
	// stallTime is how long a handshake may wait for its client's next flight while another
	// one waits for its place. There are two or three flights (RFC 8446 section 2).
	stallTime = time.Second
	// lookTime is how often it is looked for those that have waited longer.
	lookTime = stallTime / 5
)

// handshake is a TLS handshake in progress or in the queue.
type handshake struct {
	conn    *Conn
	allowed int         // remaining number of bytes that the handshake can receive
	heard   atomic.Bool // the first byte was received

	extendable int  // remaining number of bytes that the handshake can take from handshakes.extra
	extended   int  // number of bytes taken from handshakes.extra
	wait       wait // for the next flight of the client

	// The following fields belong to the queue and are guarded by handshakes.mu.
	stalled bool          // the connection was closed by endStalled
	turn    chan struct{} // closed when the handshake can start
	client  *client
	element *list.Element // element of client.waiting; nil if the handshake is not queued
}

// handshakes bound how many go on at once. Those that wait for their turn get it client
// by client, by addresses, so that one that begins many keeps no other waiting. While
// some wait, those are ended that have waited too long for their clients.
type handshakes struct {
	most  int           // that go on
	stall time.Duration // see stallTime

	bounds *bound.Recorder

	mu      sync.Mutex
	going   map[*handshake]struct{}
	turns   list.List // of *client, those who have handshakes that wait, the next one first
	clients map[netip.Addr]*client
	waiting int
	extra   int  // bytes that handshakes can still take, see extraBytes
	looking bool // endStalled will be called
}

// client is one with handshakes that wait for their turn.
type client struct {
	address netip.Addr
	waiting list.List // of *handshake, the next one first
	element *list.Element
}

func (s *handshakes) init(bounds *bound.Recorder) {
	s.most, s.stall, s.bounds, s.extra = maxHandshakes, stallTime, bounds, extraBytes
	s.going = make(map[*handshake]struct{})
	s.clients = make(map[netip.Addr]*client)
}

// begin waits for h's turn, at most for limit.
func (s *handshakes) begin(h *handshake, limit time.Duration) error {
	s.mu.Lock()
	if len(s.going) < s.most {
		s.going[h] = struct{}{}
		s.mu.Unlock()
		return nil
	}
	s.enqueue(h)
	s.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-h.turn:
		return nil
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.element == nil { // its turn came in the same moment
		return nil
	}
	s.dequeue(h)
	return errManyHandshakes
}

// end undoes begin.
func (s *handshakes) end(h *handshake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.going, h)
	s.extra += h.extended
	for len(s.going) < s.most && s.turns.Len() > 0 {
		c := s.turns.Front().Value.(*client)
		next := c.waiting.Front().Value.(*handshake)
		s.turns.MoveToBack(c.element)
		s.dequeue(next)
		s.going[next] = struct{}{}
		close(next.turn)
	}
}

// extend allows h to receive more bytes. It reports whether it does.
func (s *handshakes) extend(h *handshake) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(extension, s.extra, h.extendable)
	s.extra -= n
	h.extendable -= n
	h.extended += n
	h.allowed += n
	return n > 0
}

// enqueue makes h wait for its turn. s.mu is held.
func (s *handshakes) enqueue(h *handshake) {
	address := addressOf(h.conn.RemoteAddr())
	c := s.clients[address]
	if c == nil {
		c = &client{address: address}
		c.element = s.turns.PushBack(c)
		s.clients[address] = c
	}
	h.turn, h.client, h.element = make(chan struct{}), c, c.waiting.PushBack(h)
	s.waiting++
	if !s.looking {
		s.looking = true
		time.AfterFunc(lookTime, s.endStalled)
	}
}

// dequeue undoes enqueue. s.mu is held.
func (s *handshakes) dequeue(h *handshake) {
	c := h.client
	c.waiting.Remove(h.element)
	h.client, h.element = nil, nil
	s.waiting--
	if c.waiting.Len() == 0 {
		s.turns.Remove(c.element)
		delete(s.clients, c.address)
	}
}

// endStalled ends the handshakes that have waited too long for their clients, and sees
// to it that it is called again while others wait.
func (s *handshakes) endStalled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == 0 {
		s.looking = false
		return
	}
	now := time.Now()
	for h := range s.going {
		if !h.stalled && h.wait.time(now) >= s.stall {
			h.stalled = true
			s.bounds.Hit(bound.TLSHandshakeStall, h.conn.RemoteAddr().String())
			_ = h.conn.Cut()
		}
	}
	time.AfterFunc(lookTime, s.endStalled)
}

// addressOf returns the address of a client; the zero address where it has none.
func addressOf(a net.Addr) netip.Addr {
	if a, ok := a.(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
