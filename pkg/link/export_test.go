package link

import "time"

// SetMaxHandshakes sets how many handshakes go on at once, before the first one.
func (s *Server) SetMaxHandshakes(n int) { s.handshakes.most = n }

// SetStallTime sets how long a handshake may wait for its client, before the first one.
func (s *Server) SetStallTime(d time.Duration) { s.handshakes.stall = d }

// SetTimeout sets the timeout of a handshake, before the first one.
func (s *Server) SetTimeout(d time.Duration) { s.timeout = d }
