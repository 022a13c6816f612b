package http1_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestSmugglingRequestsReturn400(t *testing.T) {
	a := harness.NewApp(t, harness.Echo)
	server := proxytest.Start(t, a, nil)
	const behind = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	attacks := []string{
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n",
		"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX\x00: b\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01",
	}
	for _, attack := range attacks {
		c := server.Dial()
		c.Get("/first")
		c.Send(attack + behind)
		m := c.Receive("POST")
		if m.Status() != 400 || m.Get("connection") != "close" || !strings.Contains(m.Get("proxy-status"), "bad-request") {
			t.Errorf("%q: got %+v, want 400, close, bad-request", attack, m)
		}
		c.WantEnd()
	}
	server.WantCounts(uint64(len(attacks)), 0)
	if got := strings.Join(a.Requests(), "|"); strings.ReplaceAll(got+"|", "GET /first HTTP/1.1|", "") != "" {
		t.Errorf("the app got %s, want only /first", got)
	}
}

func TestContextOfRejectedRequestIsCanceled(t *testing.T) {
	requests := make(chan context.Context, 1)
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(p *proxy.Proxy, _ *proxytest.Options) {
		p.Observe = func(o *observation.Observation) { requests <- o.Exchange.Request().Context() }
	})
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\n\r\n")
	harness.Equal(t, c.Receive("GET").Status(), 400, "status")
	harness.Receive(t, harness.Receive(t, requests, "observation").Done(), "cancellation")
}

// RFC 9112 allows a server to reject these header sections. Later requests are not served.
func TestAmbiguousHeaderReturns400(t *testing.T) {
	a := harness.NewApp(t, harness.Echo)
	server := proxytest.Start(t, a, nil)
	for _, text := range []string{
		"GET /odd HTTP/1.1\r\nHost: a\r\nX-Fold: a\r\n b\r\n\r\n",
		"GET /odd HTTP/1.1\nHost: a\n\n",
		"\r\n\r\nGET /odd HTTP/1.1\r\nHost: a\r\n\r\n",
		"\nGET /odd HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /odd HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n",
	} {
		c := server.Dial()
		c.Get("/first")
		c.Send(text + "GET /behind HTTP/1.1\r\nHost: a\r\n\r\n")
		if m := c.Receive("GET"); m.Status() != 400 || m.Get("connection") != "close" {
			t.Errorf("%q: got %s, Connection: %q, want 400 and the end", text, m.Start, m.Get("connection"))
		}
		c.WantEnd()
	}
	server.WantCounts(5, 0)
	if got := strings.Join(a.Requests(), "|"); strings.Contains(got, "/behind") || strings.Contains(got, "/odd") {
		t.Errorf("the app got %s, want no later request", got)
	}
}

func TestBodyOverLimitReturns413(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, s *proxytest.Options) { s.MaxBodyBytes = 10 })
	for name, text := range map[string]string{
		"complete body with a length":   "Content-Length: 11\r\n\r\n12345678901",
		"incomplete body with a length": "Content-Length: 11\r\n\r\n",
		"one large chunk":               "Transfer-Encoding: chunked\r\n\r\nb\r\n12345678901\r\n0\r\n\r\n",
		"large last chunk":              "Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\na\r\n2345678901\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := server.Dial()
			c.T = t
			c.Send("POST /p HTTP/1.1\r\nHost: a\r\n" + text)
			m := c.Receive("POST")
			if want := `queue-proxy; error=http_request_error; details="bad-request"`; m.Status() != 413 || m.Get("proxy-status") != want {
				t.Errorf("got %s, Proxy-Status %q, want 413, %q", m.Start, m.Get("proxy-status"), want)
			}
		})
	}
	c := server.Dial()
	c.Send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n1234567890")
	c.WantBody("/p")
	c.Send("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na\r\n1234567890\r\n0\r\n\r\n")
	c.WantBody("/p")
}

func TestInvalidChunkReturns400(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	for _, body := range []string{"x\r\n", "3\nabc\r\n", "3\r\nabcd\r\n", "11111111111111111\r\n", "3 \r\nabc\r\n0\r\n\r\n", "0\r\nContent-Length: 3\r\n\r\n"} {
		c := server.Dial()
		c.Send("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body + "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
		if m := c.Receive("POST"); m.Status() != 400 || m.Get("connection") != "close" {
			t.Errorf("%q: got %s, Connection: %s, want 400, close", body, m.Start, m.Get("connection"))
		}
		c.WantEnd()
	}
}

// After a rejected header section, the sidecar discards only a limited amount of input, so that a flood uses little CPU
// time.
func TestRejectedHeaderLimitsDiscardedInput(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, o *proxytest.Options) { o.Narrow = true })
	c := harness.DialBy(t, &net.Dialer{Control: harness.Narrow}, server.Address)
	c.Send("GET / HTTP/1.1\r\nHost : a\r\n\r\n")
	sent := 0
	for err := error(nil); err == nil && sent < 4<<20; {
		var n int
		n, err = c.Write(make([]byte, 16<<10))
		sent += n
	}
	const most = 1 << 20 // more than the maximum header length of 64 KiB and the socket buffers
	if sent > most {
		t.Errorf("sent %d bytes after a rejected header section, want at most %d", sent, most)
	}
	harness.Equal(t, c.Receive("GET").Status(), 400, "status")
}
