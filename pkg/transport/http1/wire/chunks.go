package wire

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Chunks decodes the chunked transfer coding (RFC 9112 section 7.1) incrementally. The zero value
// is ready to use. Reset prepares it for another body.
//
// Unless Lenient is set, Chunks rejects whitespace after the chunk size and at the end of the line. The grammar allows
// some of this whitespace, but implementations interpret it differently. A line must end in CRLF.
type Chunks struct {
	// MaxTrailer is the maximum length of a trailer section in bytes. 0 means [maxTrailer]. Reset
	// does not change it.
	MaxTrailer int

	left   int64 // remaining bytes of the chunk, or its size while the size is being parsed
	digits int   // number of digits of the size
	excess int64 // excess of extension bytes over data bytes; see maxExtension

	// Lenient accepts whitespace after a chunk size and at the end of its line, and empty extensions such as "5;".
	// Go, HAProxy and nginx also accept such lines in responses. All of them find the same end of the body, and the
	// chunks are encoded again for the client. Lenient also accepts trailer fields for which [ForbidsTrailer] returns
	// true. The caller must remove these fields. Reset does not change Lenient.
	Lenient bool

	state   chunkState
	err     *Error
	section []byte // trailer lines as received
	trailer *head  // allocated for the first body with a trailer section
}

type chunkState uint8

const (
	sizeDigits chunkState = iota
	extensionStart
	extensionName
	extensionNameEnd
	extensionEquals
	extensionValue
	extensionQuoted
	extensionEscape
	extensionQuotedEnd
	extensionValueEnd
	sizeLF
	chunkData
	dataCR
	dataLF
	trailerStart // the start of a line in the trailer section
	trailerLine
	trailerLF // the LF of the empty line
	chunksDone
)

// Next decodes the first n bytes of b. data is the content in these bytes. It is a subslice of b[:n] and may be empty.
// Until Done returns true, the caller must call Next again with b[n:], or with the input that follows b if n is len(b).
// Next does not decode bytes after the end of the body. The error is a *[Error]. After an error, Next returns the
// same error until Reset is called.
func (c *Chunks) Next(b []byte) (data []byte, n int, err error) {
	for n < len(b) && c.err == nil {
		switch c.state {
		case chunkData:
			k := int(min(c.left, int64(len(b)-n)))
			c.left -= int64(k)
			if c.left == 0 {
				c.state = dataCR
			}
			return b[n : n+k : n+k], n + k, nil
		case trailerLine:
			n += c.line(b[n:])
		case chunksDone:
			return nil, n, nil
		default:
			c.state = c.step(b[n])
			n++
		}
	}
	if c.err != nil {
		return nil, 0, c.err
	}
	return nil, n, nil
}

// Done reports whether the whole body has been decoded, including the trailer section.
func (c *Chunks) Done() bool { return c.state == chunksDone && c.err == nil }

// Trailer returns the fields of the trailer section if Done returns true, and nil otherwise. The fields are valid
// until Reset.
func (c *Chunks) Trailer() []Field {
	if !c.Done() || c.trailer == nil {
		return nil
	}
	return c.trailer.fields
}

// Reset prepares c for another body. It keeps the allocated memory.
func (c *Chunks) Reset() {
	if c.trailer != nil {
		*c.trailer = head{fields: c.trailer.fields[:0]}
	}
	*c = Chunks{Lenient: c.Lenient, MaxTrailer: c.MaxTrailer, section: c.section[:0], trailer: c.trailer}
}

func (c *Chunks) bad(word Word) chunkState {
	c.err = badChunk(word)
	return c.state
}

// step parses one byte that is not data.
func (c *Chunks) step(b byte) chunkState {
	if extensionStart <= c.state && c.state <= extensionValueEnd {
		return c.extension(b)
	}
	switch c.state {
	case sizeDigits:
		d := hex(b)
		switch {
		case d >= 0 && c.digits < 16 && c.left <= (1<<63-1)>>4:
			c.left = c.left<<4 | int64(d)
			c.digits++
			return sizeDigits
		case d >= 0 || c.digits == 0:
			return c.bad(WordChunkSize)
		case b == ';' || c.Lenient && blank(b):
			return c.extension(b)
		case b == '\r':
			return sizeLF
		}
		return c.bad(WordChunkSize)
	case sizeLF:
		switch {
		case b != '\n':
			return c.bad(WordChunkEnd)
		case c.left == 0:
			return trailerStart
		}
		c.digits = 0
		credit := c.left - 1 // one byte less, so that a body reaches this limit before the limit of net/http
		if c.Lenient {
			credit += freeExtension
		}
		c.excess = max(0, c.excess-credit)
		return chunkData
	case dataCR:
		if b != '\r' {
			return c.bad(WordChunkEnd)
		}
		return dataLF
	case dataLF:
		if b != '\n' {
			return c.bad(WordChunkEnd)
		}
		return sizeDigits
	case trailerStart:
		switch b {
		case '\r':
			return trailerLF
		case '\n':
			return c.bad(WordLineEnd)
		}
		c.section = append(c.section, b)
		return trailerLine
	case trailerLF:
		if b != '\n' {
			return c.bad(WordLineEnd)
		}
		return c.end()
	}
	return c.state
}

// extension parses one byte of *( BWS ";" BWS name [ BWS "=" BWS value ] ). The value is a token or a quoted string
// (RFC 9112 section 7.1.1). Whitespace before the first ";" or after the last value is an error unless c.Lenient is
// set.
//
//nolint:funlen,gocognit // a table of states and bytes
func (c *Chunks) extension(b byte) chunkState {
	c.excess++
	if c.excess > maxExtension {
		return c.bad(WordLongExtension)
	}
	if b == ';' || b == '\r' {
		switch c.state {
		case extensionName, extensionValue, extensionQuotedEnd, sizeDigits:
			if b == '\r' {
				return sizeLF
			}
			return extensionStart
		case extensionNameEnd, extensionValueEnd, extensionStart:
			switch {
			case b == ';' && (c.Lenient || c.state != extensionStart):
				return extensionStart
			case b == '\r' && c.Lenient:
				return sizeLF
			}
		}
	}
	switch c.state {
	case sizeDigits: // c is Lenient and b is whitespace
		return extensionValueEnd
	case extensionStart:
		switch {
		case blank(b):
			return extensionStart
		case transport.IsTokenChar(b):
			return extensionName
		}
	case extensionName, extensionNameEnd:
		switch {
		case b == '=':
			return extensionEquals
		case blank(b):
			return extensionNameEnd
		case transport.IsTokenChar(b) && c.state == extensionName:
			return extensionName
		}
	case extensionEquals:
		switch {
		case blank(b):
			return extensionEquals
		case b == '"':
			return extensionQuoted
		case transport.IsTokenChar(b):
			return extensionValue
		}
	case extensionValue:
		switch {
		case blank(b):
			return extensionValueEnd
		case transport.IsTokenChar(b):
			return extensionValue
		}
	case extensionQuoted:
		switch {
		case b == '"':
			return extensionQuotedEnd
		case b == '\\':
			return extensionEscape
		case b >= ' ' && b != 0x7f || b == '\t':
			return extensionQuoted
		}
	case extensionEscape:
		if b >= ' ' && b != 0x7f || b == '\t' {
			return extensionQuoted
		}
	case extensionQuotedEnd, extensionValueEnd:
		if blank(b) {
			return extensionValueEnd
		}
	}
	return c.bad(WordChunkExtension)
}

// line parses a trailer line up to its LF, or all of b if b contains no LF.
func (c *Chunks) line(b []byte) (n int) {
	n = len(b)
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		n = i + 1
		c.state = trailerStart
	}
	if len(c.section)+n > cmp.Or(c.MaxTrailer, maxTrailer) {
		c.state = c.bad(WordTrailerTooLong)
		return n
	}
	c.section = append(c.section, b[:n]...)
	return n
}

// end validates the trailer section in the same way as the field lines of a request.
func (c *Chunks) end() chunkState {
	if len(c.section) == 0 {
		return chunksDone
	}
	if c.trailer == nil {
		c.trailer = new(head)
	}
	h := c.trailer
	word := h.read(c.section, 0, len(c.section), false, trailing)
	switch {
	case word != "":
		return c.bad(word)
	case h.bare:
		return c.bad(WordLineEnd)
	case h.folded:
		return c.bad(WordFold)
	case !c.Lenient && slices.ContainsFunc(h.fields, func(f Field) bool { return ForbidsTrailer(f.Name) }):
		return c.bad(WordTrailerName)
	}
	return chunksDone
}
