package conformance

import (
	"fmt"
	"testing"
)

// Field names that an application can interpret as framing fields are rejected for HTTP/2 and
// HTTP/1.1.
func TestFramingFieldAliasesOverHTTP2Return400(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	app := newLedger()
	p.app(app)
	p.start()
	for _, protocol := range []string{"h2c", "TLS h2"} {
		for what, fields := range map[string][]string{
			"Content_Length":              {"content_length: 5"},
			"Transfer_Encoding":           {"transfer_encoding: chunked"},
			"an announced Content_Length": {"trailer: content_length"},
			"of two announced trailers":   {"trailer: x-sum, transfer_encoding"},
		} {
			h := p.h2Peer(protocol)
			id := newID()
			h.open(1, false, "POST", "/", append(fields, "x-id: "+id)...)
			h.data(1, true, "hello")
			if a := h.answer(1); a.status != 400 || word(a.get("proxy-status")) != "bad-request" {
				t.Errorf("%s, %s: got %+v, want 400 with bad-request", protocol, what, a)
			}
			h.open(3, true, "GET", "/", "x-id: next of "+id, "x_content_length: 5")
			if a := h.answer(3); a.status != 200 {
				t.Errorf("%s, %s: next request: got %+v, want 200", protocol, what, a)
			}
			if got := fmt.Sprint(app.count(id), app.count("next of "+id)); got != "0 1" {
				t.Errorf("%s, %s: the app received %s requests, want 0 1", protocol, what, got)
			}
		}
	}
}

// HTTP/2 has no Upgrade field (RFC 9113 section 8.2.2).
func TestHTTP2ResponseOmitsUpgrade(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.bare(answers("HTTP/1.1 426 Upgrade Required\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n"))
	c := dialH2(t, p.addr())
	c.open(1, true, "GET", "/")
	if a := c.answer(1); a.status != 426 || a.get("upgrade") != "" || a.get("connection") != "" {
		t.Errorf("got %+v, want 426 without Upgrade and Connection", a)
	}
}
