package rewrite

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/proxy"
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
		{"forged own member", "Proxy-Status: queue-proxy; error=x\nproxy-status: cdn, queue-proxy, b\n", "proxy-status: cdn, b\n"},
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
