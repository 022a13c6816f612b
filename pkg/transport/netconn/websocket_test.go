package netconn

import (
	"bytes"
	"net"
	"testing"
	"time"
)

// sink is a connection that stores the written bytes.
type sink struct {
	net.Conn
	bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error)    { return s.Buffer.Write(p) }
func (s *sink) Read(p []byte) (int, error)     { return s.Buffer.Read(p) }
func (*sink) CloseWrite() error                { return nil }
func (*sink) Reset() error                     { return nil }
func (*sink) SetWriteDeadline(time.Time) error { return nil }

func TestCloseFrameIsSentBetweenFrames(t *testing.T) {
	var all string
	ends := map[int]bool{}
	for _, f := range []string{
		"\x81\x03abc",
		"\x82\x7e\x00\x80" + string(make([]byte, 128)),
		"\x82\x7f\x00\x00\x00\x00\x00\x00\x00\x02de",
		"\x89\x00",
		"\x81\x83mask123",
	} {
		ends[len(all)] = true
		all += f
	}
	ends[len(all)] = true
	// GoAway is called after each number of bytes, and the rest is written in pieces of each size.
	for asked := 0; asked <= len(all); asked++ {
		for piece := 1; piece <= len(all); piece += 1 + piece/3 {
			out := &sink{}
			c := NewWebSocket(out)
			write(t, c, []byte(all[:asked]), piece)
			c.GoAway()
			c.GoAway()
			write(t, c, []byte(all[asked:]), piece)
			at := asked
			for !ends[at] {
				at++
			}
			if got, want := out.String(), all[:at]+closeFrame; got != want {
				t.Fatalf("asked after %d bytes, pieces of %d: got %q, want %q", asked, piece, got, want)
			}
		}
	}
}

// write writes frames in pieces.
func write(t *testing.T, c *WebSocket, p []byte, piece int) {
	t.Helper()
	for len(p) > 0 {
		n := min(max(piece, 1), len(p))
		if m, err := c.Write(p[:n]); m != n || err != nil {
			t.Fatalf("Write: got %d, %v, want %d, nil", m, err, n)
		}
		p = p[n:]
	}
}
