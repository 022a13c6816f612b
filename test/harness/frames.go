package harness

import (
	"bytes"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Frames is a connection that speaks HTTP/2 frame by frame, for either end. Its header
// blocks come decoded, as http2.MetaHeadersFrame. It sends what it is given, whether
// the protocol allows it or not.
type Frames struct {
	net.Conn
	*http2.Framer

	block   bytes.Buffer
	encoder *hpack.Encoder
}

// NewFrames returns the frames of a connection.
func NewFrames(c net.Conn) *Frames {
	f := &Frames{Conn: c, Framer: http2.NewFramer(c, c)}
	f.AllowIllegalWrites = true
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.encoder = hpack.NewEncoder(&f.block)
	return f
}

// Greet is what a server does first: it reads the client's preface and sends SETTINGS. It
// returns an error where the client speaks another protocol.
func (f *Frames) Greet(settings ...http2.Setting) error {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(f, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		_ = f.WriteSettings() // as nghttp2 does, so that the client can detect HTTP/2
		return ErrNotHTTP
	}
	return f.WriteSettings(settings...)
}

// Follow reads frames until the connection ends. It acknowledges SETTINGS, and calls got
// with each frame.
func (f *Frames) Follow(got func(http2.Frame)) {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		if s, ok := frame.(*http2.SettingsFrame); ok && !s.IsAck() {
			_ = f.WriteSettingsAck() // the next read tells
		}
		got(frame)
	}
}

// Block encodes a header block; names and values alternate.
func (f *Frames) Block(fields ...string) []byte {
	f.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		// It writes to memory, which returns no error.
		_ = f.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(f.block.Bytes())
}

// WriteHead sends a header block of names and values; end: nothing follows on the
// stream.
func (f *Frames) WriteHead(id uint32, end bool, fields ...string) error {
	return f.WriteBlock(id, end, f.Block(fields...))
}

// WriteLongHead is WriteHead with fields that no table shortens, so that the block is as
// long as they are.
func (f *Frames) WriteLongHead(id uint32, end bool, fields ...string) error {
	f.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = f.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true})
	}
	return f.WriteBlock(id, end, f.block.Bytes())
}

// WriteBlock sends a header block that is encoded already, in CONTINUATION where it is longer
// than a frame.
func (f *Frames) WriteBlock(id uint32, end bool, block []byte) error {
	const most = 16 << 10 // SETTINGS_MAX_FRAME_SIZE, as it is at first: RFC 9113 section 6.5.2
	n := min(len(block), most)
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block), EndStream: end})
	for block = block[n:]; len(block) > 0 && err == nil; block = block[n:] {
		n = min(len(block), most)
		err = f.WriteContinuation(id, n == len(block), block[:n])
	}
	return err
}

// FieldOf returns the value of a field of a head; "": there is none.
func FieldOf(f *http2.MetaHeadersFrame, name string) string {
	for _, h := range f.Fields {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}
