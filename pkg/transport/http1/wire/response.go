package wire

import "bytes"

// Response is the header section of an interim or final response. The zero value is ready to use. A
// Response can be reused for the next response of a connection.
type Response struct {
	Minor  int    // minor version of HTTP/1.x, 0 or 1; 0 for HTTP/0.9
	Status int    // 100 to 999
	Reason []byte // may be empty

	// Fields contains all field lines in order, including the framing fields. A proxy must forward ContentLength
	// instead of the Content-Length field, which may contain a repeated number.
	Fields []Field

	ContentLength int64 // -1 if there is none; a repeated value counts once
	Chunked       bool  // false if ContentLength is set

	// Close reports that no other response can be read from the connection. It is set in these cases:
	//
	//   - Connection contains close;
	//   - the version is HTTP/0.9, or HTTP/1.0 without keep-alive;
	//   - a line ends in LF without CR;
	//   - a 204 response announces a body, which may still arrive (RFC 9110 section 8.6).
	//
	// Close does not report whether the body ends with the connection.
	Close bool

	old       bool // the version is HTTP/0.9
	continued bool // the previous response was a 100

	KeepAliveTimeout int // timeout in Keep-Alive, in seconds; -1 if there is none

	head    head
	lineEnd int // index of the LF of the status line; 0 if it has not arrived
	seen    int // index at which the next call continues the search
}

// Parse parses the header section at the start of b. It returns the length of the header section in
// bytes, including the empty line at its end.
//
// If Parse returns 0 and a nil error, more bytes are needed. The caller appends them to b and calls Parse again.
// The bytes may be in another slice. The fields of r are not valid until Parse returns n > 0. Call Reset to discard
// an incomplete header section.
//
// The error is a *[Error]. An invalid status line is reported before the rest of the header
// section has arrived.
//
// Old applications send responses that are not valid. Parse accepts the following deviations, which it does not
// accept in a request, because they do not change where the message ends:
//
//   - The reason phrase and the space before it are missing (RFC 9112 section 4).
//   - The version and the status are separated by more than one space (RFC 9112 section 4).
//   - The version is HTTP/0.9. The response is parsed as HTTP/1.0, and Close is set.
//   - A 100 response is followed by an empty line. Some servers send the end of the response twice.
//   - The field name is followed by whitespace. It is removed (RFC 9112 section 5.1).
//   - The field is folded. Parse overwrites the line end in b with spaces (RFC 9112 section 5.2). A folded field
//     that this package interprets is an error.
//   - All lines after some line end in LF without CR (RFC 9112 section 2.2). CGI programs write such lines after
//     the status line of their server. A CRLF after such a line is an error, because it can be the result of
//     response splitting. Close is set, because an attacker may have inserted an LF into a value.
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
		return 0, Garbage(word)
	case n == 0:
		return 0, nil
	}
	r.lineEnd, r.seen = 0, 0
	r.continued = r.Status == 100
	return empty + n, nil
}

const crlf = "\r\n"

// Reset discards an incomplete header section and all references to parsed bytes. It keeps the
// memory for the fields.
func (r *Response) Reset() {
	clear(r.head.fields[:cap(r.head.fields)])
	*r = Response{head: head{fields: r.head.fields[:0]}}
}

// Release clears Fields, Reason and all other references to parsed bytes. It keeps the memory for the fields.
func (r *Response) Release() {
	clear(r.head.fields[:cap(r.head.fields)])
	r.head = head{fields: r.head.fields[:0]}
	r.Fields, r.Reason = nil, nil
}

// BodyLength returns the framing of the body in a response to a request with the given method, and
// its length in bytes. The length is -1 if it is unknown (RFC 9112 section 6.3). A 101 response and
// a 2xx response to CONNECT have no body, because another protocol follows.
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
			return 0, WordStatusLine // another protocol, in which an empty line may never arrive
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
		r.line(b) // parse the line again, because its bytes may be in another slice
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

// beginsLike reports whether b begins with prefix, or prefix begins with b.
func beginsLike(b []byte, prefix string) bool {
	k := min(len(b), len(prefix))
	return string(b[:k]) == prefix[:k]
}

// line parses the status line: HTTP-version 1*SP status-code [ SP reason ] (RFC 9112 section 4).
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

// validate sets the fields of r. It returns an error if the header section is not accepted.
func (r *Response) validate() Word {
	h := &r.head
	switch {
	case h.back:
		return WordLineEnd
	case h.listed > maxConnection, h.announced > maxTrailer:
		return WordListTooLong
	case h.codings > 1, h.codings > 0 && r.Minor == 0:
		return WordTransferCoding // the sidecar does not decode gzip, and HTTP/1.0 has no transfer codings (RFC 9112 section 6.1)
	}
	r.Fields, r.ContentLength, r.Chunked = h.fields, h.length, h.chunked
	r.Close = h.close || h.bare || r.old || r.Minor == 0 && !h.keepAlive || r.Status == 204 && (h.length > 0 || h.chunked)
	r.KeepAliveTimeout = h.timeout
	return ""
}
