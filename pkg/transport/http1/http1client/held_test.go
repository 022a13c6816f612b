package http1client

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// heldCall returns a call that was aborted after the user container received the request.
func heldCall(t *testing.T, a *App, k *testCall, arrived <-chan struct{}) transport.Held {
	t.Helper()
	k.Hold = true
	done := make(chan outcome, 1)
	k.Begin()
	go func() { done <- k.do(a) }()
	harness.Within(t, "the request at the user container", func() struct{} { return <-arrived })
	k.Abort()
	got := harness.Within(t, "an aborted call", func() outcome { return <-done })
	if transport.FaultOf(got.err) != transport.FaultAborted {
		t.Fatalf("got %v, want aborted", got.err)
	}
	return k.Held
}

func TestHeldCallWaitsForFinalResponse(t *testing.T) {
	for name, test := range map[string]struct {
		says string // bytes that the user container sends after the client has disconnected
		ends bool   // Wait returns before its timeout
	}{
		"responds":                   {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true},
		"begins the response":        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", true},
		"sends garbage":              {"garbage\r\n\r\n", true},
		"sends 103":                  {"HTTP/1.1 103 Early Hints\r\n\r\n", false},
		"no output":                  {"", false},
		"sends an incomplete header": {"HTTP/1.1 2", false},
		"sends 103, then responds":   {"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 404 Not Found\r\n\r\n", true},
		"sends too many 103":         {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", rewrite.MaxInfos+1), true},
		"switches protocols":         {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			arrived, saw := make(chan struct{}), make(chan error, 1)
			a := app(t, func(conn *harness.AppConn) {
				readHead(conn)
				close(arrived)
				_, err := conn.Read(make([]byte, 1))
				saw <- err
				conn.Send(test.says)
				conn.Idle()
			})
			h := heldCall(t, a, newCall("GET", "/"), arrived)
			if h == nil {
				t.Fatal("got no held call, want one")
			}
			const most = 300 * time.Millisecond
			start := time.Now()
			harness.Within(t, "the wait", func() struct{} {
				h.Wait(map[bool]time.Duration{true: time.Hour, false: most}[test.ends])
				return struct{}{}
			})
			if took := time.Since(start); !test.ends && took < most {
				t.Errorf("waited for %v, want %v", took, most)
			}
			if err := <-saw; err != io.EOF {
				t.Errorf("the user container read %v, want EOF", err)
			}
		})
	}
}

func TestUnsentRequestIsNotHeld(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) { readRequest(conn); conn.Idle() })
	k := newCall("GET", "/")
	k.Hold = true
	k.Begin()
	k.Abort()
	k.do(a)
	if k.Held != nil {
		t.Error("got a held call, want none, because nothing was sent")
	}
}

func TestFailedResponseIsNotHeld(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) { readHead(conn); conn.Send("garbage\r\n\r\n") })
	k := newCall("GET", "/")
	k.Hold = true
	k.Begin()
	k.do(a)
	if k.Held != nil {
		t.Error("got a held call, want none, because the user container has responded")
	}
}

func TestStartedResponseIsNotHeld(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) {
		readHead(conn)
		conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello")
		conn.Idle()
	})
	k := newCall("GET", "/")
	k.Hold = true
	k.Begin()
	r, err := k.Do(a)
	harness.NoError(t, err)
	k.Abort()
	r.Close()
	if k.Held != nil {
		t.Error("got a held call, want none, because the connection is reset")
	}
}
