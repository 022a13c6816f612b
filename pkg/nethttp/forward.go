package nethttp

import (
	"bytes"
	"io"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/goaway"
	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// Forward implements queue.Exchange.
func (x *exchange) Forward(state *queue.RequestState) queue.Result {
	x.describe(state)
	if reason := x.refuse(); reason != queue.OK {
		return queue.Result{Reason: reason}
	}
	stop := x.watchContext()
	defer stop()
	if x.r.ContentLength != 0 {
		x.body = &body{state: state, source: x.r.Body, length: x.r.ContentLength, limit: x.server.settings.MaxBodyBytes}
		if !x.h2 || !queue.IsGRPC(x.Header(header.ContentType)) { // a stream of gRPC may be silent for long; it needs HTTP/2
			state.ExpectBody()
		}
	}
	x.alarm.Watch(&x.state)
	if x.h2 {
		h2, err := x.server.app.SpeaksH2(x, x.alarm)
		if err != nil {
			var result queue.Result
			forward.Fail(&result, x.alarm.Abortable(nil), err, x.body.failed())
			return result
		}
		if h2 {
			return x.forwardH2()
		}
		return x.forwardH1()
	}
	if !x.head.Upgrade && x.server.app.OnlyH2() {
		return x.forwardH2()
	}
	return x.forwardH1()
}

// describe sets what the request says to the user container.
func (x *exchange) describe(state *queue.RequestState) {
	r := x.r
	peer, _, _ := net.SplitHostPort(r.RemoteAddr)
	x.head = forward.Request{
		Method: r.Method, Target: r.RequestURI, Host: r.Host, AppHost: x.server.settings.AppHost,
		Peer: peer, Secure: r.TLS != nil, Fields: fieldsOf(r.Header),
		Length: r.ContentLength, Chunked: r.ContentLength < 0, Expect100: r.ProtoAtLeast(1, 1) && strings.EqualFold(r.Header.Get(header.Expect), "100-continue"),
		Crumbs: x.h2, Trace: state.Trace(),
	}
	if r.ContentLength == 0 && r.Header[header.ContentLength] == nil {
		x.head.Length = -1
	}
	if len(r.Trailer) > 0 { // which net/http has taken out of the fields
		announced := wire.Field{Name: []byte(header.Trailer), Value: []byte(strings.Join(slices.Collect(maps.Keys(r.Trailer)), ", "))}
		x.head.Fields = append(x.head.Fields, announced)
	}
	x.head.Upgrade = !x.h2 && r.ProtoAtLeast(1, 1) && x.head.OffersUpgrade()
}

// fieldsOf returns the fields of a header, without a copy. Over HTTP/2 net/http leaves the
// blanks.
func fieldsOf(h http.Header) []wire.Field {
	fields := make([]wire.Field, 0, len(h)+1)
	for name, values := range h {
		for _, value := range values {
			fields = append(fields, wire.Field{Name: wire.Bytes(name), Value: wire.Bytes(strings.Trim(value, " \t"))})
		}
	}
	return fields
}

// refuse says what is wrong with a request that must not reach the user
// container.
func (x *exchange) refuse() queue.Reason {
	if reason := x.head.Refuse(x.server.settings.MaxBodyBytes); reason != queue.OK {
		return reason
	}
	for name := range x.r.Trailer {
		if wire.ForbidsTrailer(name) {
			return queue.BadRequest
		}
	}
	if x.h2 && !x.lengthsAgree() {
		return queue.BadRequest
	}
	return queue.OK
}

// lengthsAgree reports whether every Content-Length of an HTTP/2 request is the
// length of its body, or may still be: net/http looks at the first, and at none
// where there is no body. A request that says something else is malformed and not
// to be forwarded (RFC 9113 section 8.1.1).
func (x *exchange) lengthsAgree() bool {
	for _, value := range x.r.Header[header.ContentLength] {
		if n, err := strconv.ParseUint(value, 10, 63); err != nil || int64(n) != x.r.ContentLength {
			return false
		}
	}
	return true
}

// setBody sets the body of a call.
func (x *exchange) setBody() {
	c := &x.call
	c.Body, c.Trailer, c.Expect100 = nil, nil, false
	if x.body != nil {
		c.Body, c.Trailer, c.Expect100 = x.body, x.trailer, x.head.Expect100
		x.fullDuplex()
	}
}

// forwardH1 is the way of a request to a user container that speaks HTTP/1.1.
func (x *exchange) forwardH1() (result queue.Result) {
	x.setBody()
	c := &x.call
	c.Many, c.Hold = x.h2, x.state.Holds()
	if result.Reason = x.beginCall(c); result.Reason != queue.OK {
		return result
	}
	r, err := c.Do(x.server.app)
	switch {
	case err != nil:
		killed := x.alarm.Abortable(nil)
		if killed == queue.OK && !x.head.Upgrade && c.OnlyH2Behind(x.alarm, x.server.app, err) {
			return x.forwardH2()
		}
		x.failed(&c.Call, &result, killed, err)
	case r.Head.Status == http.StatusSwitchingProtocols:
		c.Began(&result, r.Head.Status)
		x.tunnel(r, &result)
	default:
		x.respond(&c.Call, &r.Head, r, &result)
	}
	return result
}

// forwardH2 is the way of a request to a user container that speaks HTTP/2.
func (x *exchange) forwardH2() (result queue.Result) {
	x.setBody()
	c := &h2client.Call{Call: x.call.Call}
	if result.Reason = x.beginCall(c); result.Reason != queue.OK {
		return result
	}
	r, err := c.Do(x.server.client)
	if err != nil {
		x.failed(&c.Call, &result, x.alarm.Abortable(nil), err)
	} else {
		x.respond(&c.Call, &r.Head, r, &result)
	}
	return result
}

// call is a request to the user container, in whatever HTTP it speaks.
type call interface {
	Begin()
	Abort()
}

// beginCall begins a call that the alarm can break off, and returns the reason for which
// it has been by now.
func (x *exchange) beginCall(c call) queue.Reason {
	x.running = c
	c.Begin()
	return x.alarm.Abortable(func() { c.Abort(); x.boundWrites() })
}

// failed notes why there is no response.
func (x *exchange) failed(c *forward.Call, result *queue.Result, killed queue.Reason, err error) {
	c.Failed(result, killed, err, x.body.failed())
	result.In = x.body.moved()
}

// respond passes a response on, settles what has come of it and closes it.
func (x *exchange) respond(c *forward.Call, head *wire.Response, r forward.Response, result *queue.Result) {
	c.Began(result, head.Status)
	forward.Respond(&x.state, head.Fields)
	x.stream(head, r, result)
	x.settle(result)
	r.Close() // after settle: then nothing is there to abort
	result.In = x.body.moved()
	x.broken = result.Reason != queue.OK
}

// settle ends the reach of the alarm after a response. A client that leaves when
// it has all of it is no failure; nor is a clock that rings now, unless the last of
// the response can't be written any more.
func (x *exchange) settle(result *queue.Result) {
	killed := x.alarm.Abortable(nil)
	if result.Reason != queue.OK || killed == queue.OK || killed == queue.ClientGone {
		return
	}
	control := http.NewResponseController(x.w)
	control.SetWriteDeadline(time.Now().Add(forward.AnswerTimeout)) // the kill has put it into the past
	if control.Flush() != nil {
		result.Reason = killed
	}
}

// stream passes the response on to its end.
func (x *exchange) stream(head *wire.Response, r forward.Response, result *queue.Result) {
	h := x.w.Header()
	copyFields(h, head.Fields)
	if n := forward.AnnouncedLength(head, r.Length()); n >= 0 && head.Status != http.StatusNotModified { // which net/http does not let say it
		h[header.ContentLength] = []string{strconv.FormatInt(n, 10)}
	}
	if x.server.settings.ServerTiming {
		h.Add(header.ServerTiming, string(forward.AppendTiming(nil, &x.state)))
	}
	x.closeIfLast(h, x.server.settings.FullDuplex)
	x.begun(head.Status, r.Length() < 0)

	x.pending = true // the head, for now
	defer func() { x.pending = false }()
	for {
		data, err := r.Next()
		if err == io.EOF {
			trailer := r.Trailer()
			if len(trailer) > 0 {
				x.Waiting() // so that the body is chunked
			}
			x.setTrailer(h, trailer)
			return
		}
		if err != nil {
			forward.Fail(result, x.alarm.Abortable(nil), err, x.body.failed())
			return
		}
		x.state.Touch()
		n, err := x.write(data)
		result.Out += int64(n)
		if err != nil {
			if result.Reason = x.alarm.Abortable(nil); result.Reason == queue.OK {
				result.Reason = queue.ClientGone
			}
			return
		}
		x.pending = true
	}
}

// Sending implements forward.Client.
func (x *exchange) Sending() { x.state.Enter(queue.Waiting) }

// Waiting implements forward.Client.
func (x *exchange) Waiting() {
	if x.pending {
		_ = x.flush() // whoever writes next gets the error
		x.pending = false
	}
}

// StopBody implements forward.Client.
func (x *exchange) StopBody() {
	x.stopped.Store(true)
	http.NewResponseController(x.w).SetReadDeadline(past)
}

// BodyArrived implements forward.Client. What has come and has not been read, net/http
// does not say.
func (x *exchange) BodyArrived() bool { return x.body == nil || x.body.complete() }

// begun sends the head of the final response. From now on an abort also cuts the
// client's side: it may be what we wait for.
func (x *exchange) begun(status int, lengthUnknown bool) {
	x.untilClose = lengthUnknown && !x.r.ProtoAtLeast(1, 1)
	x.answered = true
	x.w.WriteHeader(status)
	x.alarm.Abortable(func() {
		x.running.Abort()
		x.unblock()
	})
}

// Info implements forward.Client: it passes an informational response on (RFC 9110 section 15.2).
func (x *exchange) Info(head *wire.Response) {
	if !x.r.ProtoAtLeast(1, 1) {
		return
	}
	copyFields(x.w.Header(), head.Fields)
	x.writeInterim(head.Status)
}

// tunnel passes a 101 on and then bytes both ways.
func (x *exchange) tunnel(r *upstream.Response, result *queue.Result) {
	client, rw, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		x.alarm.Abortable(nil)
		r.Close()
		result.Begun, result.Status, result.Reason = false, 0, queue.AppGarbage
		return
	}
	defer client.Close()
	x.answered, result.Upgraded = true, true
	x.state.Enter(queue.Tunnelled)
	early, _ := rw.Reader.Peek(rw.Reader.Buffered()) // what the client has sent behind its request
	conn := client
	if r.IsWebSocket() {
		t := goaway.WebSocket(client)
		x.server.settings.WebSockets.Add(t)
		defer x.server.settings.WebSockets.Remove(t)
		conn = t
	}
	if _, err := client.Write(r.AppendSwitch(nil)); err != nil {
		x.alarm.Abortable(nil)
		r.Close()
		result.Reason = queue.ClientGone
		return
	}
	r.Tunnel(conn, bytes.Clone(early), x.alarm, &x.state, result)
}

// trailer returns the request's trailer fields for the user container. net/http sets them at the end
// of the body.
func (x *exchange) trailer() []wire.Field { return forward.RequestTrailer(fieldsOf(x.r.Trailer)) }

// maxAnnounced is how long a response's list of announced trailers may be, in bytes, so
// that it is passed on: net/http compares each name with all others. The trailers are
// sent in any case.
const maxAnnounced = 4 << 10

// responseFields takes the fields of a response for net/http.
type responseFields struct {
	header    http.Header
	announced int // bytes of Trailer
}

// Field implements forward.Encoder.
func (f *responseFields) Field(name, value string) {
	name = textproto.CanonicalMIMEHeaderKey(strings.Clone(name))
	if name == header.Trailer {
		if f.announced += len(value); f.announced > maxAnnounced {
			return
		}
	}
	f.header[name] = append(f.header[name], strings.Clone(value))
}

// copyFields copies what the user container said and is not for us alone.
func copyFields(h http.Header, fields []wire.Field) {
	forward.EachResponseField(fields, &responseFields{header: h})
	if _, ok := h[header.ContentType]; !ok {
		h[header.ContentType] = nil // net/http shall not guess
	}
}

// setTrailer sets the trailer fields behind the body, in net/http's way for those
// that were not announced: of the others it sends one that was announced twice
// twice, and a field of the head that has such a name.
func (x *exchange) setTrailer(h http.Header, fields []wire.Field) {
	clear(h) // the head has been sent
	for _, f := range forward.ResponseTrailer(&x.state, fields) {
		name := http.TrailerPrefix + textproto.CanonicalMIMEHeaderKey(string(f.Name))
		h[name] = append(h[name], string(f.Value))
	}
}
