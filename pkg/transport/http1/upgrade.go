package http1

import (
	"bytes"
	"net"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// tunnel sends the 101 response and then copies bytes in both directions until the connection is
// closed.
func (x *exchange) tunnel(r *http1client.Response, result *transport.Result) {
	c := x.c
	result.Upgraded = true
	x.state.Upgrade()                 // from now on, hasGone ignores a half-closed connection
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
		x.canceler.Abortable(nil)
		r.Close()
		result.Err = transport.FaultClientGone
		return
	}
	early := bytes.Clone(c.buf[x.at:c.w]) // bytes after the header section belong to the new protocol
	r.Tunnel(client, early, x.canceler, x.state, result)
}
