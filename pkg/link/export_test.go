package link

// SetMaxHandshakes sets how many handshakes go on at once, before the first one.
func (s *Server) SetMaxHandshakes(n int) { s.handshakes.most = n }
