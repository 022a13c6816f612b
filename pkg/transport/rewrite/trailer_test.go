package rewrite

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestTrailerFieldsAreFilteredByName(t *testing.T) {
	const removed = "Content-Length: 1\ncontent_length: 1\nTRANSFER-ENCODING: chunked\ntransfer_encoding: x\nHost: a\nTrailer: a\n" +
		"Connection: x\nKeep-Alive: x\nUpgrade: x\nTE: x\nAuthorization: x\nCookie: x\nSet-Cookie: x\nCache-Control: x\nIf-Match: x\n" +
		"Range: x\nExpect: x\nExpires: x\nDate: x\nContent-Type: x\nContent-Encoding: x\nX-Forwarded-For: x\nForwarded: x\n" +
		"K-Network-Hash: x\nK-Proxy-Request: x\n"
	const kept = "Grpc-Status: 0\nETag: \"a\"\nServer-Timing: a\nContent-Digest: x\nAuthentication-Info: x\nX-Sum: 1\n"
	for name, filter := range map[string]func([]wire.Field) []wire.Field{
		"request":  RequestTrailer,
		"response": func(fields []wire.Field) []wire.Field { return ResponseTrailer(new(proxy.RequestState), fields) },
	} {
		var got seen
		for _, f := range filter(fields(removed + kept)) {
			got.Field(string(f.Name), string(f.Value))
		}
		harness.Equal(t, got.String(), kept, name)
	}
}
