package http2client

import "container/list"

// A waiter is a request that waits for a stream. Its fields are guarded by Client.mu, except
// that err can be read after failed is closed.
type waiter struct {
	dial    int           // number of the dial that was in progress when the request arrived; 0 if none was
	first   chan struct{} // closed when the request is the first in the queue
	failed  chan struct{} // closed when err is set
	err     error
	element *list.Element // nil if the request is not in the queue
}

// queue contains the requests that wait for a stream, in the order of their arrival. Only the first request tries
// to open a stream, so each event wakes only one request. No event is lost, because a request that leaves the queue
// wakes the next request, which tries to open a stream before it waits.
type queue struct{ waiters list.List }

func (q *queue) empty() bool { return q.waiters.Len() == 0 }

// push adds a request that arrived during the given dial.
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

// fail removes the requests for which match returns true, and ends their wait with err.
func (q *queue) fail(err error, match func(*waiter) bool) {
	var next *list.Element
	for e := q.waiters.Back(); e != nil; e = next { // backwards, so that no request that must fail becomes the first
		next = e.Prev()
		if w := e.Value.(*waiter); match(w) {
			w.err = err
			close(w.failed)
			q.remove(w)
		}
	}
}
