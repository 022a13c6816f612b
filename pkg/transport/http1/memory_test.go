package http1_test

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// used returns the memory of the heap and the stacks in bytes, without garbage.
func used() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A request that waits for the user container holds its header section, not the large read buffer.
func TestWaitingRequestUsesLittleMemory(t *testing.T) {
	const clients = 200
	free := make(chan struct{})
	proxy := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		for m := conn.Request(); m != nil; m = conn.Request() {
			<-free
			conn.Send(harness.OK(m.Target()))
		}
	}), nil)
	all := make([]*harness.Client, clients)
	for i := range all {
		all[i] = proxy.Dial()
	}
	before := used()
	for _, c := range all {
		c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	proxy.InFlight(clients)
	// The harness uses two bufio.Readers of 4 KB each per connection.
	const limit = 40 << 10
	if got := (used() - before) / clients; got > limit {
		t.Errorf("got %d bytes for each request that waits, want at most %d", got, limit)
	}
	close(free)
	for _, c := range all {
		c.WantBody("/")
	}
	proxy.WantCounts(clients, 0)
}

// The connections wait up to a second for their clients to read the response.
func TestRejectedHeaderIsReleasedBeforeConnectionEnds(t *testing.T) {
	const clients = 20
	proxy := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	head := "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 2<<20)
	before := used()
	all := make([]*harness.Client, clients)
	var sending sync.WaitGroup // Send needs additional memory for a copy of head
	for i := range all {
		all[i] = proxy.Dial()
		sending.Go(func() { all[i].Send(head) })
	}
	for _, c := range all {
		harness.Equal(t, c.Receive("GET").Status(), 431, "status")
	}
	sending.Wait()
	const limit = 100 << 10
	if got := (used() - before) / clients; got > limit {
		t.Errorf("got %d bytes for each rejected header section, want at most %d", got, limit)
	}
}
