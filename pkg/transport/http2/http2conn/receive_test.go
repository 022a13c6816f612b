package http2conn_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// In the connection of brokenRules, stream 1 is open, stream 3 was half closed by the peer, stream 5 was reset by
// the peer, stream 7 was skipped, and higher streams are idle.
//
// tooLong is content that exceeds the maximum frame size by one byte.
var tooLong = make([]byte, 16385)

// brokenRules lists invalid frames that TestInvalidFramesCloseStreamOrConnection sends, and the expected reply.
var brokenRules = []struct {
	name string
	sent []byte
	want string
}{
	{"DATA on the connection", frame(http2.FrameData, 0, 0, 1), "GOAWAY 9 PROTOCOL_ERROR"},
	{"DATA on an idle stream", frame(http2.FrameData, 0, 11, 1), "GOAWAY 9 PROTOCOL_ERROR"},
	{"DATA on a stream of the server", frame(http2.FrameData, 0, 2, 1), "GOAWAY 9 PROTOCOL_ERROR"},
	{"DATA after END_STREAM", frame(http2.FrameData, 0, 3, 1), "RST_STREAM 3 STREAM_CLOSED"},
	{"DATA on a closed stream", frame(http2.FrameData, 0, 5, 1), "RST_STREAM 5 STREAM_CLOSED"},
	{"DATA that is too long", frame(http2.FrameData, 0, 1, tooLong...), "GOAWAY 9 FRAME_SIZE_ERROR"},
	{"DATA beyond the stream's window", frame(http2.FrameData, 0, 1, tooLong[:window+1]...), "RST_STREAM 1 FLOW_CONTROL_ERROR"},
	{"the padding length is missing", frame(http2.FrameData, 8, 1), "GOAWAY 9 PROTOCOL_ERROR"},
	{"more padding than DATA", frame(http2.FrameData, 8, 1, 3, 0, 0), "GOAWAY 9 PROTOCOL_ERROR"},
	{"HEADERS on the connection", frame(http2.FrameHeaders, 4, 0, 0x82), "GOAWAY 9 PROTOCOL_ERROR"},
	{"HEADERS on a stream of the server", frame(http2.FrameHeaders, 4, 2, 0x82), "GOAWAY 9 PROTOCOL_ERROR"},
	{"HEADERS after END_STREAM", frame(http2.FrameHeaders, 5, 3, 0x82), "RST_STREAM 3 STREAM_CLOSED"},
	{"HEADERS on a closed stream", frame(http2.FrameHeaders, 5, 5, 0x82), "GOAWAY 9 STREAM_CLOSED"},
	{"HEADERS on a stream that was skipped", frame(http2.FrameHeaders, 5, 7, 0x82), "GOAWAY 9 STREAM_CLOSED"},
	{"HEADERS that are too long", frame(http2.FrameHeaders, 4, 11, tooLong...), "GOAWAY 9 FRAME_SIZE_ERROR"},
	{"HEADERS with more padding than payload", frame(http2.FrameHeaders, 12, 11, 2, 0x82), "GOAWAY 9 PROTOCOL_ERROR"},
	{"HEADERS without the padding length", frame(http2.FrameHeaders, 12, 11), "GOAWAY 9 PROTOCOL_ERROR"},
	{"HEADERS with an incomplete priority", frame(http2.FrameHeaders, 36, 11, 0, 0, 0, 0), "GOAWAY 9 FRAME_SIZE_ERROR"},
	{"HEADERS of a stream that depends on itself", frame(http2.FrameHeaders, 36, 11, 0, 0, 0, 11, 0, 0x82), "RST_STREAM 11 PROTOCOL_ERROR"},
	{"an invalid table index", frame(http2.FrameHeaders, 4, 11, 0xff, 0x7f), "GOAWAY 9 COMPRESSION_ERROR"},
	{"an incomplete header block", frame(http2.FrameHeaders, 4, 11, 0x40), "GOAWAY 9 COMPRESSION_ERROR"},
	{"a dynamic table that is too large", frame(http2.FrameHeaders, 4, 11, 0x3f, 0xff, 0xff, 0x7f), "GOAWAY 9 COMPRESSION_ERROR"},
	{"PRIORITY on the connection", frame(http2.FramePriority, 0, 0, 0, 0, 0, 1, 0), "GOAWAY 9 PROTOCOL_ERROR"},
	{"PRIORITY with an invalid length", frame(http2.FramePriority, 0, 1, 0, 0, 0, 3), "RST_STREAM 1 FRAME_SIZE_ERROR"},
	{"PRIORITY with an invalid length on a closed stream", frame(http2.FramePriority, 0, 5, 0, 0, 0, 3), "RST_STREAM 5 FRAME_SIZE_ERROR"},
	{"PRIORITY of a stream that depends on itself", frame(http2.FramePriority, 0, 1, 0, 0, 0, 1, 0), "RST_STREAM 1 PROTOCOL_ERROR"},
	{"RST_STREAM on the connection", frame(http2.FrameRSTStream, 0, 0, 0, 0, 0, 8), "GOAWAY 9 PROTOCOL_ERROR"},
	{"RST_STREAM on an idle stream", frame(http2.FrameRSTStream, 0, 12, 0, 0, 0, 8), "GOAWAY 9 PROTOCOL_ERROR"},
	{"RST_STREAM with an invalid length", frame(http2.FrameRSTStream, 0, 1, 0, 0, 8), "GOAWAY 9 FRAME_SIZE_ERROR"},
	{"SETTINGS on a stream", frame(http2.FrameSettings, 0, 1), "GOAWAY 9 PROTOCOL_ERROR"},
	{"SETTINGS with an invalid length", frame(http2.FrameSettings, 0, 0, 0, 1, 0, 0, 0), "GOAWAY 9 FRAME_SIZE_ERROR"},
	{"an acknowledgement with settings", frame(http2.FrameSettings, 1, 0, 0, 1, 0, 0, 0, 0), "GOAWAY 9 FRAME_SIZE_ERROR"},
	{"ENABLE_PUSH of 2", frame(http2.FrameSettings, 0, 0, 0, 2, 0, 0, 0, 2), "GOAWAY 9 PROTOCOL_ERROR"},
	{"INITIAL_WINDOW_SIZE of 2^31", frame(http2.FrameSettings, 0, 0, 0, 4, 0x80, 0, 0, 0), "GOAWAY 9 FLOW_CONTROL_ERROR"},
	{"MAX_FRAME_SIZE that is too small", frame(http2.FrameSettings, 0, 0, 0, 5, 0, 0, 0x3f, 0xff), "GOAWAY 9 PROTOCOL_ERROR"},
	{"MAX_FRAME_SIZE that is too large", frame(http2.FrameSettings, 0, 0, 0, 5, 1, 0, 0, 0), "GOAWAY 9 PROTOCOL_ERROR"},
	{"ENABLE_CONNECT_PROTOCOL of 2", frame(http2.FrameSettings, 0, 0, 0, 8, 0, 0, 0, 2), "GOAWAY 9 PROTOCOL_ERROR"},
	{"PUSH_PROMISE", frame(http2.FramePushPromise, 4, 1, 0, 0, 0, 2, 0x82), "GOAWAY 9 PROTOCOL_ERROR"},
	{"PING on a stream", frame(http2.FramePing, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0), "GOAWAY 9 PROTOCOL_ERROR"},
	{"PING with an invalid length", frame(http2.FramePing, 0, 0, 0, 0), "GOAWAY 9 FRAME_SIZE_ERROR"},
	{"GOAWAY on a stream", frame(http2.FrameGoAway, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0), "GOAWAY 9 PROTOCOL_ERROR"},
	{"GOAWAY with an invalid length", frame(http2.FrameGoAway, 0, 0, 0, 0, 0, 0), "GOAWAY 9 FRAME_SIZE_ERROR"},
	{"WINDOW_UPDATE with an invalid length", frame(http2.FrameWindowUpdate, 0, 1, 0, 0, 1), "GOAWAY 9 FRAME_SIZE_ERROR"},
	{"WINDOW_UPDATE with increment 0", frame(http2.FrameWindowUpdate, 0, 0, 0, 0, 0, 0), "GOAWAY 9 PROTOCOL_ERROR"},
	{"WINDOW_UPDATE with increment 0 on a stream", frame(http2.FrameWindowUpdate, 0, 1, 0, 0, 0, 0), "RST_STREAM 1 PROTOCOL_ERROR"},
	{"WINDOW_UPDATE on an idle stream", frame(http2.FrameWindowUpdate, 0, 11, 0, 0, 0, 1), "GOAWAY 9 PROTOCOL_ERROR"},
	{"a connection window that is too large", frame(http2.FrameWindowUpdate, 0, 0, 0x7f, 0xff, 0xff, 0xff), "GOAWAY 9 FLOW_CONTROL_ERROR"},
	{"a stream window that is too large", frame(http2.FrameWindowUpdate, 0, 1, 0x7f, 0xff, 0xff, 0xff), "RST_STREAM 1 FLOW_CONTROL_ERROR"},
	{"CONTINUATION without HEADERS", frame(http2.FrameContinuation, 4, 1, 0x82), "GOAWAY 9 PROTOCOL_ERROR"},
	{"CONTINUATION of another stream", slices.Concat(frame(http2.FrameHeaders, 0, 11, 0x82), frame(http2.FrameContinuation, 4, 13, 0x82)), "GOAWAY 9 PROTOCOL_ERROR"},
	{"DATA within a header block", slices.Concat(frame(http2.FrameHeaders, 0, 11, 0x82), frame(http2.FrameData, 0, 1, 1)), "GOAWAY 9 PROTOCOL_ERROR"},
	{"an unknown frame within a header block", slices.Concat(frame(http2.FrameHeaders, 0, 11, 0x82), frame(99, 0, 1, 1)), "GOAWAY 9 PROTOCOL_ERROR"},
	{"an unknown frame that is too long", frame(99, 0, 1, tooLong...), "GOAWAY 9 FRAME_SIZE_ERROR"},
}

func TestInvalidFramesCloseStreamOrConnection(t *testing.T) {
	for _, c := range brokenRules {
		t.Run(c.name, func(t *testing.T) {
			config := serverConfig()
			config.Bounds = bound.NewRecorder()
			p := connect(t, config)
			p.greet()
			p.request(1, false)
			p.request(3, true)
			p.request(5, false)
			harness.NoError(p, p.WriteRSTStream(5, http2.ErrCodeCancel))
			p.request(9, false)
			p.send(c.sent)
			p.expect(c.want)
			if strings.HasPrefix(c.want, "RST_STREAM") {
				p.alive()
				harness.Equal(t, config.Bounds.Count(bound.HTTP2Error), 0, "recorded errors of the connection")
				want := uint64(1)
				if c.want == "RST_STREAM 5 STREAM_CLOSED" { // the client may not have received the end of the stream
					want = 0
				}
				harness.Equal(t, config.Bounds.Count(bound.MalformedRequest), want, "recorded errors of the stream")
				return
			}
			p.expect("end")
			p.Close()
			var wrong *http2conn.Error
			if err := p.ended(); !errors.As(err, &wrong) {
				t.Errorf("got %v, want an *Error", err)
			}
			harness.Equal(t, config.Bounds.Count(bound.HTTP2Error), 1, "recorded errors")
		})
	}
}

func TestUnknownAndLateFramesAreIgnored(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	p.request(5, false)
	harness.NoError(p, p.WriteRSTStream(5, http2.ErrCodeCancel))
	for _, b := range [][]byte{
		frame(99, 0xff, 17, 1, 2, 3),                        // an unknown type
		frame(http2.FrameSettings, 0, 0, 0, 99, 1, 2, 3, 4), // an unknown setting
		frame(http2.FramePriority, 0, 99, 0, 0, 0, 1, 0),    // on an idle stream
		frame(http2.FrameRSTStream, 0, 5, 0, 0, 0, 8),       // on a closed stream
		frame(http2.FrameRSTStream, 0, 3, 0, 0, 0, 8),       // on a skipped stream
		frame(http2.FrameWindowUpdate, 0, 5, 0, 0, 0, 1),
		frame(http2.FrameWindowUpdate, 0, 5, 0, 0, 0, 0),
		frame(http2.FramePing, 0xff, 0, 1, 2, 3, 4, 5, 6, 7, 8), // an acknowledgment
		frame(http2.FrameGoAway, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
	} {
		p.send(b)
	}
	p.expect("SETTINGS ack")
	p.alive()
	if o := p.request(7, true, "x", "y"); o.began != "GET http app / x=y end=true" {
		t.Errorf("got %q, want the request", o.began)
	}
}

func TestInvalidPrefaceClosesConnection(t *testing.T) {
	for name, c := range map[string]struct{ sent, want string }{
		"HTTP/1.1":              {"GET / HTTP/1.1\r\nHost: app\r\n\r\n", "end"},
		"a preface with a typo": {wire.Preface[:20] + "XXXX", "end"},
		"PING before SETTINGS":  {wire.Preface + string(frame(http2.FramePing, 0, 0, make([]byte, 8)...)), "GOAWAY"},
		"DATA before SETTINGS":  {wire.Preface + string(frame(http2.FrameData, 0, 1, 1)), "GOAWAY"},
		"an acknowledgement":    {wire.Preface + string(frame(http2.FrameSettings, 1, 0)), "GOAWAY"},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t, serverConfig())
			p.send([]byte(c.sent))
			var got string
			for got = p.next(); strings.HasPrefix(got, "SETTINGS") || strings.HasPrefix(got, "WINDOW"); {
				got = p.next()
			}
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("got %q, want %s", got, c.want)
			}
			p.Close()
			p.ended()
		})
	}
}

// conversation returns the input of a client with two streams. It contains padding, priorities, CONTINUATION,
// a trailer section and empty frames.
func conversation(p *peer) []byte {
	block := p.get("cookie", "a=b", "cookie", "c=d")
	trailer := p.Block("checksum", "1")
	return slices.Concat([]byte(wire.Preface), frame(http2.FrameSettings, 0, 0, 0, 4, 0, 0, 1, 0),
		frame(http2.FrameHeaders, 8|32, 1, append(append([]byte{3, 0, 0, 0, 0, 9}, block[:5]...), 0, 0, 0)...),
		frame(http2.FrameContinuation, 0, 1), frame(http2.FrameContinuation, 4, 1, block[5:]...),
		frame(http2.FrameData, 8, 1, append([]byte{4}, "hello\x00\x00\x00\x00"...)...),
		frame(http2.FrameData, 0, 1),
		frame(http2.FrameData, 8, 1, 0), frame(http2.FrameData, 8, 1, 2, 0, 0),
		frame(http2.FrameData, 0, 1, []byte(" you")...),
		frame(http2.FrameHeaders, 5, 1, trailer...),
		frame(http2.FrameHeaders, 4, 3, p.get()...),
		frame(http2.FrameData, 9, 3, append([]byte{1}, "end\x00"...)...))
}

func TestSplitFramesAreParsed(t *testing.T) {
	for _, size := range []int{1, 2, 3, 7, 10, 64, 10_000} {
		p := connect(t, serverConfig())
		p.Conn.(interface{ SetNoDelay(bool) error }).SetNoDelay(true)
		for piece := range slices.Chunk(conversation(p), size) {
			p.send(piece)
		}
		one, three := p.accepted(), p.accepted()
		if one.began != "GET http app / cookie=a=b cookie=c=d end=false" || three.began != "GET http app / end=false" {
			t.Errorf("pieces of %d: got %q and %q", size, one.began, three.began)
		}
		awaitLast(t, one, "head  checksum=1 end=true", "hello you", 18)
		awaitLast(t, three, "end=true", "end", 5)
		p.Close()
		p.ended()
	}
}

// awaitLast waits for the last event of a stream. It checks the content and the number of bytes to credit.
func awaitLast(t *testing.T, o *owner, last, content string, credit int) {
	t.Helper()
	var lines []string
	for len(lines) == 0 || !strings.HasSuffix(lines[len(lines)-1], last) {
		lines = append(lines, o.await(t, 1)...)
	}
	harness.Equal(t, string(o.content), content, o.content)
	total := 0
	for _, l := range lines {
		total += creditOf(l)
	}
	harness.Equal(t, total, credit, lines, "bytes to credit")
}

func TestLongHeaderFailsOnlyItsStream(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	if o := p.request(1, true, "a", strings.Repeat("b", maxHead-100), "c", strings.Repeat("d", 200)); o.began != "too large end=true" {
		t.Errorf("got %q, want a header section that is too large", o.began)
	}
	if o := p.request(3, true, "c", "d"); o.began != "GET http app / c=d end=true" {
		t.Errorf("got %q, want the next request", o.began)
	}
	block := p.get("a", strings.Repeat("b", 2*maxHead))
	harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: block[:10]}))
	for range 10 {
		harness.NoError(p, p.WriteContinuation(5, false, make([]byte, 16384)))
	}
	p.expect("GOAWAY 3 ENHANCE_YOUR_CALM", "end")
}

func TestMalformedRequestHeaders(t *testing.T) {
	p := connect(t, serverConfig())
	p.greet()
	id := uint32(1)
	for name, fields := range map[string][]string{
		"upper case":                               {":method", "GET", "Upper", "x"},
		"an empty name":                            {":method", "GET", "", "x"},
		"a name with a colon":                      {":method", "GET", "a:b", "x"},
		"a line break in a value":                  {":method", "GET", "a", "x\r\nb: c"},
		"a zero byte in a value":                   {":method", "GET", "a", "x\x00"},
		"a line break in a pseudo-header field":    {":method", "GET", ":path", "/\r\n"},
		"a repeated pseudo-header field":           {":method", "GET", ":path", "/", ":path", "/"},
		"a repeated authority, first empty":        {":method", "GET", ":authority", "", ":authority", "app"},
		"a pseudo-header field after other fields": {":method", "GET", "a", "b", ":path", "/"},
		"an unknown pseudo-header field":           {":method", "GET", ":unknown", "/"},
		"an empty path":                            {":method", "GET", ":path", ""},
		"connection":                               {":method", "GET", "connection", "close"},
		"keep-alive":                               {":method", "GET", "keep-alive", "5"},
		"proxy-connection":                         {":method", "GET", "proxy-connection", "close"},
		"transfer-encoding":                        {":method", "GET", "transfer-encoding", "chunked"},
		"upgrade":                                  {":method", "GET", "upgrade", "h2c"},
		"te":                                       {":method", "GET", "te", "gzip"},
	} {
		harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.Block(fields...), EndHeaders: true, EndStream: true}))
		if o := p.accepted(); o.began != "malformed end=true" {
			t.Errorf("%s: got %q, want malformed", name, o.began)
		}
		id += 2
	}
	for name, fields := range map[string][]string{
		"a pseudo-header field": {":path", "/"}, "upper case": {"Upper", "x"}, "connection": {"connection", "x"},
	} {
		o := p.request(id, false)
		harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.Block(fields...), EndHeaders: true, EndStream: true}))
		if got := o.await(t, 1); got[0] != "head malformed end=true" {
			t.Errorf("%s in a trailer section: got %q, want malformed", name, got)
		}
		id += 2
	}
	o := p.request(id, false)
	harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.Block("a", "b"), EndHeaders: true}))
	if got := o.await(t, 1); got[0] != "head malformed end=false" {
		t.Errorf("trailer section without END_STREAM: got %q, want malformed", got)
	}
}

func TestResetErrorNamesCode(t *testing.T) {
	for code, want := range map[http2conn.Code]string{
		http2conn.InternalError: "http2: the stream was reset with INTERNAL_ERROR (code 2)",
		99:                      "http2: the stream was reset with unknown (code 99)",
	} {
		harness.Equal(t, (&http2conn.ResetError{Code: code}).Error(), want)
	}
}
