package http1client

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// heldConn is the connection of a [Call] that was aborted after a part of the request was sent and before the response
// began. The user container may still be processing the request.
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
	conn.memory.Release() // the client connection, whose account is charged, may be closed before Wait returns
	conn.memory.Account = nil
	c.Held = &heldConn{conn, a.settings.MaxHeaderBytes}
	return true
}

// Wait waits until the final response begins, the user container closes the connection, or the timeout expires. It
// first closes the write side of the connection, so that the user container can stop processing the request. Wait
// closes the connection before it returns. answered reports whether a final response has begun.
func (h *heldConn) Wait(timeout time.Duration) (answered bool) {
	c := h.conn
	defer c.close()
	c.SetDeadline(time.Now().Add(timeout))
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
