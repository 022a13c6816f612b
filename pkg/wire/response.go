package wire

import "bytes"

// Response is the head of a response, interim or final. The zero value is ready
// to Parse; one value serves a connection's responses one after the other.
type Response struct {
	Minor  int    // of HTTP/1.x: 0 or 1; 0 for HTTP/0.9
	Status int    // 100 to 999
	Reason []byte // may be empty

	// Fields has all field lines in their order, the framing included. Forward
	// ContentLength rather than its field, which may say a number twice.
	Fields []Field

	ContentLength int64 // -1: none. "5" said twice is 5, in one line or two
	Chunked       bool  // never beside a ContentLength

	// Close says that no other response may be read from the connection:
	// Connection has close, it is HTTP/1.0 without keep-alive, a line ended in LF
	// alone, or a 204 announced a body, which may still come (RFC 9110 8.6). It
	// says nothing about a body that only the close ends.
	Close bool

	old       bool // the version is HTTP/0.9
	continued bool // the last response was a 100

	KeepAliveTimeout int // of Keep-Alive: timeout=, seconds from 0; -1: none

	head    head
	lineEnd int // index of the LF of the status line; 0: not there yet
	seen    int // no line that matters ends before: where the next call goes on
}

// Parse parses the response head at the start of b. It returns the length of the head in
// bytes, including the empty line at its end.
//
// If Parse returns 0 and a nil error, the head is incomplete. The caller reads more bytes,
// appends them to b, and calls Parse again. The slice may have moved in memory. The fields
// of r are not valid until Parse returns n > 0. Call Reset to discard an incomplete head.
//
// The error is a *[Garbage]. An invalid status line is reported before the rest of the head
// has arrived.
//
// Old applications send responses that are not valid. Parse accepts the following deviations,
// which it does not accept in a request, because the end of the message is still certain:
//
//   - The reason phrase and the blank before it are missing (RFC 9112 section 4).
//   - The version and the status are separated by more than one blank (RFC 9112 section 4).
//   - The version is HTTP/0.9. The response is parsed as HTTP/1.0, and Close is set.
//   - A 100 response is followed by an empty line. Some servers end the response twice.
//   - The field name is followed by blanks. They are removed (RFC 9112 section 5.1).
//   - The field is folded. Parse overwrites the line end in b with blanks (RFC 9112 section
//     5.2). This does not apply to the fields that this package interprets.
//   - All lines after some line end in LF without CR (RFC 9112 section 2.2). CGI programs
//     write such lines after the status line of their server. A CRLF after such a line is
//     an error, because it can be the result of response splitting. Close is set, because
//     a value can contain a LF from an attacker.
func (r *Response) Parse(b []byte) (n int, err error) {
	empty := 0
	if r.continued {
		if string(b) == crlf[:min(len(b), 1)] {
			return 0, nil
		}
		if len(b) >= len(crlf) && string(b[:len(crlf)]) == crlf {
			empty = len(crlf)
		}
	}
	n, word := r.parse(b[empty:])
	switch {
	case word != "":
		r.Reset()
		return 0, &Garbage{word}
	case n == 0:
		return 0, nil
	}
	r.lineEnd, r.seen = 0, 0
	r.continued = r.Status == 100
	return empty + n, nil
}

const crlf = "\r\n"

// Reset forgets an unfinished head and releases all bytes that were parsed.
// The memory for the fields is kept.
func (r *Response) Reset() {
	clear(r.head.fields[:cap(r.head.fields)])
	*r = Response{head: head{fields: r.head.fields[:0]}}
}

// Release forgets Fields and Reason, and releases all bytes that were parsed. The memory for the
// fields is kept.
func (r *Response) Release() {
	clear(r.head.fields[:cap(r.head.fields)])
	r.head = head{fields: r.head.fields[:0]}
	r.Fields, r.Reason = nil, nil
}

// BodyLength says how the end of the body of the answer to a request with that
// method is marked, and its length in bytes, which is -1 unless that is known
// before (RFC 9112 6.3). A 101 has no body: behind it the protocol is another
// one, as behind the 2xx to a CONNECT.
func (r *Response) BodyLength(method string) (length int64, framing Framing) {
	switch {
	case method == "HEAD", r.Status < 200, r.Status == 204, r.Status == 304,
		method == "CONNECT" && r.Status < 300:
		return 0, None
	case r.Chunked:
		return -1, Chunked
	case r.ContentLength >= 0:
		return r.ContentLength, Length
	}
	return -1, UntilClose
}

func (r *Response) parse(b []byte) (n int, word Word) {
	resumed := r.lineEnd > 0
	if !resumed {
		if !beginsLike(b, http1) && !beginsLike(b, http09) {
			return 0, WordStatusLine // another protocol: the empty line may never come
		}
		i := bytes.IndexByte(b[r.seen:], '\n')
		if i < 0 {
			r.seen = len(b)
			return 0, ""
		}
		r.lineEnd = r.seen + i
		r.seen = r.lineEnd
		if !r.line(b) {
			return 0, WordStatusLine
		}
	}
	n, r.seen = headEnd(b, r.seen)
	if n == 0 {
		return 0, ""
	}
	if resumed {
		r.line(b) // once more: b may have moved
	}
	bare := b[r.lineEnd-1] != '\r'
	if word := r.head.read(b, r.lineEnd+1, n, bare, gently); word != "" {
		return 0, word
	}
	return n, r.validate()
}

const (
	http1  = "HTTP/1."
	http09 = "HTTP/0.9 "
)

// beginsLike reports whether b begins with prefix, as far as both go.
func beginsLike(b []byte, prefix string) bool {
	k := min(len(b), len(prefix))
	return string(b[:k]) == prefix[:k]
}

// line reads the status line: HTTP-version 1*SP status-code [ SP reason ]
// (RFC 9112 4).
func (r *Response) line(b []byte) bool {
	line := b[:r.lineEnd]
	if line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	const version, code = len(http1 + "1"), len("200")
	r.old = beginsLike(line, http09)
	if len(line) <= version || !r.old && line[7] != '0' && line[7] != '1' || line[version] != ' ' {
		return false
	}
	r.Minor = 0
	if !r.old {
		r.Minor = int(line[7] - '0')
	}
	line = bytes.TrimLeft(line[version:], " ")
	if len(line) < code || line[0] == '0' || !digit(line[0]) || !digit(line[1]) || !digit(line[2]) {
		return false
	}
	r.Status = 100*int(line[0]-'0') + 10*int(line[1]-'0') + int(line[2]-'0')
	r.Reason = line[code:]
	if len(r.Reason) > 0 {
		if r.Reason[0] != ' ' {
			return false
		}
		r.Reason = r.Reason[1:]
	}
	return ValidValue(r.Reason)
}

// validate weighs what the field lines said.
func (r *Response) validate() Word {
	h := &r.head
	switch {
	case h.back:
		return WordLineEnd
	case h.listed > maxConnection, h.announced > maxTrailer:
		return WordListTooLong
	case h.codings > 1, h.codings > 0 && r.Minor == 0:
		return WordTransferCoding // nothing here undoes gzip; and HTTP/1.0 has no codings (RFC 9112 6.1)
	}
	r.Fields, r.ContentLength, r.Chunked = h.fields, h.length, h.chunked
	r.Close = h.close || h.bare || r.old || r.Minor == 0 && !h.keepAlive || r.Status == 204 && (h.length > 0 || h.chunked)
	r.KeepAliveTimeout = h.timeout
	return ""
}
