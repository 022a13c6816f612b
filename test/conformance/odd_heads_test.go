package conformance

import (
	"strings"
	"testing"
)

// If a header section contains two errors, the second error is also detected.
func TestUnusualTargetDoesNotHideInvalidHeader(t *testing.T) {
	p := newProxy(t)
	app := newLedger()
	p.app(app)
	p.start()
	for what, c := range map[string]struct {
		lines []string
		want  int
	}{
		"an invalid Host":        {[]string{"GET http://u@a.example/ HTTP/1.1", "Host: a b@/"}, 400},
		"an unknown expectation": {[]string{"GET http://u@a.example/ HTTP/1.1", "Host: a", "Expect: more"}, 417},
	} {
		id := newID()
		w := dial(t, p.addr())
		w.send(strings.Join(append(c.lines, "X-Id: "+id), "\r\n") + "\r\n\r\n")
		if m := w.receive("GET"); m.status() != c.want || word(m.get("Proxy-Status")) != "bad-request" || app.count(id) != 0 {
			t.Errorf("%s: got %v and %d requests in the app, want %d and 0", what, m, app.count(id), c.want)
		}
	}
}

// Some clients send an empty line after a body (RFC 9112 section 2.2).
func TestOneEmptyLineBeforeRequestIsIgnored(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.start()
	p.bare(answers(ok))
	const post = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello"
	for before, want := range map[string]int{"\r\n": 200, "\r\n\r\n": 400, "\n": 400, "\r": 400, "\r\n\n": 400, "\r\n ": 400} {
		for name, c := range map[string]*client{"plain": dial(t, p.addr()), "TLS": dialTLS(t, p.tlsAddr(), "http/1.1")} {
			c.send(post)
			c.receive("POST")
			c.send(before)
			if m := c.ask("/"); m.status() != want {
				t.Errorf("%s: got %q after %q, want %d", name, m.Start, before, want)
			}
		}
	}
	c := dial(t, p.addr())
	c.send("\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if m := c.receive("PRI"); m.status() != 505 {
		t.Errorf("got %q for the HTTP/2 preface after an empty line, want 505", m.Start)
	}
}

// An empty line does not begin a request, so the header timeout does not start.
func TestConnectionStaysIdleAfterEmptyLine(t *testing.T) {
	p := newProxy(t)
	p.start("HEADER_TIMEOUT=500ms", "DRAIN_QUIET_PERIOD=0s")
	p.bare(answers(ok))
	c := dial(t, p.addr())
	c.ask("/")
	c.send("\r\n")
	p.poll("the header timeout closes another connection", func() error {
		other := dial(t, p.addr())
		other.send("GET /")
		other.closed()
		return nil
	})
	if m := c.ask("/"); m.status() != 200 {
		t.Errorf("got %q, want 200", m.Start)
	}
}

// A client may send tunnel data immediately after CONNECT. After a rejected CONNECT, this data
// is not parsed as a request.
func TestDataAfterRejectedConnectIsIgnored(t *testing.T) {
	p := newProxy(t)
	app := newLedger()
	p.app(app)
	p.start()
	id := newID()
	w := dial(t, p.addr())
	w.send("CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\n\r\n" + "GET / HTTP/1.1\r\nHost: a\r\nX-Id: " + id + "\r\n\r\n")
	if m := w.receive("CONNECT"); m.status() != 400 {
		t.Fatalf("got %v, want 400", m)
	}
	w.closed()
	if app.count(id) != 0 {
		t.Errorf("the app received %d requests, want 0", app.count(id))
	}
}
