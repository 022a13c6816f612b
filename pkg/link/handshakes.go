package link

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/fair"
)

const (
	// maxHandshakes is the maximum number of handshakes of a listener that are in progress. crypto/tls
	// holds up to 32 KiB for each of them, 8 MiB together.
	maxHandshakes = 256
	// maxQueued is the maximum number of handshakes in the queue. A processor completes about 2000
	// handshakes per second.
	maxQueued = 20000
	// extraBytes is the number of bytes that all handshakes in progress can receive in addition
	// to helloBytes or chainBytes each. crypto/tls holds up to four times as much.
	extraBytes = 1 << 20
	// extension is the number of bytes that a handshake takes from extraBytes at a time.
	extension = 8 << 10
	// stallTime is the minimum time that a handshake can wait for the next flight of the client
	// while another handshake is queued. There are two or three flights (RFC 8446 section 2).
	stallTime = time.Second
	// checkInterval is the time between two checks of the handshakes in progress.
	checkInterval = stallTime / 5
)

// handshake is a TLS handshake in progress or in the queue.
type handshake struct {
	conn    *Conn
	slot    *fair.Slot
	waiting func(client, answered bool) // see Conn.Handshake
	allowed int                         // remaining number of bytes that the handshake can receive

	extendable int         // remaining number of bytes that the handshake can take from handshakes.extra
	extended   int         // number of bytes taken from handshakes.extra
	answered   bool        // the server has sent its first flight
	wait       wait        // for the client
	reading    atomic.Bool // the handshake waits for input
	closed     bool        // check has closed the connection; guarded by handshakes.mu
}

// begin records that the handshake waits for the client. If next is true, the client must send another
// message than before.
func (h *handshake) begin(next bool) {
	h.wait.begin(next)
	h.answered = h.answered || next
	h.waiting(true, h.answered)
}

// end records that the handshake does not wait for the client any more.
func (h *handshake) end() {
	h.wait.end()
	h.waiting(false, h.answered)
}

// handshakes limits the number of handshakes in progress. The others wait in a queue without a
// timeout, because this time depends on the sidecar and not on the client. The time limits apply to
// the time that a handshake waits for its client.
//
// While handshakes are queued, a handshake that waits for too long is closed: after stallTime, if
// its client address uses more than an equal part of the slots, and otherwise after patience. Slow
// clients can need more time, for example because 1000 of them share a busy processor. The patience
// therefore doubles with each completed handshake and halves with each one that is closed.
type handshakes struct {
	slots   *fair.Semaphore
	stall   time.Duration // see stallTime
	timeout time.Duration // maximum time that a handshake waits for its client
	bounds  *bound.Recorder

	mu       sync.Mutex
	going    map[*handshake]struct{}
	patience time.Duration // between stall and timeout
	extra    int           // bytes that handshakes can still take, see extraBytes
	checking bool          // check will be called
}

func (s *handshakes) init(timeout time.Duration, bounds *bound.Recorder) {
	s.slots = fair.New(maxHandshakes, maxQueued)
	s.stall, s.timeout, s.patience, s.bounds, s.extra = stallTime, timeout, timeout, bounds, extraBytes
	s.going = make(map[*handshake]struct{})
}

// begin waits until h can start.
func (s *handshakes) begin(ctx context.Context, h *handshake) (err error) {
	if h.slot, err = s.slots.Acquire(ctx, fair.Address(h.conn.RemoteAddr())); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.going[h] = struct{}{}
	if !s.checking {
		s.checking = true
		time.AfterFunc(checkInterval, s.check)
	}
	return nil
}

// end is called after begin has returned nil. completed reports whether the handshake was completed.
func (s *handshakes) end(h *handshake, completed bool) {
	s.mu.Lock()
	delete(s.going, h)
	s.extra += h.extended
	if completed {
		s.patience = min(2*s.patience, s.timeout)
	}
	s.mu.Unlock()
	h.slot.Release()
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

// check closes the handshakes that have waited for their clients for too long. It is called again
// while handshakes are in progress.
func (s *handshakes) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.going) == 0 {
		s.checking = false
		return
	}
	now, queued := time.Now(), s.slots.Queued() > 0
	for h := range s.going {
		if name, late := s.late(h, now, queued); late {
			h.closed = true
			s.patience = max(s.patience/2, s.stall)
			s.bounds.Hit(name, h.conn.RemoteAddr().String())
			_ = h.conn.Cut()
		}
	}
	time.AfterFunc(checkInterval, s.check)
}

// late reports whether h has waited for its client for too long, and returns the bound. If the
// message of the client has arrived and was not read, the process lacks CPU time. s.mu must be held.
func (s *handshakes) late(h *handshake, now time.Time, queued bool) (name bound.Name, late bool) {
	flight, total := h.wait.time(now), h.wait.total(now)
	switch {
	case h.closed, flight == 0, h.reading.Load() && !h.conn.Silent():
	case total >= s.timeout:
		return bound.TLSHandshakeTimeout, true
	case queued && (flight >= s.patience || flight >= s.stall && h.slot.Excessive()):
		return bound.TLSHandshakeStall, true
	}
	return 0, false
}
