package http2

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// Forward implements transport.Exchange. If the client exceeded a bound, Forward also records this bound.
func (x *exchange) Forward(state transport.State) (result transport.Result) {
	defer x.recordResult(&result) // defer needs less stack memory than a wrapper of Forward
	q := &x.request
	x.call.Memory.Account = x.conn.memory
	if !x.call.ReserveHead(x.headSize) {
		return transport.Result{Err: transport.FaultOverloaded}
	}
	if x.protocol != "" {
		return x.connect(state)
	}
	if err := q.Refuse(x.server.settings.MaxBodyBytes); err != nil {
		return transport.Result{Err: err}
	}
	q.Trace = state.Trace()
	// A gRPC client may keep its side of the stream open without sending content.
	if !x.body.complete() && !transport.IsGRPC(x.Header(transport.ContentType)) {
		state.ExpectBody()
	}
	x.canceler.Watch(state)
	supported, err := x.server.app.SupportsH2(x, x.canceler)
	switch {
	case err != nil:
		return transport.Result{Err: x.cause(x.canceler.Abortable(nil), err)}
	case supported:
		return x.relay.forward(state)
	}
	return x.forwardH1(state)
}

// cause returns the reason why the request failed with err. killed is the reason why the canceler aborted the request,
// or nil.
func (x *exchange) cause(killed, err error) error {
	return transport.Cause(killed, err, x.body.failed())
}

// forwardH1 forwards the request to a user container that uses HTTP/1.1.
func (x *exchange) forwardH1(state transport.State) (result transport.Result) {
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
		if !c.ReserveBody() {
			return transport.Result{Err: transport.FaultOverloaded}
		}
		defer c.ReleaseBody()
	}
	r := x.do(state, &result)
	if r == nil {
		return result
	}
	rewrite.Respond(state, r.Head.Fields)
	x.finish(r, &result)
	return result
}

// do sends the prepared call, waits for the header section of the response, and returns the response. If the call
// fails, do sets result and returns nil.
func (x *exchange) do(state transport.State, result *transport.Result) *http1client.Response {
	c := &x.call
	c.Many, c.Hold = true, state.Holds()
	c.Begin()
	if result.Err = x.canceler.Abortable(x.abortCall); result.Err != nil {
		return nil
	}
	r, err := c.Do(x.server.app)
	if err != nil {
		c.Failed(result, x.cause(x.canceler.Abortable(nil), err))
		result.In = x.body.moved()
		return nil
	}
	c.Began(result, r.Head.Status)
	return r
}

// finish sends the response to the client and closes the call.
func (x *exchange) finish(r *http1client.Response, result *transport.Result) {
	x.passOn(r, result)
	x.canceler.Abortable(nil) // must precede Close, because the call must not be aborted after Close
	r.Close()
	x.conclude(result)
}

// abortCall aborts the call. It is called by the canceler.
func (x *exchange) abortCall() {
	x.call.Abort()
	x.wake()
}

// conclude completes the result of a request whose response has begun. If the response is incomplete, conclude resets
// the stream, because the client would consider a response with END_STREAM complete.
func (x *exchange) conclude(result *transport.Result) {
	result.In = x.body.moved()
	if transport.FaultOf(result.Err) == transport.FaultClientGone && x.delivered() {
		result.Err = nil
	}
	if result.Err != nil && !x.stream.Ended() {
		x.stream.Reset(resetCode(result.Err))
	}
}

// delivered reports whether all announced content was sent before the client reset the stream. Go's HTTP/2 client
// resets the stream after the last byte without waiting for END_STREAM.
func (x *exchange) delivered() bool { return x.due == 0 && !x.stream.Cut() }

// forwardReset resets the client's stream if the user container reset the other stream before the response began
// (docs/promises.md 3.12).
func (x *exchange) forwardReset(result *transport.Result) {
	if _, ok := errors.AsType[*http2conn.ResetError](result.Err); ok && !result.Begun {
		result.Reset = true
		x.stream.Reset(resetCode(result.Err))
	}
}

// resetCode returns the error code for the reset of the client's stream after err. It is the code that the user
// container sent, or InternalError if the user container sent no code or NO_ERROR.
func resetCode(err error) http2conn.Code {
	if reset, ok := errors.AsType[*http2conn.ResetError](err); ok && reset.Code != http2conn.NoError {
		return reset.Code
	}
	return http2conn.InternalError
}

// beginResponse adds the header section of the response to k. length is the content length in bytes, or -1 if it is
// unknown.
func (x *exchange) beginResponse(k *http2conn.Block, status int, fields []wire.Field, length int64) {
	x.due = length
	if x.request.Method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified {
		x.due = 0
	}
	if x.due >= 0 {
		if _, ok := wire.Find(fields, transport.Trailer); ok {
			x.due = -1
		}
	}
	k.Status(status)
	rewrite.EachResponseField(fields, k)
	if _, ok := wire.Find(fields, "date"); !ok {
		k.Field(transport.Date, x.server.date.Now())
	}
	if x.server.settings.ServerTiming {
		k.Field(transport.ServerTiming, string(rewrite.AppendTiming(nil, x.state)))
	}
	if length >= 0 && status != http.StatusNoContent {
		k.Field(transport.ContentLength, strconv.FormatInt(length, 10))
	}
	if x.server.closing() {
		x.conn.goAway()
	}
}

// passOn copies the response of a user container that uses HTTP/1.1 to the client's stream.
func (x *exchange) passOn(r *http1client.Response, result *transport.Result) {
	length := r.Length()
	k := x.server.block()
	x.beginResponse(k, r.Head.Status, r.Head.Fields, rewrite.AnnouncedLength(&r.Head, length))
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
			result.Err = x.cause(x.canceler.Abortable(nil), err)
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
		_, err = r.Next() // the connection can be reused only after Next returns io.EOF
		if err == io.EOF {
			err = nil
		}
	}
	if err != nil {
		result.Err = cmp.Or[error](x.canceler.Abortable(nil), transport.FaultClientGone)
	}
}

// endResponse ends the response with the given trailer section, or with an empty DATA frame if the trailer section has
// no fields.
func (x *exchange) endResponse(trailer []wire.Field) error {
	trailer = rewrite.ResponseTrailer(x.state, trailer)
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

// send sends content, with END_STREAM if end is true, and waits until all content is added to the output of the
// connection.
func (x *exchange) send(p []byte, end bool) error {
	waits, err := x.sendContent(p, end)
	if err == nil && waits {
		err = x.awaitTaken()
	}
	return err
}

// sendContent sends content of the response. The results are the same as for [http2conn.Stream.SendData].
func (x *exchange) sendContent(p []byte, end bool) (waits bool, err error) {
	waits, err = x.stream.SendData(p, end)
	if err == nil {
		x.due -= int64(len(p))
	}
	return waits, err
}

// awaitTaken waits until no output of the stream is pending. It returns an error if the stream ends or the canceler
// aborts the request, for example because of the send timeout.
func (x *exchange) awaitTaken() error {
	x.canceler.WriteStarted(x.state)
	defer x.state.WriteDone()
	held := x.call.Buffered()
	x.conn.memory.Add(held)
	defer x.conn.memory.Sub(held)
	x.conn.Flush(false)
	for x.stream.Waits() {
		<-x.woken
		if x.canceler.Killed() != nil {
			return http2conn.ErrGone
		}
	}
	if !x.tookAll() {
		return http2conn.ErrGone
	}
	return nil
}

// tookAll reports whether all output of the stream was added to the output of the connection. It must be called only
// after Waits returns false.
func (x *exchange) tookAll() bool { return !x.stream.Dropped() && !x.gone.Load() }

// caller implements rewrite.Client for an exchange.
type caller exchange

// Sending implements rewrite.Client.
func (c *caller) Sending() { c.state.Send() }

// Info implements rewrite.Client. It sends an informational response. If the client does not read, Info waits, so that
// at most one informational response is buffered.
func (c *caller) Info(head *wire.Response) {
	x := (*exchange)(c)
	x.sendInfo(head.Status, head.Fields)
	x.conn.Flush(false)
	if x.stream.Waits() {
		_ = x.awaitTaken() // later sends return the error again
	}
}

// Waiting implements rewrite.Client.
func (c *caller) Waiting() { (*exchange)(c).conn.Flush(false) }

// StopBody implements rewrite.Client.
func (c *caller) StopBody() { c.body.stop() }

// BodyArrived implements rewrite.Client.
func (c *caller) BodyArrived() bool { return c.body.complete() }

// sendInfo sends an informational response.
func (x *exchange) sendInfo(status int, fields []wire.Field) {
	k := x.server.block()
	defer x.server.putBlock(k)
	k.Status(status)
	rewrite.EachResponseField(fields, k)
	_ = x.stream.SendHead(k, false) // later sends return the error again
}

// recordResult completes the result of Forward. If the client exceeded a bound, recordResult also records this bound.
func (x *exchange) recordResult(result *transport.Result) {
	rewrite.EndForward(result, x.costly.Load(), x.server.settings.Bounds, x.conn.remote)
}
