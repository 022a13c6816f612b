package conformance

import (
	"io"
	"strings"
	"testing"
	"time"
)

// sendContinueAfter starts a user container that sends status 100 after a delay, and then a
// response with the request body.
func (p *proxy) sendContinueAfter(d time.Duration) {
	p.bareHeads(func(c *bareConn, m *message) bool {
		time.Sleep(d) // simulate a slow app
		c.send("HTTP/1.1 100 Continue\r\n\r\n")
		body := make([]byte, len("hello"))
		if _, err := io.ReadFull(c.r, body); err != nil {
			return false
		}
		c.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + string(body))
		return true
	})
}

const asksFirst = "PUT / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"

// Java's HttpClient waits forever if it receives a second status 100.
func TestClientReceivesOne100Continue(t *testing.T) {
	for name, d := range map[string]time.Duration{"the app's": 0, "status 100 of the sidecar before that of the app": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start()
			p.sendContinueAfter(d)
			c := dial(t, p.addr())
			c.send(asksFirst)
			if m, err := readHead(c.r); err != nil || m.status() != 100 {
				t.Fatalf("got %+v, %v, want 100", m, err)
			}
			c.send("hello")
			m, err := readHead(c.r)
			if err != nil || m.status() != 200 {
				t.Errorf("after status 100: got %+v, %v, want 200", m, err)
			}
		})
	}
}

// An empty list contains no expectation, and 100-continue is the only known expectation (RFC
// 9110 sections 5.6.1 and 10.1.1).
func TestExpectValues(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.bare(answers(ok))
	for value, want := range map[string]int{"": 200, ",": 200, "100-continue, ,": 200, "foo": 417, "100-continue, foo": 417} {
		if m := dial(t, p.addr()).ask("/", "Expect: "+value); m.status() != want {
			t.Errorf("Expect: %q over HTTP/1.1: got %q, want %d", value, m.Start, want)
		}
		c := dialH2(t, p.addr())
		c.open(1, true, "GET", "/", "Expect: "+value)
		if a := c.answer(1); a.status != want {
			t.Errorf("Expect: %q over HTTP/2: got %d, want %d", value, a.status, want)
		}
	}
}

// If the client sends the body immediately, the request does not wait for status 100.
func TestExpectDoesNotDelayAvailableBody(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.bare(func(c *bareConn, m *message) bool { // the app ignores Expect
		c.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + m.Body)
		return true
	})
	c := dial(t, p.addr())
	for range 3 {
		began := time.Now()
		c.send(asksFirst + "hello")
		m := c.receive("PUT")
		if took := time.Since(began); m.status() != 200 || !strings.HasSuffix(m.Body, "hello") || took > 900*time.Millisecond {
			t.Errorf("got %q with %q after %v, want 200 with hello within one second", m.Start, m.Body, took)
		}
	}
}
