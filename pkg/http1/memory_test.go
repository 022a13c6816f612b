package http1_test

import (
	"runtime"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// A thousand requests that wait for a user container are memory that a pod pays
// for: what they hold is their heads, not the buffers that heads are read into.
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
	used := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before := used()
	for _, c := range all {
		c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	proxy.InFlight(clients)
	// Both ends of the test have their share in it: two bufio.Reader of 4 KB.
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
