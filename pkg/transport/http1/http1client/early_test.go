package http1client

import (
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A body in response to HEAD would be parsed as the next response.
func TestHeadResponseWithLateBodyIsDiscarded(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) {
		for r := readHead(conn); r != nil; r = readHead(conn) {
			conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
			if r.Method == "HEAD" {
				time.Sleep(2 * time.Millisecond) // real time: the body arrives after the header section has been read
			}
			conn.Send("hello")
		}
	})
	for range 3 {
		newCall("HEAD", "/").do(a).want(t, 200, "")
		newCall("GET", "/").do(a).want(t, 200, "hello")
	}
	harness.Until(t, "the body after HEAD is detected", a.sendsBodyToHEAD.Load)
	newCall("HEAD", "/").do(a).want(t, 200, "")
	time.Sleep(3 * headSilence) // real time: wait longer than putWhenSilent
	if n := idle(a); n > 1 {
		t.Errorf("got %d idle connections, want only that of the GET requests", n)
	}
}

func TestHeadResponseWithoutBodyKeepsConnection(t *testing.T) {
	a := app(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"))
	for range 3 {
		newCall("HEAD", "/").do(a).want(t, 200, "")
		if n := idle(a); n != 0 {
			t.Fatalf("got %d idle connections immediately, want 0", n)
		}
		harness.Until(t, "connection that is kept", func() bool { return idle(a) > 0 })
	}
	harness.Equal(t, idle(a), 1, "idle connections")
}

// An app can respond before it has read the body and then reset the connection. Its response is
// returned.
func TestEarlyResponseBeforeResetIsReturned(t *testing.T) {
	const says = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 8\r\n\r\ntoo much"
	for range 20 {
		a := app(t, func(conn *harness.AppConn) {
			readHead(conn)
			conn.Send(says)
			conn.Reset()
		})
		k := newCall("POST", "/").with(strings.NewReader(strings.Repeat("x", 8<<20)), 8<<20)
		k.do(a).want(t, 413, "too much")
	}
}
