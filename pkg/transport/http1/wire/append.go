package wire

import "strconv"

// ChunkTail follows the data of a chunk (RFC 9112 section 7.1).
const ChunkTail = "\r\n"

// AppendField appends a field line. It does not check name and value. See [ValidToken] and
// [ValidValue].
//
//go:noinline
func AppendField[N, V text](dst []byte, name N, value V) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// AppendChunkHead appends the size line of a chunk with n bytes. n must be greater than 0, because
// a chunk with size 0 ends the body. The data and [ChunkTail] follow.
func AppendChunkHead(dst []byte, n int) []byte {
	return append(strconv.AppendUint(dst, uint64(n), 16), "\r\n"...)
}

// AppendLastChunk appends the end of a chunked body, which consists of the last chunk, the trailer section and an
// empty line.
func AppendLastChunk(dst []byte, trailer []Field) []byte {
	dst = append(dst, "0\r\n"...)
	for _, f := range trailer {
		dst = AppendField(dst, f.Name, f.Value)
	}
	return append(dst, "\r\n"...)
}
