package netconn

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestGetReturnsSmallestSufficientBuffer(t *testing.T) {
	b := NewBuffers(10, 20, 40)
	for n, want := range map[int]int{0: 10, 1: 10, 10: 10, 11: 20, 20: 20, 21: 40, 40: 40} {
		p := b.Get(n)
		harness.Equal(t, len(*p), want, n, "bytes")
		b.Put(p)
	}
	b.Put(nil)
}
