package wire

import "strconv"

// ChunkTail is what is written behind a chunk's data (RFC 9112 7.1).
const ChunkTail = "\r\n"

// AppendField appends one field line. The caller answers for name and value:
// [ValidToken], [ValidValue].
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
