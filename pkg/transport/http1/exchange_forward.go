package http1

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

var errBroken = errors.New("connection failed")

// Forward implements transport.Exchange. If the canceler aborts Forward before the response begins, only the call to
// the user container is aborted, and the client receives an error response. Otherwise the client's connection is also
// closed, so that the client detects the truncated response.
func (x *exchange) Forward(state transport.State) (result transport.Result) {
	defer x.endForward(&result) // defer needs less stack memory than a wrapper of Forward
	x.describe(state)
	if err := x.head.Refuse(x.c.server.settings.MaxBodyBytes); err != nil {
		return transport.Result{Err: err}
	}
	c := &x.call
	x.giveBody(state)
	if !x.reserve() {
		return transport.Result{Err: transport.FaultOverloaded}
	}
	x.interim.begin(c.Expect100)
	x.c.clocked = true
	x.canceler.Watch(state)
	if x.c.server.app.OnlyH2() && !x.head.Upgrade {
		return x.forwardH2()
	}
	return x.forwardH1(state)
}

// forwardH1 forwards the request to the user container over HTTP/1.1. If the user container supports only HTTP/2 and
// did not process the request, forwardH1 forwards the request again over HTTP/2.
func (x *exchange) forwardH1(state transport.State) (result transport.Result) {
	c := &x.call
	c.Hold = state.Holds()
	if result.Err = x.beginCall(c); result.Err != nil {
		return result
	}
	r, err := c.Do(x.c.server.app)
	switch {
	case err != nil:
		killed := x.canceler.Abortable(nil)
		if killed == nil && !x.head.Upgrade && c.OnlyH2Behind(x.canceler, x.c.server.app, err) {
			return x.forwardH2()
		}
		x.failed(&c.Call, &result, killed, err)
	case r.Head.Status == http.StatusSwitchingProtocols:
		x.tunnel(r, &result)
	default:
		x.respond(&c.Call, &r.Head, r, &result)
	}
	return result
}

// forwardH2 forwards the request to the user container over HTTP/2.
func (x *exchange) forwardH2() (result transport.Result) {
	c := new(http2client.Call)
	x.call.MoveTo(&c.Call)
	defer c.Release()
	if result.Err = x.beginCall(c); result.Err != nil {
		return result
	}
	r, err := c.Do(x.c.server.client)
	if err != nil {
		x.failed(&c.Call, &result, x.canceler.Abortable(nil), err)
	} else {
		x.respond(&c.Call, &r.Head, r, &result)
	}
	return result
}

// call is an [http1client.Call] or an [http2client.Call].
type call interface {
	Begin()
	Abort()
	Buffered() int
}

// beginCall prepares c, so that the canceler can abort it. If the canceler has already fired, beginCall returns the
// reason, and c must not be started.
func (x *exchange) beginCall(c call) error {
	x.running = c
	c.Begin()
	return x.canceler.Abortable(x.abortApp)
}

// failed sets the result of a call that returned err instead of a response. killed is the reason why the canceler
// aborted the call, or nil.
func (x *exchange) failed(c *rewrite.Call, result *transport.Result, killed, err error) {
	c.Failed(result, transport.Cause(killed, err, x.body.failed()))
	result.In = x.body.moved()
}

// respond forwards the response to the client, closes the call, and sets the result.
func (x *exchange) respond(c *rewrite.Call, head *wire.Response, r rewrite.Response, result *transport.Result) {
	c.Began(result, head.Status)
	if c.Body == nil {
		x.body.sent()
	}
	rewrite.Respond(x.state, head.Fields)
	x.canceler.Abortable(x.abortBoth)
	x.stream(head, r, result)
	if x.canceler.Abortable(nil) != nil { // must precede Close, because the call must not be aborted after Close
		x.last = true // abortBoth made the connection unusable, even if the response is complete
	}
	r.Close()
	x.conclude(result)
}

// conclude completes the result of a request whose response was forwarded. If an error occurred before a byte of the
// response was written, conclude discards the response, so that the client receives an error response instead.
func (x *exchange) conclude(result *transport.Result) {
	result.In = x.body.moved()
	if result.Err != nil && !x.begun { // the sidecar can still send an error response
		result.Begun, result.Status = false, 0
		x.broken, x.waiting = false, false
		return
	}
	x.broken = x.broken || result.Err != nil
}

// describe sets the fields of x.head, which is the request to the user container.
func (x *exchange) describe(state transport.State) {
	q, r := &x.request, &x.head
	r.Method, r.Target, r.Host, r.Fields = wire.String(q.Method), wire.String(q.Target), wire.String(q.Host), q.Fields
	r.Length, r.Chunked, r.Expect100 = q.ContentLength, q.Chunked, q.Expect100
	r.Upgrade = q.Upgrade && q.Minor > 0 && r.OffersUpgrade() // HTTP/1.0 does not support Upgrade
	r.Secure, r.Trace = x.c.nc.Secure(), state.Trace()
}

// giveBody sets the body of the call. A body with a Content-Length that has arrived completely is sent together with
// the header section. Any other body is read while it is sent.
func (x *exchange) giveBody(state transport.State) {
	c := &x.call
	c.Content, c.Body, c.Trailer = nil, nil, nil
	if content, all := x.body.arrived(); all {
		c.Content = content
	} else if !x.body.none() {
		c.Body = &x.body
		if x.body.chunked {
			c.Trailer = x.body.trailer
		}
		state.ExpectBody()
	}
	c.Expect100 = x.head.Expect100 && c.Body != nil && x.c.w == x.at // false if a part of the body has already arrived
}

// trailer returns the trailer section for the user container. It must be called after the complete body is read.
func (b *body) trailer() []wire.Field { return rewrite.RequestTrailer(b.chunks.Trailer()) }

// sent marks the body as read if it was sent together with the header section.
func (b *body) sent() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if content, all := b.arrived(); all {
		b.took(len(content))
		b.count.N, b.left, b.over = int64(len(content)), 0, true
	}
}

// stream forwards the response. It writes the header section together with the first bytes of the body, and the rest of
// the body as it arrives.
func (x *exchange) stream(h *wire.Response, r rewrite.Response, result *transport.Result) {
	chunked := x.beginResponse(h, r.Length())
	for {
		data, err := r.Next()
		if err == io.EOF {
			if chunked {
				x.room()
				x.out = wire.AppendLastChunk(x.out, rewrite.ResponseTrailer(x.state, r.Trailer()))
				x.waiting = true
			}
			if x.flush(nil) != nil {
				x.gone(result)
			}
			return
		}
		if err != nil {
			result.Err = transport.Cause(x.canceler.Abortable(x.abortBoth), err, x.body.failed())
			// Write the bytes that have arrived. The client detects that the response is incomplete.
			_ = x.flush(nil)
			return
		}
		x.state.Touch()
		if x.pass(data, chunked) != nil {
			x.gone(result)
			return
		}
		result.Out += int64(len(data))
	}
}

// gone sets result.Err after the response could not be written to the client.
func (x *exchange) gone(result *transport.Result) {
	result.Err = cmp.Or[error](x.canceler.Abortable(nil), transport.FaultClientGone)
}

// pass appends data, which is content of the response, to x.out. If data does not fit, pass writes x.out and data.
func (x *exchange) pass(data []byte, chunked bool) error {
	x.room()
	if chunked {
		x.out = wire.AppendChunkHead(x.out, len(data))
	}
	if len(x.out)+len(data)+len(wire.ChunkTail) > cap(x.out) {
		x.waiting = true
		if err := x.flush(data); err != nil {
			return err
		}
		data = nil
	}
	x.out = append(x.out, data...)
	if chunked {
		x.room() // flush may have released the output buffer
		x.out = append(x.out, wire.ChunkTail...)
	}
	x.waiting = len(x.out) > 0
	return nil
}

// beginResponse stores the header section of the response in x.out. length is the length of the body in bytes, or -1 if
// it is unknown. chunked reports whether the body must be sent in chunks.
func (x *exchange) beginResponse(h *wire.Response, length int64) (chunked bool) {
	chunked = length < 0 && x.request.Minor > 0 // HTTP/1.0 does not support chunks (RFC 9112 section 6.1)
	x.untilClose = length < 0 && !chunked
	x.endInterim()
	x.room()
	x.out = appendStatus(x.out[:0], x.request.Minor, h.Status, wire.String(h.Reason))
	rewrite.EachResponseField(h.Fields, (*rewrite.Lines)(&x.out))
	b := x.out
	if _, ok := wire.Find(h.Fields, "date"); !ok { // RFC 9110 section 6.6.1
		b = wire.AppendField(b, transport.Date, x.c.server.date.Now())
	}
	if x.c.server.settings.ServerTiming {
		b = append(rewrite.AppendTiming(append(b, transport.ServerTiming+": "...), x.state), "\r\n"...)
	}
	if chunked {
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	} else if announced := rewrite.AnnouncedLength(h, length); announced >= 0 {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, announced, 10)
		b = append(b, "\r\n"...)
	}
	x.last = x.untilClose || x.endsConnection(x.c.server.settings.FullDuplex)
	upgrade := false
	if x.request.Minor > 0 { // HTTP/1.0 does not support Upgrade
		b, upgrade = rewrite.AppendUpgrade(b, h)
	}
	b = x.appendConnection(b, x.request.Minor, upgrade)
	x.out = append(b, "\r\n"...)
	x.waiting, x.begun = true, x.broken // no error response can follow a truncated informational response
	return chunked
}
