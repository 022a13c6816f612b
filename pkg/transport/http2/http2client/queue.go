package http2client

import "container/list"

// A waiter is a request that waits for a stream. Its fields are guarded by Client.mu. After failed is closed, err can
// be read without the lock.
type waiter struct {
	dial    int           // number of the dial that was in progress when the request arrived; 0 if there was none
	first   chan struct{} // closed when the request is the first in the queue
	failed  chan struct{} // closed when err is set
	err     error
	element *list.Element // nil if the request is not in the queue
}

// queue contains the requests that wait for a stream, in the order of their arrival. Only the first request tries to
// open a stream, so each value on Client.room wakes only one request. No value is lost, because a request that leaves
// the queue wakes the next request, and that request tries to open a stream before it waits for a value.
type queue struct{ waiters list.List }

func (q *queue) empty() bool { return q.waiters.Len() == 0 }

// push adds a request. dial is the value of waiter.dial.
func (q *queue) push(dial int) *waiter {
	w := &waiter{dial: dial, first: make(chan struct{}), failed: make(chan struct{})}
	w.element = q.waiters.PushBack(w)
	if q.waiters.Front() == w.element {
		close(w.first)
	}
	return w
}

// remove removes a request. It does nothing if the request is not in the queue.
func (q *queue) remove(w *waiter) {
	if w.element == nil {
		return
	}
	wasFirst := q.waiters.Front() == w.element
	q.waiters.Remove(w.element)
	w.element = nil
	if next := q.waiters.Front(); next != nil && wasFirst {
		close(next.Value.(*waiter).first)
	}
}

// fail removes the requests for which match returns true. Their calls to Open return err.
func (q *queue) fail(err error, match func(*waiter) bool) {
	var next *list.Element
	// Iterate from the back. Otherwise the removal of the first request could wake a request that must also fail.
	for e := q.waiters.Back(); e != nil; e = next {
		next = e.Prev()
		if w := e.Value.(*waiter); match(w) {
			w.err = err
			close(w.failed)
			q.remove(w)
		}
	}
}
