package http1

import (
	"errors"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// hit records that a bound acted on the client.
func (c *conn) hit(name bound.Name) { c.server.settings.Bounds.Hit(name, c.remote) }

// recordLateHead records a timeout if reading a header section returned err. It does not record
// connections that the server closes because of a shutdown or a new connection.
func (c *conn) recordLateHead(err error) {
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

// recordRefusal records the bound of a header section that is rejected with the given status.
// err is the error returned by the parser.
func (c *conn) recordRefusal(status int, err error) {
	if status == http.StatusRequestHeaderFieldsTooLarge {
		c.hit(bound.HeaderSection)
	} else if name, ok := forward.ClientBound(err); ok {
		c.hit(name)
	}
}

// A blockage records which transfer the client blocked when the exchange was aborted, because
// several timeouts have the same reason. It is safe for concurrent use.
type blockage struct {
	reading atomic.Bool  // a read of the request body is in progress
	bound   atomic.Int32 // the exceeded bound plus 1; 0: none
}

// noteBlockage records the blocked transfer. It is called when the exchange is aborted.
func (x *exchange) noteBlockage() {
	clocks := &x.c.server.proxy.Clocks
	expires := func(clock time.Duration) bool { return clock > 0 && (clocks.Idle == 0 || clock < clocks.Idle) }
	switch {
	case x.c.offered.Load() && expires(clocks.Send):
		x.blockage.bound.Store(int32(bound.SendTimeout) + 1)
	case x.blockage.reading.Load() && x.state.Phase() < queue.Streaming && expires(clocks.Body):
		x.blockage.bound.Store(int32(bound.BodyTimeout) + 1)
	}
}

// recordResult records the bound that the client exceeded if the exchange ended with result.
func (x *exchange) recordResult(result *queue.Result) {
	blocked := x.blockage.bound.Swap(0)
	switch result.Reason {
	case queue.IdleTimeout:
		if blocked > 0 {
			x.c.hit(bound.Name(blocked - 1))
		}
	case queue.TooLarge:
		x.c.hit(bound.BodySize)
	case queue.BadRequest:
		if name, ok := forward.ClientBound(result.Err); ok {
			x.c.hit(name)
		}
	}
}
