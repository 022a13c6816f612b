package http1_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// blocking is an app that holds each request until free is closed, except requests to /p.
type blocking struct {
	running, gone atomic.Int32
	free          chan struct{}
}

func newBlocking() *blocking { return &blocking{free: make(chan struct{})} }

func (b *blocking) serve(conn *harness.AppConn) {
	for m := conn.Request(); m != nil; m = conn.Request() {
		if m.Target() == "/p" {
			conn.Send(harness.OK("/p"))
			continue
		}
		b.running.Add(1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = conn.In.Peek(1)
		}()
		select {
		case <-b.free:
			conn.Send(harness.OK(m.Target()))
			<-ended
		case <-ended:
			b.gone.Add(1)
		}
	}
}

// wantRunning waits until n requests are held.
func (b *blocking) wantRunning(t testing.TB, n int32) {
	t.Helper()
	harness.Until(t, fmt.Sprintf("%d running requests", n), func() bool { return b.running.Load() == n })
}

// answering is an app that sends the response named by the X-Answer field of the request, or the request target if
// there is no such field. "<close>" at the end of a response closes the connection.
func answering(answers map[string]string) func(conn *harness.AppConn) {
	return func(conn *harness.AppConn) {
		for m := conn.Request(); m != nil; m = conn.Request() {
			text, found := answers[m.Get("x-answer")]
			if !found {
				conn.Send(harness.OK(m.Target()))
				continue
			}
			text, closes := strings.CutSuffix(text, "<close>")
			conn.Send(text)
			if closes {
				return
			}
		}
	}
}
