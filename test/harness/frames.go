package harness

import (
	"bytes"
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
// stream. Blocks longer than a frame go on in CONTINUATION.
func (f *Frames) WriteHead(id uint32, end bool, fields ...string) error {
	const most = 16 << 10 // SETTINGS_MAX_FRAME_SIZE, as it is at first: RFC 9113 section 6.5.2
	block := f.Block(fields...)
	n := min(len(block), most)
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block), EndStream: end})
	for block = block[n:]; len(block) > 0 && err == nil; block = block[n:] {
		n = min(len(block), most)
		err = f.WriteContinuation(id, n == len(block), block[:n])
	}
	return err
}
