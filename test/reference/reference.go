// Package reference is a proxy based on net/http and httputil.ReverseProxy. Tests compare the
// engines of the project with it. Only tests import this package.
//
// net/http reads requests and writes responses, and ReverseProxy handles hop-by-hop fields. The client
// side of the engines sends requests, because http.Transport accepts invalid responses and has other
// rules for replays. The reference does not support tunnels, timeouts or the limits of the engines.
package reference

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// Server is the reference proxy.
type Server struct {
	settings rewrite.ServerSettings
	proxy    transport.Handler
	app      *http1client.App
	client   *http2client.Client // client for an app that supports HTTP/2
	server   *http.Server
}

// New returns a server that passes requests to front and forwards them to app. HTTP/2 requests are
// forwarded with client if the app supports HTTP/2. Messages of net/http are written to logger.
func New(settings rewrite.ServerSettings, front transport.Handler, app *http1client.App, client *http2client.Client, logger *log.Logger) *Server {
	s := &Server{settings: settings, proxy: front, app: app, client: client}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.server = &http.Server{
		Handler: s, Protocols: protocols, MaxHeaderBytes: settings.MaxHeaderBytes,
		DisableGeneralOptionsHandler: true, ErrorLog: logger,
	}
	return s
}

// Serve serves the connections of ln until Shutdown is called. If config is not nil, the
// connections use TLS.
func (s *Server) Serve(ln net.Listener, config *tls.Config) error {
	if config != nil {
		ln = tls.NewListener(ln, config)
	}
	if err := s.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown ends the server.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.server.Shutdown(ctx) != nil {
		return s.server.Close()
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w = &flusher{ResponseWriter: w}
	x := &exchange{Server: s, w: w, r: r, control: http.NewResponseController(w)}
	x.state = s.proxy.NewState()
	x.canceler = transport.NewCanceler(func() bool { return !x.stopped.Load() && r.Context().Err() != nil })
	defer x.canceler.Stop()
	defer context.AfterFunc(r.Context(), x.Notify)()
	s.proxy.Serve(x, x.state)
	if x.cut || !x.answered { // abort the response, because net/http would send 200 to a client that has disconnected
		panic(http.ErrAbortHandler)
	}
	if x.bodyIsLeft() {
		x.StopBody() // stop reading the body, because net/http does not wait for the rest
	}
}

// A flusher serializes the flushes by the exchange and by ReverseProxy's timer.
type flusher struct {
	http.ResponseWriter
	mu sync.Mutex
}

// FlushError implements the interface that http.ResponseController uses.
func (f *flusher) FlushError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return http.NewResponseController(f.ResponseWriter).Flush()
}

// Unwrap implements the interface that http.ResponseController uses.
func (f *flusher) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// exchange implements transport.Exchange, rewrite.Client and http.RoundTripper for one request.
type exchange struct {
	*Server
	w        http.ResponseWriter
	r        *http.Request
	control  *http.ResponseController
	canceler *transport.Canceler
	state    transport.State
	result   transport.Result
	trace    *httptrace.ClientTrace // trace that ReverseProxy has added to the request
	body     body
	stopped  atomic.Bool // StopBody was called

	answered bool // a final response has begun
	cut      bool // the response is incomplete
}

// body is the body of the request.
type body struct {
	source   io.Reader
	mu       sync.Mutex
	left     int64 // number of unread bytes; negative if the length is unknown
	complete bool
	err      error // error of source; nil after io.EOF
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.source.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= int64(n)
	b.complete = err == io.EOF || b.left == 0
	if err != io.EOF {
		b.err = err
	}
	return n, err
}

func (b *body) state() (complete bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.complete, b.err
}

func (x *exchange) isH2() bool { return x.r.ProtoMajor == 2 }

// bodyIsLeft reports whether a part of an HTTP/1 request body has not arrived yet.
func (x *exchange) bodyIsLeft() bool {
	return !x.isH2() && !x.BodyArrived()
}

// Header implements transport.Exchange.
func (x *exchange) Header(name string) string { return strings.Trim(x.r.Header.Get(name), " \t") }

// Repeats implements transport.Exchange.
func (x *exchange) Repeats(name string) bool { return len(x.r.Header[name]) > 1 }

// Line implements transport.Exchange.
func (x *exchange) Line() transport.Line {
	return transport.Line{
		Method: x.r.Method, Target: x.r.RequestURI, Host: x.r.Host, Major: x.r.ProtoMajor, Minor: x.r.ProtoMinor,
		Remote: x.r.RemoteAddr, TLS: x.r.TLS != nil, Open: x.r.ContentLength != 0,
	}
}

// Request implements transport.Exchange.
func (x *exchange) Request() *http.Request { return x.r }

// Wait implements transport.Exchange.
func (x *exchange) Wait(state transport.State) error { return x.canceler.Wait(state) }

// Notify implements transport.Exchange.
func (x *exchange) Notify() { x.canceler.Notify() }

// Answer implements transport.Exchange.
func (x *exchange) Answer(a transport.Answer) {
	h := x.w.Header()
	clear(h)
	a.Fields(h.Set)
	body, framed := a.Body()
	if framed {
		h.Set(transport.ContentLength, strconv.Itoa(len(body)))
	}
	x.setDefaults()
	x.answered = true
	x.w.WriteHeader(a.Status())
	if x.r.Method != http.MethodHead {
		_, _ = io.WriteString(x.w, body)
	}
}

// setDefaults sets the fields of a final response that net/http would set to other values.
func (x *exchange) setDefaults() {
	h := x.w.Header()
	if _, ok := h[transport.ContentType]; !ok {
		h[transport.ContentType] = nil // a nil value prevents net/http from detecting the Content-Type
	}
	if x.bodyIsLeft() {
		_ = x.control.EnableFullDuplex() // net/http would otherwise read the rest of the body before it sends the response
	}
	if x.bodyIsLeft() || x.r.Method == http.MethodConnect {
		h.Set(transport.Connection, "close")
	}
}

// Forward implements transport.Exchange.
func (x *exchange) Forward(state transport.State) (result transport.Result) {
	x.canceler.Watch(state)
	server := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			for name, values := range r.In.Header { // restore the fields that ReverseProxy has removed
				if name == transport.Forwarded || strings.HasPrefix(name, "X-Forwarded-") {
					r.Out.Header[name] = values
				}
			}
		},
		Transport:     x,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) {}, // do nothing, because RoundTrip has set the result
	}
	in := *x.r
	in.Header = maps.Clone(x.r.Header)
	delete(in.Header, transport.Upgrade) // remove Upgrade, because ReverseProxy forwards only one of its field lines
	defer func() {
		if v := recover(); v != nil {
			if v != any(http.ErrAbortHandler) {
				panic(v)
			}
			x.cut = true
		}
		if x.canceler.Abortable(nil); x.cut && x.result.Err == nil {
			x.result.Err = transport.FaultClientGone
		}
		result = x.result
	}()
	server.ServeHTTP(x.w, &in)
	return x.result
}

var errRefused = errors.New("the request is not forwarded")

// RoundTrip implements http.RoundTripper for ReverseProxy. If it returns an error, x.result.Err
// contains the cause.
func (x *exchange) RoundTrip(out *http.Request) (*http.Response, error) {
	x.trace = httptrace.ContextClientTrace(out.Context())
	call := rewrite.Call{Request: x.request(out.Header), Client: x}
	if x.result.Err = x.refuse(call.Request); x.result.Err != nil {
		return nil, errRefused
	}
	if x.r.ContentLength != 0 {
		x.body.source, x.body.left = out.Body, x.r.ContentLength
		call.Body, call.Expect100 = &x.body, call.Request.Expect100
		call.Trailer = func() []wire.Field { return rewrite.RequestTrailer(fieldsOf(x.r.Trailer)) }
		if !x.isH2() {
			_ = x.control.EnableFullDuplex()
		}
	}
	response, head, err := x.send(&call)
	if err != nil {
		_, failed := x.body.state()
		call.Failed(&x.result, transport.Cause(x.canceler.Abortable(nil), err, failed))
		return nil, err
	}
	call.Began(&x.result, head.Status)
	x.answered = true
	r := &http.Response{StatusCode: head.Status, Header: x.header(head.Fields), Trailer: http.Header{}, ContentLength: response.Length(), Request: out}
	x.w.Header()[transport.Trailer] = r.Header[transport.Trailer] // restore the Trailer field, which ReverseProxy removes
	x.setDefaults()
	if n := rewrite.AnnouncedLength(head, response.Length()); n >= 0 && head.Status != http.StatusNotModified {
		r.Header.Set(transport.ContentLength, strconv.FormatInt(n, 10))
	}
	r.Body = &responseBody{x: x, source: response, trailer: r.Trailer}
	return r, nil
}

// request returns the request to the user container. h contains the fields that ReverseProxy would
// send, and is modified.
func (x *exchange) request(h http.Header) *rewrite.Request {
	r := x.r
	if r.Header["User-Agent"] == nil {
		delete(h, "User-Agent")
	}
	if upgrade := r.Header[transport.Upgrade]; upgrade != nil {
		h[transport.Upgrade], h[transport.Connection] = upgrade, r.Header[transport.Connection]
	}
	if len(r.Trailer) > 0 {
		h.Set(transport.Trailer, strings.Join(slices.Collect(maps.Keys(r.Trailer)), ", "))
	}
	peer, _, _ := net.SplitHostPort(r.RemoteAddr)
	q := &rewrite.Request{
		Method: r.Method, Target: r.RequestURI, Host: r.Host, AppHost: x.settings.AppHost, Peer: peer, Secure: r.TLS != nil,
		Fields: fieldsOf(h), Length: r.ContentLength, Chunked: r.ContentLength < 0, Crumbs: x.isH2(),
		Expect100: r.ProtoAtLeast(1, 1) && strings.EqualFold(r.Header.Get(transport.Expect), "100-continue"),
	}
	if r.ContentLength == 0 && r.Header[transport.ContentLength] == nil {
		q.Length = -1
	}
	named := wire.HasToken(strings.Join(r.Header[transport.Connection], ","), transport.Upgrade)
	q.Upgrade = named && !x.isH2() && r.ProtoAtLeast(1, 1) && q.OffersUpgrade()
	return q
}

// refuse returns the reason why a request is not forwarded, or nil.
func (x *exchange) refuse(q *rewrite.Request) error {
	announced := 0
	for name := range x.r.Trailer {
		if announced += len(name) + len(","); wire.ForbidsTrailer(name) || announced > wire.MaxRequestTrailer {
			return transport.FaultBadRequest
		}
	}
	for _, value := range x.r.Header[transport.ContentLength] { // RFC 9113 section 8.1.1; net/http validates only one of the values
		if n, err := strconv.ParseUint(value, 10, 63); x.isH2() && (err != nil || int64(n) != x.r.ContentLength) {
			return transport.FaultBadRequest
		}
	}
	return q.Refuse(0)
}

// send sends a request to the user container and returns the response.
func (x *exchange) send(call *rewrite.Call) (rewrite.Response, *wire.Response, error) {
	h2, err := false, error(nil)
	if x.isH2() {
		h2, err = x.app.SupportsH2(x, x.canceler)
	}
	if err != nil {
		return nil, nil, err
	}
	if h2 {
		c := &http2client.Call{Call: *call}
		c.Begin()
		x.canceler.Abortable(c.Abort)
		r, err := c.Do(x.client)
		if call.Sends, call.Held = c.Sends, c.Held; err != nil {
			return nil, nil, err
		}
		return r, &r.Head, nil
	}
	c := &http1client.Call{Call: *call}
	c.Begin()
	x.canceler.Abortable(c.Abort)
	r, err := c.Do(x.app)
	if call.Sends, call.Held = c.Sends, c.Held; err != nil {
		return nil, nil, err
	}
	return r, &r.Head, nil
}

// Sending implements rewrite.Client.
func (x *exchange) Sending() { x.state.Send() }

// Waiting implements rewrite.Client.
func (x *exchange) Waiting() {}

// StopBody implements rewrite.Client.
func (x *exchange) StopBody() {
	x.stopped.Store(true)
	_ = x.control.SetReadDeadline(time.Unix(1, 0))
}

// BodyArrived implements rewrite.Client.
func (x *exchange) BodyArrived() bool {
	complete, _ := x.body.state()
	return complete || x.r.ContentLength == 0
}

// Info implements rewrite.Client.
func (x *exchange) Info(head *wire.Response) {
	if x.r.ProtoAtLeast(1, 1) {
		_ = x.trace.Got1xxResponse(head.Status, textproto.MIMEHeader(x.header(head.Fields)))
	}
}

// header returns the fields of a response for net/http.
func (x *exchange) header(fields []wire.Field) http.Header {
	h := headerEncoder{}
	rewrite.EachResponseField(fields, h)
	return http.Header(h)
}

// headerEncoder implements rewrite.Encoder.
type headerEncoder http.Header

// Field implements rewrite.Encoder.
func (h headerEncoder) Field(name, value string) {
	http.Header(h).Add(strings.Clone(name), strings.Clone(value))
}

// fieldsOf returns the fields of a header. It trims the values, because net/http does not remove
// blanks over HTTP/2.
func fieldsOf(h http.Header) (fields []wire.Field) {
	for name, values := range h {
		for _, value := range values {
			fields = append(fields, wire.Field{Name: []byte(name), Value: []byte(strings.Trim(value, " \t"))})
		}
	}
	return fields
}

// responseBody is the body of a response for ReverseProxy.
type responseBody struct {
	x       *exchange
	source  rewrite.Response
	rest    []byte
	trailer http.Header // trailer fields; set at the end of the body
}

// Read implements io.Reader.
func (b *responseBody) Read(p []byte) (n int, err error) {
	if len(b.rest) == 0 {
		b.rest, err = b.source.Next()
	}
	switch {
	case err == io.EOF:
		clear(b.x.w.Header()) // remove the header fields; otherwise, net/http would use their values for announced trailers with the same names
		for _, f := range rewrite.ResponseTrailer(b.x.state, b.source.Trailer()) {
			b.trailer.Add(string(f.Name), string(f.Value))
		}
	case err != nil:
		_ = b.x.control.Flush() // send the header section immediately
		_, failed := b.x.body.state()
		b.x.result.Err = transport.Cause(b.x.canceler.Abortable(nil), err, failed)
	}
	n = copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, err
}

// Close implements io.Closer.
func (b *responseBody) Close() error {
	b.source.Close()
	return nil
}
