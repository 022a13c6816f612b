package wire

// The bounds and the grammar that the tests hold the parsers to.
const (
	MaxOptions    = maxOptions
	MaxConnection = maxConnection
	MaxTrailer    = maxTrailer
	MaxExtension  = maxExtension
)
