package http2

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/h2"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// Forward implements queue.Exchange. It records the bound that the client exceeded.
func (x *exchange) Forward(state *queue.RequestState) (result queue.Result) {
	defer x.recordResult(&result) // a wrapper of Forward would need more stack
	q := &x.request
	x.call.Memory = x.conn.memory
	if !x.call.Reserve(x.headSize) {
		return queue.Result{Reason: queue.Overload}
	}
	if x.protocol != "" {
		return x.connect(state)
	}
	if reason := q.Refuse(x.server.settings.MaxBodyBytes); reason != queue.OK {
		return queue.Result{Reason: reason}
	}
	q.Trace = state.Trace()
	if !x.body.complete() && !queue.IsGRPC(x.Header(header.ContentType)) { // a stream of gRPC may be silent for long
		state.ExpectBody()
	}
	x.alarm.Watch(state)
	speaks, err := x.server.app.SpeaksH2(x, x.alarm)
	switch {
	case err != nil:
		x.blame(&result, x.alarm.Abortable(nil), err)
		return result
	case speaks:
		return x.relay.forward(state)
	}
	return x.forwardH1(state)
}

// blame notes what ended a forward. What has broken it off is the cause of whatever error
// there is.
func (x *exchange) blame(result *queue.Result, killed queue.Reason, err error) {
	forward.Fail(result, killed, err, x.body.failed())
}

// uploadBytes is the memory for sending a body that has not arrived as a whole, in bytes: a
// goroutine and its buffer.
const uploadBytes = 36 << 10

// forwardH1 forwards the request to a user container that speaks HTTP/1.1.
func (x *exchange) forwardH1(state *queue.RequestState) (result queue.Result) {
	c := &x.call
	c.Content, c.Body, c.Trailer, c.Expect100 = nil, nil, nil, false
	if content, whole := x.body.whole(); whole {
		c.Content = content
		if q := &x.request; q.Chunked {
			q.Chunked, q.Length = false, int64(len(content))
		}
	} else {
		c.Body, c.Trailer = &x.body, x.body.fields
		c.Expect100 = x.request.Expect100 && len(content) == 0
		x.request.Expect100 = c.Expect100
	}
	if c.Body != nil {
		if !x.conn.memory.Await(uploadBytes) {
			return queue.Result{Reason: queue.Overload}
		}
		defer x.conn.memory.Sub(uploadBytes)
	}
	r := x.do(state, &result)
	if r == nil {
		return result
	}
	forward.Respond(state, r.Head.Fields)
	x.finish(r, &result)
	return result
}

// do makes the call that is set up and returns the response, which has begun; nil: there is
// none.
func (x *exchange) do(state *queue.RequestState, result *queue.Result) *upstream.Response {
	c := &x.call
	c.Request, c.Many, c.Hold = &x.request, true, state.Holds()
	c.Begin()
	if result.Reason = x.alarm.Abortable(x.abortCall); result.Reason != queue.OK {
		return nil
	}
	r, err := c.Do(x.server.app)
	if err != nil {
		c.Failed(result, x.alarm.Abortable(nil), err, x.body.failed())
		result.In = x.body.moved()
		return nil
	}
	c.Began(result, r.Head.Status)
	return r
}

// finish passes the response on, to its end.
func (x *exchange) finish(r *upstream.Response, result *queue.Result) {
	x.passOn(r, result)
	x.alarm.Abortable(nil) // before Close, after which nothing is there to abort
	r.Close()
	x.conclude(result)
}

// abortCall breaks a call off.
func (x *exchange) abortCall() {
	x.call.Abort()
	x.wake()
}

// conclude settles what a response that has begun has come to. The end of its stream would
// say that nothing is missing: one that is cut is reset.
func (x *exchange) conclude(result *queue.Result) {
	result.In = x.body.moved()
	if result.Reason == queue.ClientGone && x.delivered() {
		result.Reason, result.Err = queue.OK, nil
	}
	if result.Reason != queue.OK && !x.stream.Ended() {
		x.stream.Reset(resetCode(result.Err))
	}
}

// delivered reports whether the client received the announced content before it reset the
// stream. The HTTP/2 client of Go does not wait for END_STREAM after the last byte.
func (x *exchange) delivered() bool { return x.due == 0 && !x.stream.Cut() }

// forwardReset resets the client's stream if the user container has reset its stream before
// the response began (docs/promises.md 3.12).
func (x *exchange) forwardReset(result *queue.Result) {
	if _, ok := errors.AsType[*h2.ResetError](result.Err); ok && result.Reason == queue.AppReset && !result.Begun {
		result.Reset = true
		x.stream.Reset(resetCode(result.Err))
	}
}

// resetCode returns the code for a response that is cut: that of the user container, if
// it has said one.
func resetCode(err error) h2.Code {
	if reset, ok := errors.AsType[*h2.ResetError](err); ok && reset.Code != h2.NoError {
		return reset.Code
	}
	return h2.InternalError
}

// beginResponse makes the head of the response to the client. length is that of the body;
// -1: it is not said.
func (x *exchange) beginResponse(k *h2.Block, status int, fields []wire.Field, length int64) {
	x.due = length
	if x.request.Method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified {
		x.due = 0
	}
	if x.due >= 0 {
		if _, ok := wire.Find(fields, header.Trailer); ok {
			x.due = -1
		}
	}
	k.Status(status)
	forward.EachResponseField(fields, k)
	if _, ok := wire.Find(fields, "date"); !ok {
		k.Field(header.Date, x.server.date.Now())
	}
	if x.server.settings.ServerTiming {
		k.Field(header.ServerTiming, string(forward.AppendTiming(nil, &x.state)))
	}
	if length >= 0 && status != http.StatusNoContent {
		k.Field(header.ContentLength, strconv.FormatInt(length, 10))
	}
	if x.server.closing() {
		x.conn.goAway()
	}
}

// passOn passes the response of a user container that speaks HTTP/1.1 on, to its end.
func (x *exchange) passOn(r *upstream.Response, result *queue.Result) {
	length := r.Length()
	k := x.server.block()
	x.beginResponse(k, r.Head.Status, r.Head.Fields, forward.AnnouncedLength(&r.Head, length))
	err := x.stream.SendHead(k, length == 0)
	x.server.putBlock(k)
	for left := length; err == nil && left != 0; {
		var data []byte
		data, err = r.Next()
		if err == io.EOF {
			err = x.endResponse(r.Trailer())
			break
		}
		if err != nil {
			x.blame(result, x.alarm.Abortable(nil), err)
			return
		}
		x.state.Touch()
		if left > 0 {
			left -= int64(len(data))
		}
		result.Out += int64(len(data))
		err = x.send(data, left == 0)
	}
	if err == nil && length >= 0 {
		_, err = r.Next() // io.EOF, which lets the connection be used again
		if err == io.EOF {
			err = nil
		}
	}
	if err != nil {
		if result.Reason = x.alarm.Abortable(nil); result.Reason == queue.OK {
			result.Reason = queue.ClientGone
		}
	}
}

// endResponse ends the response, by its trailer section if there is one.
func (x *exchange) endResponse(trailer []wire.Field) error {
	trailer = forward.ResponseTrailer(&x.state, trailer)
	if len(trailer) == 0 {
		return x.send(nil, true)
	}
	k := x.server.block()
	defer x.server.putBlock(k)
	k.Fields(trailer)
	waits, err := x.stream.SendTrailer(k)
	if err == nil && waits {
		err = x.awaitTaken()
	}
	return err
}

// send sends content, and waits until the client has room for all of it.
func (x *exchange) send(p []byte, end bool) error {
	waits, err := x.sendContent(p, end)
	if err == nil && waits {
		err = x.awaitTaken()
	}
	return err
}

// sendContent sends content of the response. waits is as for [h2.Stream.SendData].
func (x *exchange) sendContent(p []byte, end bool) (waits bool, err error) {
	waits, err = x.stream.SendData(p, end)
	if err == nil {
		x.due -= int64(len(p))
	}
	return waits, err
}

// awaitTaken waits until the client has taken what was sent; it may take only so long for
// it.
func (x *exchange) awaitTaken() error {
	x.alarm.WriteStarted(&x.state)
	defer x.state.WriteDone()
	held := x.call.Buffered()
	x.conn.memory.Add(held)
	defer x.conn.memory.Sub(held)
	x.conn.Flush(false)
	for x.stream.Waits() {
		<-x.woken
		if x.alarm.Killed() != queue.OK {
			return h2.ErrGone
		}
	}
	if !x.tookAll() {
		return h2.ErrGone
	}
	return nil
}

// tookAll reports, when nothing waits for the client any more, whether that is because it
// has taken it.
func (x *exchange) tookAll() bool { return !x.stream.Dropped() && !x.gone.Load() }

// caller is an exchange as where a call has come from.
type caller exchange

// Sending implements forward.Client.
func (c *caller) Sending() { c.state.Enter(queue.Waiting) }

// Info implements forward.Client: it passes an informational response on. If the client does not
// read, it waits, so that the memory for responses of this kind is limited to one.
func (c *caller) Info(head *wire.Response) {
	x := (*exchange)(c)
	x.sendInfo(head.Status, head.Fields)
	x.conn.Flush(false)
	if x.stream.Waits() {
		_ = x.awaitTaken() // the next send returns the error
	}
}

// Waiting implements forward.Client.
func (c *caller) Waiting() { (*exchange)(c).conn.Flush(false) }

// StopBody implements forward.Client.
func (c *caller) StopBody() { c.body.stop() }

// BodyArrived implements forward.Client.
func (c *caller) BodyArrived() bool { return c.body.complete() }

// sendInfo sends an informational response.
func (x *exchange) sendInfo(status int, fields []wire.Field) {
	k := x.server.block()
	defer x.server.putBlock(k)
	k.Status(status)
	forward.EachResponseField(fields, k)
	_ = x.stream.SendHead(k, false) // who sends next learns of an error
}

// recordResult completes the result of the exchange, and records the bound that the client exceeded if
// it ended with result.
func (x *exchange) recordResult(result *queue.Result) {
	result.Reason = x.closedFor(result.Reason)
	if name, ok := forward.RequestBound(result, x.alarm.Stall); ok {
		x.conn.hit(name)
	}
}
