package http2conn_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// sendHead sends the header section of a response and flushes the connection.
func (o *owner) sendHead(p *peer, end bool) {
	p.Helper()
	harness.NoError(p, o.SendHead(head(0), end))
	o.Conn().Flush(false)
}

func (o *owner) sendData(p *peer, n int, end bool) (waits bool) {
	p.Helper()
	waits, err := o.SendData(make([]byte, n), end)
	harness.NoError(p, err)
	o.Conn().Flush(false)
	return waits
}

func TestGracefulShutdownHasTwoSteps(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	one := p.request(1, false)
	p.us.GoAway()
	p.expect("GOAWAY 2147483647 NO_ERROR")
	p.us.GoAway() // GOAWAY is sent only once
	three := p.request(3, true)
	p.us.End()
	p.expect("GOAWAY 3 NO_ERROR")

	// The client opens a stream before it receives GOAWAY. The stream is refused and its frames are ignored.
	harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: p.get("x", "y"), EndHeaders: true}))
	p.expect("RST_STREAM 5 REFUSED_STREAM")
	harness.NoError(p, p.WriteWindowUpdate(5, 10))
	harness.NoError(p, p.WriteData(5, true, []byte("refused")))
	harness.NoError(p, p.WriteRSTStream(5, http2.ErrCodeCancel))
	p.alive()

	// The other streams are served.
	harness.NoError(p, p.WriteData(1, true, []byte("served")))
	one.await(t, 1)
	one.sendHead(p, true)
	p.expect("HEADERS 1 end")
	three.sendHead(p, false)
	three.sendData(p, 10, true)
	p.expect("HEADERS 3", "DATA 3 10 end", "end")
	p.Close()
	if err := p.ended(); err == nil || strings.Contains(err.Error(), "EOF") {
		t.Errorf("got %v, want a graceful end of the connection", err)
	}
}

func TestGracefulShutdownWritesPendingOutput(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	harness.NoError(p, p.WriteWindowUpdate(0, 1<<30))
	one := p.request(1, true)
	one.sendHead(p, false)
	const all = 16 << 20 // exceeds the socket buffers
	if !one.sendData(p, all, true) {
		t.Error("got no pending output, want some")
	}
	p.us.End()
	got := 0
	for {
		f, err := p.ReadFrame()
		if err != nil {
			break
		}
		if d, ok := f.(*http2.DataFrame); ok {
			got += len(d.Data())
		}
	}
	harness.Equal(t, got, all, "bytes")
}

func TestEndClosesIdleConnection(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	p.us.End()
	p.expect("GOAWAY 0 NO_ERROR", "end")
	p.Close()
	p.ended()
	p.us.End()
	p.us.GoAway()
	p.us.Close(errors.New("late"))
}

// After a connection error, only a limited amount of input is discarded, so that a flood of frames uses little CPU
// time.
func TestConnectionErrorLimitsDiscardedInput(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	harness.NoError(t, p.us.Link().TCP().SetReadBuffer(4<<10))
	harness.NoError(t, p.Conn.(*net.TCPConn).SetWriteBuffer(4<<10))
	p.send(frame(http2.FramePing, 0, 1, make([]byte, 8)...)) // PING has no stream
	sent := 0
	for err := error(nil); err == nil && sent < 4<<20; {
		var n int
		n, err = p.Write(make([]byte, 16<<10))
		sent += n
	}
	const most = 1 << 20 // 64 KiB and the socket buffers
	if sent > most {
		t.Errorf("sent %d bytes after an error, want at most %d", sent, most)
	}
	p.expect("GOAWAY 0 PROTOCOL_ERROR")
	p.ended()
}

// The last stream has ended and the peer does not read the output. SendTimeout is not set.
func TestCloseDiscardsUnreadOutput(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet(initialWindow(1 << 30))
	harness.NoError(p, p.WriteWindowUpdate(0, 1<<30))
	one := p.request(1, true)
	one.sendHead(p, false)
	for !one.sendData(p, 16<<10, false) { // fill the socket buffer and the output buffer
	}
	one.Reset(http2conn.Cancel)
	p.us.End()
	harness.Until(t, "the connection is ending", func() bool { return p.us.Over() })
	p.us.Close(errors.New("no more time"))
	p.ended()
}

func TestCloseNotifiesOwners(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	one := p.request(1, false)
	why := errors.New("it is enough")
	p.us.Close(why)
	p.us.Close(errors.New("again"))
	harness.Equal(t, p.ended(), why)
	if got := one.await(t, 1); got[0] != "failed it is enough" {
		t.Errorf("got %q, want a failure", got)
	}
	harness.Equal(t, one.SendHead(head(0), true), http2conn.ErrGone)
	if _, err := one.SendData(nil, true); err != http2conn.ErrGone {
		t.Errorf("got %v, want ErrGone", err)
	}
	if _, err := one.SendTrailer(head(0)); err != http2conn.ErrGone {
		t.Errorf("got %v, want ErrGone", err)
	}
	p.expect("end")
}

func TestConnectionErrorNotifiesOwners(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	one := p.request(1, false)
	p.Close()
	if err := p.ended(); err != io.EOF && err == nil {
		t.Errorf("got %v, want an error", err)
	}
	one.await(t, 1)
	if p.us.Err() == nil || p.us.Streams() != 0 {
		t.Errorf("got %v and %d streams, want an error and none", p.us.Err(), p.us.Streams())
	}
}

func TestStreamResetInBothDirections(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 5})
	one := p.request(1, false)
	harness.NoError(p, p.WriteRSTStream(1, http2.ErrCodeCancel))
	one.await(t, 1)
	var reset *http2conn.ResetError
	if !errors.As(one.err, &reset) || reset.Code != http2conn.Cancel {
		t.Errorf("got %v, want CANCEL", one.err)
	}
	one.Reset(http2conn.InternalError) // no effect, because the stream has ended
	three := p.request(3, true)
	three.sendHead(p, false)
	if !three.sendData(p, 100, true) {
		t.Error("got no pending output, want some")
	}
	p.expect("HEADERS 3", "DATA 3 5")
	three.Reset(http2conn.InternalError)
	p.us.Flush(false)
	p.expect("RST_STREAM 3 INTERNAL_ERROR")
	if three.Waits() || !three.Dropped() || one.Dropped() {
		t.Errorf("got pending %v, dropped %v and %v, want false, true and false", three.Waits(), three.Dropped(), one.Dropped())
	}
	harness.NoError(p, p.WriteWindowUpdate(3, 1000))
	p.alive()

	// The response ends before its request.
	five := p.request(5, false)
	five.sendHead(p, true)
	p.expect("HEADERS 5 end", "RST_STREAM 5 NO_ERROR")
	harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: p.Block("late", "trailer"), EndHeaders: true, EndStream: true}))
	p.alive() // the trailer section is ignored
	harness.Equal(t, p.us.Streams(), 0, "streams")
	seven := p.request(7, false)
	seven.BothWays()
	seven.sendHead(p, true)
	p.expect("HEADERS 7 end")
	harness.NoError(p, p.WriteData(7, true, nil))
	seven.await(t, 1)
	harness.Equal(t, p.us.Streams(), 0, "streams")
	p.alive()
}

func TestReleasedOwnerReceivesNoEvents(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	one := p.request(1, false)
	one.Release()
	harness.NoError(p, p.WriteData(1, false, []byte("x")))
	harness.NoError(p, p.WriteRSTStream(1, http2.ErrCodeCancel))
	p.alive()
	if len(one.lines) > 0 {
		t.Errorf("got %q, want nothing", one.lines)
	}
}

// Each function returns a frame that is sent repeatedly until the connection closes.
func TestFloodsCloseConnection(t *testing.T) {
	for name, flood := range map[string]func(p *peer, i int) []byte{
		"PING":     func(*peer, int) []byte { return frame(http2.FramePing, 0, 0, make([]byte, 8)...) },
		"PING ack": func(*peer, int) []byte { return frame(http2.FramePing, 1, 0, make([]byte, 8)...) },
		"SETTINGS": func(*peer, int) []byte { return frame(http2.FrameSettings, 0, 0) },
		"SETTINGS that change the window": func(_ *peer, i int) []byte {
			return frame(http2.FrameSettings, 0, 0, 0, 4, 0, 0, 0, byte(i))
		},
		"SETTINGS ack": func(*peer, int) []byte { return frame(http2.FrameSettings, 1, 0) },
		"PRIORITY":     func(*peer, int) []byte { return frame(http2.FramePriority, 0, 1, 0, 0, 0, 3, 1) },
		"empty DATA":   func(*peer, int) []byte { return frame(http2.FrameData, 0, 1) },
		"GOAWAY":       func(*peer, int) []byte { return frame(http2.FrameGoAway, 0, 0, make([]byte, 8)...) },
		"unknown":      func(*peer, int) []byte { return frame(99, 0, 1) },
		"CONTINUATION": func(_ *peer, i int) []byte {
			if i == 0 {
				return frame(http2.FrameHeaders, 0, 11)
			}
			return frame(http2.FrameContinuation, 0, 11)
		},
		"DATA of a closed stream":       func(*peer, int) []byte { return frame(http2.FrameData, 0, 3, 1) },
		"RST_STREAM of a closed stream": func(*peer, int) []byte { return frame(http2.FrameRSTStream, 0, 3, 0, 0, 0, 8) },
		"HEADERS of a closed stream": func(p *peer, i int) []byte {
			if i == 0 {
				return frame(http2.FrameWindowUpdate, 0, 1, 0, 0, 0, 0) // increment 0 is an error, so this side resets the stream
			}
			return frame(http2.FrameHeaders, 5, 1, 0x82)
		},
		"streams with protocol errors": func(p *peer, i int) []byte { // CVE-2025-8671
			id := uint32(2*i + 11)
			return append(frame(http2.FrameHeaders, 5, id, 0x82), frame(http2.FrameWindowUpdate, 0, id, 0, 0, 0, 0)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			// On a busy machine, the connection may be closed before the peer has read GOAWAY (netconn.LingerTime).
			harness.Until(t, "GOAWAY with ENHANCE_YOUR_CALM", func() bool {
				p := dial(t, serverConfig())
				p.host.quiet = true
				go func() { p.ran <- p.us.Run(nil) }()
				p.greet()
				p.request(1, false)
				p.request(3, false)
				harness.NoError(p, p.WriteRSTStream(3, http2.ErrCodeCancel))
				go func() {
					var b []byte
					for i := range 20_000 {
						b = append(b, flood(p, i)...)
					}
					p.Write(b)
				}()
				got := p.next()
				for got != "end" && !strings.HasPrefix(got, "GOAWAY") {
					got = p.next()
				}
				p.Close()
				p.ended()
				return strings.HasSuffix(got, "ENHANCE_YOUR_CALM")
			})
		})
	}
}

// After the peer ends a stream or its connection, the stream reports that output was dropped as soon as Waits
// returns false.
func TestPendingOutputIsDroppedAfterReset(t *testing.T) {
	for name, end := range map[string]func(p *peer){
		"the stream":     func(p *peer) { harness.NoError(p, p.WriteRSTStream(1, http2.ErrCodeCancel)) },
		"the connection": func(p *peer) { p.Conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t, serverConfig())
			p.greet(initialWindow(5))
			one := p.request(1, true)
			one.sendHead(p, false)
			one.sendData(p, 10, true)
			p.expect("HEADERS 1", "DATA 1 5")
			if one.Dropped() {
				t.Error("got dropped output, want pending output")
			}
			end(p)
			one.await(t, 1)
			if one.Waits() || !one.Dropped() {
				t.Errorf("got pending %v, dropped %v, want false, true", one.Waits(), one.Dropped())
			}
			harness.Equal(t, one.Cut(), true, "cut")
		})
	}
}

func TestCompletePendingResponseIsNotDropped(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet(initialWindow(5))
	one := p.request(1, true)
	one.sendHead(p, false)
	one.sendData(p, 10, true)
	p.expect("HEADERS 1", "DATA 1 5")
	harness.NoError(p, p.WriteWindowUpdate(1, 5))
	p.expect("DATA 1 5 end")
	harness.Equal(t, one.Dropped(), false, "dropped")
	harness.Equal(t, one.Cut(), false, "cut")
}
