package http1_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

const (
	curlUpload = "PUT /upload HTTP/1.1\r\nHost: a\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
	goUpload   = "POST /go HTTP/1.1\r\nHost: a\r\nUser-Agent: Go-http-client/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\nAccept-Encoding: gzip\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n"
	javaOffer  = "GET /java HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 0\r\nHost: a\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\nUser-Agent: Java-http-client/21\r\n\r\n"
)

func TestUnusualRequestKeepsConnection(t *testing.T) {
	for name, text := range map[string]string{
		"HTTP/1.0 kept alive":         "GET /p HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"an unusual Host":             "GET /p HTTP/1.1\r\nHost: a!b\r\n\r\n",
		"Expect and chunks":           "POST /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"Expect and no body":          "GET /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
		"a probe with Expect":         "GET /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nK-Network-Probe: queue\r\n\r\n",
		"a response from the sidecar": "GET /p HTTP/1.0\r\nConnection: keep-alive\r\nK-Network-Probe: other\r\n\r\n",
		"an empty line":               "\r\nGET /p HTTP/1.1\r\nHost: a\r\n\r\n",
		"an empty line at the end":    "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\r\n",
		"an unusual absolute target":  "GET http://user@a/p HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			proxy := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
			c := proxy.Dial()
			c.Get("/before")
			for range 3 {
				c.Send(text)
				if m := c.Receive("GET"); m.Status() != 200 && m.Status() != 400 || m.Get("connection") == "close" {
					t.Errorf("got %s, Connection: %s, want an answer that keeps the connection", m.Start, m.Get("connection"))
				}
				c.Get("/between")
			}
			proxy.WantCounts(7, 0)
		})
	}
}

// The first bytes of the response are either 100 or the final status.
func TestExpectContinueReturnsAppDecision(t *testing.T) {
	proxy := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		for m := conn.Head(); m != nil; m = conn.Head() {
			if strings.HasPrefix(m.Target(), "/no") {
				conn.Send("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
				continue
			}
			if m.Get("expect") != "" {
				conn.Send("HTTP/1.1 100 Continue\r\n\r\n")
			}
			if m.ReadBody(conn.In) != nil {
				return
			}
			conn.Send(harness.OK(m.Body))
		}
	}), nil)
	c := proxy.Dial()
	for range 3 {
		c.Send(curlUpload)
		if m, err := harness.ReadHead(c.In); err != nil || m.Status() != 100 {
			t.Fatalf("got %v, %v, want 100", m, err)
		}
		c.Send("hello")
		c.WantBody("hello")
	}
	proxy.WantCounts(3, 0)
	c.Send(strings.Replace(curlUpload, "/upload", "/no", 1))
	if m := c.Receive("PUT"); m.Status() != 417 {
		t.Errorf("got %s, want 417", m.Start)
	}
}

func TestUnusualRequestsKeepOtherRequestsUnchanged(t *testing.T) {
	for name, odd := range map[string]string{
		"curl with Expect":             curlUpload + "hello",
		"HTTP/1.0":                     "GET /old HTTP/1.0\r\nConnection: keep-alive\r\nHost: a\r\n\r\n",
		"Java offers HTTP/2":           javaOffer,
		"chunks and trailers":          goUpload,
		"a field listed in Connection": "GET /n HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\r\n",
		"a header of 30 KB":            "GET /long HTTP/1.1\r\nHost: a\r\nCookie: " + strings.Repeat("x", 30<<10) + "\r\n\r\n",
		"target is not a URI":          "GET /a%zz HTTP/1.1\r\nHost: a\r\n\r\n",
		"a target in another form":     "GET http://a/p HTTP/1.1\r\nHost: a\r\n\r\n",
		"a probe":                      "GET / HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			proxy := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
			c := proxy.Dial()
			for i := range 300 {
				if i%100 == 42 {
					c.Send(odd)
					if m := c.Receive("GET"); m.Status() != 200 {
						t.Fatalf("got %s, want 200", m.Start)
					}
					continue
				}
				c.Get("/p")
			}
			proxy.WantCounts(300, 0)
		})
	}
}

func TestRequestsAfterUnusualRequestsReturn200(t *testing.T) {
	proxy := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	c := proxy.Dial()
	c.Send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n" +
		"POST /2 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
		"POST /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
		"GET /4 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" +
		"GET /5 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" +
		"POST /6 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab")
	for i := range 5 {
		c.WantBody(fmt.Sprintf("/%d", i+1))
	}
	proxy.InFlight(1)
	c.Send("c\r\n0\r\n\r\n")
	c.WantBody("/6")
	proxy.WantCounts(6, 0)
	// A part of a header section arrives while another request is served.
	app := newBlocking()
	proxy = proxytest.Start(t, harness.NewApp(t, app.serve), nil)
	c = proxy.Dial()
	c.Send("GET /first HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /be")
	proxy.InFlight(1)
	c.Send("hind HTTP/1.1\r\nHo")
	close(app.free)
	c.WantBody("/first")
	c.Send("st: a\r\n\r\n")
	c.WantBody("/behind")
	proxy.WantCounts(2, 0)
}
