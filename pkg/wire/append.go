package wire

import "strconv"

// What is written around a chunk's data, and behind the last chunk when there
// are no trailers (RFC 9112 7.1).
const (
	maxChunkHead = 18 // bytes that AppendChunkHead may append: 16 digits and a line end
	ChunkTail    = "\r\n"
	lastChunk    = "0\r\n\r\n"
)

// AppendField appends one field line. The caller answers for name and value:
// [ValidToken], [validValue].
//
//go:noinline
func AppendField[N, V text](dst []byte, name N, value V) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// AppendChunkHead appends the size line of a chunk of n bytes, n > 0: a chunk
// of none would be the last one. The data and [ChunkTail] follow it.
func AppendChunkHead(dst []byte, n int) []byte {
	return append(strconv.AppendUint(dst, uint64(n), 16), "\r\n"...)
}

// AppendLastChunk appends the end of a chunked body: the last chunk, the
// trailer section and the empty line.
func AppendLastChunk(dst []byte, trailer []Field) []byte {
	dst = append(dst, "0\r\n"...)
	for _, f := range trailer {
		dst = AppendField(dst, f.Name, f.Value)
	}
	return append(dst, "\r\n"...)
}
