package http1

import (
	"bytes"
	"net"

	"github.com/queue-proxy/queue-proxy/pkg/goaway"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
)

// tunnel passes a 101 on and then bytes both ways, until the end of the connection.
func (x *exchange) tunnel(r *upstream.Response, result *queue.Result) {
	c := x.c
	result.Upgraded = true
	x.state.Enter(queue.Tunnelled)    // from now on a client that ends its side has not gone
	c.watch.Stop()                    // the tunnel itself reads to the client's end
	x.broken, c.clocked = true, false // nothing of ours comes behind it
	var client net.Conn = c.nc
	if r.IsWebSocket() {
		w := goaway.WebSocket(c.nc)
		c.server.settings.WebSockets.Add(w)
		defer c.server.settings.WebSockets.Remove(w)
		client = w
	}
	x.room()
	x.out = r.AppendSwitch(x.out[:0])
	_, err := c.write(x.out, nil)
	x.leaveRoom()
	if err != nil {
		x.alarm.Abortable(nil)
		r.Close()
		result.Reason = queue.ClientGone
		return
	}
	early := bytes.Clone(c.buf[x.at:c.w]) // came behind the head, and is not HTTP any more
	r.Tunnel(client, early, x.alarm, &x.state, result)
}
