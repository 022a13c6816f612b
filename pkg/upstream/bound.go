package upstream

import (
	"errors"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/forward"
)

// recordBound records the bound that the user container exceeded if reading its response
// returned err.
func (a *App) recordBound(c *conn, err error) {
	name, ok := forward.AppBound(err)
	switch {
	case errors.Is(err, errTooManyInfos):
		name, ok = bound.AppInformational, true
	case errors.Is(err, errHeadTooLarge):
		name, ok = bound.AppHeaderSection, true
	}
	if ok {
		a.settings.Bounds.Hit(name, c.RemoteAddr().String())
	}
}
