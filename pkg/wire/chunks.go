package wire

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// Chunks reads the chunked coding (RFC 9112 7.1) as it comes. The zero value is
// ready for a body; Reset makes it ready for another.
//
// It is as strict as the grammar, and stricter about blanks: none stand behind
// the size or at the end of its line, because readers disagree about them. A
// line ends in CRLF and in nothing else.
type Chunks struct {
	// MaxTrailer is the length in bytes of a trailer section; 0: [maxTrailer].
	// Reset keeps it.
	MaxTrailer int

	left   int64 // remaining bytes of the chunk, or its size while the size is being parsed
	digits int   // number of digits of the size
	excess int64 // extension bytes beyond the data so far

	// Lenient accepts blanks after a chunk size and at the end of its line, and empty
	// extensions such as "5;". Go, HAProxy and nginx accept them in responses. The end of the
	// body is the same for every reader that accepts them, and the chunks are written anew for
	// the client. Lenient also accepts fields that [ForbidsTrailer], which the caller removes.
	// Reset keeps it.
	Lenient bool

	state   chunkState
	err     *BadChunk
	section []byte // trailer lines as they came
	trailer *head  // nil: no body has had a trailer section yet; nearly none has
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
	trailerStart // at the start of a line of the trailer section
	trailerLine
	trailerLF // of the empty line
	chunksDone
)

// Next takes n bytes from the front of b and returns the data among them: at
// most one run, which lies within b[:n]. Call it again with b[n:] until b is
// used up or Done. It takes all of b unless it returns data or the body ends in
// b, so with n == len(b) and not Done, more bytes are needed. Behind the end it
// takes nothing. The error is *[BadChunk] and stays until Reset.
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

// Done reports whether the whole body has been read, its trailer section
// included.
func (c *Chunks) Done() bool { return c.state == chunksDone && c.err == nil }

// Trailer returns the fields behind the last chunk once the body is Done, nil
// before. It is the memory of c, valid until Reset.
func (c *Chunks) Trailer() []Field {
	if !c.Done() || c.trailer == nil {
		return nil
	}
	return c.trailer.fields
}

// Reset makes c ready for another body. It keeps its memory.
func (c *Chunks) Reset() {
	if c.trailer != nil {
		*c.trailer = head{fields: c.trailer.fields[:0]}
	}
	*c = Chunks{Lenient: c.Lenient, MaxTrailer: c.MaxTrailer, section: c.section[:0], trailer: c.trailer}
}

func (c *Chunks) bad(word Word) chunkState {
	c.err = &BadChunk{word}
	return c.state
}

// step takes one byte of what is not data.
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
		credit := c.left - 1 // one byte less, so that this limit is reached before the limit of net/http
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

// extension parses one byte of *( BWS ";" BWS name [ BWS "=" BWS value ] ). The value is a
// token or a quoted string (RFC 9112 section 7.1.1). Unless c is Lenient, a blank before the
// first ";" or after the last value is an error.
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
	case sizeDigits: // of a Lenient reader, and b is a blank
		return extensionValueEnd
	case extensionStart:
		switch {
		case blank(b):
			return extensionStart
		case header.IsTokenChar(b):
			return extensionName
		}
	case extensionName, extensionNameEnd:
		switch {
		case b == '=':
			return extensionEquals
		case blank(b):
			return extensionNameEnd
		case header.IsTokenChar(b) && c.state == extensionName:
			return extensionName
		}
	case extensionEquals:
		switch {
		case blank(b):
			return extensionEquals
		case b == '"':
			return extensionQuoted
		case header.IsTokenChar(b):
			return extensionValue
		}
	case extensionValue:
		switch {
		case blank(b):
			return extensionValueEnd
		case header.IsTokenChar(b):
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

// line takes what there is of a trailer line, up to its LF.
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

// end validates the trailer section as strictly as a request's field lines.
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
