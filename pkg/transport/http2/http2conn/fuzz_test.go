package http2conn_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// FuzzBlock checks that golang.org/x/net decodes the fields that a Block encodes.
func FuzzBlock(f *testing.F) {
	f.Add(200, "content-type", "text/plain", "GET", "/")
	f.Add(404, "X-Upper", strings.Repeat("y", 300), "POST", strings.Repeat("/", 127))
	f.Add(599, "cookie", "", "PUT", "*")
	f.Add(103, "", "x", "", "")
	f.Fuzz(func(t *testing.T, status int, name, value, method, path string) {
		if status < 100 || status > 999 {
			return
		}
		var k http2conn.Block
		k.Status(status)
		k.Field(name, value)
		k.Request(method, "a", path)
		// A Conn sends the block in frames.
		p := connect(t, serverConfig())
		p.greet(initialWindow(1))
		o := p.request(1, true)
		harness.NoError(p, o.SendHead(&k, true))
		p.us.Flush(false)
		got := p.readBlock()
		p.Close()
		p.ended()
		want := []string{":status", name, ":method", ":scheme", ":authority", ":path"}
		values := []string{"", value, method, "http", "a", path}
		if len(got) != len(want) {
			t.Fatalf("got %v, want %d fields", got, len(want))
		}
		for i, f := range got {
			if lower := asciiLower(want[i]); f.Name != lower || i > 0 && f.Value != values[i] {
				t.Errorf("got %q=%q, want %q=%q", f.Name, f.Value, lower, values[i])
			}
			switch f.Name {
			case "cookie", "set-cookie", "authorization", "proxy-authorization":
				if !f.Sensitive {
					t.Errorf("%s: got a literal that may be indexed, want a never-indexed literal", f.Name)
				}
			}
		}
	})
}

// readBlock reads a complete header block.
func (p *peer) readBlock() (fields []hpack.HeaderField) {
	p.Helper()
	d := hpack.NewDecoder(0, func(f hpack.HeaderField) { fields = append(fields, f) })
	for {
		f, err := p.ReadFrame()
		harness.NoError(p, err)
		var piece []byte
		switch f := f.(type) {
		case *http2.HeadersFrame:
			piece = f.HeaderBlockFragment()
		case *http2.ContinuationFrame:
			piece = f.HeaderBlockFragment()
		}
		_, err = d.Write(piece)
		harness.NoError(p, err)
		if f.Header().Flags.Has(http2.FlagHeadersEndHeaders) {
			harness.NoError(p, d.Close())
			return fields
		}
	}
}

func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// A taker is an owner that credits all content and ends its side of the stream when the peer does.
type taker struct {
	*http2conn.Stream
	p *[]byte
}

func (o *taker) Head(by *http2conn.Conn, h *http2conn.Head, end bool) { o.ends(by, end) }
func (o *taker) Data(by *http2conn.Conn, p []byte, n int, end bool) {
	*o.p = append(*o.p, p...)
	if o.Stream != nil && o.Credit(n) {
		by.FlushLater(by)
	}
	o.ends(by, end)
}
func (o *taker) Failed(*http2conn.Conn, error) {}
func (o *taker) Drained(*http2conn.Conn)       {}
func (o *taker) ends(by *http2conn.Conn, end bool) {
	if end && o.Stream != nil {
		_, _ = o.SendData([]byte("answer"), true)
		by.FlushLater(by)
	}
}

// taking is a Handler that accepts all streams with a taker as their owner.
type taking struct {
	us      *http2conn.Conn
	content []byte
}

func (h *taking) Request(id uint32, head *http2conn.Head, end bool) {
	o := &taker{p: &h.content}
	o.Stream = h.us.Accept(id, o, end)
	_ = o.SendHead(answer, false)
	o.ends(h.us, end)
}
func (h *taking) Received(bool) {}
func (h *taking) Waiting()      {}
func (h *taking) Full() bool    { return false }
func (h *taking) GoingAway()    {}

var answer = head(10)

// FuzzFrames sends arbitrary bytes after the preface. The connection must close at the end of the input. If the
// Framer of golang.org/x/net rejects the input, Run must return an *http2conn.Error. Otherwise the owners must receive
// only content that the Framer also finds.
func FuzzFrames(f *testing.F) {
	settings := frame(http2.FrameSettings, 0, 0)
	p := &peer{TB: f, Frames: harness.NewFrames(nil)}
	f.Add(conversation(p)[len(wire.Preface):], 7)
	f.Add(slices.Concat(settings, frame(http2.FramePing, 0, 0, make([]byte, 8)...), frame(99, 1, 3)), 1)
	f.Add(slices.Concat(settings, frame(http2.FrameHeaders, 4, 1, 0x82), frame(http2.FrameWindowUpdate, 0, 1, 0, 0, 0, 1), frame(http2.FrameRSTStream, 0, 1, 0, 0, 0, 8)), 100)
	f.Add(slices.Concat(settings, frame(http2.FrameHeaders, 4, 1, 0x82), frame(http2.FrameData, 9, 1, 2, 'x', 0, 0), frame(http2.FrameSettings, 0, 0, 0, 4, 0, 0, 0, 0)), 3)
	f.Add(slices.Concat(settings, frame(http2.FrameHeaders, 0, 1, 0x82), frame(http2.FrameContinuation, 4, 1, 0x84)), 3)
	f.Fuzz(func(t *testing.T, sent []byte, size int) {
		if len(sent) > 64<<10 {
			return
		}
		h := &taking{}
		p := dialWith(t, serverConfig(), h)
		h.us = p.us
		go func() { p.ran <- p.us.Run(nil) }()
		go func() {
			p.Write([]byte(wire.Preface))
			for piece := range slices.Chunk(sent, max(size, len(sent)/50, 1)) {
				p.Write(piece)
			}
			p.Conn.(*net.TCPConn).CloseWrite()
		}()
		io.Copy(io.Discard, p.Conn)
		err := p.ended()
		var wrong *http2conn.Error
		content, readable := framed(sent)
		if !readable && !errors.As(err, &wrong) {
			t.Errorf("%x: got %v, want an *http2conn.Error", sent, err)
		}
		if wrong == nil && !within(h.content, content) {
			t.Errorf("%x: got the content %q, want parts of %q", sent, h.content, content)
		}
	})
}

// within reports whether q contains the bytes of p in the same order. Parts of q may be missing in p, because
// streams that were reset receive no content.
func within(p, q []byte) bool {
	for _, c := range p {
		i := bytes.IndexByte(q, c)
		if i < 0 {
			return false
		}
		q = q[i+1:]
	}
	return true
}

// framed returns the content of all DATA frames, including an incomplete last frame. readable reports whether the
// Framer accepts all complete frames.
func framed(b []byte) (content []byte, readable bool) {
	in := bytes.NewReader(b)
	r := http2.NewFramer(io.Discard, in)
	for {
		odd := false
		if rest := b[len(b)-in.Len():]; len(rest) >= 9 {
			n := int(rest[0])<<16 | int(rest[1])<<8 | int(rest[2])
			if n <= 16384 && len(rest) < 9+n {
				return append(content, rest[9:]...), true
			}
			switch http2.FrameType(rest[3]) {
			case http2.FramePriority:
				odd = n != 5 // a stream error (RFC 9113 section 6.3)
			case http2.FramePriorityUpdate:
				odd = true // ignored frame of an extension (RFC 9218; RFC 9113 section 5.5)
			}
		}
		f, err := r.ReadFrame()
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return content, true
		case err != nil:
			var stream http2.StreamError
			if odd || errors.As(err, &stream) {
				continue
			}
			return content, false
		}
		if d, ok := f.(*http2.DataFrame); ok {
			content = append(content, d.Data()...)
		}
	}
}
