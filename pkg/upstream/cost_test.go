//go:build !race

package upstream

import "testing"

// Not with the race detector, with which pools lose on purpose what they are given.
func TestGETDoesNotAllocate(t *testing.T) {
	a := app(t, plain)
	k := newCall("GET", "/")
	if n := testing.AllocsPerRun(200, func() { once(t, k, a) }); n > 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
