package socket

import (
	"slices"
	"sync"
)

// Buffers keeps buffers that are not in use. It is safe for concurrent use.
type Buffers struct {
	sizes []int
	pools []sync.Pool // of *[]byte, by sizes
}

// NewBuffers returns one for buffers of these sizes in bytes, the smallest first.
func NewBuffers(sizes ...int) *Buffers {
	return &Buffers{sizes: sizes, pools: make([]sync.Pool, len(sizes))}
}

// Get returns a buffer of the smallest size that has n bytes; the largest size has them.
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

// Put takes a buffer of Get back; nil is none.
func (b *Buffers) Put(p *[]byte) {
	if p != nil {
		b.pools[slices.Index(b.sizes, len(*p))].Put(p)
	}
}
