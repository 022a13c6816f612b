//go:build !race

package sidecar

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// These tests measure the cost of a request in the complete sidecar with all features that are on
// by default: metrics, statistics, a concurrency limit and all timeouts. They do not run with the
// race detector, because it makes sync.Pool drop items at random.

// A frugal app sends the same response to each request and allocates nothing. It responds to a request
// for /hold after the test has sent a value to free.
type frugal struct {
	answer     []byte
	held, free chan struct{}
	before     func() // called before each response; may be nil
	served     atomic.Int64
}

func (a *frugal) serve(c *harness.AppConn) {
	in := make([]byte, 64<<10)
	for n := 0; ; {
		k, err := c.In.Read(in[n:])
		if err != nil {
			return
		}
		n += k
		end := "\r\n\r\n"
		if bytes.HasPrefix(in, []byte("POST ")) {
			end = "end" // end of the body, which can arrive in a later read than the header
		}
		if !bytes.HasSuffix(in[:n], []byte(end)) {
			continue
		}
		if bytes.HasPrefix(in, []byte("GET /hold ")) {
			a.held <- struct{}{}
			<-a.free
		}
		if a.before != nil {
			a.before()
		}
		n = 0
		a.served.Add(1)
		if _, err := c.Write(a.answer); err != nil {
			return
		}
	}
}

// frugally starts a sidecar and an app that sends answer. The returned function opens connections to
// the sidecar. limit is the concurrency limit.
func frugally(t testing.TB, answer string, limit int) (*sidecar, *frugal, func() net.Conn) {
	t.Helper()
	a := &frugal{answer: []byte(answer), held: make(chan struct{}), free: make(chan struct{})}
	app := harness.NewApp(t, a.serve)
	s := built(t, func(c *config.Config) {
		c.UserPort.V = app.Port
		c.Concurrency.V, c.QueueDepth.V, c.QueueTimeout.V = limit, 10, time.Minute
		c.RequestTimeout.V, c.ResponseStartTimeout.V, c.IdleTimeout.V = 5*time.Minute, 5*time.Minute, 5*time.Minute
		c.MetricsNames.V = "all"
	})
	main := harness.Listen(t)
	s.start(func() error { return s.http1.Serve(main, nil) })
	return s, a, func() net.Conn { return harness.Dial(t, main.Addr().String()) }
}

const (
	ordinaryGET    = "GET /path?query HTTP/1.1\r\nHost: a.example\r\nUser-Agent: test\r\nAccept: */*\r\n\r\n"
	ordinaryAnswer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 5\r\n\r\nhello"
)

// talk sends a request and reads a response of len(answer) bytes without allocations.
func talk(t testing.TB, c net.Conn, request, answer []byte) {
	if _, err := c.Write(request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, answer); err != nil {
		t.Fatal(err)
	}
}

// sizeOf returns the length of the response in bytes. It sends several requests so that one-time
// allocations happen before the measurement.
func sizeOf(t testing.TB, c net.Conn, request []byte) (n int) {
	t.Helper()
	b := make([]byte, 64<<10)
	for range 20 {
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		for n = 0; !bytes.HasSuffix(b[:n], []byte("hello")) && !bytes.HasSuffix(b[:n], []byte("hello\r\n0\r\n\r\n")); {
			k, err := c.Read(b[n:])
			harness.NoError(t, err)
			n += k
		}
	}
	return n
}

func TestRequestDoesNotAllocate(t *testing.T) {
	chunked := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
	for _, v := range []struct{ name, request, answer string }{
		{"GET", ordinaryGET, ordinaryAnswer},
		{"GET, a chunked answer", ordinaryGET, chunked},
		{"GET from a mesh", "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n" +
			"Forwarded: for=10.0.0.1;proto=https\r\nK-Proxy-Request: activator\r\nConnection: keep-alive\r\n\r\n", ordinaryAnswer},
		{"POST", "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 10003\r\n\r\n" + strings.Repeat("x", 10000) + "end", ordinaryAnswer},
	} {
		t.Run(v.name, func(t *testing.T) {
			_, a, dial := frugally(t, v.answer, 100)
			c := dial()
			request := []byte(v.request)
			answer := make([]byte, sizeOf(t, c, request))
			served := a.served.Load()
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			harness.Equal(t, testing.AllocsPerRun(500, func() { talk(t, c, request, answer) }), 0, "allocations")
			harness.Equal(t, a.served.Load()-served, 501, "requests")
		})
	}
}

func TestQueuedRequestAllocatesAtMostOnce(t *testing.T) {
	s, a, dial := frugally(t, ordinaryAnswer, 1)
	first, second := dial(), dial()
	hold, request := []byte("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"), []byte(ordinaryGET)
	answer := make([]byte, sizeOf(t, first, request))
	sizeOf(t, second, request)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if got := testing.AllocsPerRun(200, func() {
		if _, err := first.Write(hold); err != nil {
			t.Fatal(err)
		}
		<-a.held
		if _, err := second.Write(request); err != nil {
			t.Fatal(err)
		}
		for waiting := 0; waiting == 0; _, waiting = s.load() {
			runtime.Gosched()
		}
		a.free <- struct{}{}
		for _, c := range []net.Conn{first, second} {
			if _, err := io.ReadFull(c, answer); err != nil {
				t.Fatal(err)
			}
		}
	}); got > 1 {
		t.Errorf("got %v allocations, want at most 1", got)
	}
}

func BenchmarkRequest(b *testing.B) {
	_, _, dial := frugally(b, ordinaryAnswer, 100)
	c := dial()
	request := []byte(ordinaryGET)
	answer := make([]byte, sizeOf(b, c, request))
	b.ReportAllocs()
	for b.Loop() {
		talk(b, c, request, answer)
	}
}
