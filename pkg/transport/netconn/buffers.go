package netconn

import (
	"slices"
	"sync"
)

// Buffers is a pool of buffers with fixed sizes. It is safe for concurrent use.
type Buffers struct {
	sizes []int
	pools []sync.Pool // elements of type *[]byte; parallel to sizes
}

// NewBuffers returns an empty pool for buffers of the given sizes in bytes. The sizes must be in
// ascending order.
func NewBuffers(sizes ...int) *Buffers {
	return &Buffers{sizes: sizes, pools: make([]sync.Pool, len(sizes))}
}

// Get returns a buffer of the smallest size that is at least n bytes. n must not exceed the largest
// size.
func (b *Buffers) Get(n int) *[]byte {
	i := 0
	for b.sizes[i] < n {
		i++
	}
	if p, ok := b.pools[i].Get().(*[]byte); ok {
		return p
	}
	p := make([]byte, b.sizes[i])
	return &p
}

// Put returns a buffer to the pool. It must have been returned by Get. A nil buffer is ignored.
func (b *Buffers) Put(p *[]byte) {
	if p != nil {
		b.pools[slices.Index(b.sizes, len(*p))].Put(p)
	}
}
