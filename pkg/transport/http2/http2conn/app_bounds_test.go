package http2conn_test

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// controlFrames returns n groups of the three control frames that grpc-go sends for each message.
func controlFrames(n int) []byte {
	return bytes.Repeat(bytes.Join([][]byte{
		frame(http2.FramePing, 1, 0, make([]byte, 8)...),
		frame(http2.FrameWindowUpdate, 0, 0, 0, 0, 0, 1),
		frame(http2.FrameWindowUpdate, 0, 1, 0, 0, 0, 1),
	}, nil), n)
}

// openResponse opens a stream that accepts n bytes of content, and sends the header section of its response.
func (p *peer) openResponse(n int) {
	p.Helper()
	o := p.open(false)
	o.quiet = true
	p.expect("HEADERS 1")
	p.respond(1, false, ":status", "200")
	o.Credit(n)
	p.us.Flush(false)
	p.next() // WINDOW_UPDATE
}

// The peer sends 10,000 control frames for each byte of content.
func TestAppControlFramesForLittleContentCloseConnection(t *testing.T) {
	config := recorded(clientConfig())
	p := connect(t, config)
	p.serve()
	p.openResponse(window)
	flood := append(controlFrames(10_000/3), frame(http2.FrameData, 0, 1, 'x')...)
	go func() {
		for range window {
			if _, err := p.Write(flood); err != nil {
				return
			}
		}
	}()
	p.expect("GOAWAY 0 ENHANCE_YOUR_CALM")
	wantBounds(t, config.Bounds, bound.AppControlFrames)
}

// A grpc-go server sends three control frames for each message. The test sends ten times as many control
// frames for each message. Without content, this number would exceed the limit.
func TestAppControlFramesForContentPass(t *testing.T) {
	const messages = 5000
	config := recorded(clientConfig())
	p := connect(t, config)
	p.serve()
	p.openResponse(messages)
	p.send(bytes.Repeat(append(controlFrames(10), frame(http2.FrameData, 0, 1, 'x')...), messages))
	p.alive()
	wantBounds(t, config.Bounds)
}

// unreadApp returns an app that does not read from the connection.
func unreadApp(t *testing.T, config http2conn.Config) *peer {
	t.Helper()
	p := connect(t, config)
	p.serve(initialWindow(1<<31 - 1))
	harness.NoError(p, p.WriteWindowUpdate(0, 1<<30))
	p.alive()
	p.stopReading(p.open(false))
	return p
}

func TestUnreadRepliesToAppCloseConnection(t *testing.T) {
	config := recorded(clientConfig())
	p := unreadApp(t, config)
	go p.Write(bytes.Repeat(frame(http2.FramePing, 0, 0, make([]byte, 8)...), 5000))
	p.calm()
	wantBounds(t, config.Bounds, bound.AppUnreadReplies)
}

func TestUnreadPingsOfAppReceiveReplies(t *testing.T) {
	config := recorded(clientConfig())
	p := unreadApp(t, config)
	p.unreadPings()
	harness.NoError(p, p.WriteGoAway(1, http2.ErrCodeNo, nil))
	harness.Receive(p, p.host.leaving, "GOAWAY") // all PING frames are handled before GOAWAY
	p.readPings()
	wantBounds(t, config.Bounds)
}

func TestLongAppHeaderBlockClosesConnection(t *testing.T) {
	config := recorded(clientConfig())
	p := connect(t, config)
	p.serve()
	p.open(true)
	p.expect("HEADERS 1 end")
	go p.Write(headerFrames(1, p.Block(":status", "200", "a", long(160<<10))))
	p.expect("GOAWAY 0 ENHANCE_YOUR_CALM", "end")
	wantBounds(t, config.Bounds, bound.AppHeaderBlock)
}

// Clients such as Node.js accept 16 KiB of header fields.
func TestLongAppHeaderIsForwarded(t *testing.T) {
	config := recorded(clientConfig())
	config.MaxHeadBytes = 256 << 10 // value of package http2client
	p := connect(t, config)
	p.serve()
	o := p.open(true)
	p.expect("HEADERS 1 end")
	cookies := long(10 * 16 << 10)
	p.send(headerFrames(1, p.Block(":status", "200", "set-cookie", cookies)))
	if got := o.await(t, 1); !strings.Contains(got[0], cookies) {
		t.Errorf("got a header of %d bytes, want the field of %d bytes in it", len(got[0]), len(cookies))
	}
	wantBounds(t, config.Bounds)
}

// If a client applied the timeouts, they would expire before the first frame.
func TestClientIgnoresTimeouts(t *testing.T) {
	config := recorded(clientConfig())
	config.HeadTimeout, config.SendTimeout = 1, 1
	p := unreadApp(t, config)
	p.unreadPings()
	p.readPings()
	wantBounds(t, config.Bounds)
}
