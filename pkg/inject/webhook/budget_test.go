package webhook

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// nobody is a client like others.
var nobody netip.Addr

func TestABudgetIsSharedInTheOrderOfComing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		if !b.tryTake(nobody, 4) || b.tryTake(nobody, 7) {
			t.Fatal("got 4 and 7 of 10 at once, want 4 alone")
		}
		var mu sync.Mutex
		var order []int
		for i, amount := range []int{7, 1, 99} { // 99 is all
			go func() {
				if !b.take(t.Context(), nobody, amount) {
					t.Errorf("got no %d, want it", amount)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				b.giveBack(nobody, amount)
			}()
			synctest.Wait()
		}
		if b.tryTake(nobody, 1) {
			t.Error("got 1 past those who wait, want none")
		}
		b.giveBack(nobody, 4)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(order) != 3 || order[0] == 2 || order[1] == 2 {
			t.Errorf("got the order %v, want the last one last", order)
		}
		harness.Equal(t, b.left, 10, "left")
	})
}

func TestWhoWaitsForABudgetInVainTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		b.tryTake(nobody, 5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := make(chan bool, 2)
		go func() { got <- b.take(ctx, nobody, 6) }()
		synctest.Wait()
		go func() { got <- b.take(t.Context(), nobody, 5) }() // behind it, and there is enough
		if first, second := <-got, <-got; first || !second {
			t.Errorf("got %v and %v, want no 6, and then 5", first, second)
		}
		b.giveBack(nobody, 5)
		b.giveBack(nobody, 5)
		if b.left != 10 || len(b.waiting) > 0 {
			t.Errorf("got %d left and %d waiting, want 10 and none", b.left, len(b.waiting))
		}
	})
}

func TestABudgetIsNeverOverdrawn(t *testing.T) {
	b := newBudget(100)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(200))*time.Microsecond)
				if n := random.IntN(120); b.take(ctx, nobody, n) {
					b.mu.Lock()
					left := b.left
					b.mu.Unlock()
					if left < 0 {
						t.Errorf("got %d left, want none below 0", left)
					}
					b.giveBack(nobody, n)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if b.left != 100 || len(b.waiting) > 0 {
		t.Errorf("got %d left and %d waiting in the end, want 100 and none", b.left, len(b.waiting))
	}
}

func TestTheClientWithTheLeastOfABudgetIsServedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(2)
		many, few := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		b.tryTake(many, 1)
		b.tryTake(many, 1)
		var mu sync.Mutex
		var order []netip.Addr
		for _, client := range []netip.Addr{many, many, few} {
			go func() {
				if !b.take(t.Context(), client, 1) {
					t.Error("got nothing, want it")
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, client)
			}()
			synctest.Wait()
		}
		for range 3 {
			b.giveBack(many, 1)
			synctest.Wait()
		}
		if len(order) != 3 || order[0] != few {
			t.Errorf("got the order %v, want %v first", order, few)
		}
		b.giveBack(few, 1)
		b.giveBack(many, 1)
		if b.left != 2 || len(b.taken) > 0 {
			t.Errorf("got %d left and %v taken, want 2 and nothing", b.left, b.taken)
		}
	})
}
