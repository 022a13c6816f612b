package http2

import (
	"sync"
	"time"
)

// keptTime is how long idle workers are kept. Starting a goroutine takes a sixth of the time needed for a small
// request. An idle worker uses about 10 KB of memory.
const keptTime = 250 * time.Millisecond

// workers is a pool of goroutines that serve requests. Idle workers are kept for keptTime. The most recently
// used worker is used first.
type workers struct {
	server *Server

	mu      sync.Mutex
	idle    []*worker
	sweep   *time.Timer // calls endIdle
	swept   int         // minimum number of idle workers since the last call to endIdle; -1 if the timer is stopped
	closed  bool        // workers are no longer kept
	running sync.WaitGroup
}

// A worker serves one request at a time and reuses its memory.
type worker struct {
	work     chan bool // true serves the request, false ends the worker
	exchange exchange
}

// get returns a worker whose exchange can be prepared for a request. The caller must pass the worker to start or
// put.
func (w *workers) get() *worker {
	if k := w.takeIdle(); k != nil {
		return k
	}
	// Allocate without holding w.mu, because the allocation may assist the garbage collector.
	k := &worker{work: make(chan bool, 1)}
	k.exchange.init(w.server)
	w.running.Add(1)
	go w.run(k)
	return k
}

// takeIdle returns the most recently used idle worker, or nil if there is none.
func (w *workers) takeIdle() *worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.idle)
	if n == 0 {
		return nil
	}
	k := w.idle[n-1]
	w.idle[n-1] = nil
	w.idle = w.idle[:n-1]
	w.swept = min(w.swept, n-1)
	return k
}

// start makes the worker serve its request.
func (k *worker) start() { k.work <- true }

// put returns a worker that was not started or has served its request to the pool. kept is false if the worker must
// end.
func (w *workers) put(k *worker) (kept bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.idle = append(w.idle, k)
	switch {
	case w.sweep == nil:
		w.swept = len(w.idle)
		w.sweep = time.AfterFunc(keptTime, w.endIdle)
	case len(w.idle) == 1 && w.swept < 0:
		w.swept = 1
		w.sweep.Reset(keptTime)
	}
	return true
}

// run serves requests until the worker ends.
func (w *workers) run(k *worker) {
	defer w.running.Done()
	for <-k.work {
		k.exchange.serve()
		if !w.put(k) {
			break
		}
	}
	k.exchange.canceler.Stop()
}

// endIdle ends as many workers as were always idle since the last call to endIdle.
func (w *workers) endIdle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(w.swept, len(w.idle))
	for _, k := range w.idle[:n] {
		k.work <- false
	}
	w.idle = append(w.idle[:0], w.idle[n:]...)
	clear(w.idle[len(w.idle):cap(w.idle)])
	if w.swept = len(w.idle); w.swept > 0 {
		w.sweep.Reset(keptTime)
	} else {
		w.swept = -1 // the next worker that becomes idle schedules a sweep
	}
}

// wait ends all workers and waits until they have served their requests.
func (w *workers) wait() {
	w.mu.Lock()
	w.closed = true
	for _, k := range w.idle {
		k.work <- false
	}
	w.idle = nil
	w.mu.Unlock()
	w.running.Wait()
}
