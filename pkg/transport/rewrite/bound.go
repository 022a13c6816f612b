package rewrite

import (
	"errors"
	"net/http"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// ErrTooManyInfos and ErrHeadTooLarge are returned for responses that exceed a bound.
var (
	ErrTooManyInfos = errors.New("too many informational responses")
	ErrHeadTooLarge = errors.New("response header too large")
)

// RecordRefusal records the bound or the client error for which the header section of a request is rejected. status is
// the status of the response. peer is the address of the client. err is the error of the parser. It may be nil only if
// status is 431.
func RecordRefusal(bounds *bound.Recorder, peer string, status int, err error) {
	name, ok := clientBound(err)
	switch {
	case status == http.StatusRequestHeaderFieldsTooLarge:
		bounds.Hit(bound.HeaderSection, peer)
	case ok:
		bounds.Hit(name, peer)
	default:
		bounds.Fail(bound.MalformedRequest, peer, err)
	}
}

// requestBound returns the bound that ended a request with err. ok is false if the request did not end because of
// a bound.
func requestBound(err error) (name bound.Name, ok bool) {
	switch transport.FaultOf(err) {
	case transport.FaultBodyStall:
		return bound.BodyTimeout, true
	case transport.FaultClientReadStall:
		return bound.SendTimeout, true
	case transport.FaultTooLarge:
		return bound.BodySize, true
	case transport.FaultBadRequest:
		return clientBound(err)
	}
	return 0, false
}

// EndForward applies [ClosedFor] to the error in result. If the client exceeded a bound, it also records that bound.
// peer is the address of the client.
func EndForward(result *transport.Result, costly bool, bounds *bound.Recorder, peer string) {
	if result.Err == nil {
		return
	}
	result.Err = ClosedFor(result.Err, costly)
	if name, ok := requestBound(result.Err); ok {
		bounds.Hit(name, peer)
	}
}

// ClosedFor returns FaultOverloaded if err has the fault FaultClientGone and costly is true. Otherwise, it returns
// err. costly reports whether the sidecar closed the client's connection because of the memory budget.
func ClosedFor(err error, costly bool) error {
	if costly && transport.FaultOf(err) == transport.FaultClientGone {
		return transport.FaultOverloaded
	}
	return err
}

// clientBound returns the bound that a request exceeded according to err, which is an error of the parser. ok is
// false if err does not report a bound.
func clientBound(err error) (name bound.Name, ok bool) {
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

// AppBound returns the bound that a response of the user container exceeded according to err. ok is false if err does
// not report a bound.
func AppBound(err error) (name bound.Name, ok bool) {
	switch {
	case errors.Is(err, ErrTooManyInfos):
		return bound.AppInformational, true
	case errors.Is(err, ErrHeadTooLarge):
		return bound.AppHeaderSection, true
	}
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

// wordOf returns the [wire.Word] of an error of package wire, and "" for other errors.
func wordOf(err error) wire.Word {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Word
	}
	return ""
}

// infoInterval is the interval at which the user container can send informational responses in addition to
// MaxInfos. RFC 2518 section 10.1 suggests 102 (Processing) for requests that take longer than 20 seconds.
const infoInterval = time.Second

// TooManyInfos reports whether n informational responses to one request exceed the limit, which is [MaxInfos] plus
// one for each second. elapsed is the time since the first informational response.
func TooManyInfos(n int, elapsed time.Duration) bool {
	return n > MaxInfos+int(elapsed/infoInterval)
}
