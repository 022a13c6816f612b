package netconn

import (
	"context"
	"sync"
)

// Conns is the set of open connections of a server. It is safe for concurrent use.
type Conns[C comparable] struct {
	retire, abandon func(C)

	mu      sync.Mutex
	all     map[C]struct{}
	ending  bool // Shutdown was called
	over    bool // the context of Shutdown was canceled
	serving sync.WaitGroup
}

// NewConns returns an empty set. retire must cause a connection to be closed when it is idle and no
// input arrives. abandon must close a connection immediately. Neither function may block.
func NewConns[C comparable](retire, abandon func(C)) *Conns[C] {
	return &Conns[C]{retire: retire, abandon: abandon, all: make(map[C]struct{})}
}

// Serve adds a connection and calls serve in a new goroutine. If Shutdown was called before, Serve
// also calls retire, and abandon if the context of Shutdown was canceled.
func (s *Conns[C]) Serve(c C, serve func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[c] = struct{}{}
	if s.ending {
		s.retire(c)
	}
	if s.over {
		s.abandon(c)
	}
	s.serving.Go(func() {
		serve()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, c)
	})
}

// Each calls do for each connection. do must not block.
func (s *Conns[C]) Each(do func(C)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		do(c)
	}
}

// Wait returns when all calls to serve have returned.
func (s *Conns[C]) Wait() { s.serving.Wait() }

// Shutdown calls retire for all connections and waits until the function wait returns. If ctx is canceled first, it
// calls abandon for the remaining connections and returns the error of ctx. It must be called at most once.
func (s *Conns[C]) Shutdown(ctx context.Context, wait func()) error {
	s.endAll(&s.ending, s.retire)
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.endAll(&s.over, s.abandon)
	<-done
	return ctx.Err()
}

// endAll sets *flag and calls end for each open connection. Serve checks *flag for new connections.
func (s *Conns[C]) endAll(flag *bool, end func(C)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*flag = true
	for c := range s.all {
		end(c)
	}
}
