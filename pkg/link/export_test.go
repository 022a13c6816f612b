package link

import (
	"context"
	"net/netip"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/fair"
)

// SetMaxHandshakes sets the maximum numbers of handshakes in progress and in the queue. It is called
// before the first handshake.
func (s *Server) SetMaxHandshakes(n, queued int) { s.handshakes.slots = fair.New(n, queued) }

// HoldSlot takes a slot of the handshakes until release is called.
func (s *Server) HoldSlot() (release func()) {
	slot, _ := s.handshakes.slots.Acquire(context.Background(), netip.Addr{})
	return slot.Release
}

// Queued returns the number of handshakes in the queue.
func (s *Server) Queued() int { return s.handshakes.slots.Queued() }

// SetStallTime sets the stall time and the patience. It is called before the first handshake.
func (s *Server) SetStallTime(d time.Duration) { s.handshakes.stall, s.handshakes.patience = d, d }

// Late reports whether a handshake is closed that has waited for its client, and returns the bound. used is
// the number of slots that the client uses. reading reports whether the handshake waits for input.
func (s *Server) Late(c *Conn, waited time.Duration, used int, reading, queued bool) (name bound.Name, late bool) {
	h := &handshake{conn: c}
	for range used {
		h.slot, _ = s.handshakes.slots.Acquire(context.Background(), fair.Address(c.RemoteAddr()))
		defer h.slot.Release()
	}
	now := time.Now()
	h.wait.since.Store(now.Add(-waited).UnixNano())
	h.reading.Store(reading)
	return s.handshakes.late(h, now, queued)
}

// SetExtraBytes sets how many bytes long handshakes share, before the first one.
func (s *Server) SetExtraBytes(n int) { s.handshakes.extra = n }

// ExtraBytes returns how many of these bytes are left.
func (s *Server) ExtraBytes() int {
	s.handshakes.mu.Lock()
	defer s.handshakes.mu.Unlock()
	return s.handshakes.extra
}

// SetTimeout sets the timeout of a handshake.
func (s *Server) SetTimeout(d time.Duration) {
	s.handshakes.mu.Lock()
	defer s.handshakes.mu.Unlock()
	s.handshakes.timeout = d
}

// SetRecordTime sets the time to receive the rest of a record. It is called before the first
// handshake.
func (s *Server) SetRecordTime(d time.Duration) { s.recordTime = d }

// HasTimer reports whether the connection has a timer for the rest of a record.
func (c *Conn) HasTimer() bool { return c.late.Load() != nil }
