package http2conn_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// recorded returns config with a new bound recorder.
func recorded(config http2conn.Config) http2conn.Config {
	config.Bounds = bound.NewRecorder()
	return config
}

// wantBounds checks that events were recorded for exactly the bounds with these names.
func wantBounds(t testing.TB, r *bound.Recorder, names ...bound.Name) {
	t.Helper()
	var got []bound.Name
	for _, s := range r.States(time.Now()) {
		got = append(got, s.Name)
		if s.Peer == "" {
			t.Errorf("%v: got no peer, want one", s.Name)
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("got events of the bounds %v, want %v", got, names)
	}
}

// headerFrames returns the frames of a header block with END_STREAM.
func headerFrames(id uint32, block []byte) (frames []byte) {
	const endStream, endHeaders = 1, 4
	kind, flags := http2.FrameHeaders, byte(endStream)
	for len(block) > 0 {
		n := min(len(block), 16<<10)
		if n == len(block) {
			flags |= endHeaders
		}
		frames = append(frames, frame(kind, flags, id, block[:n]...)...)
		kind, flags, block = http2.FrameContinuation, 0, block[n:]
	}
	return frames
}

// long returns a header value of n bytes that the Huffman code of HPACK does not shorten.
func long(n int) string { return strings.Repeat("~", n) }

// stopReading makes the peer stop reading. It returns when the socket buffers are full and no reply can be
// written. The flow control window of o must allow DATA frames.
func (p *peer) stopReading(o *owner) {
	p.Helper()
	o.sendData(p, 16<<20, true)
	taken, since := 0, time.Now()
	harness.Until(p, "full buffers", func() bool {
		if n := p.us.Taken(); n != taken {
			taken, since = n, time.Now()
		}
		return time.Since(since) > 200*time.Millisecond
	})
}

// unreadClient returns a client that does not read from the connection.
func unreadClient(t *testing.T, config http2conn.Config) *peer {
	t.Helper()
	p := dial(t, config)
	p.host.quiet = true
	go func() { p.ran <- p.us.Run(nil) }()
	p.greet(initialWindow(1<<31 - 1))
	harness.NoError(p, p.WriteWindowUpdate(0, 1<<30))
	one := p.request(1, true)
	one.sendHead(p, false)
	p.stopReading(one)
	return p
}

// calm waits until the connection closes and checks the error.
func (p *peer) calm() {
	p.Helper()
	var wrong *http2conn.Error
	if err := p.ended(); !errors.As(err, &wrong) || wrong.Code != http2conn.EnhanceYourCalm {
		p.Errorf("got %v, want ENHANCE_YOUR_CALM", err)
	}
}

func TestUnreadRepliesCloseConnection(t *testing.T) {
	for name, c := range map[string]struct {
		many  int
		frame func(i int) []byte
		also  []bound.Name // recorded in addition to UnreadReplies
	}{
		"PING":     {5000, func(int) []byte { return frame(http2.FramePing, 0, 0, make([]byte, 8)...) }, nil},
		"SETTINGS": {9000, func(int) []byte { return frame(http2.FrameSettings, 0, 0) }, nil},
		"streams with DATA after END_STREAM": {6000, func(i int) []byte {
			id := uint32(2*i + 3)
			return append(frame(http2.FrameHeaders, 5, id, 0x82), frame(http2.FrameData, 0, id, 1)...)
		}, []bound.Name{bound.MalformedRequest}},
	} {
		t.Run(name, func(t *testing.T) {
			config := recorded(serverConfig())
			p := unreadClient(t, config)
			var b []byte
			for i := range c.many {
				b = append(b, c.frame(i)...)
			}
			go p.Write(b)
			p.calm()
			wantBounds(t, config.Bounds, append([]bound.Name{bound.UnreadReplies}, c.also...)...)
		})
	}
}

// unreadPings sends ten times as many PING frames as grpc-go sends without acknowledgment.
func (p *peer) unreadPings() {
	p.Helper()
	for range 10 * 20 {
		harness.NoError(p, p.WritePing(false, [8]byte{1}))
	}
}

// readPings reads until all replies to unreadPings have arrived.
func (p *peer) readPings() {
	p.Helper()
	for replies := 0; replies < 10*20; {
		switch got := p.next(); got {
		case "PING ack=true 0100000000000000":
			replies++
		case "end":
			p.Fatalf("got the end of the connection after %d replies, want 200", replies)
		}
	}
}

func TestUnreadPingsReceiveReplies(t *testing.T) {
	config := recorded(serverConfig())
	p := unreadClient(t, config)
	p.unreadPings()
	p.request(3, true) // all PING frames are handled before this request
	p.readPings()
	wantBounds(t, config.Bounds)
}

func TestLongHeaderBlockClosesConnection(t *testing.T) {
	config := recorded(serverConfig())
	p := connect(t, config)
	p.greet()
	go p.Write(headerFrames(1, p.get("a", long(160<<10))))
	p.expect("GOAWAY 0 ENHANCE_YOUR_CALM", "end")
	wantBounds(t, config.Bounds, bound.HeaderBlock)
}

// A connection error would fail the other streams.
func TestLongHeaderStringKeepsConnection(t *testing.T) {
	config := recorded(serverConfig())
	p := connect(t, config)
	p.greet()
	p.send(headerFrames(1, p.get("a", long(maxHead+1))))
	harness.Equal(t, p.accepted().began, "too large end=true", "request")
	p.request(3, true)
	wantBounds(t, config.Bounds)
}

// A Kerberos token is at most 64 KiB long. The test sends a token of ten times this length.
func TestKerberosHeaderBlockIsServed(t *testing.T) {
	config := recorded(serverConfig())
	config.MaxHeadBytes = 1 << 20 // default of MAX_HEADER_BYTES
	p := connect(t, config)
	p.greet()
	token := "Negotiate " + long(10*64<<10)
	p.send(headerFrames(1, p.get("authorization", token)))
	if got := p.accepted().began; !strings.Contains(got, token) {
		t.Errorf("got a header of %d bytes, want the token of %d bytes in it", len(got), len(token))
	}
	wantBounds(t, config.Bounds)
}

func TestIncompleteFrameTimesOut(t *testing.T) {
	preface := append([]byte(wire.Preface), frame(http2.FrameSettings, 0, 0)...)
	for name, text := range map[string][]byte{
		"preface":         []byte(wire.Preface[:10]),
		"no SETTINGS":     []byte(wire.Preface),
		"frame header":    append(slices.Clip(preface), frame(http2.FramePing, 0, 0, make([]byte, 8)...)[:5]...),
		"payload":         append(slices.Clip(preface), frame(http2.FramePing, 0, 0, make([]byte, 8)...)[:15]...),
		"no CONTINUATION": append(slices.Clip(preface), frame(http2.FrameHeaders, 0, 1, 0x82)...),
		"part of HEADERS": append(slices.Clip(preface), frame(http2.FrameHeaders, 4, 1, 0x82, 0x86)[:10]...),
	} {
		t.Run(name, func(t *testing.T) {
			config := recorded(serverConfig())
			config.HeadTimeout = 30 * time.Millisecond
			p := connect(t, config)
			p.send(text)
			var wrong *http2conn.Error
			go p.Read(make([]byte, 1<<10))
			if err := p.ended(); !errors.As(err, &wrong) || wrong.Code != http2conn.ProtocolError {
				t.Errorf("got %v, want PROTOCOL_ERROR", err)
			}
			wantBounds(t, config.Bounds, bound.FrameTimeout)
		})
	}
}

// A client on a slow network sends a header block of 64 KiB in many packets.
func TestSplitHeaderBlockIsServed(t *testing.T) {
	config := recorded(serverConfig())
	config.MaxHeadBytes, config.HeadTimeout = 1<<20, time.Minute // the default values
	p := connect(t, config)
	p.greet()
	for id := uint32(1); id < 20; id += 2 {
		for piece := range slices.Chunk(headerFrames(id, p.get("cookie", long(64<<10))), 500) {
			p.send(piece)
		}
		if got := p.accepted().began; len(got) < 64<<10 {
			t.Errorf("got a header of %d bytes, want 64 KiB", len(got))
		}
	}
	wantBounds(t, config.Bounds)
}
