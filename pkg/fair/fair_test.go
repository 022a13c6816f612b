package fair_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// address returns the address of client n.
func address(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }

// A call is a call of Acquire. done is closed when it returns.
type call struct {
	slot   *fair.Slot
	err    error
	cancel context.CancelFunc
	done   chan struct{}
}

func acquire(t *testing.T, s *fair.Semaphore, client byte) *call {
	ctx, cancel := context.WithCancel(t.Context())
	c := &call{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.slot, c.err = s.Acquire(ctx, address(client))
	}()
	synctest.Wait()
	return c
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
		s := fair.New(1, 100)
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
		s := fair.New(1, 100)
		first, second, third := acquire(t, s, 1), acquire(t, s, 1), acquire(t, s, 1)
		second.cancel()
		harness.Equal(t, second.state(), context.Canceled.Error(), "canceled call")
		harness.Equal(t, s.Queued(), 1, "queued")
		first.slot.Release()
		harness.Equal(t, third.state(), "slot", "next call")
		third.slot.Release()
	})
}

func TestFullQueueRejectsClientWithMostWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(1, 3)
		first := acquire(t, s, 1)
		many := []*call{acquire(t, s, 1), acquire(t, s, 1), acquire(t, s, 1)}
		more := acquire(t, s, 1)
		harness.Equal(t, more.state(), fair.ErrQueueFull.Error(), "one more of the same client")
		other := acquire(t, s, 2)
		harness.Equal(t, other.state(), "queued", "other client")
		harness.Equal(t, many[2].state(), fair.ErrQueueFull.Error(), "newest of the client with the most")
		first.slot.Release()
		harness.Equal(t, many[0].state(), "slot", "oldest of the client with the most")
		many[0].slot.Release()
		harness.Equal(t, other.state(), "slot", "other client")
		other.slot.Release()
		harness.Equal(t, many[1].state(), "slot", "next of the client with the most")
		many[1].slot.Release()
	})
}

func TestExcessiveClientUsesMoreThanEqualPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.New(4, 10)
		var calls []*call
		for range 4 {
			calls = append(calls, acquire(t, s, 1))
		}
		harness.Equal(t, calls[0].slot.Excessive(), false, "excessive without other clients")
		other := acquire(t, s, 2)
		harness.Equal(t, calls[0].slot.Excessive(), true, "excessive if another client waits")
		calls[0].slot.Release()
		calls[1].slot.Release()
		harness.Equal(t, calls[2].slot.Excessive(), false, "excessive with half of the slots")
		for _, c := range append(calls[2:], other) {
			c.slot.Release()
		}
	})
}

func TestSemaphoreKeepsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, queue = 3, 5
		random := rand.New(rand.NewPCG(1, 2))
		s := fair.New(slots, queue)
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
			if calls = rest; used > slots || queued > queue || queued > 0 && used < slots || queued != s.Queued() {
				t.Fatalf("step %d: got %d used and %d queued of %d, want at most %d and %d, and no queue with free slots", step, used, queued, s.Queued(), slots, queue)
			}
		}
		for _, c := range calls {
			c.cancel()
		}
	})
}
