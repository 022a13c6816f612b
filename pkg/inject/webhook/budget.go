package webhook

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// A budget is an amount, such as memory in bytes, that reviews share. A review that needs more than
// the remaining amount waits. The client with the smallest share is served first, and the requests
// of one client are served in order, so that a client with many reviews does not delay others. A
// budget is safe for concurrent use.
type budget struct {
	mu        sync.Mutex
	remaining int                // remaining amount
	all       int                // total amount
	taken     map[netip.Addr]int // amount in use, by client
	waiting   []*share           // in order of arrival; bounded by the number of connections
}

// A share is a pending request for an amount of a budget.
type share struct {
	client  netip.Addr
	amount  int
	granted chan struct{}
}

func newBudget(all int) *budget {
	return &budget{remaining: all, all: all, taken: make(map[netip.Addr]int)}
}

// take waits until amount is available, and reports whether it was reserved before ctx was done. An
// amount above the total is reduced to the total. The caller must release the amount with release.
func (b *budget) take(ctx context.Context, client netip.Addr, amount int) bool {
	if b.tryTake(client, amount) {
		return true
	}
	b.mu.Lock()
	s := &share{client, b.atMost(amount), make(chan struct{})}
	b.waiting = append(b.waiting, s)
	b.grant()
	b.mu.Unlock()
	select {
	case <-s.granted:
		return true
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, s); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	} else { // the amount was reserved concurrently, so release it
		b.reserve(client, -s.amount)
	}
	b.grant() // a later request may need a smaller amount
	return false
}

// tryTake reserves amount if it is available and no request waits. It does not block.
func (b *budget) tryTake(client netip.Addr, amount int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	amount = b.atMost(amount)
	if len(b.waiting) > 0 || amount > b.remaining {
		return false
	}
	b.reserve(client, amount)
	return true
}

// release releases an amount that take or tryTake reserved for the client.
func (b *budget) release(client netip.Addr, amount int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reserve(client, -b.atMost(amount))
	b.grant()
}

func (b *budget) atMost(amount int) int { return min(amount, b.all) }

// reserve subtracts amount from the remaining amount. b.mu must be held.
func (b *budget) reserve(client netip.Addr, amount int) {
	b.remaining -= amount
	if b.taken[client] += amount; b.taken[client] == 0 {
		delete(b.taken, client)
	}
}

// grant serves the waiting requests until the remaining amount is too small. b.mu must be held.
func (b *budget) grant() {
	for len(b.waiting) > 0 {
		s := slices.MinFunc(b.waiting, func(x, y *share) int { return b.taken[x.client] - b.taken[y.client] })
		if s.amount > b.remaining {
			return
		}
		b.reserve(s.client, s.amount)
		close(s.granted)
		i := slices.Index(b.waiting, s)
		b.waiting = slices.Delete(b.waiting, i, i+1)
	}
}
