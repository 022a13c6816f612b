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

// Parse reads the response head that b begins with. n is its length in bytes,
// with the empty line at its end.
//
// With n == 0 and a nil error more bytes are needed: call again with the same
// bytes and more behind them (they may have moved). Until n > 0 the fields mean
// nothing. To give a head up, use Reset.
//
// The error is *[Garbage]. What cannot become a response is reported as soon as the
// status line shows it.
//
// Apps of all ages stand behind a proxy, so Parse bears a few things that a
// request may not have, none of which leaves the end of the message in doubt:
//
//   - A reason phrase may be missing, with the blank before it (RFC 9112 4).
//   - More than one blank may separate the version from the status (RFC 9112 4).
//   - The version may be HTTP/0.9. The response is then read as one of HTTP/1.0 and
//     marked Close.
//   - One empty line may follow a 100 response. Some servers end such a response twice.
//   - Blanks between a field's name and its colon are dropped (RFC 9112 5.1),
//     and a continued field is made one line by writing blanks over the line end
//     within b (RFC 9112 5.2). Not so for the fields that this package reads
//     itself.
//   - Lines may end in LF alone from some line on to the end of the head (RFC
//     9112 2.2): so write CGI programs, behind a status line from their server.
//     A CRLF behind such a line is what response splitting looks like, and
//     Garbage. Since a LF may have been smuggled into a value all the same,
//     nothing may be read behind that response: it is marked Close.
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
