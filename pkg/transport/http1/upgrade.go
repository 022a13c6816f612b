package http1

import (
	"bytes"
	"net"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// tunnel sends the 101 response and then copies bytes in both directions until the connection is
// closed. If the canceler has fired, tunnel only sets the error, and the client receives an error response.
func (x *exchange) tunnel(r *http1client.Response, result *transport.Result) {
	if killed := x.canceler.Abortable(nil); killed != nil {
		r.Close()
		x.failed(&x.call.Call, result, killed, nil)
		return
	}
	c := x.c
	x.call.Began(result, r.Head.Status)
	result.Upgraded = true
	x.state.Upgrade()                 // from now on, hasGone ignores a half-closed connection
	x.canceler.Abortable(x.abortApp)  // the write may wait for the client
	c.watch.Stop()                    // the tunnel itself detects that the client closes its side
	x.broken, c.clocked = true, false // the connection cannot be used after the tunnel
	var client net.Conn = c.nc
	if r.IsWebSocket() {
		w := netconn.NewWebSocket(c.nc)
		c.server.settings.WebSockets.Add(w)
		defer c.server.settings.WebSockets.Remove(w)
		client = w
	}
	x.room()
	x.out = r.AppendSwitch(x.out[:0])
	_, err := c.write(x.out, nil)
	x.leaveRoom()
	if err != nil {
		x.gone(result)
		r.Close()
		return
	}
	early := bytes.Clone(c.buf[x.at:c.w]) // bytes after the header section belong to the new protocol
	r.Tunnel(client, early, x.canceler, x.state, result)
}
