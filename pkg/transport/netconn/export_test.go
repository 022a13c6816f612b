package netconn

import (
	"context"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
)

// SetMaxHandshakes sets the maximum numbers of handshakes in progress and in the queue, and the time that a
// handshake can wait for its client while others are queued. It is called before the first handshake.
func (s *Server) SetMaxHandshakes(n, queued int, stall time.Duration) {
	s.handshakes.slots = fair.New(fair.Options{Slots: n, Queue: queued, MinPatience: stall, MaxPatience: stall})
}

// HoldSlot takes a slot of the handshakes until release is called.
func (s *Server) HoldSlot() (release func()) {
	slot, _ := s.handshakes.slots.Acquire(context.Background(), fair.Request{})
	return slot.Release
}

// Queued returns the number of handshakes in the queue.
func (s *Server) Queued() int {
	_, queued := s.handshakes.slots.Load()
	return queued
}

// StalledHandshake returns the result of stalled for a handshake that has waited for its client for the given time.
// reading reports whether the handshake waits for input.
func (c *Conn) StalledHandshake(waited time.Duration, reading bool) time.Duration {
	h := &handshake{conn: c}
	now := time.Now()
	h.wait.since.Store(now.Add(-waited).UnixNano())
	h.reading.Store(reading)
	return h.stalled(now)
}

// SetExtraBytes sets the number of extra bytes that handshakes share. It must be called before the first handshake.
func (s *Server) SetExtraBytes(n int) { s.handshakes.extra = n }

// ExtraBytes returns the number of extra bytes that no handshake uses.
func (s *Server) ExtraBytes() int {
	s.handshakes.mu.Lock()
	defer s.handshakes.mu.Unlock()
	return s.handshakes.extra
}

// SetTimeout sets the timeout of a handshake.
func (s *Server) SetTimeout(d time.Duration) {
	s.handshakes.timeout = d
}

// SetRecordTime sets the maximum time to wait for the rest of a record. It is called before the first handshake.
func (s *Server) SetRecordTime(d time.Duration) { s.recordTime = d }

// HasTimer reports whether the connection has a timer for the rest of a record.
func (c *Conn) HasTimer() bool { return c.late.Load() != nil }
