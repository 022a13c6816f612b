package fair_test

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestConnectionAboveLimitWaits(t *testing.T) {
	t.Parallel()
	addr, release := serve(t, 3)
	var served []net.Conn
	for range 3 {
		c := dial(t, addr, "")
		harness.NoError(t, ask(c, "/wait"))
		served = append(served, c)
	}
	next := dial(t, addr, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	next.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := next.Read(make([]byte, 1)); !harness.IsTimeout(err) {
		t.Fatalf("additional connection: got %d bytes and %v, want a timeout", n, err)
	}
	served[0].Close()
	close(release)
	next.SetReadDeadline(time.Now().Add(harness.Patience))
	if err := answered(next); err != nil {
		t.Errorf("additional connection after another connection was closed: got error %v, want none", err)
	}
}

// Connections above the limit wait until others complete, and all are served.
func TestConnectionBurstIsServed(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, 8)
	var cut atomic.Int64
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				defer c.Close()
				err = ask(c, "/")
			}
			if err != nil {
				cut.Add(1)
			}
		})
	}
	all.Wait()
	if n := cut.Load(); n > 0 {
		t.Errorf("got no response to %d of 40 requests, want responses to all", n)
	}
}

// If one client opens many connections, the connections of another client stay open, including an older
// connection with an incomplete header.
func TestConnectionLimitIsFairToClients(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, 6)
	half := dialFrom(t, "127.0.0.2", addr, "GET / HTTP/1.1\r\nHos")
	for range 5 {
		for _, text := range []string{"", "GET / HTTP/1.1\r\nHos", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"} {
			for range 10 {
				dial(t, addr, text)
			}
			harness.NoError(t, ask(dial(t, addr, ""), "/"), "additional connection") // the server has accepted all earlier connections
		}
	}
	fmt.Fprint(half, "t: a\r\n\r\n")
	if err := answered(half); err != nil {
		t.Errorf("other client: got error %v, want none", err)
	}
}
