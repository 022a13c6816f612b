package http2

import (
	"sync"
	"time"
)

// keptTime is the time for which idle workers are kept. Idle workers are reused because starting a
// goroutine takes a sixth of the time of a small request. The time is short because each idle
// worker uses about 10 KB of memory.
const keptTime = 250 * time.Millisecond

// workers is a pool of goroutines that serve requests. An idle worker ends after keptTime to 2*keptTime. The most
// recently used worker is used first, so that the other workers can end.
type workers struct {
	server *Server

	mu      sync.Mutex
	idle    []*worker
	sweep   *time.Timer // calls endIdle
	swept   int         // minimum number of idle workers since the last call to endIdle; -1 if sweep is stopped
	closed  bool        // put accepts no more workers
	running sync.WaitGroup
}

// A worker serves one request at a time and reuses its memory.
type worker struct {
	work     chan bool // true serves the request, false ends the worker
	exchange exchange
}

// get returns an idle worker, or a new worker if there is none. The caller must pass a request to the worker with start,
// or return the worker with put.
func (w *workers) get() *worker {
	if k := w.takeIdle(); k != nil {
		return k
	}
	// Do not hold w.mu during the allocation, because the goroutine may have to assist the garbage collector.
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

// start causes the worker to serve the request in k.exchange.
func (k *worker) start() { k.work <- true }

// put returns a worker to the pool. The worker has served its request or was not started. If the pool is closed, kept
// is false and the worker must end.
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

// run serves the requests of a worker until the pool ends the worker.
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

// endIdle ends w.swept workers, which is the number of workers that were idle continuously since the last call to
// endIdle.
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
		w.swept = -1 // put resets the timer when a worker becomes idle
	}
}

// wait closes the pool and waits until all workers finish their requests and end.
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
