package http2conn

// Request is a request that a client sends with [Conn.Open].
type Request struct {
	Owner  Owner // receives the events of the stream
	Head   *Block
	End    bool // the request has neither content nor a trailer section
	Upload Upload
}

// Upload describes the content of a request. If the server does not read the content of some streams, they can use
// the whole window of the connection (RFC 9113 section 5.2.1), so that the content of all other streams has to wait.
// For this reason, clients only share a connection for content that is short compared with the free window. The zero
// value describes a request without content.
type Upload struct {
	Client  uint64 // identifier of the client; not 0 if Length is not 0
	Length  int64  // length of the content in bytes; -1 if it is not known
	Sharing Sharing
}

// Sharing is the condition under which clients share a connection for content.
type Sharing int

// Values of Sharing.
const (
	ShareIfShort Sharing = iota // the content is short compared with the free window
	ShareIfFree                 // the window of the connection is not exhausted
	ShareAlways
)

// uploads describes the content that is sent on the connection of a client. It is guarded by Conn.mu.
type uploads struct {
	client   uint64 // client of the last exclusive upload
	running  int    // number of exclusive uploads that are not complete; all of them belong to client
	reserved int    // number of bytes of short content that were not yet added to the output
	peak     int    // largest window of the connection, in bytes
}

// freeShare is the divisor of the largest window that is the minimum free window for the exclusive upload of another
// client. Servers usually send WINDOW_UPDATE when half of the window is used.
const freeShare = 4

// admits reports whether u can be sent. window is the current window of the connection in bytes.
func (a *uploads) admits(u Upload, window int) bool {
	free := window - a.reserved
	switch {
	case u.Length == 0 || u.Sharing == ShareAlways || u.Sharing == ShareIfFree && free > 0:
		return true
	case a.running > 0:
		return u.Client == a.client
	case u.short(free):
		return true
	}
	return a.reserved == 0 && (u.Client == a.client || free >= a.peak/freeShare)
}

// short reports whether the content uses at most half of the free window. As a result, short content never uses
// the whole window.
func (u Upload) short(free int) bool { return u.Length >= 0 && u.Length <= int64(free/2) }

// begin records that s sends u, which admits has accepted.
func (a *uploads) begin(s *Stream, u Upload, window int) {
	switch {
	case u.Length == 0 || u.Sharing != ShareIfShort:
	case a.running == 0 && u.short(window-a.reserved):
		s.reserved = int(u.Length)
		a.reserved += s.reserved
	default:
		s.exclusive = true
		a.client = u.Client
		a.running++
	}
}

// sent records that n bytes of content were added to the output.
func (a *uploads) sent(s *Stream, n int) {
	n = min(n, s.reserved)
	s.reserved -= n
	a.reserved -= n
}

// end records that s sends no more content.
func (a *uploads) end(s *Stream) {
	a.sent(s, s.reserved)
	if s.exclusive {
		s.exclusive = false
		a.running--
	}
}
