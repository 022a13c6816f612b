package http1_test

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

func TestAClientThatLeavesWithItsAnswerIsNoFailure(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	h.acquaint()
	before := len(h.observed(0))
	const requests = 500
	for range requests {
		c := h.dial()
		c.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
		c.receive("GET")
		c.Close()
	}
	for _, o := range h.observed(before + requests)[before:] {
		if o.Why != queue.OK {
			t.Fatalf("got %v, want %v", o.Why, queue.OK)
		}
	}
}
