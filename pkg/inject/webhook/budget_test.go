package webhook

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestABudgetIsSharedInTheOrderOfComing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		if !b.tryTake(4) || b.tryTake(7) {
			t.Fatal("got 4 and 7 of 10 at once, want 4 alone")
		}
		var mu sync.Mutex
		var order []int
		for i, amount := range []int{7, 1, 99} { // 99 is all
			go func() {
				if !b.take(t.Context(), amount) {
					t.Errorf("got no %d, want it", amount)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				b.giveBack(amount)
			}()
			synctest.Wait()
		}
		if b.tryTake(1) {
			t.Error("got 1 past those who wait, want none")
		}
		b.giveBack(4)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(order) != 3 || order[0] == 2 || order[1] == 2 {
			t.Errorf("got the order %v, want the last one last", order)
		}
		if b.left != 10 {
			t.Errorf("got %d left, want 10", b.left)
		}
	})
}

func TestWhoWaitsForABudgetInVainTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		b.tryTake(5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := make(chan bool, 2)
		go func() { got <- b.take(ctx, 6) }()
		synctest.Wait()
		go func() { got <- b.take(t.Context(), 5) }() // behind it, and there is enough
		if first, second := <-got, <-got; first || !second {
			t.Errorf("got %v and %v, want no 6, and then 5", first, second)
		}
		b.giveBack(5)
		b.giveBack(5)
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
				if n := random.IntN(120); b.take(ctx, n) {
					b.mu.Lock()
					left := b.left
					b.mu.Unlock()
					if left < 0 {
						t.Errorf("got %d left, want none below 0", left)
					}
					b.giveBack(n)
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
