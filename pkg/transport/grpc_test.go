package transport_test

import (
	"net/http"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestGRPCMessageRequiresOneUncompressedMessage(t *testing.T) {
	for _, c := range []struct {
		body, want string
		ok         bool
	}{
		{"\x00\x00\x00\x00\x02hi", "hi", true},
		{string(transport.GRPCFrame(nil)), "", true},
		{string(transport.GRPCFrame([]byte("hi"))), "hi", true},
		{"", "", false},
		{"\x00\x00\x00\x00", "", false},
		{"\x01\x00\x00\x00\x02hi", "", false},
		{"\x00\x00\x00\x00\x03hi", "", false},
		{"\x00\x00\x00\x00\x01hi", "", false},
		{"\x00\xff\xff\xff\xffhi", "", false},
	} {
		got, ok := transport.GRPCMessage([]byte(c.body))
		if string(got) != c.want || ok != c.ok {
			t.Errorf("%q: got %q, %v, want %q, %v", c.body, got, ok, c.want, c.ok)
		}
	}
}

func TestGRPCResultIsReadFromTrailerFirst(t *testing.T) {
	fields := func(status, message string) http.Header {
		return http.Header{"Grpc-Status": {status}, "Grpc-Message": {message}}
	}
	for name, c := range map[string]struct {
		response http.Response
		want     string
	}{
		"header":           {http.Response{Header: fields("12", "no")}, "12 no"},
		"trailer":          {http.Response{Trailer: fields("0", "yes")}, "0 yes"},
		"both":             {http.Response{Header: fields("12", "no"), Trailer: fields("0", "yes")}, "0 yes"},
		"not a gRPC reply": {http.Response{}, " "},
	} {
		status, message := transport.GRPCResult(&c.response)
		harness.Equal(t, status+" "+message, c.want, name)
	}
}
