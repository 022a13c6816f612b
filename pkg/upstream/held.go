package upstream

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// heldConn is the connection of a [Call] that was broken off after the user container had
// got some of the request and before its response began. The user container may still
// be at work on it.
type heldConn struct {
	conn    *conn
	maxHead int // Settings.MaxHeaderBytes
}

// hold keeps conn as what is Held, if the caller wants it and err is not the
// user container's own doing.
func (c *Call) hold(a *App, conn *conn, err error) bool {
	if fault := forward.FaultOf(err); !c.Hold || !conn.written || fault != forward.Aborted && fault != forward.Body {
		return false
	}
	conn.memory.Release() // the client can be gone before the user container
	conn.memory.Account = nil
	c.Held = &heldConn{conn, a.settings.MaxHeaderBytes}
	return true
}

// Wait ends our side of the connection, so that a user container that looks can stop,
// and returns when its final response begins, when it closes the connection, or after
// most. Then the connection is closed. Wait reports whether a final response began.
func (h *heldConn) Wait(most time.Duration) (answered bool) {
	c := h.conn
	defer c.close()
	c.SetDeadline(time.Now().Add(most))
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() != nil {
		return false
	}
	var head wire.Response
	for infos := 0; infos <= forward.MaxInfos; {
		n, err := head.Parse(c.buffered())
		switch {
		case err != nil:
			return false
		case n > 0 && (head.Status >= 200 || head.Status == 101):
			return true
		case n > 0:
			c.r += n
			infos++
		case c.fill(h.maxHead) != nil:
			return false
		}
	}
	return false
}
