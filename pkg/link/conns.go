package link

import (
	"context"
	"sync"
)

// Conns are the connections of a server, which are served until it is shut down. They are
// safe for concurrent use.
type Conns[C comparable] struct {
	retire, abandon func(C)

	mu      sync.Mutex
	all     map[C]struct{}
	ending  bool // Shutdown was called,
	over    bool // and its time is over
	serving sync.WaitGroup
}

// NewConns returns none yet. retire makes a connection end once it is idle and nothing is on
// its way, abandon ends it whatever is going on. Neither may block.
func NewConns[C comparable](retire, abandon func(C)) *Conns[C] {
	return &Conns[C]{retire: retire, abandon: abandon, all: make(map[C]struct{})}
}

// Serve serves a connection in a goroutine of its own. Shutdown finds it, or it is retired
// here.
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

// Each calls do, which must not block, for each of them.
func (s *Conns[C]) Each(do func(C)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		do(c)
	}
}

// Wait returns when all have been served.
func (s *Conns[C]) Wait() { s.serving.Wait() }

// Shutdown retires all, and returns when wait has. When the context ends before, it abandons
// those that are left. It may be called once.
func (s *Conns[C]) Shutdown(ctx context.Context, wait func()) error {
	s.end(&s.ending, s.retire)
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
	s.end(&s.over, s.abandon)
	<-done
	return ctx.Err()
}

// end notes that all end from now on, and ends those that are there.
func (s *Conns[C]) end(noted *bool, end func(C)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*noted = true
	for c := range s.all {
		end(c)
	}
}
