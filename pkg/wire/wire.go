// Package wire implements the grammar of HTTP/1.1 for bytes in memory: the header sections of
// requests and responses, and the chunked transfer coding (RFC 9110 and RFC 9112).
//
// A parser reads the bytes that have arrived. It reports that more bytes are needed, returns a
// message, or returns an error. It does not block, and it keeps no state between messages. The
// strings and slices of a result refer to the input, so parsing does not allocate after the slices
// of a value have grown. The caller must not modify the input while it uses the result.
//
// An invalid header section of a request is reported as a [*Refused]. There is no lenient mode,
// because request smuggling needs two proxies that interpret the same bytes differently. An invalid header section of a response is reported as a [*Garbage].
//
// A value must not be used by several goroutines at the same time.
package wire

// Limits. The length of a head is the caller's business: it owns the buffer.
const (
	// MaxFields is the number of field lines in one head or trailer section.
	// More is somebody trying what happens.
	MaxFields = 1000

	// maxTrailer is the length in bytes of a trailer section. Trailers carry a
	// status and a digest, not content.
	maxTrailer = 16 << 10

	// MaxRequestTrailer is the maximum length of the trailer section of a request, in bytes
	// without the empty line at the end. net/http finds the empty line only within 4 KiB, and
	// many applications use net/http.
	MaxRequestTrailer = 4<<10 - len("\r\n")

	// maxOptions is how many connection options a request may have. Honest ones have two.
	maxOptions = 64

	// maxConnection is the length in bytes of all Connection lines of a head. Each of
	// its fields is looked up in them, so a longer list would cost its length times
	// MaxFields. Trailer lines may not be longer than what they announce: MaxTrailer or
	// MaxRequestTrailer. net/http takes them apart, into fourteen times their length.
	maxConnection = 1 << 10

	// maxExtension is the number of bytes by which the chunk extensions of a
	// body may exceed its data so far (RFC 9112 7.1.1 asks for such a limit).
	// Nobody needs extensions: they are read and dropped.
	maxExtension = 2 << 10

	// freeExtension is the number of extension bytes of each chunk that are not limited in
	// responses. Some applications pad the chunk size with blanks.
	freeExtension = 16
)

// Field is one field line of a head or a trailer section. Value has no blanks
// at its ends. Both slices point into memory that the parser was given (or, for
// trailers, into the memory of [Chunks]).
type Field struct{ Name, Value []byte }

// Framing says how the end of a body is marked (RFC 9112 6.3).
type Framing uint8

// The framings.
const (
	None       Framing = iota // there is no body
	Length                    // Content-Length bytes, possibly 0
	Chunked                   // the chunked coding; read it with [Chunks]
	UntilClose                // whatever comes until the connection closes; responses only
)

// Word names what is wrong with a message. The list is closed, so that a word
// can be a metric label; no word holds anything that the sender wrote.
type Word string

// The words of [Refused], [Garbage] and [BadChunk].
const (
	WordRequestLine     Word = "request-line"      // not "method SP target SP version" (RFC 9112 3)
	WordStatusLine      Word = "status-line"       // not "version SP status SP reason" (RFC 9112 4)
	WordVersion         Word = "version"           // not HTTP/1.1, or not even HTTP/1.x (RFC 9112 2.3)
	WordLeadingLine     Word = "leading-line"      // an empty line before the request line (RFC 9112 2.2)
	WordLineEnd         Word = "line-end"          // a line that ends in LF alone (RFC 9112 2.2)
	WordFold            Word = "fold"              // a line that continues the one before (RFC 9112 5.2)
	WordFieldLine       Word = "field-line"        // no colon, or a name that is not a token (RFC 9110 5.1)
	WordBlankName       Word = "blank-after-name"  // a blank between name and colon (RFC 9112 5.1)
	WordFieldValue      Word = "field-value"       // a control character in a value (RFC 9110 5.5)
	WordTooManyFields   Word = "too-many-fields"   // more than MaxFields
	WordContentLength   Word = "content-length"    // not one decimal number within int64 (RFC 9110 8.6)
	WordTransferCoding  Word = "transfer-encoding" // not chunked, once, at the end (RFC 9112 6.1)
	WordLengthAndCoding Word = "length-and-coding" // both at once (RFC 9112 6.3, item 3)
	WordAlias           Word = "alias"             // Content_Length, Transfer_Encoding: a CGI-like app reads them as the real ones
	WordHost            Word = "host"              // missing, twice, or not a plain host and port (RFC 9112 3.2)
	WordTarget          Word = "target"            // none of the four forms (RFC 9112 3.2)
	WordConnection      Word = "connection"        // not a list of tokens (RFC 9110 7.6.1), or more than MaxOptions
	WordExpect          Word = "expect"            // something other than 100-continue (RFC 9110 10.1.1)
	WordTrailerName     Word = "trailer"           // a trailer that may not be one (RFC 9110 6.5.1)
	WordChunkSize       Word = "chunk-size"        // not 1 to 16 hexadecimal digits within int64 (RFC 9112 7.1)
	WordChunkExtension  Word = "chunk-extension"   // not the grammar (RFC 9112 7.1.1)
	WordLongExtension   Word = "long-extension"    // chunk extensions that are longer than the content (RFC 9112 7.1.1)
	WordChunkEnd        Word = "chunk-end"         // no CRLF where there must be one (RFC 9112 7.1)
	WordTrailerTooLong  Word = "trailer-too-long"  // more than Chunks.MaxTrailer
	WordListTooLong     Word = "list-too-long"     // Connection or Trailer lines of more than MaxConnection or MaxTrailer
)

// Refused reports that the head of a request is not served. The caller responds with Status and
// closes the connection, because the bytes after the head may not be a request.
type Refused struct {
	Word   Word
	Status int // status code of the response: 400, 417, 431, 501 or 505
}

func (e *Refused) Error() string { return "request refused: " + string(e.Word) }

// refuse returns the error for a word.
func refuse(word Word) *Refused {
	status := 400
	switch word {
	case WordTooManyFields, WordListTooLong:
		status = 431 // RFC 6585 section 5
	case WordVersion:
		status = 505 // RFC 9110 section 15.6.6
	case WordExpect:
		status = 417 // RFC 9110 section 10.1.1
	}
	return &Refused{Word: word, Status: status}
}

// Garbage says that what came is not a response whose meaning and end are
// certain. Its connection cannot be used again.
type Garbage struct{ Word Word }

func (e *Garbage) Error() string { return "malformed response: " + string(e.Word) }

// BadChunk says that a chunked body, of a request or of a response, is not one.
// Where it ends is unknown: its connection cannot be used again.
type BadChunk struct{ Word Word }

func (e *BadChunk) Error() string { return "malformed chunked body: " + string(e.Word) }
