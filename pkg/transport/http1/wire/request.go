package wire

import (
	"bytes"
	"net/netip"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Preface is the first data from a client that uses HTTP/2 (RFC 9113 section 3.4).
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// HasPreface reports whether b begins with the whole [Preface]. If it does not, maybe reports
// whether more bytes could complete the preface. HasPreface must be called before Parse, which
// rejects the preface because of its version.
func HasPreface(b []byte) (is, maybe bool) {
	n := min(len(b), len(Preface))
	if string(b[:n]) != Preface[:n] {
		return false, false
	}
	return n == len(Preface), n < len(Preface)
}

// Request is the header section of a request. The zero value is ready to use. A Request can be
// reused for the next request of a connection.
type Request struct {
	Method []byte
	Target []byte // unchanged; contains no whitespace or control characters, but can contain bytes that are not ASCII
	Minor  int    // minor version of HTTP/1.x

	// Host is the authority of the target if it has one, and the Host field otherwise (RFC 9112
	// section 3.2.2). A proxy must forward this value instead of the field.
	Host []byte

	// Fields contains all field lines in order, including Host and the framing fields. Those fields
	// keep their meaning even if a Connection field lists them (RFC 9110 section 7.6.1).
	Fields []Field

	ContentLength int64 // -1 if there is none; a repeated value counts once
	Chunked       bool  // false if ContentLength is set
	Close         bool  // Connection contains close or is not a list of tokens, or the version is HTTP/1.0 without keep-alive
	Upgrade       bool  // Connection contains upgrade, and an Upgrade field is not empty
	Expect100     bool  // the client waits for 100 (Continue) before it sends the body

	head    head
	begin   int // length in bytes of the empty lines before the request line
	lineEnd int // index of the LF of the request line; 0 if it has not arrived
	seen    int // index at which the next call continues the search
}

// BodyLength returns the framing of the body and its length in bytes. The length is -1 for Chunked.
// The body of a request never ends with the connection.
func (r *Request) BodyLength() (length int64, framing Framing) {
	switch {
	case r.Chunked:
		return -1, Chunked
	case r.ContentLength >= 0:
		return r.ContentLength, Length
	}
	return 0, None
}

// Parse parses the header section at the start of b. n is its length in bytes, including the empty
// line at its end.
//
// If n is 0 and the error is nil, more bytes are needed. The caller must then call Parse with the same bytes, which
// may be in another slice, followed by more bytes. Parse does not search the same bytes again. The fields are valid
// if n > 0. Reset discards an incomplete header section.
//
// The error is a *[Error]. If the error is not nil and n > 0, n is still the length of the header section. An
// invalid request line is reported immediately. All other errors are reported after the header section is complete.
//
// If Parse accepts a header section, net/http accepts it with the same meaning. The exceptions are
// targets with a [BadEscape], unusual hosts, and Connection fields that are not lists of tokens.
func (r *Request) Parse(b []byte) (n int, err error) {
	n, refused := r.parse(b)
	switch {
	case refused != nil:
		r.Reset()
		return n, refused
	case n == 0:
		return 0, nil
	}
	r.begin, r.lineEnd, r.seen = 0, 0, 0
	return n, nil
}

// Reset discards an incomplete header section and all references to parsed bytes. It keeps the
// memory for the fields.
func (r *Request) Reset() {
	clear(r.head.fields[:cap(r.head.fields)])
	*r = Request{head: head{fields: r.head.fields[:0]}}
}

// Abandon is like Reset for an incomplete or invalid header section in b, but keeps the method and the target. The
// method and the target are empty if the request line is also incomplete or invalid.
func (r *Request) Abandon(b []byte) {
	line := *r
	known := (line.lineEnd > 0 || line.findLine(b)) && line.line(b) == nil
	r.Reset()
	if known {
		r.Method, r.Target = line.Method, line.Target
	}
}

// Shrink releases the memory for the fields if the memory can hold more than n fields.
func (r *Request) Shrink(n int) {
	if cap(r.head.fields) > n {
		*r = Request{}
	}
}

func (r *Request) parse(b []byte) (n int, refused *Error) {
	resumed := r.lineEnd > 0
	if !resumed {
		if !r.findLine(b) {
			if r.begin < len(b) && b[r.begin] != '\r' && !transport.IsTokenChar(b[r.begin]) {
				return 0, Refuse(WordRequestLine) // for example a TLS ClientHello, in which an LF may never arrive
			}
			return 0, nil
		}
		if refused := r.line(b); refused != nil {
			return 0, refused
		}
	}
	n, r.seen = headEnd(b, r.seen)
	if n == 0 {
		return 0, nil
	}
	if resumed { // parse the line again, because b may have moved
		_ = r.line(b) // cannot fail, because the same bytes were valid before
	}
	bare := b[r.lineEnd-1] != '\r'
	if word := r.head.read(b, r.lineEnd+1, n, bare, strictly); word != "" {
		return 0, Refuse(word)
	}
	if refused := r.validate(); refused != nil {
		return 0, refused
	}
	return n, r.unsupported()
}

// findLine finds the end of the first line that is not empty. Some clients send empty lines after the previous body
// (RFC 9112 section 2.2).
func (r *Request) findLine(b []byte) bool {
	if r.seen == r.begin {
		r.begin = skipEmpty(b, r.begin)
		r.seen = r.begin
		if string(b[r.begin:]) == "\r" {
			return false // the CR may belong to an empty line
		}
	}
	i := bytes.IndexByte(b[r.seen:], '\n')
	if i < 0 {
		r.seen = len(b)
		return false
	}
	r.seen += i
	r.lineEnd = r.seen
	return true
}

func skipEmpty(b []byte, from int) int {
	for {
		switch rest := b[from:]; {
		case len(rest) > 0 && rest[0] == '\n':
			from++
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			from += 2
		default:
			return from
		}
	}
}

// line parses the request line: method SP request-target SP HTTP-version (RFC 9112 section 3). Like
// net/http, it does not accept other whitespace.
func (r *Request) line(b []byte) *Error {
	line := b[r.begin:r.lineEnd]
	if line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	first, last := bytes.IndexByte(line, ' '), bytes.LastIndexByte(line, ' ')
	if first < 0 || first == last {
		return Refuse(WordRequestLine)
	}
	r.Method, r.Target = line[:first], line[first+1:last]
	version := line[last+1:]
	if !ValidToken(r.Method) || !Visible(r.Target) || len(version) != len("HTTP/1.1") ||
		string(version[:5]) != "HTTP/" || !digit(version[5]) || version[6] != '.' || !digit(version[7]) {
		return Refuse(WordRequestLine)
	}
	if version[5] != '1' {
		return Refuse(WordVersion) // net/http passes the first half of the HTTP/2 preface to a handler as a request
	}
	r.Minor = int(version[7] - '0')
	r.target()
	return nil
}

// target sets the host of the target (RFC 9112 section 3.2). If there is no host, or if plainHost does not accept the
// host, target sets r.Host to nil, and the Host field is used.
func (r *Request) target() {
	t := r.Target
	r.Host = nil
	switch {
	case string(r.Method) == "CONNECT":
		if port := plainHost(t); port > 0 && port < len(t) {
			r.Host = t
		}
	case t[0] != '/':
		scheme := schemeLength(t)
		host := t[scheme:]
		if end := bytes.IndexAny(host, "/?"); end >= 0 {
			host = host[:end]
		}
		if scheme > 0 && plainHost(host) >= 0 {
			r.Host = host
		}
	}
}

// validate sets the fields of r. It returns an error if implementations may disagree about the end
// or the meaning of the header section.
func (r *Request) validate() *Error {
	h := &r.head
	r.Fields, r.ContentLength, r.Chunked = h.fields, h.length, h.chunked
	r.Close = h.close || h.unlisted || r.Minor == 0 && !h.keepAlive
	r.Upgrade = h.upgrades && h.upgrade
	r.Expect100 = r.Minor > 0 && h.expect100
	if r.Host == nil {
		r.Host = h.host
	}

	http10 := r.Minor == 0
	switch {
	case h.options > maxOptions:
		return Refuse(WordConnection)
	case h.listed > maxConnection, h.announced > MaxRequestTrailer:
		return Refuse(WordListTooLong)
	case h.alias:
		return Refuse(WordAlias)
	case h.touched && h.bare && h.crlf:
		return Refuse(WordLineEnd) // a parser that accepts only CRLF would parse a different header section
	case h.codings > 0 && http10:
		return Refuse(WordTransferCoding)
	case h.hosts > 1, h.hosts == 0 && !http10:
		return Refuse(WordHost)
	}
	return nil
}

// unsupported returns an error if the header section is valid but the request is not served.
func (r *Request) unsupported() *Error {
	h := &r.head
	switch {
	case r.begin > 0:
		return Refuse(WordLeadingLine)
	case h.bare:
		return Refuse(WordLineEnd)
	case h.folded:
		return Refuse(WordFold)
	case h.codings > 1: // RFC 9112 section 6.1
		return &Error{Problem: "request refused", Word: WordTransferCoding, Status: 501}
	case h.lengthList:
		return Refuse(WordContentLength)
	case h.chunked && h.forbidden:
		return Refuse(WordTrailerName)
	case string(r.Method) != "CONNECT" && r.Target[0] != '/' && string(r.Target) != "*" && schemeLength(r.Target) == 0:
		return Refuse(WordTarget)
	case h.hosts > 0 && plainHost(h.host) < 0 && !ValidHost(r.Host): // RFC 9112 section 3.2
		return Refuse(WordHost)
	case h.expectOther && r.Minor > 0:
		return Refuse(WordExpect)
	}
	return nil
}

// Visible reports whether a request target is not empty and contains no whitespace or control
// characters. Bytes that are not ASCII are not allowed in a URI, but some clients send them.
func Visible[T text](s T) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f {
			return false
		}
	}
	return len(s) > 0
}

// BadEscape reports whether the path of "/path?query" contains a "%" that is not followed by two hexadecimal
// digits. The grammar does not allow such a path and net/http rejects it, but the sidecar forwards it in HTTP/1.1
// (docs/promises.md 3.4).
func BadEscape[T text](s T) bool {
	for i := 0; i < len(s) && s[i] != '?'; i++ {
		if s[i] != '%' {
			continue
		}
		if i+2 >= len(s) || hex(s[i+1]) < 0 || hex(s[i+2]) < 0 {
			return true
		}
		i += 2
	}
	return false
}

// ValidHost reports whether a Host contains only characters that RFC 3986 section 3.2.2 allows. It
// does not check escapes.
func ValidHost[T text](host T) bool {
	for i := range len(host) {
		if c := host[i]; !hostByte(c) && strings.IndexByte("!$%&'()*+,:;=[]", c) < 0 {
			return false
		}
	}
	return true
}

// schemeLength returns the length of the prefix "http://" or "https://" of t, or 0 if t has no such prefix.
func schemeLength(t []byte) int {
	for _, scheme := range [...]string{"http://", "https://"} {
		if len(t) >= len(scheme) && transport.EqualFold(t[:len(scheme)], scheme) {
			return len(scheme)
		}
	}
	return 0
}

// plainHost parses uri-host [ ":" port ]. A host must be an IPv6 address in brackets, or consist of letters, digits,
// "-", ".", "_" and "~". RFC 3986 section 3.2.2 allows other hosts, but they are not common. plainHost returns the
// index of the first digit of the port, 0 if there is no port, or -1 if the host is empty or not accepted.
func plainHost(s []byte) (port int) {
	i := 0
	if len(s) > 0 && s[0] == '[' {
		i = bytes.IndexByte(s, ']') + 1
		if i == 0 || bytes.IndexByte(s[:i], '%') >= 0 {
			return -1
		}
		if a, err := netip.ParseAddr(string(s[1 : i-1])); err != nil || !a.Is6() {
			return -1
		}
	} else {
		for i < len(s) && hostByte(s[i]) {
			i++
		}
		if i == 0 {
			return -1
		}
	}
	if i == len(s) {
		return 0
	}
	if s[i] != ':' {
		return -1
	}
	port = i + 1
	for i = port; i < len(s); i++ {
		if !digit(s[i]) {
			return -1
		}
	}
	return port
}

func hostByte(c byte) bool {
	switch {
	case digit(c), 'a' <= transport.Lower(c) && transport.Lower(c) <= 'z', c == '-', c == '.', c == '_', c == '~':
		return true
	}
	return false
}
