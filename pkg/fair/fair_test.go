package fair_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// address returns the address of client n.
func address(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }

// A call represents a call to Acquire on its own goroutine. done is closed after Acquire returns.
type call struct {
	slot   *fair.Slot
	err    error
	cancel context.CancelFunc
	done   chan struct{}
	taken  atomic.Bool // the slot was revoked
	busy   atomic.Bool // the slot cannot be revoked
}

func acquire(t *testing.T, s *fair.Semaphore, client byte) *call {
	return acquireMany(t, s, client, 1)
}

// acquireMany is like acquire, but the request has the given weight.
func acquireMany(t *testing.T, s *fair.Semaphore, client byte, weight int) *call {
	ctx, cancel := context.WithCancel(t.Context())
	c := &call{cancel: cancel, done: make(chan struct{})}
	r := fair.Request{Client: address(client), Weight: weight, End: func() bool {
		c.taken.Store(!c.busy.Load())
		return c.taken.Load()
	}}
	go func() {
		defer close(c.done)
		c.slot, c.err = s.Acquire(ctx, r)
	}()
	synctest.Wait()
	return c
}

// idle acquires n slots for a client and marks them as idle.
func idle(t *testing.T, s *fair.Semaphore, client byte, n int) (calls []*call) {
	t.Helper()
	for range n {
		c := acquire(t, s, client)
		harness.Equal(t, c.state(), "slot", "call of client", client)
		c.slot.Idle()
		calls = append(calls, c)
	}
	return calls
}

// taken returns the indexes of the calls whose slots were revoked.
func taken(calls []*call) (all []int) {
	for i, c := range calls {
		if c.taken.Load() {
			all = append(all, i)
		}
	}
	return all
}

// state returns "slot", "queued" or the error.
func (c *call) state() string {
	synctest.Wait()
	select {
	case <-c.done:
	default:
		return "queued"
	}
	if c.err != nil {
		return c.err.Error()
	}
	return "slot"
}

func TestClientsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(fair.Options{Slots: 1, Queue: 100})
		running := acquire(t, s, 1)
		var calls []*call
		for _, client := range []byte{1, 1, 1, 2, 2, 3} {
			calls = append(calls, acquire(t, s, client))
		}
		var order []int
		for range calls {
			running.slot.Release()
			for i, c := range calls {
				if c != running && c.state() == "slot" && c.slot != nil {
					order, running = append(order, i), &call{slot: c.slot}
					c.slot = nil
				}
			}
		}
		harness.Equal(t, fmt.Sprint(order), "[0 3 5 1 4 2]", "order of the calls")
	})
}

func TestCanceledWaiterLeavesQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(fair.Options{Slots: 1, Queue: 100})
		first, second, third := acquire(t, s, 1), acquire(t, s, 1), acquire(t, s, 1)
		second.cancel()
		harness.Equal(t, second.state(), context.Canceled.Error(), "canceled call")
		_, queued := s.Load()
		harness.Equal(t, queued, 1, "queued")
		first.slot.Release()
		harness.Equal(t, third.state(), "slot", "next call")
		third.slot.Release()
	})
}

func TestCanceledWaiterAdmitsLighterWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(fair.Options{Slots: 10, Queue: 10})
		acquireMany(t, s, 1, 6)
		heavy, light := acquireMany(t, s, 2, 5), acquireMany(t, s, 3, 4)
		harness.Equal(t, light.state(), "queued", "light call after a heavy call")
		heavy.cancel()
		harness.Equal(t, light.state(), "slot", "light call after the heavy call was canceled")
	})
}

func TestFullQueueRejectsClientWithMostWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(fair.Options{Slots: 1, Queue: 3})
		first := acquire(t, s, 1)
		many := []*call{acquire(t, s, 1), acquire(t, s, 1), acquire(t, s, 1)}
		more := acquire(t, s, 1)
		harness.Equal(t, more.state(), fair.ErrQueueFull.Error(), "additional request of the same client")
		other := acquire(t, s, 2)
		harness.Equal(t, other.state(), "queued", "other client")
		harness.Equal(t, many[2].state(), fair.ErrQueueFull.Error(), "newest request of the client with the most requests")
		first.slot.Release()
		harness.Equal(t, many[0].state(), "slot", "oldest request of the client with the most requests")
		many[0].slot.Release()
		harness.Equal(t, other.state(), "slot", "other client")
		other.slot.Release()
		harness.Equal(t, many[1].state(), "slot", "next request of the client with the most requests")
		many[1].slot.Release()
	})
}

func TestClientWithMostSlotsLosesOne(t *testing.T) {
	for name, row := range map[string]struct {
		newest bool
		want   []int
	}{"oldest": {false, []int{0, 1}}, "newest": {true, []int{3, 2}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := fair.New(fair.Options{Slots: 5, Queue: 10, MinPatience: time.Second, MaxPatience: time.Hour, Newest: row.newest})
				var many []*call
				for range 4 {
					many = append(many, idle(t, s, 1, 1)...)
					time.Sleep(time.Millisecond)
				}
				one := idle(t, s, 2, 1)
				for i := range 2 {
					next := acquire(t, s, 3)
					harness.Equal(t, next.state() == "queued", i == 0, "other client is queued")
					time.Sleep(time.Second)
					harness.Equal(t, next.state(), "slot", "other client")
					harness.Equal(t, many[row.want[i]].taken.Load(), true, "slot", row.want[i], "revoked")
				}
				next := acquire(t, s, 3)
				time.Sleep(time.Minute)
				harness.Equal(t, next.state(), "queued", "client with as many slots as the others")
				harness.Equal(t, len(taken(many))+len(taken(one)), 2, "number of revoked slots")
				next.cancel()
			})
		})
	}
}

// All calls are from one client. Therefore the required idle time is halved when a slot is revoked, and doubled
// when a holder completes work.
func TestPatienceDependsOnCompletedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(fair.Options{Slots: 1, Queue: 10, MinPatience: time.Second, MaxPatience: 8 * time.Second})
		holder := idle(t, s, 1, 1)[0]
		for i, want := range []time.Duration{8 * time.Second, 4 * time.Second, 2 * time.Second, time.Second, time.Second, 2 * time.Second} {
			if i == 4 {
				holder.slot.Answered()
			}
			next := acquire(t, s, 1)
			time.Sleep(want - time.Nanosecond)
			harness.Equal(t, next.state(), "queued", "call", i, "before the required idle time")
			time.Sleep(time.Nanosecond)
			harness.Equal(t, next.state(), "slot", "call", i)
			holder = next
			holder.slot.Idle()
		}
	})
}

// Three of five holders have not completed work. Their slots are revoked first because these holders are the majority.
func TestHoldersWithCompletedWorkKeepSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(fair.Options{Slots: 5, Queue: 10})
		calls := idle(t, s, 1, 5)
		for _, c := range calls[:2] {
			c.slot.Answered()
		}
		idle(t, s, 2, 1)
		harness.Equal(t, len(taken(calls[:2])), 0, "revoked slots of holders with completed work")
		harness.Equal(t, len(taken(calls[2:])), 1, "revoked slots of other holders")
	})
}

func TestActiveHolderKeepsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(fair.Options{Slots: 2, Queue: 10, MinPatience: time.Second, MaxPatience: time.Second})
		calls := idle(t, s, 1, 2)
		calls[0].busy.Store(true)
		calls[1].slot.Active()
		next := acquire(t, s, 2)
		time.Sleep(time.Minute)
		harness.Equal(t, next.state(), "queued", "other client")
		calls[0].busy.Store(false)
		time.Sleep(time.Second)
		harness.Equal(t, next.state(), "slot", "other client after the holder is idle")
		harness.Equal(t, fmt.Sprint(taken(calls)), "[0]", "revoked slots")
		calls[0].slot.Release() // has no effect
		holders, _ := s.Load()
		harness.Equal(t, holders, 2, "holders")
	})
}

func TestClientLimitRejectsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(fair.Options{Slots: 10, PerClient: 2, MinPatience: time.Second, MaxPatience: time.Second})
		calls := []*call{acquire(t, s, 1), acquire(t, s, 1)}
		harness.Equal(t, acquire(t, s, 1).state(), fair.ErrClientLimit.Error(), "third call of the client")
		harness.Equal(t, acquire(t, s, 2).state(), "slot", "other client")
		calls[1].slot.Idle()
		time.Sleep(time.Second)
		harness.Equal(t, acquire(t, s, 1).state(), "slot", "third call after a slot of the client is idle")
		harness.Equal(t, fmt.Sprint(taken(calls)), "[1]", "revoked slots")
	})
}

func TestWeightedCallsWaitForFreeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(fair.Options{Slots: 10, Queue: 10})
		large := acquireMany(t, s, 1, 20)
		harness.Equal(t, large.state(), "slot", "call with a weight above the number of slots")
		first, second := acquireMany(t, s, 2, 6), acquireMany(t, s, 3, 5)
		harness.Equal(t, first.state(), "queued", "call without free slots")
		large.slot.Release()
		harness.Equal(t, first.state()+" "+second.state(), "slot queued", "calls after 10 slots are free")
		first.slot.Resize(5)
		harness.Equal(t, second.state(), "slot", "call after 5 slots are free")
	})
}

func TestSemaphoreKeepsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, queue = 3, 5
		random := rand.New(rand.NewPCG(1, 2))
		s := fair.New(fair.Options{Slots: slots, Queue: queue})
		var calls []*call
		for step := range 5000 {
			if random.IntN(2) == 0 || len(calls) == 0 {
				calls = append(calls, acquire(t, s, byte(random.IntN(4))))
			} else if c := calls[random.IntN(len(calls))]; c.state() == "slot" {
				c.slot.Release()
				c.err = errors.New("released")
			} else {
				c.cancel()
			}
			used, queued := 0, 0
			var rest []*call
			for _, c := range calls {
				switch c.state() {
				case "slot":
					used++
				case "queued":
					queued++
				default:
					continue
				}
				rest = append(rest, c)
			}
			_, waiting := s.Load()
			if calls = rest; used > slots || queued > queue || queued > 0 && used < slots || queued != waiting {
				t.Fatalf("step %d: got %d requests with a slot, %d queued requests and %d in Load, want at most %d and %d, and an empty queue if a slot is free", step, used, queued, waiting, slots, queue)
			}
		}
		for _, c := range calls {
			c.cancel()
		}
	})
}
