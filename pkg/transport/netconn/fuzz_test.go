package netconn_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

const (
	mostSteps   = 40  // maximum number of steps in a script
	mostPieces  = 500 // maximum number of pieces in which a script is sent
	mostUseless = 15  // maximum number of consecutive messages without content; crypto/tls accepts one more
)

// A script contains the bytes that a TLS 1.3 client sends and the content that must be read from them.
type script struct {
	sent, content []byte
	mayEnd        bool // the number of messages without content exceeds the limit, so the content may be truncated
	ended         bool // the client sent close_notify
	broken        bool // a fault was injected, and the input after it is invalid
	settled       bool // the last message was content
}

// newScript reads three bytes for each step: one for the type of the message, and two for its
// length.
func newScript(f *forger, steps []byte) (s script) {
	const alert, handshake, data, keyUpdate = 21, 22, 23, 24
	useless := 0
	for i := 0; i < mostSteps && len(steps) >= 3 && !s.ended && !s.broken; i++ {
		what, length := steps[0]%9, int(steps[1])<<8|int(steps[2])
		steps = steps[3:]
		useless++
		s.settled = false
		switch what {
		case 0, 1, 2, 3:
			content := noise(length % (16<<10 + 1))
			if len(content) > 0 {
				useless, s.settled = 0, true
			}
			s.sent = append(s.sent, f.record(data, content)...)
			s.content = append(s.content, content...)
		case 4, 5: // a KeyUpdate; 5 requests an update from the server
			s.sent = append(s.sent, f.record(handshake, []byte{keyUpdate, 0, 0, 1, what - 4})...)
			f.update()
		case 6: // an incomplete message
			s.sent = append(s.sent, f.record(handshake, append([]byte{keyUpdate, 0, 0xff, 0}, noise(length%(16<<10-4))...))...)
			s.broken = true
		case 7:
			s.sent = append(s.sent, noise(length%100)...)
			s.broken = true
		case 8:
			s.sent = append(s.sent, f.record(alert, []byte{1, 0})...)
			s.ended = true
		}
		s.mayEnd = s.mayEnd || useless > mostUseless
	}
	return s
}

// play sends a script in parts and reads the available content after each part, until the script or
// the connection ends. The client then closes its side.
func (s *script) play(t *testing.T, p pair, cuts []byte) (got []byte, err error) {
	t.Helper()
	buf := make([]byte, 4096)
	for left, i := s.sent, 0; len(left) > 0; i++ {
		n := len(s.sent)/mostPieces + 1
		if len(cuts) > 0 {
			n = max(n, int(cuts[i%len(cuts)])*int(cuts[i%len(cuts)]))
		}
		n = min(n, len(left))
		if _, err := p.wire.Conn.Write(left[:n]); err != nil {
			t.Fatalf("the client cannot send: %v", err)
		}
		left = left[n:]
		for err == nil {
			var text string
			text, err = tryRead(t, p.link)
			got = append(got, text...)
		}
		if !errors.Is(err, netconn.ErrAgain) {
			return got, err
		}
		err = nil
	}
	if !s.broken && !s.ended && !s.mayEnd {
		p.link.SetReadDeadline(time.Now().Add(harness.Patience))
		for len(got) < len(s.content) && err == nil {
			var n int
			n, err = p.link.Read(buf)
			got = append(got, buf[:n]...)
		}
		if err == nil && s.settled && p.link.Stalled() {
			t.Error("got stalled after complete content, want not stalled")
		}
	}
	_ = p.wire.Conn.(*net.TCPConn).CloseWrite()
	p.link.SetReadDeadline(time.Now().Add(harness.Patience))
	for err == nil {
		var n int
		n, err = p.link.Read(buf)
		got = append(got, buf[:n]...)
	}
	return got, err
}

// For all messages of a client and all splits, the content before the first fault is read, no other
// content is read, and no read blocks forever.
func FuzzConnReadsSentBytes(f *testing.F) {
	f.Add([]byte{0, 0, 5, 0, 64, 0, 0, 0, 1}, []byte{1})
	f.Add([]byte{0, 0, 5, 4, 0, 0, 0, 0, 5, 5, 0, 0, 0, 0, 5, 8, 0, 0}, []byte{2, 1, 30})
	f.Add([]byte{0, 0, 0, 0, 0, 1, 6, 3, 0}, []byte{255})
	f.Add([]byte{0, 1, 1, 7, 0, 4}, []byte{9, 1})
	f.Add(bytes.Repeat([]byte{0, 0, 0}, mostSteps), []byte(nil))
	f.Fuzz(func(t *testing.T, steps, cuts []byte) {
		p, forger := forged(t)
		s := newScript(forger, steps)
		got, err := s.play(t, p, cuts)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got %v, want an end", err)
		}
		if s.ended && !s.mayEnd && !errors.Is(err, io.EOF) {
			t.Errorf("got %v after a close_notify, want EOF", err)
		}
		if s.mayEnd {
			s.content = s.content[:min(len(got), len(s.content))]
		}
		if !bytes.Equal(got, s.content) {
			t.Errorf("got %d bytes of content, want the %d sent bytes", len(got), len(s.content))
		}
	})
}
