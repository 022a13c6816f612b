package harness

import (
	"bytes"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Frames is one side of an HTTP/2 connection. It decodes received header blocks to
// http2.MetaHeadersFrame, and it sends frames without validation.
type Frames struct {
	net.Conn
	*http2.Framer

	block   bytes.Buffer
	encoder *hpack.Encoder
}

// NewFrames returns the Frames of a connection.
func NewFrames(c net.Conn) *Frames {
	f := &Frames{Conn: c, Framer: http2.NewFramer(c, c)}
	f.AllowIllegalWrites = true
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.encoder = hpack.NewEncoder(&f.block)
	return f
}

// Greet reads the preface of a client and sends SETTINGS. It returns ErrNotHTTP if the client
// uses another protocol.
func (f *Frames) Greet(settings ...http2.Setting) error {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(f, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		_ = f.WriteSettings() // send SETTINGS even to a client that uses another protocol, as nghttp2 does, so that it can detect HTTP/2
		return ErrNotHTTP
	}
	return f.WriteSettings(settings...)
}

// Follow reads frames until the connection ends. It acknowledges SETTINGS and calls got for
// each frame.
func (f *Frames) Follow(got func(http2.Frame)) {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		if s, ok := frame.(*http2.SettingsFrame); ok && !s.IsAck() {
			_ = f.WriteSettingsAck() // ignore errors, because the next read returns them
		}
		got(frame)
	}
}

// Block encodes a header block. fields contains alternating names and values.
func (f *Frames) Block(fields ...string) []byte {
	f.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		// The encoder writes to memory and returns no error.
		_ = f.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(f.block.Bytes())
}

// WriteHead sends a header block of names and values. If end is true, it sets END_STREAM.
func (f *Frames) WriteHead(id uint32, end bool, fields ...string) error {
	return f.WriteBlock(id, end, f.Block(fields...))
}

// WriteLongHead is like WriteHead, but without indexing, so that the block is at least as long
// as the fields.
func (f *Frames) WriteLongHead(id uint32, end bool, fields ...string) error {
	f.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = f.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true})
	}
	return f.WriteBlock(id, end, f.block.Bytes())
}

// WriteBlock sends an encoded header block. It uses CONTINUATION if the block is longer than a
// frame.
func (f *Frames) WriteBlock(id uint32, end bool, block []byte) error {
	const most = 16 << 10 // initial value of SETTINGS_MAX_FRAME_SIZE (RFC 9113 section 6.5.2)
	n := min(len(block), most)
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block), EndStream: end})
	for block = block[n:]; len(block) > 0 && err == nil; block = block[n:] {
		n = min(len(block), most)
		err = f.WriteContinuation(id, n == len(block), block[:n])
	}
	return err
}

// FieldOf returns the value of a header field, or "" if the field is missing.
func FieldOf(f *http2.MetaHeadersFrame, name string) string {
	for _, h := range f.Fields {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}
