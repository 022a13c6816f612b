package nethttp

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// ask puts a question to the user container, within the request's clocks. The
// caller ends the reach of the alarm.
func (x *exchange) ask(question func(context.Context) (bool, error)) (bool, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if why := x.alarm.Abortable(cancel); why != queue.OK {
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
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if why := x.alarm.Abortable(func() { cancel(); x.boundWrites() }); why != queue.OK {
		return queue.Result{Why: why}
	}
	defer func() {
		result.In = x.body.moved()
		if x.body != nil {
			_ = x.body.Close() // which the transport does not where the response has no body
			x.body.leave()
		}
	}()
	x.life.Enter(queue.Waiting)
	x.fullDuplex()
	var sends atomic.Int32
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sends.Add(1) }})
	infos := &upstream.Interims{Tell: x.informH2}
	res, err := x.server.app.RoundTripH2(x.requestH2(ctx, infos))
	infos.End(err != nil)
	result.Replayed = sends.Load() > 1
	if err != nil {
		x.blame(&result, x.alarm.Abortable(nil), err)
		if x.body != nil {
			x.StopBody()
		}
		return result
	}
	result.FirstByte, result.Status, result.Begun = time.Now(), res.StatusCode, true
	x.life.Respond(res.Header.Get(header.ContentType))
	x.streamH2(res, cancel, &result)
	x.settle(&result)
	res.Body.Close()
	x.broken = result.Why != queue.OK
	return result
}

// requestH2 makes the request to the user container (promises.md 3.4 and 3.8).
func (x *exchange) requestH2(ctx context.Context, infos *upstream.Interims) *http.Request {
	r := x.r
	h := make(http.Header, len(r.Header)+4)
	h[header.UserAgent] = []string{""} // or the transport invents one
	x.head.EachField(requestFields(h))
	if x.head.WantsTrailers() {
		h[header.TE] = []string{"trailers"}
	}
	host, target := x.head.Authority(), x.head.Path()
	if target != "*" {
		target = "http://" + host + target // the transport cuts off what it knows and sends the rest as it is
	}
	out := &http.Request{
		Method:        r.Method,
		URL:           &url.URL{Scheme: "http", Host: host, Opaque: target},
		Host:          host,
		Header:        h,
		ContentLength: r.ContentLength,
		Trailer:       r.Trailer,
	}
	if x.body != nil {
		out.Body = x.body
	}
	trace := &httptrace.ClientTrace{Got1xxResponse: infos.Take}
	return out.WithContext(httptrace.WithClientTrace(ctx, trace))
}

// requestFields takes the fields of a request for the standard library's transport. Of what
// they point to nothing is used again: there is no copy of 900 KB for a head of 900 KB.
type requestFields http.Header

// Field implements forward.Encoder.
func (h requestFields) Field(name, value string) {
	switch name {
	case header.Trailer: // see http.Request.Trailer
	case header.UserAgent:
		h[name] = []string{value}
	default:
		h[name] = append(h[name], value)
	}
}

// streamH2 passes the response on to its end.
func (x *exchange) streamH2(res *http.Response, cancel func(), result *queue.Result) {
	h := x.w.Header()
	copyFields(h, fieldsOf(res.Header))
	announced := trailerNames(res.Trailer)
	if 0 < len(announced) && len(announced) <= maxAnnounced {
		h[header.Trailer] = []string{announced}
	}
	hasLength := res.ContentLength >= 0 && (x.h2 || announced == "") // in HTTP/1.1 trailers need chunks
	if hasLength && res.StatusCode != http.StatusNoContent {
		h[header.ContentLength] = []string{strconv.FormatInt(res.ContentLength, 10)}
	}
	x.addTiming(h)
	x.closeIfLast(h, x.server.settings.FullDuplex)
	x.begun(res.StatusCode, !hasLength, cancel)

	pooled := x.server.buffers.Get().(*[]byte)
	defer x.server.buffers.Put(pooled)
	if res.ContentLength != 0 {
		_ = x.flush() // whoever writes next hears of an error
	}
	for {
		n, err := res.Body.Read(*pooled)
		if n > 0 {
			x.life.Touch()
			wrote, err := x.write((*pooled)[:n])
			result.Out += int64(wrote)
			if err == nil {
				err = x.flush()
			}
			if err != nil {
				if result.Why = x.alarm.Abortable(nil); result.Why == queue.OK {
					result.Why = queue.ClientGone
				}
				return
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			x.blame(result, x.alarm.Abortable(nil), err)
			return
		}
	}
	if len(res.Trailer) == 0 {
		return
	}
	_ = x.flush() // so that an HTTP/1 body is chunked
	known := h[header.Trailer] != nil
	clear(h)
	for name, values := range res.Trailer {
		if name == header.ProxyStatus {
			values = withoutOurs(values)
		}
		switch {
		case len(values) == 0: // it was announced and has not come; net/http would not end the stream
		case known && wire.HasToken(announced, name):
			h[name] = values
		default:
			h[http.TrailerPrefix+name] = values
		}
	}
}

// maxAnnounced is how long a response's list of announced trailers may be, in bytes, so
// that it is passed on: net/http compares each name with all others. The trailers are
// sent in any case.
const maxAnnounced = 4 << 10

// informH2 passes an informational response on (RFC 9110 section 15.2).
func (x *exchange) informH2(status int, fields http.Header) {
	if !x.r.ProtoAtLeast(1, 1) {
		return
	}
	h := x.w.Header()
	copyFields(h, fieldsOf(fields))
	delete(h, header.ContentType)
	x.writeInterim(status)
}

// withoutOurs returns the lines of a Proxy-Status without our own member.
func withoutOurs(lines []string) (kept []string) {
	for _, line := range lines {
		if line = header.WithoutOurs(line); line != "" {
			kept = append(kept, line)
		}
	}
	return kept
}
