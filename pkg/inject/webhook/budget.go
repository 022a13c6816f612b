package webhook

import (
	"context"
	"sync"
)

// A budget is an amount, such as bytes of memory, that reviews share. Who wants more than is
// left waits, and gets it in the order of coming. It may be used concurrently.
type budget struct {
	mu      sync.Mutex
	left    int
	all     int
	waiting []*share // first come first
}

// A share is a part of a budget that somebody waits for.
type share struct {
	amount int
	given  chan struct{}
}

func newBudget(all int) *budget { return &budget{left: all, all: all} }

// take waits until there is so much, and reports whether it was given before ctx ended. More
// than all is all. What is taken is given back with the same amount.
func (b *budget) take(ctx context.Context, amount int) bool {
	if b.tryTake(amount) {
		return true
	}
	b.mu.Lock()
	s := &share{b.atMost(amount), make(chan struct{})}
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
	for i, other := range b.waiting {
		if other == s {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.give() // those behind may want less
			return false
		}
	}
	b.left += s.amount // it was given at the same time
	b.give()
	return false
}

// tryTake takes without waiting, if there is so much and nobody waits.
func (b *budget) tryTake(amount int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	amount = b.atMost(amount)
	if len(b.waiting) > 0 || amount > b.left {
		return false
	}
	b.left -= amount
	return true
}

// giveBack gives back what take or tryTake has given.
func (b *budget) giveBack(amount int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += b.atMost(amount)
	b.give()
}

func (b *budget) atMost(amount int) int { return min(amount, b.all) }

// give serves those who wait, as far as it goes. b.mu is held.
func (b *budget) give() {
	for len(b.waiting) > 0 && b.waiting[0].amount <= b.left {
		b.left -= b.waiting[0].amount
		close(b.waiting[0].given)
		b.waiting = b.waiting[1:]
	}
}
