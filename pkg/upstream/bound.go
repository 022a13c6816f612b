package upstream

import "github.com/queue-proxy/queue-proxy/pkg/forward"

// recordBound records the bound that the user container exceeded if reading its response
// returned err.
func (a *App) recordBound(c *conn, err error) {
	if name, ok := forward.AppBound(err); ok {
		a.settings.Bounds.Hit(name, c.RemoteAddr().String())
	}
}
