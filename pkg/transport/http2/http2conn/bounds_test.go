package http2conn_test

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// TestFloodsCloseConnection in end_test.go contains the attacks. The heaviest legitimate peer is grpc-go,
// which sends one PING and two WINDOW_UPDATE frames for each message. The peer in this test sends ten times as many
// frames. Without content, the connection would be closed.
func TestControlFramesForContentPass(t *testing.T) {
	const messages = 1000
	p := connect(t, serverConfig())
	p.host.quiet = true
	p.greet()
	one := p.request(1, false)
	one.Credit(messages) // exceeds the window, so no WINDOW_UPDATE is needed
	p.us.Flush(false)
	p.expect(fmt.Sprintf("WINDOW_UPDATE 1 %d", messages))
	control := bytes.Repeat(bytes.Join([][]byte{
		frame(http2.FramePing, 1, 0, make([]byte, 8)...),
		frame(http2.FrameWindowUpdate, 0, 0, 0, 0, 0, 1),
		frame(http2.FrameWindowUpdate, 0, 1, 0, 0, 0, 1),
	}, nil), 10)
	p.send(bytes.Repeat(append(control, frame(http2.FrameData, 0, 1, 'x')...), messages))
	p.alive()
}

// The peer sends 1000 control frames for each byte of content.
func TestControlFramesForLittleContentCloseConnection(t *testing.T) {
	p := connect(t, serverConfig())
	p.host.quiet = true
	p.greet()
	p.request(1, false)
	control := bytes.Repeat(frame(http2.FramePing, 1, 0, make([]byte, 8)...), 1000)
	go p.Write(bytes.Repeat(append(control, frame(http2.FrameData, 0, 1, 'x')...), 500))
	p.expect("GOAWAY 1 ENHANCE_YOUR_CALM")
}

// Go's HTTP/2 client receives content in frames of 16 KB and may send WINDOW_UPDATE frames for it after the
// stream has ended.
func TestWindowUpdatesAfterResponsesPass(t *testing.T) {
	const streams, updates = 1000, 40
	p := connect(t, serverConfig())
	p.greet()
	for i := range streams {
		id := uint32(2*i + 1)
		o := p.request(id, true)
		o.sendHead(p, true)
		p.expect(fmt.Sprintf("HEADERS %d end", id))
		p.send(bytes.Repeat(frame(http2.FrameWindowUpdate, 0, id, 0, 0, 0, 1), updates))
	}
	p.alive()
}

// A stream that has ended in both directions does not count against the limit (RFC 9113 section 5.1.2), even if its
// request is still being served.
func TestEndedStreamsDoNotCountAgainstLimit(t *testing.T) {
	config := serverConfig()
	config.MaxStreams = 2
	p := connect(t, config)
	p.greet()
	one := p.request(1, true)
	p.request(3, true)
	harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: p.get(), EndHeaders: true, EndStream: true}))
	p.expect("RST_STREAM 5 REFUSED_STREAM")
	one.sendHead(p, true)
	p.expect("HEADERS 1 end")
	p.request(7, true)
	p.alive()
}

// A client that has not received RST_STREAM may send content up to the window of the stream.
func TestLateContentIsIgnored(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	one := p.request(1, false)
	one.sendHead(p, true)
	p.expect("HEADERS 1 end", "RST_STREAM 1 NO_ERROR")
	p.send(bytes.Repeat(frame(http2.FrameData, 0, 1, 'x'), window-1), frame(http2.FrameData, 1, 1))
	p.alive()
	p.send(frame(http2.FrameData, 0, 1, 'x')) // this byte exceeds the window
	p.expect("RST_STREAM 1 STREAM_CLOSED")
}

// A fullHost is a host whose Full method returns true while busy is true.
type fullHost struct {
	host
	busy atomic.Bool
}

func (h *fullHost) Full() bool { return h.busy.Load() }

func TestFullHandlerPausesReading(t *testing.T) {
	h := &fullHost{host: host{streams: make(chan *owner, 10), leaving: make(chan struct{}, 1)}}
	p := dialWith(t, serverConfig(), h)
	h.us, p.host = p.us, &h.host
	go func() { p.ran <- p.us.Run(nil) }()
	p.greet()
	one := p.request(1, false)
	h.busy.Store(true)
	p.send(frame(http2.FrameData, 0, 1, 'x'),
		frame(http2.FrameHeaders, 5, 3, p.get()...), frame(http2.FramePing, 0, 0, make([]byte, 8)...))
	one.await(t, 1) // frames before the request are handled
	one.sendHead(p, true)
	p.expect("HEADERS 1 end", "RST_STREAM 1 NO_ERROR") // responses are sent
	harness.Equal(t, len(h.streams), 0, "requests while the handler is full")
	h.busy.Store(false)
	p.us.Resume()
	three := p.accepted()
	harness.Equal(t, three.id, uint32(3), "stream")
	p.expect("PING ack=true 0000000000000000")
}

func TestCloseEndsPause(t *testing.T) {
	h := &fullHost{host: host{streams: make(chan *owner, 10), leaving: make(chan struct{}, 1)}}
	p := dialWith(t, serverConfig(), h)
	h.us, p.host = p.us, &h.host
	go func() { p.ran <- p.us.Run(nil) }()
	p.greet()
	one := p.request(1, true)
	h.busy.Store(true)
	p.send(frame(http2.FrameHeaders, 5, 3, p.get()...))
	p.us.Close(errTest)
	harness.Equal(t, p.ended(), errTest, "result of Run")
	one.await(t, 1)
	harness.Equal(t, one.err, errTest, "error of the stream")
}

var errTest = fmt.Errorf("closed by the test")

// abandon opens a stream, waits for its HEADERS and abandons it. want lists the frames after
// RST_STREAM.
func (p *peer) abandon(id int, want ...string) {
	p.Helper()
	o := p.open(true)
	p.expect(fmt.Sprintf("HEADERS %d end", id))
	if !o.Abandon() {
		p.Errorf("stream %d: got false from Abandon, want true", id)
	}
	p.us.Flush(false)
	p.expect(append([]string{fmt.Sprintf("RST_STREAM %d CANCEL", id)}, want...)...)
}

// gRPC servers close a connection if the client sends PING frames while the server sends neither HEADERS nor DATA.
func TestBarrierIsPingOnlyAfterResponse(t *testing.T) {
	p := connect(t, clientConfig())
	p.serve(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
	p.abandon(1, "SETTINGS")
	harness.NoError(p, p.WriteSettingsAck())
	three := p.open(true)
	p.expect("HEADERS 3 end")
	p.respond(3, true, ":status", "200")
	three.await(t, 1)
	p.abandon(5, "PING ack=false 0000000000000001")
	harness.NoError(p, p.WritePing(true, [8]byte{7: 1}))
	seven := p.open(true)
	p.expect("HEADERS 7 end")
	harness.NoError(p, p.WriteRSTStream(7, http2.ErrCodeRefusedStream)) // not a response
	seven.await(t, 1)
	p.us.Check()
	p.expect("SETTINGS")
	p.us.Check() // the first barrier has not been acknowledged yet
	p.open(true)
	p.expect("HEADERS 9 end")
}

func TestAbandonedStreamsCountUntilBarrier(t *testing.T) {
	config, room := clientConfig(), make(chan struct{}, 1)
	config.Room = room
	p := connect(t, config)
	p.serve(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	harness.Receive(t, room, "signal of the settings")
	p.abandon(1, "SETTINGS")
	harness.Receive(t, room, "signal of the end of the stream")
	if _, err := p.us.Open(http2conn.Request{Owner: newOwner(false), Head: head(0), End: true}, false); err != http2conn.ErrFull {
		t.Errorf("before the barrier: got %v, want ErrFull", err)
	}
	harness.Equal(t, p.us.NoRoom(), true, "NoRoom before the barrier")
	harness.NoError(p, p.WriteSettingsAck())
	harness.Receive(t, room, "signal of the barrier")
	harness.Equal(t, p.us.NoRoom(), false, "NoRoom after the barrier")
	p.open(true)
}

func TestEndOfUploadIsSignaled(t *testing.T) {
	config, room := clientConfig(), make(chan struct{}, 1)
	config.Room = room
	p := connect(t, config)
	p.serve(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 10})
	harness.Receive(t, room, "signal of the settings")
	open := func(client uint64) (*http2conn.Stream, error) {
		upload := http2conn.Upload{Client: client, Length: -1}
		return p.us.Open(http2conn.Request{Owner: newOwner(false), Head: head(0), Upload: upload}, false)
	}
	first, err := open(1)
	harness.NoError(t, err)
	if _, err := open(2); err != http2conn.ErrInUse {
		t.Errorf("during the first upload: got %v, want ErrInUse", err)
	}
	_, err = first.SendData([]byte("content"), true)
	harness.NoError(t, err)
	harness.Receive(t, room, "signal of the end of the upload")
	_, err = open(2)
	harness.NoError(t, err)
}

// The number of abandoned streams is not limited if the server has not advertised a limit.
func TestAbandonedStreamsWithoutServerLimit(t *testing.T) {
	p := connect(t, clientConfig())
	p.serve()
	for i := range 300 {
		p.abandon(2*i + 1)
	}
	p.open(true)
	p.expect("HEADERS 601 end")
}

// Node closes a connection on which a client resets 1000 streams in a short time.
func TestConnectionIsReplacedAfterManyResets(t *testing.T) {
	p := connect(t, clientConfig())
	p.serve()
	kept := p.open(true)
	p.expect("HEADERS 1 end")
	n := 0
	for p.us.Err() == nil && n < 1000 {
		n++
		o := p.open(true)
		o.Abandon()
		p.us.Flush(false)
		p.expect(fmt.Sprintf("HEADERS %d end", 2*n+1), fmt.Sprintf("RST_STREAM %d CANCEL", 2*n+1))
	}
	if n < 500 || n > 999 {
		t.Errorf("got %d streams on the connection, want 500 to 999", n)
	}
	p.expect("GOAWAY 0 NO_ERROR")
	p.respond(1, true, ":status", "200")
	kept.await(t, 1)
	p.expect("end")
}

// Go's HTTP/2 server closes a connection if its handlers run for all streams and four times as many
// requests wait.
func TestConnectionIsReplacedWithoutResponses(t *testing.T) {
	p := connect(t, clientConfig())
	p.serve(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	go func() { // acknowledges each barrier
		for p.WriteSettingsAck() == nil {
		}
	}()
	n := 0
	harness.Until(t, "the connection accepts no streams", func() bool {
		o := newOwner(false)
		var err error
		if o.Stream, err = p.us.Open(http2conn.Request{Owner: o, Head: head(0), End: true}, false); err == nil {
			n++
			o.Abandon()
			p.us.Flush(false)
		}
		return err != nil && err != http2conn.ErrFull
	})
	harness.Equal(t, n, 4, "streams on the connection")
}

// grpcio 1.51 (Python) sends RST_STREAM for a call if its deadline expires before HEADERS is sent.
func TestIdleStreamResetIsIgnoredAfterRequest(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	p.request(1, false)
	p.send(frame(http2.FrameRSTStream, 0, 3, 0, 0, 0, 8))
	p.alive()
	p.request(5, true)
	p.send(frame(http2.FrameRSTStream, 0, 4, 0, 0, 0, 8)) // a stream of a server
	p.expect("GOAWAY 5 PROTOCOL_ERROR")
}

// The HTTP/2 library for Python sends one or two WINDOW_UPDATE frames for each DATA frame. A client may send
// them long after it received the content.
func TestControlFramesAfterPausePass(t *testing.T) {
	const pieces = 30_000
	p := connect(t, serverConfig())
	p.host.quiet = true
	p.greet(initialWindow(1<<31 - 1))
	harness.NoError(p, p.WriteWindowUpdate(0, 1<<30))
	one := p.request(1, true)
	one.sendHead(p, false)
	p.expect("HEADERS 1")
	for range pieces {
		one.sendData(p, 1, false)
		p.expect("DATA 1 1")
	}
	update := append(frame(http2.FrameWindowUpdate, 0, 1, 0, 0, 0, 1), frame(http2.FrameWindowUpdate, 0, 0, 0, 0, 0, 1)...)
	p.send(bytes.Repeat(update, pieces))
	p.alive()
}

// Padding does not count as content (CVE-2019-9518).
func TestPaddingWithoutContentClosesConnection(t *testing.T) {
	config := serverConfig()
	config.ConnWindow, config.Window = 1<<20, 1<<20
	p := dial(t, config)
	p.host.quiet = true
	go func() { p.ran <- p.us.Run(nil) }()
	p.send([]byte(wire.Preface), frame(http2.FrameSettings, 0, 0))
	harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.get(), EndHeaders: true}))
	p.accepted()
	go p.Write(bytes.Repeat(frame(http2.FrameData, 8, 1, 1, 0), 20_000))
	got := p.next()
	for got != "end" && got[:6] != "GOAWAY" {
		got = p.next()
	}
	harness.Equal(t, got, "GOAWAY 1 ENHANCE_YOUR_CALM", "last frame")
}
