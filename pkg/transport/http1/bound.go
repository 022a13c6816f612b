package http1

import (
	"errors"
	"os"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// hit records that the client exceeded the given bound.
func (c *serverConn) hit(name bound.Name) { c.server.settings.Bounds.Hit(name, c.remote) }

// recordLateHead records a bound if err reports that the timeout of a header section has expired. It records nothing
// for a connection that is retiring or evicted. It is not inlined, so that the stack of an idle connection stays
// small.
//
//go:noinline
func (c *serverConn) recordLateHead(err error) {
	if !c.headStarted || !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	c.mu.Lock()
	closing := c.retiring || c.evicted
	c.mu.Unlock()
	switch {
	case closing:
	case c.first && c.w == 0 && !c.nc.Stalled():
		c.hit(bound.SilentConnection)
	default:
		c.hit(bound.HeaderTimeout)
	}
}

// endForward completes the result of Forward. It releases the memory that reserve charged. If the client exceeded a
// bound, endForward also records this bound.
func (x *exchange) endForward(result *transport.Result) {
	x.call.Release()
	rewrite.EndForward(result, x.c.costly.Load(), x.c.server.settings.Bounds, x.c.remote)
}
