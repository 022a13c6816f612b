package httplane

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
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

// appOnlySpeaksH2 reports whether a request that was not understood in HTTP/1.1
// can be sent in HTTP/2 instead: the user container speaks that, and it cannot
// have acted on what it heard. That is so if it has answered in HTTP/2. If it has
// closed without a word, it may have read the head and died (docs/promises.md 3.7):
// then it must not speak HTTP/1.1 at all.
func (x *exchange) appOnlySpeaksH2(err error) bool {
	var e *upstream.Error
	if !errors.As(err, &e) || !x.call.BodyUntouched() {
		return false
	}
	if e.Silent {
		only, err := x.ask(x.lane.app.SpeaksOnlyH2)
		x.alarm.Abortable(nil)
		return err == nil && only
	}
	return e.Fault == upstream.Garbage && x.lane.app.OnlyH2()
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
		}
		_ = x.body.leave()
		x.cutBody()
	}()
	x.life.Enter(queue.Waiting)
	x.fullDuplex()
	var sends atomic.Int32
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sends.Add(1) }})
	infos := &interims{tell: x.informH2}
	res, err := x.lane.app.RoundTripH2(x.requestH2(ctx, infos))
	infos.end(err != nil)
	result.Replayed = sends.Load() > 1
	if err != nil {
		x.blame(&result, x.alarm.Abortable(nil), err)
		if x.body != nil {
			x.stopBody()
		}
		return result
	}
	result.FirstByte, result.Status, result.Begun = time.Now(), res.StatusCode, true
	x.life.Enter(queue.Streaming)
	x.streamH2(res, cancel, &result)
	x.settle(&result)
	res.Body.Close()
	x.broken = result.Why != queue.OK
	return result
}

// requestH2 makes the request to the user container (promises.md 3.4 and 3.8).
func (x *exchange) requestH2(ctx context.Context, infos *interims) *http.Request {
	r := x.r
	h := make(http.Header, len(r.Header)+4)
	h[header.UserAgent] = []string{""} // or the transport invents one
	x.eachField(func(name, value string) {
		if name == header.UserAgent {
			h.Set(name, value)
			return
		}
		h[name] = append(h[name], value)
	})
	if x.wantsTrailers() {
		h[header.TE] = []string{"trailers"}
	}
	host, target := x.host(), x.target()
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
	trace := &httptrace.ClientTrace{Got1xxResponse: infos.hear}
	return out.WithContext(httptrace.WithClientTrace(ctx, trace))
}

// streamH2 passes the response on to its end.
func (x *exchange) streamH2(res *http.Response, cancel func(), result *queue.Result) {
	h := x.w.Header()
	copyHeader(h, res.Header)
	if len(res.Trailer) > 0 {
		h[header.Trailer] = []string{trailerNames(res.Trailer)}
	}
	if res.ContentLength >= 0 && res.StatusCode != http.StatusNoContent {
		h[header.ContentLength] = []string{strconv.FormatInt(res.ContentLength, 10)}
	}
	x.addTiming(h)
	x.closeIfLast(h, x.lane.settings.FullDuplex)
	x.begun(res.StatusCode, res.ContentLength < 0, cancel)

	pooled := x.lane.buffers.Get().(*[]byte)
	defer x.lane.buffers.Put(pooled)
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
	announced := h[header.Trailer]
	clear(h)
	for name, values := range res.Trailer {
		if name == header.ProxyStatus {
			values = withoutOurs(values)
		}
		if !isNamed(announced, name) {
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
}

// informH2 passes an informational response on (RFC 9110 section 15.2).
func (x *exchange) informH2(status int, fields http.Header) {
	if !x.r.ProtoAtLeast(1, 1) {
		return
	}
	h := x.w.Header()
	copyHeader(h, fields)
	delete(h, header.ContentType)
	x.writeInterim(status)
}

// maxInterims bounds the informational responses before a final one, as in HTTP/1.1.
const maxInterims = 100

// interims are the informational responses to one request. The transport tells of
// them on the goroutine that reads for all requests of a connection, which must not
// wait for one client, and also when the request is over: so another goroutine
// passes them on, and none behind end.
type interims struct {
	tell func(status int, fields http.Header)

	mu      sync.Mutex
	n       int
	waiting []interim
	telling chan struct{} // closed when the goroutine has ended; nil: there is none
	over    bool
}

type interim struct {
	status int
	fields http.Header
}

// hear takes an informational response. Any goroutine may call it.
func (i *interims) hear(status int, fields textproto.MIMEHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return nil
	}
	if i.n++; i.n > maxInterims {
		return &upstream.Error{Fault: upstream.Garbage, Err: errTooManyInterims}
	}
	i.waiting = append(i.waiting, interim{status, http.Header(fields)})
	if i.telling == nil {
		i.telling = make(chan struct{})
		go i.run()
	}
	return nil
}

var errTooManyInterims = errors.New("too many informational responses")

// run tells of those that wait.
func (i *interims) run() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.waiting) > 0 {
		next := i.waiting[0]
		i.waiting = i.waiting[1:]
		i.mu.Unlock()
		i.tell(next.status, next.fields)
		i.mu.Lock()
	}
	close(i.telling)
	i.telling = nil
}

// end returns when all have been told of, or when those that wait have been dropped.
func (i *interims) end(drop bool) {
	i.mu.Lock()
	i.over = true
	if drop {
		i.waiting = nil
	}
	telling := i.telling
	i.mu.Unlock()
	if telling != nil {
		<-telling
	}
}

// copyHeader is copyFields for what the standard library has read.
func copyHeader(h, from http.Header) {
	for name, values := range from {
		switch {
		case header.Hop(name), name == header.ContentLength:
		case name == header.ProxyStatus:
			h[name] = append(h[name], withoutOurs(values)...)
		default:
			h[name] = values
		}
	}
	if _, ok := h[header.ContentType]; !ok {
		h[header.ContentType] = nil // net/http shall not guess
	}
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
