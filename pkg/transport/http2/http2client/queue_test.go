package http2client

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// The model of the queue is a slice. The channel first is closed only for the first request of the queue.
func TestQueueMatchesModel(t *testing.T) {
	errDial := errors.New("dial")
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var q queue
		var model, removed []*waiter
		for range 100 {
			switch n := len(model); {
			case n == 0 || r.IntN(5) < 2:
				model = append(model, q.push(r.IntN(3)))
			case r.IntN(4) == 0:
				failed := r.IntN(3)
				q.fail(errDial, func(w *waiter) bool { return w.dial == failed })
				for _, w := range model {
					harness.Equal(t, w.err != nil, w.dial == failed, "failed")
					harness.Equal(t, isClosed(w.failed), w.dial == failed, "failed closed")
				}
				model = slices.DeleteFunc(model, func(w *waiter) bool { return w.dial == failed })
			default:
				i := r.IntN(n)
				q.remove(model[i])
				removed = append(removed, model[i])
				model = slices.Delete(model, i, i+1)
			}
			if len(removed) > 0 {
				q.remove(removed[r.IntN(len(removed))]) // has no effect
			}
			harness.Equal(t, q.waiters.Len(), len(model), "queued requests")
			for i, w := range model {
				harness.Equal(t, isClosed(w.first), i == 0, "first closed, request", i)
			}
		}
	}
}
