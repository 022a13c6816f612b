package http1_test

import (
	"runtime"
	"testing"
)

// A thousand requests that wait for a user container are memory that a pod pays
// for: what they hold is their heads, not the buffers that heads are read into.
func TestARequestThatWaitsHoldsLittleMemory(t *testing.T) {
	const clients = 200
	free := make(chan struct{})
	h := build(t, newApp(t, func(p *peer) {
		for m := p.request(); m != nil; m = p.request() {
			<-free
			p.say(ok(m.target()))
		}
	}), nil)
	all := make([]*client, clients)
	for i := range all {
		all[i] = h.dial()
	}
	used := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before := used()
	for _, c := range all {
		c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	h.inFlight(clients)
	// Both ends of the test have their share in it: two bufio.Reader of 4 KB.
	const limit = 40 << 10
	if got := (used() - before) / clients; got > limit {
		t.Errorf("got %d bytes for each request that waits, want at most %d", got, limit)
	}
	close(free)
	for _, c := range all {
		c.wantBody("/")
	}
	h.wantCounts(clients, 0)
}
