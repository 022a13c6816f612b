package rewrite

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestResponseFieldsForSidecarAreRemoved(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{"case, order and repeats stay", "b: 1\nSet-Cookie: 2\nSet-Cookie: 3\n", "b: 1\nSet-Cookie: 2\nSet-Cookie: 3\n"},
		{"hop by hop", "Keep-Alive: timeout=5\nTransfer-Encoding: chunked\nProxy-Authenticate: x\nUpgrade: x\nTE: x\n", ""},
		{"what Connection names", "X-A: 1\nConnection: close, x-a\nX-B: 2\nConnection: X-B\nClose: 3\n", "Close: 3\n"},
		{"the length is the engine's", "content-length: 5\n", ""},
		{"trailers may be announced", "Trailer: X\n", "Trailer: X\n"},
		{"requests' own fields mean nothing", "Host: a\nExpect: b\nK-Network-Hash: c\n", "Host: a\nExpect: b\nK-Network-Hash: c\n"},
		{"another proxy's status", "Proxy-Status: cdn; error=x\n", "Proxy-Status: cdn; error=x\n"},
		{"what is said in our name", "Proxy-Status: queue-proxy; error=x\nproxy-status: cdn, queue-proxy, b\n", "proxy-status: cdn, b\n"},
	} {
		var got seen
		EachResponseField(fields(c.lines), &got)
		harness.Equal(t, got.String(), c.want, c.name, &got)
	}
}

func TestResponseTrailerRemovesOwnProxyStatus(t *testing.T) {
	var got seen
	for _, f := range ResponseTrailer(new(proxy.RequestState), fields("A: 1\nProxy-Status: queue-proxy; error=x\nProxy-Status: cdn, queue-proxy\nB: 2\n")) {
		got.Field(string(f.Name), string(f.Value))
	}
	harness.Equal(t, got.String(), "A: 1\nProxy-Status: cdn\nB: 2\n", &got)
}

func TestEachResponseFieldDoesNotAllocate(t *testing.T) {
	f := fields("A: 1\nConnection: b, c\nB: 2\nContent-Length: 5\n")
	buf := make([]byte, 0, 4<<10)
	var e Encoder = new(Lines)
	harness.Equal(t, testing.AllocsPerRun(100, func() { *e.(*Lines) = buf; EachResponseField(f, e) }), 0, "allocations")
}

func TestFailReasonForEachError(t *testing.T) {
	for _, c := range []struct {
		err  error
		want observation.Reason
	}{
		{io.EOF, observation.AppReset},
		{&Error{Fault: Reset, Err: io.EOF}, observation.AppReset},
		{&Error{Fault: Aborted}, observation.AppReset},
		{&Error{Fault: Unreachable}, observation.AppUnreachable},
		{&Error{Fault: Local}, observation.Local},
		{fmt.Errorf("dial: %w", &Error{Fault: Unreachable}), observation.AppUnreachable},
		{&Error{Fault: Garbage, Err: &wire.Garbage{Word: wire.WordHost}}, observation.AppGarbage},
		{&Error{Fault: Body, Err: ErrTooLarge}, observation.TooLarge},
		{&Error{Fault: Body, Err: &wire.BadChunk{Word: wire.WordChunkSize}}, observation.BadRequest},
		{&Error{Fault: Body, Err: io.ErrUnexpectedEOF}, observation.ClientGone},
	} {
		harness.Equal(t, reasonOf(c.err), c.want, c.err)
	}
	if err := (&Error{Fault: Body, Err: ErrTooLarge}); !errors.Is(err, ErrTooLarge) || err.Error() != "user container: request body: request body too large" {
		t.Errorf("got %q, want the cause in the error", err)
	}
}
