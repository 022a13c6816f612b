package forward

import (
	"errors"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// ClientBound returns the bound that a client exceeded if reading its request returned err. If
// err is not caused by a bound, ok is false.
func ClientBound(err error) (name bound.Name, ok bool) {
	if errors.Is(err, ErrTooLarge) {
		return bound.BodySize, true
	}
	switch wordOf(err) {
	case wire.WordTooManyFields, wire.WordListTooLong, wire.WordConnection:
		return bound.HeaderSection, true
	case wire.WordLongExtension:
		return bound.ChunkExtensions, true
	case wire.WordTrailerTooLong:
		return bound.TrailerSection, true
	}
	return 0, false
}

// AppBound is ClientBound for the response of the user container.
func AppBound(err error) (name bound.Name, ok bool) {
	switch wordOf(err) {
	case wire.WordTooManyFields, wire.WordListTooLong:
		return bound.AppHeaderSection, true
	case wire.WordLongExtension:
		return bound.AppChunkExtensions, true
	case wire.WordTrailerTooLong:
		return bound.AppTrailerSection, true
	}
	return 0, false
}

// wordOf returns the word of an error of package wire, "" if err is another error.
func wordOf(err error) wire.Word {
	if e, ok := errors.AsType[*wire.Refused](err); ok {
		return e.Word
	}
	if e, ok := errors.AsType[*wire.Garbage](err); ok {
		return e.Word
	}
	if e, ok := errors.AsType[*wire.BadChunk](err); ok {
		return e.Word
	}
	return ""
}

// infoInterval is the interval at which the user container can send informational responses
// without a limit. In RFC 2518 section 10.1, the interval of 102 (Processing) is 20 seconds.
const infoInterval = time.Second

// TooManyInfos reports whether n informational responses to one request exceed the limit, which
// is [MaxInfos] plus one for each second. elapsed is the time since the first response.
func TooManyInfos(n int, elapsed time.Duration) bool {
	return n > MaxInfos+int(elapsed/infoInterval)
}
