package http1client

import (
	"bytes"
	"io"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// ordinary is the response of an ordinary exchange.
const ordinary = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"

// plain sends the same bytes after each read, so that it does not allocate.
func plain(conn *harness.AppConn) {
	b := make([]byte, 64<<10)
	say := []byte(ordinary)
	for {
		n, err := conn.In.Read(b)
		if err != nil {
			return
		}
		if bytes.HasSuffix(b[:n], []byte("\r\n\r\n")) || bytes.HasSuffix(b[:n], []byte("body")) {
			conn.Write(say)
		}
	}
}

// once sends a request, and reads and discards the response.
func once(t testing.TB, k *testCall, a *App) {
	k.Begin()
	r, err := k.Do(a)
	for err == nil {
		_, err = r.Next()
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	r.Close()
}

func BenchmarkGET(b *testing.B) {
	a := app(b, plain)
	k := newCall("GET", "/")
	b.ReportAllocs()
	for b.Loop() {
		once(b, k, a)
	}
}

func BenchmarkPOST(b *testing.B) {
	a := app(b, plain)
	body := bytes.NewReader([]byte("body"))
	k := newCall("POST", "/").with(body, 4)
	b.ReportAllocs()
	for b.Loop() {
		body.Seek(0, io.SeekStart)
		once(b, k, a)
	}
}
