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

// recordLateHead records a timeout if reading a header section returned err. It does not record a connection that
// the server closes because of a shutdown or to serve another connection. It is not inlined, so that the stack of
// an idle connection stays small.
//
//go:noinline
func (c *serverConn) recordLateHead(err error) {
	if !c.owing || !errors.Is(err, os.ErrDeadlineExceeded) {
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

// endForward is called when Forward returns result. It releases the memory that reserve added and records the bound
// that the client exceeded, if any.
func (x *exchange) endForward(result *transport.Result) {
	x.call.Release()
	rewrite.EndForward(result, x.c.costly.Load(), x.c.server.settings.Bounds, x.c.remote)
}
