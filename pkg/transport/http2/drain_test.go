package http2_test

import (
	"fmt"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// The deadline can expire while a response begins. The request must end either with the response or because of
// the deadline.
func TestRequestEndsWithResponseAtDeadline(t *testing.T) {
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
			if o := harness.Receive(t, a.observations, "observation"); o.Reason != observation.OK && o.Reason != observation.Draining {
				t.Fatalf("got %v, want %v or %v", o.Reason, observation.OK, observation.Draining)
			}
		}
		c.Close()
	}
}

// gRPC libraries discard a connection that begins with GOAWAY, and then reconnect.
func TestConnectionDuringDrainGetsGOAWAYAfterResponse(t *testing.T) {
	withEachApp(t, nil, func(p *proxytest.Proxy, open *client) {
		harness.Equal(t, open.receive(open.send(request("GET", "/")))[:3], "200", "status before the drain")
		p.Queue.Drain.Begin(true)
		late := connect(t, p)
		late.send(request("GET", "/"))
		var got []string
		for len(got) < 2 {
			f, err := late.ReadFrame()
			harness.NoError(t, err)
			switch f := f.(type) {
			case *xhttp2.MetaHeadersFrame:
				got = append(got, "status "+f.PseudoValue("status"))
			case *xhttp2.GoAwayFrame:
				got = append(got, fmt.Sprint("GOAWAY ", f.LastStreamID))
			}
		}
		harness.Equal(t, got, []string{"status 200", "GOAWAY 2147483647"}, "frames")

		// A connection that was opened before the drain receives GOAWAY with its next response.
		harness.Equal(t, open.receive(open.send(request("GET", "/")))[:3], "200", "status during the drain")
	})
}
