// Package wire implements the grammar of HTTP/1.1 for bytes in memory: the header sections of
// requests and responses, and the chunked transfer coding (RFC 9110 and RFC 9112).
//
// A parser receives the bytes that have arrived. It returns a message or an error, or reports that more bytes are
// needed. It does not block, and it keeps no state between messages. The strings and slices in a result refer to
// the input, so parsing does not allocate memory once the slices of the reused value are large enough. The caller
// must not modify the input while it uses the result.
//
// An invalid message is reported as an [*Error]. There is no lenient mode for the header section of a request, because
// request smuggling needs two proxies that interpret the same bytes differently.
//
// The types of this package are not safe for concurrent use.
package wire

// Limits. The caller limits the length of a header section, because the caller owns the buffer.
const (
	// MaxFields is the maximum number of field lines in a header or trailer section. No legitimate
	// message has more.
	MaxFields = 1000

	// maxTrailer is the maximum length of a trailer section in bytes. Trailers usually contain only a status or a
	// digest.
	maxTrailer = 16 << 10

	// MaxRequestTrailer is the maximum length of a request's trailer section, in bytes, without the empty line at
	// the end. net/http finds the empty line only within 4 KiB, and many applications use net/http.
	MaxRequestTrailer = 4<<10 - len("\r\n")

	// maxOptions is the maximum number of connection options in a request. Legitimate requests have
	// at most two.
	maxOptions = 64

	// maxConnection is the maximum total length, in bytes, of all Connection lines in a header section. Each field name
	// is searched for in these lines, so the maximum cost is proportional to their length times MaxFields. Trailer
	// lines have the same limit as the trailer section that they announce: maxTrailer or MaxRequestTrailer. To split
	// them, net/http allocates 14 times their length.
	maxConnection = 1 << 10

	// maxExtension is the maximum excess, in bytes, of the chunk extensions of a body over its data. Each extension
	// byte increases the excess, and each chunk reduces it by about its size, but not below 0. RFC 9112 section 7.1.1
	// requires a limit. The extensions are parsed and discarded.
	maxExtension = 2 << 10

	// freeExtension is the number of extension bytes in each chunk of a response that do not count against
	// maxExtension. Some applications pad the chunk size with whitespace.
	freeExtension = 16
)

// Field is one field line of a header or trailer section. Value has no leading or trailing
// whitespace. Both slices refer to the input of the parser or, for trailers, to the memory of
// [Chunks].
type Field struct{ Name, Value []byte }

// Framing describes how the length of a body is determined (RFC 9112 section 6.3).
type Framing uint8

// Values of Framing.
const (
	None       Framing = iota // there is no body
	Length                    // Content-Length bytes, possibly 0
	Chunked                   // the chunked transfer coding; use [Chunks] to decode it
	UntilClose                // all bytes until the connection closes; responses only
)

// Word identifies the error in a message. The set of words is fixed, so a word can be used as a metric label. A
// word never contains data from the message.
type Word string

// Words of [Error].
const (
	WordRequestLine     Word = "request-line"      // not "method SP target SP version" (RFC 9112 section 3)
	WordStatusLine      Word = "status-line"       // not "version SP status SP reason" (RFC 9112 section 4)
	WordVersion         Word = "version"           // the version is not HTTP/1.x (RFC 9112 section 2.3)
	WordLeadingLine     Word = "leading-line"      // an empty line before the request line (RFC 9112 section 2.2)
	WordLineEnd         Word = "line-end"          // a line that ends in LF without CR (RFC 9112 section 2.2)
	WordFold            Word = "fold"              // a line that continues the previous line (RFC 9112 section 5.2)
	WordFieldLine       Word = "field-line"        // no colon, or a name that is not a token (RFC 9110 section 5.1)
	WordBlankName       Word = "blank-after-name"  // whitespace between name and colon (RFC 9112 section 5.1)
	WordFieldValue      Word = "field-value"       // a control character in a value (RFC 9110 section 5.5)
	WordTooManyFields   Word = "too-many-fields"   // more than MaxFields
	WordContentLength   Word = "content-length"    // not a single number that fits into an int64 (RFC 9110 section 8.6)
	WordTransferCoding  Word = "transfer-encoding" // a coding other than chunked, or chunked is repeated or not last (RFC 9112 section 6.1)
	WordLengthAndCoding Word = "length-and-coding" // Content-Length with Transfer-Encoding (RFC 9112 section 6.3)
	WordAlias           Word = "alias"             // Content_Length or Transfer_Encoding; see transport.AliasRole
	WordHost            Word = "host"              // missing, repeated, or not a valid host (RFC 9112 section 3.2)
	WordTarget          Word = "target"            // none of the four forms (RFC 9112 section 3.2)
	WordConnection      Word = "connection"        // more than maxOptions members of Connection
	WordExpect          Word = "expect"            // an expectation other than 100-continue (RFC 9110 section 10.1.1)
	WordTrailerName     Word = "trailer"           // a field that must not be in a trailer (RFC 9110 section 6.5.1)
	WordChunkSize       Word = "chunk-size"        // not 1 to 16 hexadecimal digits of an int64 (RFC 9112 section 7.1)
	WordChunkExtension  Word = "chunk-extension"   // not the grammar of chunk extensions (RFC 9112 section 7.1.1)
	WordLongExtension   Word = "long-extension"    // the chunk extensions exceed maxExtension
	WordChunkEnd        Word = "chunk-end"         // a missing CRLF (RFC 9112 section 7.1)
	WordTrailerTooLong  Word = "trailer-too-long"  // more than Chunks.MaxTrailer bytes
	WordListTooLong     Word = "list-too-long"     // Connection or Trailer lines that are too long; see maxConnection
)

// An Error reports an invalid message. The connection must not be used again, because the end of the message is not
// certain.
type Error struct {
	Problem string // object and problem, for the text of the error
	Word    Word
	Status  int // status code of the response to an invalid request: 400, 417, 431, 501 or 505; 0 for other errors
}

func (e *Error) Error() string { return e.Problem + ": " + string(e.Word) }

// Refuse returns the error for a request that is not served. The caller responds with Status and closes the
// connection, because the bytes after the header section may not be a request.
func Refuse(word Word) *Error {
	status := 400
	switch word {
	case WordTooManyFields, WordListTooLong:
		status = 431 // RFC 6585 section 5
	case WordVersion:
		status = 505 // RFC 9110 section 15.6.6
	case WordExpect:
		status = 417 // RFC 9110 section 10.1.1
	}
	return &Error{Problem: "request refused", Word: word, Status: status}
}

// Garbage returns the error for a response whose meaning or end is not certain.
func Garbage(word Word) *Error { return &Error{Problem: "malformed response", Word: word} }

// BadBody returns the error for an HTTP/2 body whose length differs from Content-Length or whose trailer section is
// invalid (RFC 9113 section 8.1).
func BadBody(word Word) *Error { return &Error{Problem: "malformed body", Word: word} }

// badChunk returns the error for an invalid chunked body of a request or a response.
func badChunk(word Word) *Error { return &Error{Problem: "malformed chunked body", Word: word} }
