package portlimit

import (
	"sync"
	"time"
)

// A PerMinute counts what clients do as often as they like, so that a log has one line
// about it in a minute. The zero value has counted nothing. It is safe for concurrent use.
type PerMinute struct {
	mu    sync.Mutex
	count int
	next  time.Time // for a line
}

// Add counts one more. When it is time for a line, it returns how many there were
// since the last, else 0.
func (p *PerMinute) Add(now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	if now.Before(p.next) {
		return 0
	}
	n := p.count
	p.count, p.next = 0, now.Add(time.Minute)
	return n
}
