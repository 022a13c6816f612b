package http2conn

// ErrEnding is the error of Open if the connection is ending.
var ErrEnding = errEnding

// Taken returns the number of times that the writer took the output.
func (c *Conn) Taken() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.takes
}

// Over reports whether all streams have ended and the connection closes after its output is written.
func (c *Conn) Over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endErr != nil
}
