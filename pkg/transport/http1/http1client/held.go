package http1client

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// heldConn is the connection of a [Call] that was aborted after a part of the request was sent and
// before the response began. The user container may still be processing the request.
type heldConn struct {
	conn    *clientConn
	maxHead int // Settings.MaxHeaderBytes
}

// hold stores conn in Held and returns true if c.Hold is set, a byte of the request was written, and
// err was not caused by the user container.
func (c *Call) hold(a *App, conn *clientConn, err error) bool {
	if fault := transport.FaultOf(err); !c.Hold || !conn.written || fault != transport.FaultAborted && !fault.ByClient() {
		return false
	}
	conn.memory.Release() // the client may disconnect before the user container has processed the request
	conn.memory.Account = nil
	c.Held = &heldConn{conn, a.settings.MaxHeaderBytes}
	return true
}

// Wait closes the write side of the connection, so that a user container that detects this can stop processing the
// request. Wait returns when the final response begins, when the user container closes the connection, or after the
// duration most. It closes the connection before it returns. answered reports whether a final response began.
func (h *heldConn) Wait(most time.Duration) (answered bool) {
	c := h.conn
	defer c.close()
	c.SetDeadline(time.Now().Add(most))
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() != nil {
		return false
	}
	var head wire.Response
	for infos := 0; infos <= rewrite.MaxInfos; {
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
