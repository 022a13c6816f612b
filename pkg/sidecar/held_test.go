//go:build !race

package sidecar

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// The maximum live memory for the header of a queued request (docs/bounds.md, "Memory budget") is a
// multiple of MAX_HEADER_BYTES plus headExtra bytes for many fields and the connection.
const (
	headFactor1 = 2 // multiple for HTTP/1.1
	headFactor2 = 3 // multiple for HTTP/2
	headExtra   = 300 << 10
)

// headBytes is slightly less than the default of MAX_HEADER_BYTES.
const headBytes = 1000 << 10

// hostileHeads are headers that need a lot of memory after parsing. over contains the HTTP versions in
// which the header is valid.
var hostileHeads = []struct {
	name   string
	over   string
	fields func() [][2]string
}{
	{"one long field", "1 2", func() [][2]string { return [][2]string{{"x", strings.Repeat("x", headBytes)}} }},
	{"many tiny fields", "1 2", func() [][2]string { return numbered(990, "y") }},
	{"many long fields", "1", func() [][2]string { return numbered(990, strings.Repeat("y", headBytes/990-10)) }},
	{"many lines of one field", "1 2", func() (all [][2]string) {
		for range 990 {
			all = append(all, [2]string{"x", strings.Repeat("y", headBytes/990-40)})
		}
		return all
	}},
	{"a long list of proxies", "1 2", func() [][2]string { return [][2]string{{"x-forwarded-for", strings.Repeat("1,", headBytes/2)}} }},
	{"a long list of protocols", "1", func() [][2]string {
		return [][2]string{{"connection", "upgrade"}, {"upgrade", strings.Repeat("a,", headBytes/2)}}
	}},
}

func numbered(n int, value string) (all [][2]string) {
	for i := range n {
		all = append(all, [2]string{fmt.Sprintf("x%x", i), value})
	}
	return all
}

// headOver1 returns an HTTP/1.1 request with the given fields, and headOver2 an HTTP/2 request.
func headOver1(fields [][2]string) []byte {
	var b bytes.Buffer
	b.WriteString("GET / HTTP/1.1\r\nHost: a\r\n")
	for _, f := range fields {
		b.WriteString(f[0] + ": " + f[1] + "\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

func headOver2(fields [][2]string) []byte {
	var block, b bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range append([][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "a"}, {":path", "/"}}, fields...) {
		encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	b.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&b, nil)
	framer.WriteSettings()
	const size = 16 << 10
	part := block.Next(size)
	framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: part, EndStream: true, EndHeaders: block.Len() == 0})
	for block.Len() > 0 {
		part = block.Next(size)
		framer.WriteContinuation(1, block.Len() == 0, part)
	}
	return b.Bytes()
}

// crowded starts a sidecar whose only slot is in use, so all further requests are queued. It returns functions that
// open connections. The keys are the HTTP versions, with the prefix "t" for TLS.
func crowded(t *testing.T) (*sidecar, map[string]func() (net.Conn, error)) {
	t.Helper()
	a := &frugal{answer: []byte(ordinaryAnswer), held: make(chan struct{}), free: make(chan struct{})}
	app := harness.NewApp(t, a.serve)
	s := built(t, func(c *config.Config) {
		c.UserPort.V = app.Port
		c.Concurrency.V, c.QueueDepth.V = 1, 100
	})
	main, secure := harness.Listen(t), harness.Listen(t)
	s.start(func() error { return s.http1.Serve(main, nil) })
	settings, client := harness.TLS(t)
	settings.NextProtos = []string{"h2", "http/1.1"}
	s.start(func() error { return s.http1.Serve(secure, settings) })
	plain := func() (net.Conn, error) { return net.Dial("tcp", main.Addr().String()) }
	over := func(alpn string) func() (net.Conn, error) {
		c := client.Clone()
		c.NextProtos = []string{alpn}
		return func() (net.Conn, error) { return tls.Dial("tcp", secure.Addr().String(), c) }
	}
	for _, text := range []string{ordinaryGET, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"} {
		nc, err := plain()
		harness.NoError(t, err)
		t.Cleanup(func() { nc.Close() })
		io.WriteString(nc, text)
		if text == ordinaryGET {
			nc.Read(make([]byte, 1000)) // after the response, the protocol of the app is known
		}
	}
	<-a.held
	t.Cleanup(func() { close(a.free) })
	return s, map[string]func() (net.Conn, error){"1": plain, "t1": over("http/1.1"), "2": plain, "t2": over("h2")}
}

// live returns the number of heap bytes in use.
func live() int64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestQueuedRequestHeaderMemoryIsBounded(t *testing.T) {
	const each = 3
	s, dials := crowded(t)
	for _, head := range hostileHeads {
		for over, dial := range dials {
			version := over[len(over)-1:]
			if !strings.Contains(head.over, version) {
				continue
			}
			text, factor := headOver1(head.fields()), int64(headFactor1)
			if version == "2" {
				text, factor = headOver2(head.fields()), headFactor2
			}
			before, goroutines := live(), runtime.NumGoroutine()
			var all []net.Conn
			for range each {
				nc, err := dial()
				harness.NoError(t, err)
				if _, err := nc.Write(text); err != nil {
					t.Fatalf("%s over %s: %v", head.name, over, err)
				}
				all = append(all, nc)
			}
			harness.Until(t, head.name+" over "+over+": requests wait", func() bool { _, waiting := s.load(); return waiting == each })
			got, want := (live()-before)/each, factor*headBytes+headExtra
			if got > want {
				t.Errorf("%s over %s: got %d bytes per connection, want at most %d", head.name, over, got, want)
			}
			t.Logf("%s over %s: sent %d bytes, %d bytes in memory", head.name, over, len(text), got)
			for _, nc := range all {
				nc.Close()
			}
			harness.Until(t, "the connections are closed", func() bool { return runtime.NumGoroutine() <= goroutines })
		}
	}
}
