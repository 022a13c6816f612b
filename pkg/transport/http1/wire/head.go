package wire

import (
	"bytes"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// headEnd searches for the empty line that ends a header section, beginning at the first LF in b[from:]. Lines may end
// in CRLF or LF, so that no other implementation finds an earlier end. end is the index after the empty line. If there
// is no empty line, end is 0, and next is the value of from for the next call with more bytes.
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

// isKnown reports whether this package interprets fields with role r.
func isKnown(r transport.Role) bool {
	switch r {
	case transport.ConnectionRole, transport.UpgradeRole, transport.ExpectRole, transport.TrailerRole, transport.KeepAliveRole, transport.AliasRole:
		return true
	}
	return isFraming(r)
}

// isFraming reports whether fields with role r frame or route a request.
func isFraming(r transport.Role) bool {
	return r == transport.HostRole || r == transport.LengthRole || r == transport.TransferEncodingRole
}

// ForbidsTrailer reports whether a request is rejected if its trailer section contains the named field or its Trailer
// field contains the name of the field. Such fields frame or route a message, or announce trailers (RFC 9110 section
// 6.5.1).
func ForbidsTrailer[T ~string | ~[]byte](name T) bool {
	r := transport.RoleOf(name)
	return isFraming(r) || r == transport.AliasRole || r == transport.TrailerRole
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

// head contains the values in the field lines of a request or a response. The caller decides
// whether to accept unusual lines.
type head struct {
	fields []Field

	length     int64  // value of Content-Length; -1 if there is none
	lengthText []byte // the digits of length, to compare them with another value
	lengthList bool   // Content-Length is a list such as "5, 5"
	codings    int    // number of members of Transfer-Encoding
	chunked    bool   // the last member of Transfer-Encoding is chunked

	hosts       int
	host        []byte
	close       bool // Connection contains close
	keepAlive   bool // Connection contains keep-alive
	upgrades    bool // Connection contains upgrade
	unlisted    bool // Connection is not a list of tokens
	options     int  // number of members of Connection
	listed      int  // length of the Connection lines as one list, in bytes
	announced   int  // length of the Trailer lines as one list, in bytes
	upgrade     bool // an Upgrade field is not empty
	expect100   bool // Expect contains 100-continue
	expectOther bool // Expect contains another expectation
	forbidden   bool // Trailer announces a field for which ForbidsTrailer is true
	timeout     int  // timeout in Keep-Alive, in seconds; -1 if there is none

	bare    bool // a line ends in LF without CR
	crlf    bool // a line ends in CRLF
	back    bool // a line ends in CRLF, and an earlier line ends in LF without CR
	touched bool // an LF without CR ends or precedes a framing field or the empty line
	folded  bool // a line continues the previous line
	alias   bool // a field has a name such as Content_Length
}

// A reading is the mode in which field lines are parsed.
type reading uint8

const (
	strictly reading = iota
	gently           // remove whitespace after names and unfold lines in place, as RFC 9112 sections 5.1 and 5.2 require for responses
	trailing         // true for a trailer section, whose fields do not affect the framing
)

// read parses the field lines in b[pos:end], including the empty line at the end. It returns the Word of the first
// error that makes the message invalid in every mode, or "" if there is none. bareBefore reports whether the line
// before b[pos] ends in LF without CR.
//
//nolint:gocognit // one pass over the lines, each of which is read once
func (h *head) read(b []byte, pos, end int, bareBefore bool, how reading) Word {
	*h = head{fields: h.fields[:0], length: -1, timeout: -1, bare: bareBefore, crlf: !bareBefore}
	last := transport.Plain    // role of the previous field
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
			last = transport.RoleOf(f.Name)
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

// count adds the length of a Connection or Trailer line to the length of its list. The length is limited because
// other code searches or splits these lists. An empty line counts as well.
func (h *head) count(r transport.Role, text []byte) {
	switch r {
	case transport.ConnectionRole:
		h.listed += len(text) + len(", ")
	case transport.TrailerRole:
		h.announced += len(text) + len(", ")
	}
}

// line parses the field in one line and returns the index of the colon.
func (h *head) line(line []byte, how reading) (colon int, word Word) {
	if len(h.fields) == MaxFields {
		return 0, WordTooManyFields
	}
	colon = 0
	for colon < len(line) && transport.IsTokenChar(line[colon]) {
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
		if how != gently || isKnown(transport.RoleOf(name)) {
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

// fold validates a line that continues the previous field line.
func (h *head) fold(line []byte, last transport.Role) Word {
	h.folded = true
	text := Trim(line)
	switch {
	case len(h.fields) == 0 || isFraming(last) || len(text) == 0:
		return WordFold // there is no previous field, or a framing field is folded, or the line could be parsed as empty
	case !ValidValue(text):
		return WordFieldValue
	}
	name, _, ok := bytes.Cut(text, []byte{':'})
	if r := transport.RoleOf(Trim(name)); ok && (isFraming(r) || r == transport.AliasRole) {
		return WordFold // an implementation that trims lines would parse the line as a separate field
	}
	return ""
}

// note records the value of a field with role r.
func (h *head) note(r transport.Role, value []byte) Word {
	switch r {
	case transport.HostRole:
		h.hosts++
		h.host = value
	case transport.LengthRole:
		return h.noteLength(value)
	case transport.TransferEncodingRole:
		return h.noteCoding(value)
	case transport.ConnectionRole:
		h.close = h.close || HasToken(value, "close")
		h.keepAlive = h.keepAlive || HasToken(value, "keep-alive")
		h.upgrades = h.upgrades || HasToken(value, "upgrade")
		n, ok := countTokens(value)
		h.options += n
		h.unlisted = h.unlisted || !ok
	case transport.UpgradeRole:
		h.upgrade = h.upgrade || len(value) > 0
	case transport.ExpectRole:
		continues, other := Expectation(value)
		h.expect100 = h.expect100 || continues
		h.expectOther = h.expectOther || other
	case transport.TrailerRole:
		h.forbidden = h.forbidden || ForbidsTrailers(value)
	case transport.KeepAliveRole:
		h.noteKeepAlive(value)
	case transport.AliasRole:
		h.alias = true
	}
	return ""
}

// noteLength parses Content-Length. A repeated value must have the same digits (RFC 9110 section
// 8.6).
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

// noteCoding parses Transfer-Encoding. The codings must not have parameters, and chunked must be
// the last coding (RFC 9112 sections 6.1 and 7). RFC 9110 section 5.6.1 allows empty members, but
// noteCoding rejects them, because the field decides where a message ends.
func (h *head) noteCoding(value []byte) Word {
	for coding := range Members(value) {
		if !ValidToken(coding) || h.chunked {
			return WordTransferCoding
		}
		h.codings++
		h.chunked = transport.EqualFold(coding, "chunked")
	}
	return ""
}

// noteKeepAlive parses timeout=SECONDS. No current RFC defines Keep-Alive. Servers follow RFC 2068
// section 19.7.1.1.
func (h *head) noteKeepAlive(value []byte) {
	for member := range Members(value) {
		name, number, _ := bytes.Cut(member, []byte{'='})
		if !transport.EqualFold(Trim(name), "timeout") {
			continue
		}
		if n, ok := decimal(Trim(number)); ok && n <= 1<<31-1 {
			h.timeout = int(n)
		}
	}
}
