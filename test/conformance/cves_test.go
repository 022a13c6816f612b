package conformance

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/http2"
)

// This file tests vulnerabilities of other proxies and of the Go standard library
// (test/rules/cves.md).

// CVE-2026-2833. If the status of the response to an Upgrade request is not 101, the
// sidecar must parse the following bytes as a request.
func TestBytesAfterRejectedUpgradeAreARequest(t *testing.T) {
	p := newProxy(t)
	app := p.bare(answers(ok))
	p.start()
	c := dial(t, p.addr())
	c.send(request("GET", "/first", "Connection: Upgrade", "Upgrade: other") + request("GET", "/second", "K-Proxy-Request: forged"))
	for range 2 {
		if m := c.receive("GET"); m.status() != 200 {
			t.Fatalf("got %q, want 200", m.Start)
		}
	}
	received, broken := app.requests()
	if len(received) != 2 || len(broken) > 0 {
		t.Fatalf("the app received %d requests and errors %v, want 2 requests", len(received), broken)
	}
	if m := received[1]; m.get("X-Forwarded-For") == "" || m.get("K-Proxy-Request") != "" {
		t.Errorf("the app received the second request with %v, want the header fields added by the proxy", m.Fields)
	}
}

// CVE-2026-2835 and CVE-2023-29406. The application must not receive any part of these
// requests.
func TestAmbiguousRequestsOfAdvisoriesReturn400(t *testing.T) {
	p := newProxy(t)
	app := p.bare(answers(ok))
	p.start()
	for name, text := range map[string]string{
		"HTTP/1.0 with Transfer-Encoding":                  "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + request("GET", "/hidden"),
		"Content-Length and Transfer-Encoding in HTTP/1.0": "POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + request("GET", "/hidden"),
		"several codings":                                  "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + request("GET", "/hidden"),
		"a Host with a space":                              "GET / HTTP/1.1\r\nHost: a b\r\n\r\n" + request("GET", "/hidden"),
		"two Hosts":                                        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + request("GET", "/hidden"),
	} {
		c := dial(t, p.addr())
		c.send(text)
		if m := c.receive("GET"); m.status() != 400 {
			t.Errorf("%s: got %q, want 400", name, m.Start)
		}
		c.closed()
	}
	if received, broken := app.requests(); len(received)+len(broken) > 0 {
		t.Errorf("the app received %v and %v, want nothing", received, broken)
	}
}

// CVE-2025-22871. The sidecar must not parse the rest of an invalid body as a request.
func TestBareLFInChunkSizeReturns400(t *testing.T) {
	p := newProxy(t)
	app := p.bare(answers(ok))
	p.start()
	for _, body := range []string{"5\nhello\r\n0\r\n\r\n", "5;a\nhello\r\n0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "0\n\r\n"} {
		c := dial(t, p.addr())
		c.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body + request("GET", "/hidden"))
		if m := c.receive("POST"); m.status() != 400 {
			t.Errorf("%q: got %q, want 400", body, m.Start)
		}
		c.closed()
	}
	received, _ := app.requests()
	for _, m := range received {
		if strings.Contains(m.Start, "hidden") {
			t.Errorf("the app received %q, want only the beginning of the first request", m.Start)
		}
	}
}

// CVE-2026-56866 and CVE-2026-94439. After CONNECT, the sidecar must not parse the next
// bytes as a request, and the app must not receive the CONNECT request.
func TestConnectEndsConnection(t *testing.T) {
	p := newProxy(t)
	app := p.bare(answers(ok))
	p.start()
	for _, text := range []string{
		"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
		"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nContent-Length: 0\r\n\r\n",
		"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nContent-Length: 5\r\n\r\nhello",
		"CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		c := dial(t, p.addr())
		c.send(text + request("GET", "/hidden"))
		if m := c.receive("CONNECT"); m.status() != 400 {
			t.Errorf("%q: got %q, want 400", text, m.Start)
		}
		c.closed()
	}
	if received, broken := app.requests(); len(received)+len(broken) > 0 {
		t.Errorf("the app received %v and %v, want nothing", received, broken)
	}
}

// CVE-2025-4366. The sidecar must not parse the rest of an unread body as a request.
func TestUnreadBodyIsNotParsedAsRequest(t *testing.T) {
	p := newProxy(t)
	paths := make(chan string, 100)
	p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths <- r.URL.Path
		http.NewResponseController(w).EnableFullDuplex() // send the response before the body is read
	}), "h1")
	p.start("DRAIN_QUIET_PERIOD=100ms")
	hidden := request("GET", "/hidden")
	for _, fields := range [][]string{nil, {"K-Network-Probe: unknown"}, {"K-Network-Probe: queue"}} {
		c := dial(t, p.addr())
		c.send(request("POST", "/body", append(fields, fmt.Sprintf("Content-Length: %d", len(hidden)+1))...))
		c.receive("POST")
		_, _ = io.WriteString(c.Conn, hidden) // the write fails if the sidecar has closed the connection
		if m := dial(t, p.addr()).ask("/next"); m.status() != 200 {
			t.Fatalf("got %q, want 200", m.Start)
		}
	}
	p.signal(syscall.SIGTERM)
	p.code()
	close(paths)
	for path := range paths {
		if path == "/hidden" {
			t.Error("the app received /hidden, want only /body and /next")
		}
	}
}

// CVE-2026-26311 and CVE-2026-78663. DATA after RST_STREAM must not reach a request. The
// sidecar must credit all DATA to the window of the connection exactly once. It sends
// credit for a quarter of the window at a time.
func TestDataAfterResetIsIgnored(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.holder()
	c := dialH2(t, p.addr())
	initial := c.await("the window of the connection", func(e h2Event) bool { return e.credit > 0 }).credit
	content := strings.Repeat("x", 16<<10)
	const streams = 200
	for id := uint32(1); id < 2*streams; id += 2 {
		c.open(id, false, "POST", "/held")
		c.data(id, false, content)
		c.reset(id, http2.ErrCodeCancel)
		c.data(id, false, content)
	}
	c.open(2*streams+1, true, "GET", "/", "K-Network-Probe: queue")
	if a := c.answer(2*streams + 1); a.status != 200 {
		t.Errorf("got %+v, want 200", a)
	}
	events, _ := c.seen()
	refunded := 0
	for _, e := range events {
		if e.frame == http2.FrameWindowUpdate && e.stream == 0 {
			refunded += e.credit
		}
	}
	if sent := 2 * streams * len(content); refunded <= initial || refunded > initial+sent {
		t.Errorf("got WINDOW_UPDATE increments of %d bytes for the connection, want more than %d and at most %d", refunded, initial, initial+sent)
	}
}

// CVE-2026-27141. The sidecar must ignore frames of unknown types.
func TestUnknownFrameTypesAreIgnored(t *testing.T) {
	p := newProxy(t)
	p.start()
	c := dialH2(t, p.addr())
	for kind := http2.FrameType(0x0a); kind <= 0x20; kind++ {
		c.control(func(f *http2.Framer) error { return f.WriteRawFrame(kind, 0, 0, []byte("x")) })
	}
	c.open(1, true, "GET", "/", "K-Network-Probe: queue")
	if a := c.answer(1); a.status != 200 && a.status != 503 {
		t.Errorf("got %+v, want a response", a)
	}
}

// CVE-2026-97032. The client changes the size of the HPACK table while the sidecar
// encodes responses.
func TestHeaderTableSizeChangesDuringResponses(t *testing.T) {
	p := newProxy(t)
	p.bare(answers(ok))
	p.start()
	c := dialH2(t, p.addr())
	const requests = 200
	for i := range uint32(requests) {
		c.open(2*i+1, true, "GET", "/")
		c.control(func(f *http2.Framer) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: i % 3 * 4096})
		})
	}
	for i := range uint32(requests) {
		if a := c.answer(2*i + 1); a.status != 200 {
			t.Fatalf("stream %d: got %+v, want 200", 2*i+1, a)
		}
	}
}

// CVE-2026-56853. HEADER_TIMEOUT applies to the preface of HTTP/2.
func TestIncompletePrefaceTimesOut(t *testing.T) {
	p := newProxy(t)
	p.start("HEADER_TIMEOUT=200ms")
	for _, text := range []string{"P", "PRI * HTTP/2.0\r\n", http2.ClientPreface[:len(http2.ClientPreface)-1]} {
		c := dial(t, p.addr())
		c.send(text)
		c.closed()
	}
}

// CVE-2025-58189. An ALPN protocol name cannot inject lines into the log.
func TestLogInjectionByALPNIsPrevented(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start(p.secured()...)
	for _, addr := range []string{local(p.port.metrics), p.tlsAddr()} {
		c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"\r\nforged line \x1b[2J\u009b"}})
		if err == nil {
			c.Close()
			t.Errorf("%s: got no error", addr)
		}
	}
	for _, line := range p.logIsJSON() {
		if line["message"] == "forged line" {
			t.Errorf("got injected line %v", line)
		}
	}
}
