package http1client

import (
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// recordBound records a bound if err, which is an error of reading a response, reports that the user container exceeded
// the bound.
func (a *App) recordBound(c *clientConn, err error) {
	if name, ok := rewrite.AppBound(err); ok {
		a.settings.Bounds.Hit(name, c.RemoteAddr().String())
	}
}
