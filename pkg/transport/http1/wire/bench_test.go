package wire_test

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A request from an ingress, and a response from an app.
const (
	ordinaryRequest = "POST /v1/models/m:predict?x=1 HTTP/1.1\r\n" +
		"Host: model.default.example.com\r\n" +
		"User-Agent: python-requests/2.31.0\r\n" +
		"Content-Length: 1024\r\n" +
		"Accept: */*\r\n" +
		"Accept-Encoding: gzip, deflate, br\r\n" +
		"Content-Type: application/json\r\n" +
		"Forwarded: for=10.42.1.17;proto=http\r\n" +
		"K-Proxy-Request: activator\r\n" +
		"Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n" +
		"X-Forwarded-For: 10.42.1.17, 10.42.0.8\r\n" +
		"X-Forwarded-Proto: http\r\n" +
		"X-Request-Id: 8f6a1c7e-0c1f-4b7e-9d57-3f3c1f6d2a10\r\n\r\n"
	ordinaryResponse = "HTTP/1.1 200 OK\r\n" +
		"Server: uvicorn\r\n" +
		"Date: Tue, 15 Nov 1994 08:12:31 GMT\r\n" +
		"Content-Length: 1024\r\n" +
		"Content-Type: application/json\r\n" +
		"Connection: keep-alive\r\n" +
		"Keep-Alive: timeout=5\r\n\r\n"
)

var chunkedBody = "400\r\n" + strings.Repeat("x", 1024) + "\r\n0\r\n\r\n"

func parseRequest(t testing.TB, r *wire.Request, b []byte) {
	if n, err := r.Parse(b); n != len(b) || err != nil {
		t.Fatalf("got %d, %v, want %d, nil", n, err, len(b))
	}
}

func parseResponse(t testing.TB, r *wire.Response, b []byte) {
	if n, err := r.Parse(b); n != len(b) || err != nil {
		t.Fatalf("got %d, %v, want %d, nil", n, err, len(b))
	}
}

func readChunks(t testing.TB, c *wire.Chunks, b []byte) {
	c.Reset()
	for !c.Done() {
		_, n, err := c.Next(b)
		if n == 0 || err != nil {
			t.Fatalf("got %d, %v, want the end of the body", n, err)
		}
		b = b[n:]
	}
}

func TestParsersDoNotAllocate(t *testing.T) {
	request, response, body := []byte(ordinaryRequest), []byte(ordinaryResponse), []byte(chunkedBody)
	trailed := []byte("5\r\nhello\r\n0\r\nX: y\r\n\r\n")
	lasting := []byte("GET / HTTP/1.1\r\nHost: a\r\nKeep-Alive: 300, max=x\r\n\r\n")
	folded := []byte("HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 0\r\n\r\n")
	out := make([]byte, 0, 1024)
	var (
		r wire.Request
		p wire.Response
		c wire.Chunks
	)
	for name, f := range map[string]func(){
		"a request": func() { parseRequest(t, &r, request) },
		"a request in two parts": func() {
			if n, err := r.Parse(request[:100]); n != 0 || err != nil {
				t.Fatalf("got %d, %v, want 0, nil", n, err)
			}
			parseRequest(t, &r, request)
		},
		"a request with Keep-Alive":       func() { parseRequest(t, &r, lasting) },
		"an incomplete request":           func() { r.Parse(request[:100]); r.Reset() },
		"a response":                      func() { parseResponse(t, &p, response) },
		"a folded response":               func() { parseResponse(t, &p, folded) },
		"BodyLength":                      func() { p.BodyLength(string(r.Method)) },
		"a chunked body":                  func() { readChunks(t, &c, body) },
		"a body with a trailer":           func() { readChunks(t, &c, trailed) },
		"Find":                            func() { wire.Find(r.Fields, "traceparent") },
		"AppendField and AppendChunkHead": func() { out = wire.AppendField(wire.AppendChunkHead(out[:0], 77), "X", "y") },
		"AppendLastChunk":                 func() { out = wire.AppendLastChunk(out[:0], nil) },
	} {
		harness.Equal(t, testing.AllocsPerRun(100, f), 0, name, "allocations")
	}
}

func BenchmarkRequest(b *testing.B) {
	head := []byte(ordinaryRequest)
	var r wire.Request
	b.SetBytes(int64(len(head)))
	b.ReportAllocs()
	for b.Loop() {
		parseRequest(b, &r, head)
	}
}

func BenchmarkResponse(b *testing.B) {
	head := []byte(ordinaryResponse)
	var r wire.Response
	b.SetBytes(int64(len(head)))
	b.ReportAllocs()
	for b.Loop() {
		parseResponse(b, &r, head)
	}
}

func BenchmarkChunks(b *testing.B) {
	body := []byte(chunkedBody)
	var c wire.Chunks
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		readChunks(b, &c, body)
	}
}
