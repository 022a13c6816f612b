package netconn

import (
	"sync/atomic"
	"time"
)

// A wait measures the total time that a connection spends waiting for messages from the client.
// begin and end must only be called by the goroutine that reads from the connection.
type wait struct {
	since    atomic.Int64 // start of the current wait, in nanoseconds since 1970; 0 if the connection is not waiting
	earlier  atomic.Int64 // total time of earlier waits for the same message, in nanoseconds
	previous atomic.Int64 // total time spent waiting for previous messages, in nanoseconds
}

// begin starts the measurement. next reports whether the connection waits for a new message and not for the rest of
// the previous one.
func (w *wait) begin(next bool) {
	if next {
		w.previous.Add(w.earlier.Swap(0))
	}
	w.since.Store(time.Now().UnixNano())
}

// end stops the measurement. It does nothing if the connection is not waiting.
func (w *wait) end() {
	if w.since.Load() != 0 {
		w.earlier.Add(time.Now().UnixNano() - w.since.Swap(0))
	}
}

// time returns the total time spent waiting for the current message, or 0 if the connection is not waiting. If the
// client sends only a part of the message, the time is not reset.
func (w *wait) time(now time.Time) time.Duration {
	since := w.since.Load()
	if since == 0 {
		return 0
	}
	return time.Duration(w.earlier.Load() + now.UnixNano() - since)
}

// total returns the time spent waiting for all messages, or 0 if the connection is not waiting.
func (w *wait) total(now time.Time) time.Duration {
	if n := w.time(now); n > 0 {
		return n + time.Duration(w.previous.Load())
	}
	return 0
}
