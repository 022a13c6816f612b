package nethttp_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/nethttp"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// An idle connection may wait for any time, but a head that has begun may not.
func TestAHeadThatComesTooSlowlyEndsItsConnectionAnyTime(t *testing.T) {
	const limit = 100 * time.Millisecond
	h := build(t, http.NotFoundHandler(), func(_ *queue.Proxy, s *nethttp.Settings) { s.HeaderTimeout = limit })
	for name, before := range map[string]int{"the first request": 0, "the second": 1, "the fourth": 3} {
		c := h.dial()
		for range before {
			c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			c.receive("GET")
		}
		if before > 0 {
			c.SetReadDeadline(time.Now().Add(2 * limit))
			if _, err := c.r.ReadByte(); !isTimeout(err) {
				t.Errorf("%s: got %v on an idle connection, want silence", name, err)
			}
			c.SetDeadline(time.Now().Add(patience))
		}
		c.send("GET / HTTP/1.1\r\nHost:")
		c.ended()
	}
}
