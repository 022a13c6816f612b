package webhook

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// A budget is an amount, such as bytes of memory, that reviews share. Who wants more than is
// left waits. The client that has least of it is served first, and of one client who came
// first, so that one that sends many reviews keeps no other waiting behind them. It may be
// used concurrently.
type budget struct {
	mu      sync.Mutex
	left    int
	all     int
	taken   map[netip.Addr]int // of what is not left, by client
	waiting []*share           // in the order of coming; no more than there are connections
}

// A share is a part of a budget that somebody waits for.
type share struct {
	client netip.Addr
	amount int
	given  chan struct{}
}

func newBudget(all int) *budget {
	return &budget{left: all, all: all, taken: make(map[netip.Addr]int)}
}

// take waits until there is so much, and reports whether it was given before ctx ended. More
// than all is all. What is taken is given back with the same client and amount.
func (b *budget) take(ctx context.Context, client netip.Addr, amount int) bool {
	if b.tryTake(client, amount) {
		return true
	}
	b.mu.Lock()
	s := &share{client, b.atMost(amount), make(chan struct{})}
	b.waiting = append(b.waiting, s)
	b.give()
	b.mu.Unlock()
	select {
	case <-s.given:
		return true
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, s); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	} else { // it was given at the same time
		b.pay(client, -s.amount)
	}
	b.give() // those behind may want less
	return false
}

// tryTake takes without waiting, if there is so much and nobody waits.
func (b *budget) tryTake(client netip.Addr, amount int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	amount = b.atMost(amount)
	if len(b.waiting) > 0 || amount > b.left {
		return false
	}
	b.pay(client, amount)
	return true
}

// giveBack gives back what take or tryTake has given.
func (b *budget) giveBack(client netip.Addr, amount int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pay(client, -b.atMost(amount))
	b.give()
}

func (b *budget) atMost(amount int) int { return min(amount, b.all) }

// pay takes amount of what is left. b.mu is held.
func (b *budget) pay(client netip.Addr, amount int) {
	b.left -= amount
	if b.taken[client] += amount; b.taken[client] == 0 {
		delete(b.taken, client)
	}
}

// give serves those who wait, as far as it goes. b.mu is held.
func (b *budget) give() {
	for len(b.waiting) > 0 {
		s := slices.MinFunc(b.waiting, func(x, y *share) int { return b.taken[x.client] - b.taken[y.client] })
		if s.amount > b.left {
			return
		}
		b.pay(s.client, s.amount)
		close(s.given)
		i := slices.Index(b.waiting, s)
		b.waiting = slices.Delete(b.waiting, i, i+1)
	}
}
