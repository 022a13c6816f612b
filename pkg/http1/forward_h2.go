package http1

import (
	"context"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// appOnlySpeaksH2 is [upstream.Call.OnlyH2Behind] within the request's clocks.
func (x *exchange) appOnlySpeaksH2(err error) bool {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if x.alarm.Abortable(cancel) != queue.OK {
		return false
	}
	defer x.alarm.Abortable(nil)
	return x.call.OnlyH2Behind(ctx, x.c.server.app, err)
}

// forwardH2 forwards a request to a user container that speaks HTTP/2 alone.
func (x *exchange) forwardH2() (result queue.Result) {
	c := &h2client.Call{Request: &x.head, Content: x.call.Content, Body: x.call.Body, Trailer: x.call.Trailer, Expect100: x.call.Expect100, Origin: x}
	c.Begin()
	abort := func() {
		c.Abort()
		x.c.nc.SetWriteDeadline(past) // of an informational response that nobody takes
	}
	if reason := x.alarm.Abortable(abort); reason != queue.OK {
		return queue.Result{Reason: reason}
	}
	r, err := c.Do(x.c.server.client)
	result.Replayed = c.Sends > 1
	if err != nil {
		x.blame(&result, x.alarm.Abortable(nil), err)
		result.In = x.body.moved()
		return result
	}
	if c.Body == nil {
		x.body.sent()
	}
	result.FirstByte, result.Status, result.Begun = time.Now(), r.Head.Status, true
	forward.Respond(&x.state, r.Head.Fields)
	x.alarm.Abortable(func() {
		c.Abort()
		x.c.nc.SetDeadline(past)
	})
	x.stream(&r.Head, r, &result)
	if x.alarm.Abortable(nil) != queue.OK { // as in Forward
		x.last = true
	}
	r.Close()
	x.conclude(&result)
	return result
}
