package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"golang.org/x/net/http2"
)

// This file tests the limits on input (docs/configuration.md, "Limits").

// wantClosedAfter fails the test unless the sidecar closes the connection after the given time. It
// returns the received data.
func (w *client) wantClosedAfter(least time.Duration, since time.Time) string {
	w.t.Helper()
	b, err := io.ReadAll(w.r)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		w.t.Errorf("read: got %v, want a closed connection", err)
	}
	if took := time.Since(since); took < least || took > least+slack {
		w.t.Errorf("the connection was closed after %v, want %v", took, least)
	}
	return string(b)
}

// HEADER_TIMEOUT applies to the first request of a connection and to later ones, with and
// without TLS.
func TestHeaderTimeoutClosesConnection(t *testing.T) {
	inParallel(t)
	const limit = 500 * time.Millisecond
	for name, row := range map[string]struct {
		tls   bool
		first bool // send text as the first request of the connection
		text  string
	}{
		"no input":                {false, true, ""},
		"incomplete request line": {false, true, "GET / HT"},
		"no empty line":           {false, true, "GET / HTTP/1.1\r\nHost: a.test\r\n"},
		"incomplete header section after a request":   {false, false, "GET / HT"},
		"no empty line after a request":               {false, false, "GET / HTTP/1.1\r\nHost: a.test\r\n"},
		"one byte after a request":                    {false, false, "G"},
		"incomplete HTTP/2 preface":                   {false, true, "PRI * HTTP/2.0\r\n\r\nS"},
		"TLS, no input":                               {true, true, ""},
		"TLS, incomplete handshake":                   {true, true, "\x16\x03\x01\x02\x00\x01"},
		"TLS, incomplete header section":              {true, false, "GET / HT"},
		"preface without SETTINGS":                    {false, true, http2.ClientPreface},
		"request that is sent in single bytes":        {false, true, "*"},
		"second request that is sent in single bytes": {false, false, "*"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			p.sample()
			p.start("HEADER_TIMEOUT=" + limit.String())
			began := time.Now()
			var w *client
			switch {
			case row.tls && row.first: // test the handshake and not a request
				w = dial(t, p.tlsAddr())
			case row.tls:
				w = dialTLS(t, p.tlsAddr(), "http/1.1")
			default:
				w = dial(t, p.addr())
			}
			if !row.first {
				if m := w.ask("/bytes/2"); m.status() != 200 {
					t.Fatalf("got %q, want 200", m.Start)
				}
				// A connection may be idle for longer than HEADER_TIMEOUT.
				w.SetReadDeadline(time.Now().Add(2 * limit))
				if _, err := w.r.ReadByte(); !harness.IsTimeout(err) {
					t.Fatalf("idle connection: got %v, want a timeout", err)
				}
				w.SetDeadline(time.Now().Add(patience))
				began = time.Now()
			}
			if row.text == "*" {
				go w.sendSlowly(t, "GET / HTTP/1.1\r\nHost: a.test\r\nX: "+strings.Repeat("x", 1000))
			} else {
				w.send(row.text)
			}
			if got := w.wantClosedAfter(limit-50*time.Millisecond, began); strings.Contains(got, " 200 ") {
				t.Errorf("got %.200q, want no response from the app", got)
			}
		})
	}
}

// sendSlowly sends one byte per 50 ms until the test ends or the connection is closed.
func (w *client) sendSlowly(t *testing.T, text string) {
	for _, c := range text {
		select {
		case <-t.Context().Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
		if _, err := w.Write([]byte(string(c))); err != nil {
			return
		}
	}
}

func TestHeaderOverMaximumSizeReturns431(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	app := p.bare(answers(ok))
	p.start("MAX_HEADER_BYTES=8192")
	for name, c := range map[string]func() *client{
		"plain": func() *client { return dial(t, p.addr()) },
		"TLS":   func() *client { return dialTLS(t, p.tlsAddr(), "http/1.1") },
	} {
		w := c()
		if m := w.ask("/", "X-Long: "+strings.Repeat("x", 7000)); m.status() != 200 {
			t.Errorf("%s, header section of 7 KB: got %q, want 200", name, m.Start)
		}
		if m := w.ask("/", "X-Long: "+strings.Repeat("x", 9000)); m.status() != 431 {
			t.Errorf("%s, header section of 9 KB: got %q, want 431", name, m.Start)
		}
		w.closed()
		w = c()
		go func() { // send a header section without an end
			io.WriteString(w, "GET / HTTP/1.1\r\n")
			for {
				if _, err := io.WriteString(w, "X: "+strings.Repeat("x", 1000)+"\r\n"); err != nil {
					return
				}
			}
		}()
		if m := w.receive("GET"); m.status() != 431 {
			t.Errorf("%s, unbounded header section: got %q, want 431", name, m.Start)
		}
	}
	h := dialH2(t, p.addr())
	h.open(1, true, "GET", "/", "X-Long: "+strings.Repeat("x", 15000))
	h.await("the end of the stream or of the connection", func(e h2Event) bool {
		return e.frame == http2.FrameGoAway || e.stream == 1 && (e.end || e.frame == http2.FrameRSTStream)
	})
	if heard, _ := app.requests(); len(heard) != 2 {
		t.Errorf("the app received %d requests, want 2", len(heard))
	}
}

func TestBodyOverMaximumSizeReturns413(t *testing.T) {
	p := newProxy(t)
	app := p.sample()
	p.start("MAX_BODY_BYTES=1000", "CONTAINER_CONCURRENCY=1")
	for name, row := range map[string]struct {
		head, body string
		status     int
	}{
		"maximum length":          {"Content-Length: 1000", strings.Repeat("x", 1000), 200},
		"announced":               {"Content-Length: 1001", strings.Repeat("x", 1001), 413},
		"announced, but not sent": {"Content-Length: 1000000000", "", 413},
		"in chunks":               {"Transfer-Encoding: chunked", strings.Repeat("64\r\n"+strings.Repeat("x", 100)+"\r\n", 11) + "0\r\n\r\n", 413},
		"chunks, maximum length":  {"Transfer-Encoding: chunked", strings.Repeat("64\r\n"+strings.Repeat("x", 100)+"\r\n", 10) + "0\r\n\r\n", 200},
		"endless chunks":          {"Transfer-Encoding: chunked", strings.Repeat("64\r\n"+strings.Repeat("x", 100)+"\r\n", 1000), 413},
	} {
		w := dial(t, p.addr())
		io.WriteString(w, "POST /sink HTTP/1.1\r\nHost: a.test\r\n"+row.head+"\r\n\r\n"+row.body)
		m := w.receive("POST")
		if m.status() != row.status {
			t.Errorf("%s: got %q with %q, want %d", name, m.Start, m.Body, row.status)
		}
		if row.status == 413 && word(m.get("Proxy-Status")) != "bad-request" {
			t.Errorf("%s: got Proxy-Status %q, want bad-request", name, m.get("Proxy-Status"))
		}
	}
	h := dialH2(t, p.addr())
	h.open(1, false, "POST", "/sink")
	for range 11 {
		h.data(1, false, strings.Repeat("x", 100))
	}
	if a := h.answer(1); a.status != 413 {
		t.Errorf("h2c: got %+v, want 413", a)
	}
	h.open(3, true, "GET", "/bytes/2")
	if a := h.answer(3); a.status != 200 {
		t.Errorf("h2c, the next request: got %+v, want 200", a)
	}
	p.poll("the slot is free", func() error {
		if got := app.Running().Now; got != 0 {
			return fmt.Errorf("the app is processing %d requests", got)
		}
		return nil
	})
}

// The drain also ends if the number of connections is at the limit and more connections wait.
func TestDrainEndsWithConnectionsAtLimit(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.launch("MAX_CONNECTIONS=2", "DRAIN_QUIET_PERIOD=200ms", "DRAIN_DEADLINE=10s")
	var first *client
	p.poll("the sidecar listens", func() error {
		c, err := net.Dial("tcp", p.addr())
		if err == nil {
			first = newClient(t, c)
		}
		return err
	})
	for _, w := range []*client{first, dial(t, p.addr())} {
		if m := w.ask("/bytes/2"); m.status() != 200 {
			t.Fatalf("got %q, want 200", m.Start)
		}
	}
	dial(t, p.addr()).send(request("GET", "/bytes/2"))
	dial(t, p.addr())
	began := time.Now()
	p.signal(syscall.SIGTERM)
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	if took := time.Since(began); took > 200*time.Millisecond+slack {
		t.Errorf("the sidecar ended after %v, want the quiet period", took)
	}
}

// A client that is still sending its body receives the response with status 408.
func TestTimeoutResponseReachesSendingClient(t *testing.T) {
	p := newProxy(t)
	p.app(newEndlessApp())
	p.start(requestTimeout.settings()...)
	w := dial(t, p.addr())
	w.send("POST /wait HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000000\r\n\r\n")
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if _, err := io.WriteString(w, strings.Repeat("x", 10000)); err != nil {
				return
			}
		}
	}()
	m := w.receive("POST")
	want := requestTimeout.slowClient()
	checkOurs(t, p, m, want.status, want.kind, want.word)
	close(stop)
	<-done
}
