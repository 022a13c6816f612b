package http1client

import (
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// recordBound records the bound that the user container exceeded, if err reports one. err is an error from reading a
// response.
func (a *App) recordBound(c *clientConn, err error) {
	if name, ok := rewrite.AppBound(err); ok {
		a.settings.Bounds.Hit(name, c.RemoteAddr().String())
	}
}
