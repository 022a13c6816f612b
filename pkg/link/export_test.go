package link

import "time"

// SetMaxHandshakes sets how many handshakes go on at once, before the first one.
func (s *Server) SetMaxHandshakes(n int) { s.handshakes.most = n }

// SetStallTime sets how long a handshake may wait for its client, before the first one.
func (s *Server) SetStallTime(d time.Duration) { s.handshakes.stall = d }

// SetExtraBytes sets how many bytes long handshakes share, before the first one.
func (s *Server) SetExtraBytes(n int) { s.handshakes.extra = n }

// ExtraBytes returns how many of these bytes are left.
func (s *Server) ExtraBytes() int {
	s.handshakes.mu.Lock()
	defer s.handshakes.mu.Unlock()
	return s.handshakes.extra
}

// SetTimeout sets the timeout of a handshake, before the first one.
func (s *Server) SetTimeout(d time.Duration) { s.timeout = d }

// SetRecordTime sets the time to receive the rest of a record. It is called before the first
// handshake.
func (s *Server) SetRecordTime(d time.Duration) { s.recordTime = d }

// HasTimer reports whether the connection has a timer for the rest of a record.
func (c *Conn) HasTimer() bool { return c.late.Load() != nil }
