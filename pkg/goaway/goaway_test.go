package goaway

import (
	"bytes"
	"net"
	"testing"
	"time"
)

// sink is a connection that keeps what is written.
type sink struct {
	net.Conn
	bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error)    { return s.Buffer.Write(p) }
func (s *sink) Read(p []byte) (int, error)     { return s.Buffer.Read(p) }
func (*sink) SetWriteDeadline(time.Time) error { return nil }

func TestTheLastFrameStandsBetweenTwoOthers(t *testing.T) {
	h2 := []string{
		"\x00\x00\x00\x04\x00\x00\x00\x00\x00",    // SETTINGS, empty
		"\x00\x00\x03\x00\x00\x00\x00\x00\x01abc", // DATA
		"\x00\x00\x00\x00\x01\x00\x00\x00\x01",    // DATA, empty
	}
	webSocket := []string{
		"\x81\x03abc",
		"\x82\x7e\x00\x80" + string(make([]byte, 128)),
		"\x82\x7f\x00\x00\x00\x00\x00\x00\x00\x02de",
		"\x89\x00",
		"\x81\x83mask123",
	}
	for name, v := range map[string]struct {
		frames []string
		conn   func(net.Conn) *Conn
		final  bool
	}{
		"HTTP/2":    {h2, HTTP2, false},
		"WebSocket": {webSocket, WebSocket, true},
	} {
		var all string
		ends := map[int]bool{}
		for _, f := range v.frames {
			ends[len(all)] = true
			all += f
		}
		ends[len(all)] = true
		// The farewell is asked for after every number of bytes, and the rest comes in
		// pieces of every size.
		for asked := 0; asked <= len(all); asked++ {
			for piece := 1; piece <= len(all); piece += 1 + piece/3 {
				out, last := sendAway(t, v.conn, all[:asked], all[asked:], piece)
				at := asked
				for !ends[at] || at == 0 && !v.final { // HTTP/2 begins with SETTINGS
					at++
				}
				want := all[:at] + last
				if !v.final {
					want += all[at:]
				}
				if got := out; got != want {
					t.Fatalf("%s, asked after %d bytes, pieces of %d: got %q, want %q", name, asked, piece, got, want)
				}
			}
		}
	}
}

// sendAway writes frames in pieces, says farewell behind the first part of them, and
// returns what has been sent and the farewell.
func sendAway(t *testing.T, conn func(net.Conn) *Conn, before, after string, piece int) (sent, last string) {
	t.Helper()
	out := &sink{}
	c := conn(out)
	write := func(text string) {
		for len(text) > 0 {
			n := min(piece, len(text))
			if m, err := c.Write([]byte(text[:n])); m != n || err != nil {
				t.Fatalf("Write: got %d, %v, want %d, nil", m, err, n)
			}
			text = text[n:]
		}
	}
	write(before)
	c.GoAway()
	c.GoAway()
	write(after)
	return out.String(), c.last
}
