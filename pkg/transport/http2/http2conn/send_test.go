package http2conn_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func initialWindow(n uint32) http2.Setting {
	return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n}
}

func TestFlowControlLimitsOnlyContent(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet(initialWindow(0))
	one := p.request(1, true)
	one.sendHead(p, false)
	if !one.sendData(p, 10, false) {
		t.Error("got no pending output, want some")
	}
	three := p.request(3, true)
	three.sendHead(p, false)
	if three.sendData(p, 0, true) {
		t.Error("got a pending END_STREAM, want none")
	}
	p.expect("HEADERS 1", "HEADERS 3", "DATA 3 0 end")
	for range 9 {
		harness.NoError(p, p.WriteWindowUpdate(1, 1))
		p.expect("DATA 1 1")
	}
	waits, err := one.SendTrailer(head(0))
	if err != nil || !waits || !one.Waits() || one.Ended() {
		t.Errorf("got pending %v, error %v, pending %v, ended %v, want a pending trailer section", waits, err, one.Waits(), one.Ended())
	}
	harness.NoError(p, p.WriteWindowUpdate(1, 1))
	p.expect("DATA 1 1", "HEADERS 1 end")
	if got := one.await(t, 1); got[0] != "drained" {
		t.Errorf("got %q, want drained", got)
	}
}

func TestSettingsChangeWindowsOfOpenStreams(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet(initialWindow(100))
	one := p.request(1, true)
	one.sendHead(p, false)
	one.sendData(p, 300, true)
	p.expect("HEADERS 1", "DATA 1 100")
	harness.NoError(p, p.WriteSettings(initialWindow(50))) // the window is -50 afterwards
	p.expect("SETTINGS ack")
	harness.NoError(p, p.WriteWindowUpdate(1, 50))
	p.alive()
	harness.NoError(p, p.WriteWindowUpdate(1, 1))
	p.expect("DATA 1 1")
	harness.NoError(p, p.WriteSettings(initialWindow(1), initialWindow(60))) // the last value is used
	p.expect("DATA 1 10", "SETTINGS ack")
	harness.NoError(p, p.WriteSettings(initialWindow(1<<31-1)))
	p.expect("DATA 1 189 end", "SETTINGS ack")
	three := p.request(3, true)
	three.sendHead(p, false)
	p.expect("HEADERS 3")
	harness.NoError(p, p.WriteWindowUpdate(3, 1))
	p.expect("RST_STREAM 3 FLOW_CONTROL_ERROR")
	p.request(5, true)
	harness.NoError(p, p.WriteSettings(initialWindow(1)))
	harness.NoError(p, p.WriteWindowUpdate(5, 1000))
	harness.NoError(p, p.WriteSettings(initialWindow(1<<31-1)))
	p.expect("SETTINGS ack", "GOAWAY 5 FLOW_CONTROL_ERROR", "end")
}

func TestStreamsTakeTurns(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet(initialWindow(1 << 20))
	hog := p.request(1, true)
	hog.sendHead(p, false)
	hog.sendData(p, 65535, false) // uses the window of the connection
	p.expect("HEADERS 1", "DATA 1 16384", "DATA 1 16384", "DATA 1 16384", "DATA 1 16383")
	for id := uint32(3); id <= 7; id += 2 {
		o := p.request(id, true)
		o.sendHead(p, false)
		o.sendData(p, 40_000, true)
		p.expect(fmt.Sprintf("HEADERS %d", id))
	}
	harness.NoError(p, p.WriteWindowUpdate(0, 1<<20))
	for _, want := range []string{"16384", "16384", "7232 end"} {
		p.expect("DATA 3 "+want, "DATA 5 "+want, "DATA 7 "+want)
	}
}

// A stream that waits for the window of the connection must not delay frames without flow control.
func TestHeadersPassStreamWaitingForWindow(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet(initialWindow(1 << 20))
	one, three := p.request(1, true), p.request(3, true)
	harness.NoError(p, one.SendHead(head(0), false))
	if waits, err := one.SendData(make([]byte, 80_000), false); !waits || err != nil {
		t.Fatalf("got pending %v, error %v, want pending output", waits, err)
	}
	harness.NoError(p, three.SendHead(head(0), true)) // the output has no space left
	p.us.Flush(false)
	p.expect("HEADERS 1", "DATA 1 16384", "DATA 1 16384", "DATA 1 16384", "DATA 1 16383", "HEADERS 3 end")
}

func TestReadContentIsCredited(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	one := p.request(1, false)
	harness.NoError(p, p.WriteDataPadded(1, false, make([]byte, 200), make([]byte, 100)))
	harness.NoError(p, p.WriteData(1, false, make([]byte, window-301)))
	one.await(t, 2)
	if one.Credit(499) {
		t.Error("got a WINDOW_UPDATE, want none yet")
	}
	if !one.Credit(1) {
		t.Error("got no WINDOW_UPDATE, want one")
	}
	p.us.Flush(false)
	p.expect("WINDOW_UPDATE 1 500")
	harness.NoError(p, p.WriteData(1, false, make([]byte, 500)))
	one.await(t, 1)
	harness.NoError(p, p.WriteData(1, false, make([]byte, 1)))
	p.expect("RST_STREAM 1 FLOW_CONTROL_ERROR")
	if got := one.await(t, 1); !strings.HasPrefix(got[0], "failed") {
		t.Errorf("got %q, want a failure", got)
	}
	if one.Credit(10_000) {
		t.Error("got a WINDOW_UPDATE for a closed stream, want none")
	}
}

func TestConnectionWindowIsCreditedForUnreadContent(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	credited := 0
	for id := uint32(1); credited < 3*connWindow; id += 2 { // the content is not read
		p.request(id, false)
		harness.NoError(p, p.WriteData(id, false, make([]byte, window)))
		harness.NoError(p, p.WriteRSTStream(id, http2.ErrCodeCancel))
		if id%100 == 99 {
			harness.NoError(p, p.WritePing(false, [8]byte{1}))
			for f := p.next(); !strings.HasPrefix(f, "PING"); f = p.next() {
				var n int
				if _, err := fmt.Sscanf(f, "WINDOW_UPDATE 0 %d", &n); err != nil {
					t.Fatalf("got %q, want WINDOW_UPDATE", f)
				}
				credited += n
			}
		}
	}
}

func TestLongHeaderIsSentWithContinuation(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	p.AllowIllegalReads = false
	p.Framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.Framer.MaxHeaderListSize = 1 << 20
	id := uint32(1)
	for _, more := range []int{0, 16_300, 16_384, 16_400, 70_000, 100_000} {
		o := p.request(id, true)
		harness.NoError(p, o.SendHead(head(more), true))
		p.us.Flush(false)
		f, err := p.ReadFrame()
		harness.NoError(p, err)
		h, ok := f.(*http2.MetaHeadersFrame)
		if !ok || h.PseudoValue("status") != "200" || !h.StreamEnded() || more > 0 && len(h.RegularFields()[0].Value) != more {
			t.Errorf("%d bytes: got %v, want the head", more, f)
		}
		id += 2
	}
}

// held is an owner with its own lock, like an exchange between two streams.
type held struct {
	mu    *sync.Mutex
	flush *http2conn.Conn // connection to flush in Drained
	told  chan struct{}
}

func (o *held) Head(*http2conn.Conn, *http2conn.Head, bool) {}
func (o *held) Data(*http2conn.Conn, []byte, int, bool)     {}
func (o *held) Failed(*http2conn.Conn, error)               {}
func (o *held) Drained(by *http2conn.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.flush != nil {
		by.FlushLater(o.flush)
		(*http2conn.Conn)(nil).FlushLater(o.flush)
	}
	close(o.told)
}

func TestOwnerFlushesInDrained(t *testing.T) {
	var mu sync.Mutex
	first, second := connect(t, serverConfig()), connect(t, serverConfig())
	first.greet(initialWindow(0))
	second.greet(initialWindow(1 << 20))
	harness.NoError(second, second.WriteWindowUpdate(0, 1<<20))
	one := first.request(1, true)
	a := &held{&mu, second.us, make(chan struct{})}
	one.Reset(http2conn.Cancel)
	stream := first.us.Accept(3, a, false)
	if waits, _ := stream.SendData([]byte("x"), false); !waits {
		t.Fatal("got no pending output, want some")
	}
	second.request(1, true)
	b := &held{&mu, nil, make(chan struct{})}
	other := second.us.Accept(3, b, false)
	if waits, _ := other.SendData(make([]byte, 200_000), false); !waits {
		t.Fatal("got no pending output, want some")
	}
	go io.Copy(io.Discard, second)
	harness.NoError(first, first.WriteSettings(initialWindow(10)))
	<-a.told
	<-b.told
}

func TestConcurrentSends(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet(initialWindow(100))
	const streams, size = 50, 20_000
	var all sync.WaitGroup
	for i := range streams {
		o := p.request(uint32(2*i+1), true)
		all.Go(func() {
			harness.NoError(p, o.SendHead(head(i*100), false))
			for sent := 0; sent < size; {
				n := min(rand.IntN(3000), size-sent)
				sent += n
				waits, err := o.SendData(bytes.Repeat([]byte{byte(i)}, n), false)
				harness.NoError(p, err)
				p.us.Flush(true)
				for waits && o.Waits() {
					<-o.changed
				}
			}
			_, err := o.SendTrailer(head(0))
			harness.NoError(p, err)
			p.us.Flush(false)
		})
	}
	got := map[uint32]int{}
	for ended := 0; ended < streams; {
		f, err := p.ReadFrame()
		harness.NoError(p, err)
		switch f := f.(type) {
		case *http2.DataFrame:
			id, n := f.StreamID, len(f.Data())
			if got[id] += n; slices.ContainsFunc(f.Data(), func(c byte) bool { return c != byte(id/2) }) {
				t.Fatal("got content of another stream")
			}
			if n > 0 {
				harness.NoError(p, p.WriteWindowUpdate(id, uint32(n)))
				harness.NoError(p, p.WriteWindowUpdate(0, uint32(n)))
			}
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				ended++
			}
		}
	}
	all.Wait()
	for id, n := range got {
		harness.Equal(t, n, size, "stream", id, "bytes")
	}
}

// serve is like greet, but for a client connection.
func (p *peer) serve(settings ...http2.Setting) {
	p.Helper()
	preface := make([]byte, len(http2.ClientPreface))
	_, err := io.ReadFull(p.Conn, preface)
	harness.NoError(p, err)
	if string(preface) != http2.ClientPreface {
		p.Fatalf("got %q, want the preface", preface)
	}
	harness.NoError(p, p.WriteSettings(settings...))
	p.expect("SETTINGS", "WINDOW_UPDATE 0 34465", "SETTINGS ack")
	harness.NoError(p, p.WriteSettingsAck())
	<-p.us.SettingsArrived()
}

// open opens a stream with a GET request.
func (p *peer) open(end bool) *owner {
	p.Helper()
	o := newOwner(false)
	var k http2conn.Block
	k.Request("GET", "app", "/")
	var err error
	o.Stream, err = p.us.Open(http2conn.Request{Owner: o, Head: &k, End: end}, false)
	harness.NoError(p, err)
	p.us.Flush(false)
	return o
}

func (p *peer) respond(id uint32, end bool, fields ...string) {
	p.Helper()
	harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.Block(fields...), EndHeaders: true, EndStream: end}))
}

// Node.js advertises the maximum value, which does not fit into int on a 32-bit platform.
func TestLargestStreamLimitAcceptsStreams(t *testing.T) {
	p := connect(t, clientConfig())
	p.serve(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: math.MaxUint32})
	p.open(true)
	p.expect("HEADERS 1 end")
}

func TestClientStreams(t *testing.T) {
	p := connect(t, clientConfig())
	p.serve(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
	one, three := p.open(true), p.open(false)
	p.expect("HEADERS 1 end", "HEADERS 3")
	if _, err := p.us.Open(http2conn.Request{Owner: newOwner(false), Head: head(0), End: true}, false); err != http2conn.ErrFull {
		t.Errorf("got %v, want ErrFull", err)
	}
	p.respond(1, false, ":status", "103", "link", "x")
	p.respond(1, false, ":status", "200", "connection", "close", "a", "b")
	harness.NoError(p, p.WriteData(1, false, []byte("hi")))
	p.respond(1, true, "checksum", "1")
	want := []string{"head 103 link=x end=false", "head 200 a=b end=false", "data 2 of 2 end=false", "head  checksum=1 end=true"}
	harness.Equal(t, one.await(t, 4), want)
	five := p.open(true) // the server accepts another stream
	p.expect("HEADERS 5 end")
	harness.NoError(p, p.WriteRSTStream(5, http2.ErrCodeRefusedStream))
	five.await(t, 1)
	p.respond(3, true, ":status", "200") // the response ends before the request
	three.await(t, 1)
	if !three.Abandon() {
		t.Error("got an ended stream, want an open stream")
	}
	p.us.Flush(false)
	p.expect("RST_STREAM 3 CANCEL", "PING ack=false 0000000000000001")
	harness.NoError(p, p.WriteData(3, true, []byte("late")))
	p.respond(3, true, ":status", "200")
	p.alive()
	if one.Abandon() {
		t.Error("got an open stream, want an ended stream")
	}
}

func TestMalformedResponsesAreMarked(t *testing.T) {
	p := connect(t, clientConfig())
	p.serve()
	id := uint32(1)
	for name, fields := range map[string][]string{
		"no status": {"a", "b"}, "a long status": {":status", "2000"}, "an empty status": {":status", ""},
		"a method": {":status", "200", ":method", "GET"}, "the end in an informational one": {":status", "100"},
	} {
		o := p.open(true)
		p.expect(fmt.Sprintf("HEADERS %d end", id))
		p.respond(id, true, fields...)
		if got := o.await(t, 1); got[0] != "head malformed end=true" {
			t.Errorf("%s: got %q, want malformed", name, got)
		}
		id += 2
	}
	p.send(frame(http2.FramePushPromise, 4, 1, 0, 0, 0, 2, 0x82))
	p.expect("GOAWAY 0 PROTOCOL_ERROR", "end")
}

func TestServerGoAwayRefusesLaterStreams(t *testing.T) {
	p := connect(t, clientConfig())
	p.serve()
	one, three := p.open(true), p.open(true)
	p.expect("HEADERS 1 end", "HEADERS 3 end")
	harness.NoError(p, p.WriteGoAway(1, http2.ErrCodeNo, nil))
	three.await(t, 1)
	var reset *http2conn.ResetError
	if !errors.As(three.err, &reset) || reset.Code != http2conn.RefusedStream {
		t.Errorf("got %v, want REFUSED_STREAM", three.err)
	}
	<-p.host.leaving
	if _, err := p.us.Open(http2conn.Request{Owner: newOwner(false), Head: head(0), End: true}, false); err != http2conn.ErrEnding {
		t.Errorf("got %v, want ErrEnding", err)
	}
	p.respond(1, true, ":status", "200")
	one.await(t, 1)
	p.expect("end")
}

// A server treats GOAWAY with the ID of a client stream as an error.
func TestClientGoAwayHasStreamIDZero(t *testing.T) {
	p := connect(t, clientConfig())
	p.serve()
	one := p.open(true)
	p.expect("HEADERS 1 end")
	p.us.End()
	p.expect("GOAWAY 0 NO_ERROR")
	p.respond(1, true, ":status", "200")
	one.await(t, 1)
	p.expect("end")
}

func TestServerWithoutHTTP2ReturnsError(t *testing.T) {
	p := connect(t, clientConfig())
	p.send([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	<-p.us.SettingsArrived()
	if p.us.Err() == nil {
		t.Error("got no error, want one")
	}
	if _, err := p.us.Open(http2conn.Request{Owner: newOwner(false), Head: head(0), End: true}, false); err == nil {
		t.Error("got a stream, want an error")
	}
	p.Close()
	p.ended()
}
