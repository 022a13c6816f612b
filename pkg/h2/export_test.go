package h2

// ErrEnding is what Open returns for a connection that ends.
var ErrEnding = errEnding

// Taken returns how often the output has been taken to be written.
func (c *Conn) Taken() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken
}

// Over reports whether all streams have ended, so that the connection closes after its output is written.
func (c *Conn) Over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over != nil
}
