package http2client

import "slices"

const LastIdleTimeouts = lastIdleTimeouts

// Queued returns the number of requests that wait for a stream.
func (c *Client) Queued() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.waiters.Len()
}

// ExpireIdle simulates the expiry of the idle timers of all connections, and returns the number of remaining connections.
func (c *Client) ExpireIdle() int {
	c.mu.Lock()
	conns := slices.Clone(c.conns)
	for _, n := range conns {
		n.opened -= idleTimeout
	}
	c.mu.Unlock()
	for _, n := range conns {
		n.endIfIdle()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}
