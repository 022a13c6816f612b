package rewrite

import (
	"errors"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestErrorReturnsBound(t *testing.T) {
	const none = bound.NumNames
	for _, c := range []struct {
		err         error
		client, app bound.Name
	}{
		{nil, none, none},
		{errors.New("another error"), none, none},
		{wire.Refuse(wire.WordTooManyFields), bound.HeaderSection, bound.AppHeaderSection},
		{wire.Refuse(wire.WordConnection), bound.HeaderSection, none},
		{wire.Refuse(wire.WordHost), none, none},
		{wire.Garbage(wire.WordListTooLong), bound.HeaderSection, bound.AppHeaderSection},
		{&transport.Error{Fault: transport.FaultBadRequest, Err: wire.BadBody(wire.WordLongExtension)}, bound.ChunkExtensions, bound.AppChunkExtensions},
		{&transport.Error{Fault: transport.FaultBadRequest, Err: wire.BadBody(wire.WordChunkExtension)}, none, none},
		{&transport.Error{Fault: transport.FaultGarbage, Err: ErrTooManyInfos}, none, bound.AppInformational},
		{&transport.Error{Fault: transport.FaultGarbage, Err: ErrHeadTooLarge}, none, bound.AppHeaderSection},
		{wire.BadBody(wire.WordTrailerTooLong), bound.TrailerSection, bound.AppTrailerSection},
	} {
		client, ok := clientBound(c.err)
		if !ok {
			client = none
		}
		app, ok := AppBound(c.err)
		if !ok {
			app = none
		}
		if client != c.client || app != c.app {
			t.Errorf("%v: got bounds %d and %d, want %d and %d", c.err, client, app, c.client, c.app)
		}
	}
}

func TestRequestErrorReturnsBound(t *testing.T) {
	const none = bound.NumNames
	for _, c := range []struct {
		err  error
		want bound.Name
	}{
		{nil, none},
		{errors.New("request timeout"), none},
		{transport.FaultClientGone, none},
		{transport.FaultBodyStall, bound.BodyTimeout},
		{transport.FaultClientReadStall, bound.SendTimeout},
		{transport.FaultTooLarge, bound.BodySize},
		{transport.FaultBadRequest, none},
		{&transport.Error{Fault: transport.FaultBadRequest, Err: wire.BadBody(wire.WordTrailerTooLong)}, bound.TrailerSection},
	} {
		got, ok := requestBound(c.err)
		if !ok {
			got = none
		}
		harness.Equal(t, got, c.want, c.err)
	}
}

func TestTooManyInfosLimitsRate(t *testing.T) {
	for _, c := range []struct {
		n       int
		elapsed time.Duration
		want    bool
	}{
		{MaxInfos, 0, false},
		{MaxInfos + 1, 0, true},
		{MaxInfos + 10, 10 * time.Second, false},
		{MaxInfos + 11, 10 * time.Second, true},
	} {
		harness.Equal(t, TooManyInfos(c.n, c.elapsed), c.want, c.n, c.elapsed)
	}
}
