package http2_test

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// The deadline finds a request at any place, also where its response begins at that
// moment: each ends, by the one or by the other.
func TestARequestWhoseResponseBeginsAtTheDeadlineEnds(t *testing.T) {
	const requests = 100
	for range 30 {
		arrived, begin := make(chan struct{}, requests), make(chan struct{})
		a := newFrameApp(t, func(s *appStream) {
			if arrived <- struct{}{}; len(arrived) == requests {
				close(begin)
				for id := s.id - 2*(requests-1); id <= s.id; id += 2 {
					_ = s.WriteHead(id, true, ":status", "200")
				}
			}
		})
		c := connect(t, a.proxy)
		get := request("GET", "/")
		for range requests {
			c.send(get)
		}
		harness.Receive(t, begin, "request at the app")
		a.proxy.Queue.Drain.Begin(true)
		harness.Within(t, "end of Abort", func() bool { a.proxy.Queue.Drain.Abort(); return true })
		for range requests {
			if o := harness.Receive(t, a.observations, "observation"); o.Reason != queue.OK && o.Reason != queue.Draining {
				t.Fatalf("got %v, want %v or %v", o.Reason, queue.OK, queue.Draining)
			}
		}
		c.Close()
	}
}
