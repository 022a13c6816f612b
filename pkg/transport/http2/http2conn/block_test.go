package http2conn

import (
	"fmt"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// staticTable returns the fields of the static table (RFC 7541 appendix A). Element i has the index i + 1.
func staticTable(tb testing.TB) []hpack.HeaderField {
	tb.Helper()
	var indexes []byte
	for i := range byte(61) {
		indexes = append(indexes, 0x80|(i+1))
	}
	fields, err := hpack.NewDecoder(0, nil).DecodeFull(indexes)
	harness.NoError(tb, err)
	return fields
}

func TestBlockUsesStaticNames(t *testing.T) {
	first := map[string]int{}
	for i, f := range staticTable(t) {
		if _, ok := first[f.Name]; !ok {
			first[f.Name] = i + 1
		}
	}
	harness.Equal(t, len(first), 52, "names")
	for name, index := range first {
		harness.Equal(t, staticIndex(name), index, name)
		for _, other := range []string{name[:len(name)-1], name + "x", "X" + name[1:]} {
			if index, ok := first[other]; !ok && staticIndex(other) != 0 {
				t.Errorf("%s: got index %d, want %d", other, staticIndex(other), index)
			}
		}
		var k Block
		k.Field(name, "v")
		fields, err := hpack.NewDecoder(0, nil).DecodeFull(k.b)
		sensitive := index == 23 || index == 32 || index == 49 || index == 55
		harness.Equal(t, fmt.Sprint(fields), fmt.Sprint([]hpack.HeaderField{{Name: name, Value: "v", Sensitive: sensitive}}), "fields", err)
	}
}

func BenchmarkBlockField(b *testing.B) {
	for name, fields := range map[string][][2]string{
		"gRPC": {
			{"content-type", "application/grpc"}, {"user-agent", "grpc-go/1.70.0"}, {"grpc-accept-encoding", "gzip"},
			{"forwarded", "for=10.0.0.1"}, {"x-forwarded-for", "10.0.0.1"}, {"x-request-id", "0123"}, {"te", "trailers"},
		},
		"browser": {
			{"Accept", "*/*"}, {"Accept-Encoding", "gzip"}, {"Accept-Language", "en"}, {"Cache-Control", "no-cache"}, {"Cookie", "a=b"},
			{"Referer", "https://a.b"}, {"Sec-Fetch-Mode", "cors"}, {"User-Agent", "Mozilla/5.0"}, {"If-None-Match", "a"}, {"X-Request-Id", "0123"},
		},
	} {
		b.Run(name, func(b *testing.B) {
			var k Block
			for b.Loop() {
				k.Reset()
				for _, f := range fields {
					k.Field(f[0], f[1])
				}
			}
		})
	}
}
