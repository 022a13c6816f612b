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
				out := &sink{}
				c := v.conn(out)
				write(t, c, []byte(all[:asked]), piece)
				c.GoAway()
				c.GoAway()
				write(t, c, []byte(all[asked:]), piece)
				at := asked
				for !ends[at] || at == 0 && !v.final { // HTTP/2 begins with SETTINGS
					at++
				}
				want := all[:at] + c.last
				if !v.final {
					want += all[at:]
				}
				if got := out.String(); got != want {
					t.Fatalf("%s, asked after %d bytes, pieces of %d: got %q, want %q", name, asked, piece, got, want)
				}
			}
		}
	}
}

// write writes frames in pieces.
func write(t *testing.T, c *Conn, p []byte, piece int) {
	t.Helper()
	for len(p) > 0 {
		n := min(max(piece, 1), len(p))
		if m, err := c.Write(p[:n]); m != n || err != nil {
			t.Fatalf("Write: got %d, %v, want %d, nil", m, err, n)
		}
		p = p[n:]
	}
}
