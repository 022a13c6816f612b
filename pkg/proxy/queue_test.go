package proxy

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// waiter is a request that waits at a limit in a separate goroutine.
type waiter struct {
	*fake
	why chan observation.Reason // receives the result of acquire
}

// queueUp calls acquire in a goroutine. It must be called in a synctest bubble, and returns when the
// request holds a slot, waits in the queue or was rejected.
func queueUp(m *Limit, c *Clocks) *waiter {
	w := &waiter{newFake("/"), make(chan observation.Reason, 1)}
	w.state.begin(c, time.Now())
	go func() { w.why <- m.acquire(w, &w.state) }()
	synctest.Wait()
	return w
}

// result returns the result of acquire, or "still waiting".
func (w *waiter) result() string {
	synctest.Wait()
	select {
	case reason := <-w.why:
		return reason.String()
	default:
		return "still waiting"
	}
}

func (m *Limit) String() string {
	running, waiting := m.Load()
	return fmt.Sprintf("%d running, %d waiting", running, waiting)
}

func TestLimitGrantsSlotsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(2, 10)
		var ww []*waiter
		for range 8 {
			ww = append(ww, queueUp(m, &Clocks{}))
		}
		harness.Equal(t, ww[0].result(), "ok", "first")
		harness.Equal(t, ww[1].result(), "ok", "second")
		for i := 2; i < len(ww); i++ {
			harness.Equal(t, ww[i].result(), "still waiting", fmt.Sprint("before its turn ", i))
			m.release()
			harness.Equal(t, ww[i].result(), "ok", fmt.Sprint("in its turn ", i))
		}
		m.release()
		m.release()
		harness.Equal(t, m.String(), "0 running, 0 waiting", "at the end")
	})
}

func TestLimitNewRequestDoesNotOvertakeQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(1, 2)
		queueUp(m, &Clocks{})
		first := queueUp(m, &Clocks{})
		m.release() // the slot passes to first, which has not run yet
		second := &waiter{newFake("/"), make(chan observation.Reason, 1)}
		second.state.begin(&Clocks{}, time.Now())
		go func() { second.why <- m.acquire(second, &second.state) }()
		harness.Equal(t, first.result(), "ok", "first")
		harness.Equal(t, second.result(), "still waiting", "second")
		m.release()
		harness.Equal(t, second.result(), "ok", "second")
		m.release()
	})
}

func TestLimitCanceledRequestLeavesQueue(t *testing.T) {
	for i, place := range []string{"head", "middle", "tail"} {
		t.Run(place, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewLimit(1, 3)
				queueUp(m, &Clocks{})
				line := []*waiter{queueUp(m, &Clocks{}), queueUp(m, &Clocks{}), queueUp(m, &Clocks{})}
				harness.Equal(t, queueUp(m, &Clocks{}).result(), "queue-full", "request to a full queue")

				line[i].hangUp()
				harness.Equal(t, line[i].result(), "client-gone", "canceled request")
				harness.Equal(t, m.String(), "1 running, 2 waiting", "after the request has left the queue")
				line = append(slices.Delete(line, i, i+1), queueUp(m, &Clocks{}))
				for _, w := range line {
					harness.Equal(t, w.result(), "still waiting", "before its turn")
					m.release()
					harness.Equal(t, w.result(), "ok", "in its turn")
				}
				m.release()
				harness.Equal(t, m.String(), "0 running, 0 waiting", "at the end")
			})
		})
	}
}

func TestLimitSlotIsFreeAfterAllCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(1, 3)
		queueUp(m, &Clocks{})
		for range 3 {
			queueUp(m, &Clocks{}).hangUp()
		}
		synctest.Wait()
		m.release()
		harness.Equal(t, m.String(), "0 running, 0 waiting", "after all requests are canceled")
		harness.Equal(t, queueUp(m, &Clocks{}).result(), "ok", "new request")
	})
}

func TestLimitCanceledRequestPassesGrantedSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(1, 3)
		queueUp(m, &Clocks{})
		leaver, next := queueUp(m, &Clocks{}), queueUp(m, &Clocks{})
		leaver.hangUp() // at the same time as release, in any order
		m.release()     // TestLimitMatchesModelInAllInterleavings tries every order
		harness.Equal(t, leaver.result(), "client-gone", "canceled request")
		harness.Equal(t, next.result(), "ok", "next request")
		m.release()
		harness.Equal(t, m.String(), "0 running, 0 waiting", "at the end")
	})
}

func TestLimitWaitEndsOnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewLimit(1, 2)
		queueUp(m, &Clocks{})
		w := queueUp(m, &Clocks{Queue: 2 * time.Second, Request: 3 * time.Second})
		time.Sleep(2*time.Second - 1)
		harness.Equal(t, w.result(), "still waiting", "just before the timeout")
		time.Sleep(1 * time.Nanosecond)
		harness.Equal(t, w.result(), "queue-timeout", "after the timeout")
		harness.Equal(t, m.String(), "1 running, 0 waiting", "after the request has left the queue")
	})
}

func TestLimitWithoutQueueRejects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, depth := range []int{0, -1} {
			m := NewLimit(2, depth)
			harness.Equal(t, queueUp(m, &Clocks{}).result(), "ok", "first")
			harness.Equal(t, queueUp(m, &Clocks{}).result(), "ok", "second")
			harness.Equal(t, queueUp(m, &Clocks{}).result(), "queue-full", "third")
			m.release()
			harness.Equal(t, queueUp(m, &Clocks{}).result(), "ok", "fourth")
			harness.Equal(t, m.String(), "2 running, 0 waiting", "after the fourth")
		}
	})
}

func TestNilLimitAdmitsAll(t *testing.T) {
	for _, running := range []int{0, -1} {
		m := NewLimit(running, 10)
		if m != nil {
			t.Fatalf("NewLimit(%d): got %v, want nil", running, m)
		}
		for range 100 {
			f := newFake("/")
			harness.Equal(t, m.acquire(f, &f.state), observation.OK, "acquire")
		}
		harness.Equal(t, m.String(), "0 running, 0 waiting", "load")
	}
}

func TestLimitHoldsUnderConcurrentLoad(t *testing.T) {
	const (
		slots, depth = 3, 8
		clients      = 16
		rounds       = 300
	)
	m := NewLimit(slots, depth)
	var inside, most, served, full, left atomic.Int64
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(client)))
			var state *RequestState
			for range rounds {
				f := newFake("/")
				if state == nil || random.IntN(2) == 0 {
					state = &f.state // or the state of the previous request, as in an engine
				}
				state.begin(&Clocks{}, time.Now())
				gone := make(chan struct{})
				if random.IntN(3) == 0 {
					go func() { f.hangUp(); close(gone) }()
				} else {
					close(gone)
				}
				switch reason := m.acquire(f, state); reason {
				case observation.OK:
					n := inside.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
					}
					served.Add(1)
					runtime.Gosched()
					inside.Add(-1)
					m.release()
				case observation.QueueFull:
					full.Add(1)
				case observation.ClientGone:
					left.Add(1)
				default:
					t.Errorf("got %v, want ok, queue-full or client-gone", reason)
				}
				<-gone
			}
		})
	}
	all.Wait()
	if got := most.Load(); got > slots {
		t.Errorf("got %d concurrent requests, want at most %d", got, slots)
	}
	harness.Equal(t, served.Load()+full.Load()+left.Load(), clients*rounds, "ends")
	harness.Equal(t, m.String(), "0 running, 0 waiting", "at the end")
	if m.first != nil || m.last != nil {
		t.Error("got a queued request at the end, want none")
	}
	t.Logf("%d served, %d rejected, %d canceled, at most %d concurrent", served.Load(), full.Load(), left.Load(), most.Load())
}
