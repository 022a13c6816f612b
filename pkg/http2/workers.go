package http2

import (
	"sync"
	"time"
)

// keptTime is for how long goroutines without a request are kept: to begin one costs a
// sixth of a small request, and what it holds is about 10 KB.
const keptTime = 250 * time.Millisecond

// workers are the goroutines that serve requests. Those that have nothing to do are kept
// for a while, the one that was busy last is used first.
type workers struct {
	server *Server

	mu      sync.Mutex
	idle    []*worker
	sweep   *time.Timer // ends those that are idle
	swept   int         // the fewest that were idle since the last sweep
	closed  bool        // none is kept any more
	running sync.WaitGroup
}

// A worker serves one request after the other, with the same memory.
type worker struct {
	work     chan bool // true: serve the request; false: end
	exchange exchange
}

// get returns a worker whose exchange can be set up for a request. It must be started.
func (w *workers) get() *worker {
	if k := w.takeIdle(); k != nil {
		return k
	}
	k := &worker{work: make(chan bool, 1)} // without the lock: who allocates may have to help the garbage collector
	k.exchange.init(w.server)
	w.running.Add(1)
	go w.run(k)
	return k
}

// takeIdle returns the worker that was busy last; nil: none is idle.
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

// start has the request of the worker served.
func (k *worker) start() { k.work <- true }

// put takes a worker back that was not started, or has served its request.
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

// run serves requests until the worker is not kept.
func (w *workers) run(k *worker) {
	defer w.running.Done()
	for <-k.work {
		k.exchange.serve()
		if !w.put(k) {
			break
		}
	}
	k.exchange.alarm.Stop()
}

// endIdle ends the workers that were not needed since the last sweep.
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
		w.swept = -1 // the next one that becomes idle starts the sweep again
	}
}

// wait ends the workers, and returns when none has a request.
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
