package link

import (
	"net"
	"sync"
	"time"
)

// LastLook is how long a connection that is to be closed is still listened to, and a
// listener that stops is still accepted from.
const LastLook = 20 * time.Millisecond

// Listeners are those that a server accepts from. All of them stop at once. They are safe
// for concurrent use.
type Listeners struct {
	Stopping chan struct{} // closed by Stop; to be received from

	mu      sync.Mutex
	all     []net.Listener
	serving sync.WaitGroup // Add, until Done
}

// NewListeners returns none yet.
func NewListeners() *Listeners { return &Listeners{Stopping: make(chan struct{})} }

// Add notes a listener that is accepted from until Done; false: all have stopped, and this
// one is closed.
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

// Done notes that one is not accepted from any more.
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

// Stop lets each listener accept what the kernel has accepted already, and then nothing
// more: its Accept fails. It may be called once.
func (s *Listeners) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.Stopping)
	for _, ln := range s.all {
		if d, ok := ln.(interface{ SetDeadline(time.Time) error }); ok {
			_ = d.SetDeadline(time.Now().Add(LastLook)) // Accept says why not
		} else {
			ln.Close()
		}
	}
}

// Wait returns when none is accepted from.
func (s *Listeners) Wait() { s.serving.Wait() }
