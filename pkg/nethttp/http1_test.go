package nethttp_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestAHeadOverTheLimitIsAnswered431(t *testing.T) {
	proxy := start(t, harness.NewApp(t, harness.Echo).Port, func(_ *queue.Proxy, s *proxytest.Options) { s.MaxHeaderBytes = 8 << 10 })
	for _, size := range []int{13 << 10, 100 << 10} { // net/http takes 4 KiB more than MaxHeaderBytes
		c := proxy.Dial()
		c.Send("GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", size) + "\r\n\r\n")
		if m := c.Receive("GET"); m.Status() != 431 {
			t.Errorf("%d bytes: got %d, want 431", size, m.Status())
		}
		c.WantEnd()
	}
}

func TestAnAnswerOfOurOwnDoesNotWaitForABody(t *testing.T) {
	proxy := start(t, harness.NewApp(t, harness.Echo).Port, nil)
	c := proxy.Dial()
	c.Send("POST /x HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\nContent-Length: 500\r\n\r\nhello")
	if m := c.Receive("POST"); m.Status() != 200 || m.Body != "queue" || !m.Closes() {
		t.Errorf("got %d %q, close %v, want 200 queue, close true", m.Status(), m.Body, m.Closes())
	}
	c.WantEnd()
}

func TestAnAnswerToAnOddRequestDoesNotWaitForItsBody(t *testing.T) {
	proxy := startHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).EnableFullDuplex() // or the app waits
		io.WriteString(w, "done")
	}, nil)
	for field, want := range map[string]string{"K-Network-Probe: queue": "queue", "X: y": "done"} {
		c := proxy.Dial()
		c.Send("POST /x HTTP/1.1\nHost: a\n" + field + "\nContent-Length: 5\n\n")
		if m := c.Receive("POST"); m.Status() != 200 || m.Body != want || !m.Closes() {
			t.Errorf("got %d %q, close %v, want 200 %q, close true", m.Status(), m.Body, m.Closes(), want)
		}
		c.WantEnd()
	}
}

func TestAResponseCutShortToAnHTTP10ClientEndsInAReset(t *testing.T) {
	proxy := startHandler(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "some")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, nil)
	c := proxy.Dial()
	c.Send("GET / HTTP/1.0\r\n\r\n")
	_, err := io.ReadAll(c.In)
	if err == nil || harness.IsTimeout(err) {
		t.Errorf("got %v at the end, want a reset: a clean end says that the response is whole", err)
	}
}
