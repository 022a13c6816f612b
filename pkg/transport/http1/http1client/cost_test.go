//go:build !race

package http1client

import "testing"

// The test is excluded with the race detector, which makes sync.Pool drop buffers at random.
func TestGETDoesNotAllocate(t *testing.T) {
	a := app(t, plain)
	k := newCall("GET", "/")
	if n := testing.AllocsPerRun(200, func() { once(t, k, a) }); n > 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
