package wire

import (
	"bytes"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// headEnd looks for the empty line that ends a head, in either way of ending a
// line, so that no reader finds an earlier end than we do. It starts at the
// line end at or behind from. When there is none yet, end is 0, and next is
// where to look again once more bytes are there.
func headEnd(b []byte, from int) (end, next int) {
	for {
		i := bytes.IndexByte(b[from:], '\n')
		if i < 0 {
			return 0, len(b)
		}
		from += i
		switch rest := b[from+1:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return from + 2, 0
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return from + 3, 0
		case len(rest) == 0 || len(rest) == 1 && rest[0] == '\r':
			return 0, from
		}
		from++
	}
}

// isKnown reports whether this package interprets a field with this role.
func isKnown(r header.Role) bool {
	switch r {
	case header.ConnectionRole, header.UpgradeRole, header.ExpectRole, header.TrailerRole, header.KeepAliveRole, header.AliasRole:
		return true
	}
	return isFraming(r)
}

// isFraming reports whether a field with this role frames or routes a request.
func isFraming(r header.Role) bool {
	return r == header.HostRole || r == header.LengthRole || r == header.TransferEncodingRole
}

// ForbidsTrailer reports whether a request is rejected if its trailer section contains or announces
// the field: it frames or routes a message, or announces trailers (RFC 9110 section 6.5.1).
func ForbidsTrailer[T ~string | ~[]byte](name T) bool {
	r := header.RoleOf(name)
	return isFraming(r) || r == header.AliasRole || r == header.TrailerRole
}

// ForbidsTrailers reports whether a Trailer field announces a field for which [ForbidsTrailer] is true.
func ForbidsTrailers(value []byte) bool {
	for name := range Members(value) {
		if ForbidsTrailer(name) {
			return true
		}
	}
	return false
}

// head is the contents of the field lines of a request or a response. The caller decides
// whether an unusual line is accepted.
type head struct {
	fields []Field

	length     int64  // -1: none
	lengthText []byte // as it was written, to be compared
	lengthList bool   // "5, 5"
	codings    int    // members of Transfer-Encoding
	chunked    bool   // the last of them

	hosts       int
	host        []byte
	close       bool // Connection lists close
	keepAlive   bool // Connection lists keep-alive
	upgrades    bool // Connection lists upgrade
	unlisted    bool // Connection is not a list
	options     int  // what it lists
	listed      int  // bytes of the Connection lines, as one list
	announced   int  // bytes of the Trailer lines, likewise
	upgrade     bool // there is an Upgrade field
	expect100   bool // Expect contains 100-continue
	expectOther bool // Expect contains something else
	forbidden   bool // Trailer announces a field that ForbidsTrailer
	timeout     int  // of Keep-Alive, seconds; -1: none

	bare    bool // a line ended in LF alone
	crlf    bool // a line ended in CRLF
	back    bool // a line ended in CRLF behind one that ended in LF alone
	touched bool // a framing field or the empty line stood next to a LF alone
	folded  bool // a line continued the one before
	alias   bool
}

// A reading says which liberties the reader of field lines takes.
type reading uint8

const (
	strictly reading = iota
	gently           // trim blanks behind names and unfold lines, in place, as RFC 9112 5.1 and 5.2 ask a proxy to do with responses
	trailing         // strictly, and the fields do not frame the message
)

// read takes the field lines b[pos:end] apart; the last of them is the empty
// one. It returns the word of the first thing that no reader may bear, or "".
// bareBefore says that the line before them ended in LF alone.
//
//nolint:gocognit // one pass over the lines, each of which is read once
func (h *head) read(b []byte, pos, end int, bareBefore bool, how reading) Word {
	*h = head{fields: h.fields[:0], length: -1, timeout: -1, bare: bareBefore, crlf: !bareBefore}
	last := header.Plain       // role of the previous field
	lastValue, lastEnd := 0, 0 // start of its value, and end of its line
	for pos < end {
		next := pos + bytes.IndexByte(b[pos:end], '\n') + 1
		eol := next - 1
		bare := eol == pos || b[eol-1] != '\r'
		if bare {
			h.bare = true
		} else {
			eol--
			h.crlf = true
			h.back = h.back || h.bare
		}
		line := b[pos:eol]
		if len(line) == 0 {
			h.touched = h.touched || bare || bareBefore
			break
		}
		if blank(line[0]) {
			if word := h.fold(line, last); word != "" {
				return word
			}
			h.count(last, line)
			if how == gently {
				if isKnown(last) {
					return WordFold
				}
				for i := lastEnd; i < pos; i++ {
					b[i] = ' '
				}
				h.fields[len(h.fields)-1].Value = Trim(b[lastValue:eol])
			}
		} else {
			colon, word := h.line(line, how)
			if word != "" {
				return word
			}
			f := &h.fields[len(h.fields)-1]
			last = header.RoleOf(f.Name)
			h.count(last, f.Value)
			if how != trailing {
				if word := h.note(last, f.Value); word != "" {
					return word
				}
			}
			h.touched = h.touched || isFraming(last) && (bare || bareBefore)
			lastValue = pos + colon + 1
		}
		bareBefore, lastEnd, pos = bare, eol, next
	}
	switch {
	case h.codings > 0 && h.length >= 0:
		return WordLengthAndCoding
	case h.codings > 0 && !h.chunked:
		return WordTransferCoding
	}
	return ""
}

// count takes note of how long the lists are that others search or take apart. A line
// counts even if it is empty.
func (h *head) count(r header.Role, text []byte) {
	switch r {
	case header.ConnectionRole:
		h.listed += len(text) + len(", ")
	case header.TrailerRole:
		h.announced += len(text) + len(", ")
	}
}

// line adds the field of one line, and says where its colon is.
func (h *head) line(line []byte, how reading) (colon int, word Word) {
	if len(h.fields) == MaxFields {
		return 0, WordTooManyFields
	}
	colon = 0
	for colon < len(line) && header.IsTokenChar(line[colon]) {
		colon++
	}
	name := line[:colon]
	for colon < len(line) && blank(line[colon]) {
		colon++
	}
	if len(name) == 0 || colon == len(line) || line[colon] != ':' {
		return 0, WordFieldLine
	}
	if colon > len(name) {
		if how != gently || isKnown(header.RoleOf(name)) {
			return 0, WordBlankName
		}
	}
	value := Trim(line[colon+1:])
	if !ValidValue(value) {
		return 0, WordFieldValue
	}
	h.fields = append(h.fields, Field{name, value})
	return colon, ""
}

// fold validates a line that continues the field before it.
func (h *head) fold(line []byte, last header.Role) Word {
	h.folded = true
	text := Trim(line)
	switch {
	case len(h.fields) == 0 || isFraming(last) || len(text) == 0:
		return WordFold // nothing to continue, a number torn in two, or what some take for the empty line
	case !ValidValue(text):
		return WordFieldValue
	}
	name, _, ok := bytes.Cut(text, []byte{':'})
	if r := header.RoleOf(Trim(name)); ok && (isFraming(r) || r == header.AliasRole) {
		return WordFold // a reader that only trims lines sees a field of its own
	}
	return ""
}

// note records the value of a field with a role.
func (h *head) note(r header.Role, value []byte) Word {
	switch r {
	case header.HostRole:
		h.hosts++
		h.host = value
	case header.LengthRole:
		return h.noteLength(value)
	case header.TransferEncodingRole:
		return h.noteCoding(value)
	case header.ConnectionRole:
		h.close = h.close || HasToken(value, "close")
		h.keepAlive = h.keepAlive || HasToken(value, "keep-alive")
		h.upgrades = h.upgrades || HasToken(value, "upgrade")
		n, ok := countTokens(value)
		h.options += n
		h.unlisted = h.unlisted || !ok
	case header.UpgradeRole:
		h.upgrade = h.upgrade || len(value) > 0
	case header.ExpectRole:
		continues, other := Expectation(value)
		h.expect100 = h.expect100 || continues
		h.expectOther = h.expectOther || other
	case header.TrailerRole:
		h.forbidden = h.forbidden || ForbidsTrailers(value)
	case header.KeepAliveRole:
		h.noteKeepAlive(value)
	case header.AliasRole:
		h.alias = true
	}
	return ""
}

// noteLength takes one decimal number; said more than once, always in the same
// digits (RFC 9110 8.6).
func (h *head) noteLength(value []byte) Word {
	h.lengthList = h.lengthList || bytes.IndexByte(value, ',') >= 0
	for number := range Members(value) {
		n, ok := decimal(number)
		if !ok || h.lengthText != nil && !bytes.Equal(number, h.lengthText) {
			return WordContentLength
		}
		h.length, h.lengthText = n, number
	}
	return ""
}

// noteCoding takes a list of codings without parameters, chunked once and at
// its end (RFC 9112 6.1, 7). An empty member, which RFC 9110 5.6.1 lets pass, has
// no place in a field that decides where a message ends.
func (h *head) noteCoding(value []byte) Word {
	for coding := range Members(value) {
		if !ValidToken(coding) || h.chunked {
			return WordTransferCoding
		}
		h.codings++
		h.chunked = header.EqualFold(coding, "chunked")
	}
	return ""
}

// noteKeepAlive looks for timeout=SECONDS. Keep-Alive has no RFC in force; RFC
// 2068 19.7.1.1 is what servers follow.
func (h *head) noteKeepAlive(value []byte) {
	for member := range Members(value) {
		name, number, _ := bytes.Cut(member, []byte{'='})
		if !header.EqualFold(Trim(name), "timeout") {
			continue
		}
		if n, ok := decimal(Trim(number)); ok && n <= 1<<31-1 {
			h.timeout = int(n)
		}
	}
}
