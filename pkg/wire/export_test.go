package wire

// The bounds and the grammar that the tests hold the parsers to.
const (
	MaxOptions    = maxOptions
	MaxConnection = maxConnection
	MaxTrailer    = maxTrailer
	MaxExtension  = maxExtension
	MaxChunkHead  = maxChunkHead
	LastChunk     = lastChunk
)

// ValidValue is validValue.
func ValidValue[T ~string | ~[]byte](s T) bool { return validValue(s) }
