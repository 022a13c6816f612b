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

// nobody is the client address in tests that do not distinguish clients.
var nobody netip.Addr

func TestBudgetIsGrantedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		if !b.tryTake(nobody, 4) || b.tryTake(nobody, 7) {
			t.Fatal("got both 4 and 7 of 10, want only 4")
		}
		var mu sync.Mutex
		var order []int
		for i, amount := range []int{7, 1, 99} { // 99 is reduced to the total amount
			go func() {
				if !b.take(t.Context(), nobody, amount) {
					t.Errorf("got no grant of %d", amount)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				b.release(nobody, amount)
			}()
			synctest.Wait()
		}
		if b.tryTake(nobody, 1) {
			t.Error("got a grant of 1 before waiting requests")
		}
		b.release(nobody, 4)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(order) != 3 || order[0] == 2 || order[1] == 2 {
			t.Errorf("got order %v, want the last request last", order)
		}
		harness.Equal(t, b.remaining, 10, "left")
	})
}

func TestCanceledBudgetRequestTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		b.tryTake(nobody, 5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := make(chan bool, 2)
		go func() { got <- b.take(ctx, nobody, 6) }()
		synctest.Wait()
		go func() { got <- b.take(t.Context(), nobody, 5) }() // this request must wait for the first one, although the remaining amount is sufficient
		if first, second := <-got, <-got; first || !second {
			t.Errorf("got %v for 6 and %v for 5, want false and true", first, second)
		}
		b.release(nobody, 5)
		b.release(nobody, 5)
		if b.remaining != 10 || len(b.waiting) > 0 {
			t.Errorf("got %d left and %d waiting, want 10 and 0", b.remaining, len(b.waiting))
		}
	})
}

func TestBudgetIsNeverExceeded(t *testing.T) {
	b := newBudget(100)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(200))*time.Microsecond)
				if n := random.IntN(120); b.take(ctx, nobody, n) {
					b.mu.Lock()
					remaining := b.remaining
					b.mu.Unlock()
					if remaining < 0 {
						t.Errorf("got %d left, want at least 0", remaining)
					}
					b.release(nobody, n)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if b.remaining != 100 || len(b.waiting) > 0 {
		t.Errorf("got %d left and %d waiting at the end, want 100 and 0", b.remaining, len(b.waiting))
	}
}

func TestBudgetPrefersClientWithSmallestShare(t *testing.T) {
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
					t.Error("got no grant")
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, client)
			}()
			synctest.Wait()
		}
		for range 3 {
			b.release(many, 1)
			synctest.Wait()
		}
		if len(order) != 3 || order[0] != few {
			t.Errorf("got order %v, want %v first", order, few)
		}
		b.release(few, 1)
		b.release(many, 1)
		if b.remaining != 2 || len(b.taken) > 0 {
			t.Errorf("got %d left and %v taken, want 2 and none", b.remaining, b.taken)
		}
	})
}
