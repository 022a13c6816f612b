package netconn

import (
	"net"
	"sync"
	"time"
)

// ShutdownDelay is the time after the start of a shutdown during which idle connections wait for input and listeners
// accept connections.
const ShutdownDelay = 20 * time.Millisecond

// Listeners is the set of listeners of a server, which are stopped at the same time. It is safe for
// concurrent use.
type Listeners struct {
	Stopping chan struct{} // closed by Stop; callers may only receive from it

	mu      sync.Mutex
	all     []net.Listener
	serving sync.WaitGroup // counts the listeners for which Done was not called
}

// NewListeners returns an empty set.
func NewListeners() *Listeners { return &Listeners{Stopping: make(chan struct{})} }

// Add adds a listener. The caller must call Done when it no longer accepts connections from the listener. If Stop
// was already called, Add closes the listener and returns false.
func (s *Listeners) Add(ln net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Stopped() {
		ln.Close()
		return false
	}
	s.all = append(s.all, ln)
	s.serving.Add(1)
	return true
}

// Done must be called once for each successful Add, when the caller no longer accepts connections from the
// listener.
func (s *Listeners) Done() { s.serving.Done() }

// Stopped reports whether Stop was called.
func (s *Listeners) Stopped() bool {
	select {
	case <-s.Stopping:
		return true
	default:
		return false
	}
}

// Stop stops all listeners. Until ShutdownDelay has elapsed, Accept still returns connections. After that, Accept returns an
// error. Stop must be called at most once.
func (s *Listeners) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.Stopping)
	for _, ln := range s.all {
		if d, ok := ln.(interface{ SetDeadline(time.Time) error }); ok {
			_ = d.SetDeadline(time.Now().Add(ShutdownDelay)) // on failure, Accept returns the error
		} else {
			ln.Close()
		}
	}
}

// Wait waits until Done was called for each listener.
func (s *Listeners) Wait() { s.serving.Wait() }
