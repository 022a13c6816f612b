package http2conn

// Request is a request that a client sends with [Conn.Open].
type Request struct {
	Owner  Owner // receives the events of the stream
	Head   *Block
	End    bool // the request has neither content nor a trailer section
	Upload Upload
}

// Upload describes the content of a request. If the server does not read the content of some streams, these streams can
// use the whole window of the connection (RFC 9113 section 5.2.1). The content of all other streams then has to wait.
// For this reason, content of different clients is sent on the same connection only if it is short compared with the
// free window. The zero value describes a request without content.
type Upload struct {
	Client  uint64 // identifies the client; 0 is allowed only if Length is 0
	Length  int64  // length of the content in bytes; -1 if it is not known
	Sharing Sharing
}

// Sharing is the condition under which the content of a request is sent on a connection that sends content of another
// client.
type Sharing int

// Values of Sharing.
const (
	ShareIfShort Sharing = iota // the content is short compared with the free window
	ShareIfFree                 // the window of the connection is not exhausted
	ShareAlways
)

// uploads describes the request content that is sent on a connection to a server. An upload is exclusive if its content
// is too long to share the connection. It is guarded by Conn.mu.
type uploads struct {
	client   uint64 // Upload.Client of the last exclusive upload
	running  int    // number of incomplete exclusive uploads, which all belong to client
	reserved int    // number of bytes of short content that have not been added to the output yet
	peak     int    // largest window of the connection, in bytes
}

// An exclusive upload of another client begins only if the free window is at least peak/freeShare. The value must be
// greater than 2, because servers usually send WINDOW_UPDATE only after half of the window is used.
const freeShare = 4

// admits reports whether u can be sent on the connection. window is the window of the connection in bytes.
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

// short reports whether the content uses at most half of the free window. Because of this limit, short content never
// exhausts the window. free is the free window in bytes.
func (u Upload) short(free int) bool { return u.Length >= 0 && u.Length <= int64(free/2) }

// begin records that the content described by u will be sent on s. admits must have returned true for u.
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

// sent records that n bytes of the content of s were added to the output.
func (a *uploads) sent(s *Stream, n int) {
	n = min(n, s.reserved)
	s.reserved -= n
	a.reserved -= n
}

// end records that no more content will be sent on s.
func (a *uploads) end(s *Stream) {
	a.sent(s, s.reserved)
	if s.exclusive {
		s.exclusive = false
		a.running--
	}
}
