package http1

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
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

// forwardH2 forwards a request to a user container that speaks HTTP/2 alone, by the
// standard library's transport.
func (x *exchange) forwardH2() (result queue.Result) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if why := x.alarm.Abortable(func() { cancel(); x.c.nc.SetWriteDeadline(past) }); why != queue.OK {
		return queue.Result{Why: why}
	}
	x.life.Enter(queue.Waiting)
	var sends atomic.Int32
	infos := &upstream.Interims{Tell: x.informH2}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders:   func() { sends.Add(1) },
		Got1xxResponse: infos.Take,
	})
	r, body := x.requestH2(ctx)
	res, err := x.c.server.app.RoundTripH2(r)
	infos.End(err != nil)
	result.Replayed = sends.Load() > 1
	if err != nil {
		body.leave()
		x.blame(&result, x.alarm.Abortable(nil), err)
		result.In = x.body.moved()
		return result
	}
	result.FirstByte, result.Status, result.Begun = time.Now(), res.StatusCode, true
	x.life.Respond(res.Header.Get(header.ContentType))
	x.alarm.Abortable(func() { cancel(); x.c.nc.SetDeadline(past) })
	x.streamH2(res, &result)
	if x.alarm.Abortable(nil) != queue.OK {
		x.last = true
	}
	res.Body.Close()
	body.leave()
	x.conclude(&result)
	return result
}

// requestH2 makes the request to the user container: what it would get in HTTP/1.1,
// less what belongs to that connection (RFC 9113 section 8.2.2).
func (x *exchange) requestH2(ctx context.Context) (*http.Request, *bodyH2) {
	q := &x.request
	h := http.Header{header.UserAgent: {""}} // or the transport invents one
	out := &http.Request{Method: string(q.Method), Header: h, ContentLength: max(q.ContentLength, 0)}
	if q.Chunked {
		out.ContentLength = -1
	}
	var head wire.Request
	b := x.head.AppendHTTP1(nil)
	_, _ = head.Parse(b)
	for _, f := range head.Fields {
		name, value := http.CanonicalHeaderKey(string(f.Name)), string(f.Value)
		switch header.RoleOf(f.Name) {
		case header.HostRole:
			out.Host = value
		case header.TERole:
			h.Set(name, value)
		case header.TrailerRole:
			out.Trailer = http.Header{}
			for announced := range strings.SplitSeq(value, ",") {
				out.Trailer[http.CanonicalHeaderKey(strings.Trim(announced, " \t"))] = nil
			}
		case header.HopRole, header.ConnectionRole, header.LengthRole, header.ExpectRole:
		default:
			if name == header.UserAgent {
				h.Set(name, value)
			} else {
				h[name] = append(h[name], value)
			}
		}
	}
	target := strings.Clone(x.head.Path())
	if target != "*" {
		target = "http://" + out.Host + target // the transport cuts off what it knows and sends the rest as it is
	}
	out.URL = &url.URL{Scheme: "http", Host: out.Host, Opaque: target}
	body := &bodyH2{x: x, trailer: out.Trailer}
	if !x.body.none() {
		out.Body = body
	}
	return out.WithContext(ctx), body
}

// bodyH2 is the request's body for the standard library's transport, which may still be
// reading when the exchange is over.
type bodyH2 struct {
	trailer http.Header // announced; gets its values at the end

	mu      sync.Mutex
	x       *exchange     // nil once the exchange is over
	reading chan struct{} // closed when the Read that is going on has returned; nil: none is
	cut     bool          // it was made to return
}

// Read implements io.Reader.
func (b *bodyH2) Read(p []byte) (int, error) {
	b.mu.Lock()
	x := b.x
	if x == nil || b.cut {
		b.mu.Unlock()
		return 0, errBroken
	}
	done := make(chan struct{})
	b.reading = done
	b.mu.Unlock()
	n, err := x.body.Read(p)
	if err == io.EOF {
		for _, f := range x.body.chunks.Trailer() {
			if name := http.CanonicalHeaderKey(string(f.Name)); b.announced(name) {
				b.trailer[name] = append(b.trailer[name], string(f.Value))
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = nil
	close(done)
	return n, err
}

func (b *bodyH2) announced(name string) bool {
	_, ok := b.trailer[name]
	return ok
}

// Close implements io.Closer for the transport, which wants no more of the body, and
// waits itself for a Read that the client keeps waiting.
func (b *bodyH2) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.interrupt()
	return nil
}

// interrupt makes a Read that is going on return. b.mu is held.
func (b *bodyH2) interrupt() {
	if b.x != nil && b.reading != nil {
		b.cut = true
		b.x.c.nc.SetReadDeadline(past)
	}
}

// leave lets go of the exchange, once nothing is being read from it.
func (b *bodyH2) leave() {
	b.mu.Lock()
	x, reading := b.x, b.reading
	b.interrupt()
	b.x = nil
	cut := b.cut
	b.mu.Unlock()
	if reading != nil {
		<-reading
	}
	x.stopped = x.stopped || cut
}

// informH2 passes an informational response on.
func (x *exchange) informH2(status int, fields http.Header) {
	x.Info(&wire.Response{Status: status, Reason: []byte(http.StatusText(status)), Fields: fieldsOf(fields)})
}

// fieldsOf returns the fields of a header.
func fieldsOf(h http.Header) []wire.Field {
	fields := make([]wire.Field, 0, len(h))
	for name, values := range h {
		for _, value := range values {
			fields = append(fields, wire.Field{Name: []byte(name), Value: []byte(value)})
		}
	}
	return fields
}

// streamH2 passes the response on to its end.
func (x *exchange) streamH2(res *http.Response, result *queue.Result) {
	length, fields := res.ContentLength, fieldsOf(res.Header)
	switch {
	case view(x.request.Method) == http.MethodHead || res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified:
		length = 0
	case len(res.Trailer) > 0 && x.request.Minor > 0:
		length = -1 // HTTP/2 has trailers behind a body of a known length, HTTP/1.1 behind chunks alone
	}
	for name := range res.Trailer {
		fields = append(fields, wire.Field{Name: []byte(header.Trailer), Value: []byte(name)})
	}
	chunked := x.beginResponse(res.StatusCode, http.StatusText(res.StatusCode), fields, length, res.ContentLength)
	if length != 0 && x.flush(nil) != nil { // the body may take its time
		x.gone(result)
		return
	}
	pooled := x.c.server.buffer(bufferSize)
	defer x.c.server.putBack(pooled)
	for {
		n, err := res.Body.Read(*pooled)
		if n > 0 {
			x.life.Touch()
			if x.pass((*pooled)[:n], chunked) != nil || err == nil && x.flush(nil) != nil {
				x.gone(result)
				return
			}
			result.Out += int64(n)
		}
		switch {
		case err == io.EOF:
			if chunked {
				x.room()
				x.out = wire.AppendLastChunk(x.out, forward.TrailerFields(fieldsOf(res.Trailer)))
				x.waiting = true
			}
			if x.flush(nil) != nil {
				x.gone(result)
			}
			return
		case err != nil:
			x.blame(result, x.alarm.Abortable(nil), err)
			_ = x.flush(nil)
			return
		}
	}
}
