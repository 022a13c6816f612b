package nethttp

import (
	"context"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// ask puts a question to the user container, within the request's clocks. The
// caller ends the reach of the alarm.
func (x *exchange) ask(question func(context.Context) (bool, error)) (bool, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if reason := x.alarm.Abortable(cancel); reason != queue.OK {
		return false, context.Canceled
	}
	return question(ctx)
}

// appOnlySpeaksH2 is [upstream.Call.OnlyH2Behind] within the request's clocks.
func (x *exchange) appOnlySpeaksH2(err error) bool {
	only, _ := x.ask(func(ctx context.Context) (bool, error) { return x.call.OnlyH2Behind(ctx, x.server.app, err), nil })
	x.alarm.Abortable(nil)
	return only
}

// forwardH2 is the way of a request to a user container that speaks HTTP/2.
func (x *exchange) forwardH2() (result queue.Result) {
	c := &h2client.Call{Request: &x.head, Origin: x}
	if x.body != nil {
		c.Body, c.Trailer, c.Expect100 = x.body, x.trailer, x.head.Expect100
		x.fullDuplex()
	}
	c.Begin()
	if reason := x.alarm.Abortable(func() { c.Abort(); x.boundWrites() }); reason != queue.OK {
		return queue.Result{Reason: reason}
	}
	r, err := c.Do(x.server.client)
	result.Replayed = c.Sends > 1
	if err != nil {
		x.blame(&result, x.alarm.Abortable(nil), err)
		result.In = x.body.moved()
		return result
	}
	result.FirstByte, result.Status = time.Now(), r.Head.Status
	x.respond(&r.Head, r, c.Abort, r.Close, &result)
	return result
}
