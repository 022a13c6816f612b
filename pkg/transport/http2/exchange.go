package http2

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// exchange implements transport.Exchange for a request. A worker reuses its exchange for the next request.
type exchange struct {
	server   *Server
	conn     *serverConn
	stream   *http2conn.Stream
	refusal  *wire.Error // reason why the request is not served, or nil
	open     bool        // the HEADERS frame of the request did not have END_STREAM
	headSize int         // size of the header section in bytes (RFC 9113 section 6.5.2)
	size     int         // bytes of memory for the request without its body
	charged  int         // number of bytes charged to the memory budget: 0 or size

	request  rewrite.Request
	protocol string // value of :protocol of an extended CONNECT; otherwise ""
	body     body
	state    transport.State
	canceler *transport.Canceler
	call     http1client.Call // call to a user container that uses HTTP/1.1
	relay    relay            // relay to a user container that uses HTTP/2

	woken chan struct{} // wakes the goroutine that serves the request

	// due is the number of unsent bytes of the announced response content. It is negative if the length of the response
	// is unknown.
	due int64

	built rewrite.Built // contains the result of Request
	gone  atomic.Bool   // the client's stream has failed

	costly atomic.Bool // the client's connection was closed because of the memory budget
}

func (x *exchange) init(s *Server) {
	x.server = s
	x.woken = make(chan struct{}, 1)
	x.state = s.proxy.NewState()
	x.canceler = transport.NewCanceler(x.gone.Load)
	x.body.init(x)
	x.relay.x = x
	x.call.Request, x.call.Client = &x.request, (*caller)(x)
	x.request.AppHost = s.settings.AppHost
	x.request.Crumbs = true
	x.request.Unpacked = &s.unpacked
}

// read checks the header section of a request and prepares the exchange for the request. It returns false if the
// request is malformed (RFC 9113 section 8.3.1). The stream must then be reset.
func (x *exchange) read(c *serverConn, h *http2conn.Head, end bool) bool {
	q := &x.request
	q.Method, q.Target, q.Host, q.Peer, q.Secure = h.Method, h.Path, h.Authority, c.peer, c.secure
	q.Upgrade, x.open = false, !end
	x.due = -1
	x.protocol = h.Protocol
	if h.Malformed || h.Method == "" || !wire.ValidToken(h.Method) {
		return false
	}
	switch {
	case h.Protocol != "": // RFC 8441 section 4
		if h.Method != http.MethodConnect || end || h.Authority == "" {
			return false
		}
	case h.Method == http.MethodConnect: // RFC 9113 section 8.5
		if h.Authority == "" || h.Scheme != "" || h.Path != "" {
			return false
		}
		q.Target = h.Authority
	}
	// All requests except a plain CONNECT have a scheme and a path (RFC 9113 section 8.3.1).
	if h.Method != http.MethodConnect || h.Protocol != "" {
		if h.Scheme != "http" && h.Scheme != "https" || !validPath(h.Path, h.Method) {
			return false
		}
	}
	q.Length, q.Chunked, q.Expect100 = -1, false, false
	if !x.readFields(h) {
		return false
	}
	switch {
	case end && q.Length > 0:
		return false
	case !end && q.Length < 0:
		q.Chunked = true
	}
	x.headSize = h.Size()
	x.size = requestBytes + len(q.Target) + len(q.Host)
	if q.Packed = pack(h); q.Packed != nil {
		x.size += len(q.Packed)
	} else {
		x.size += h.Stored() + len(h.Fields)*fieldBytes
		q.Fields = h.Take(q.Fields)
	}
	x.body.begin(q.Length, end)
	return true
}

const (
	// requestBytes is the memory in bytes that a request uses in addition to its header section and its body. It
	// includes the worker with its stack, the stream, and the connection to the user container.
	requestBytes = 12 << 10
	// fewFields is the maximum number of fields in a header section that is never packed.
	fewFields = 64
	// fieldBytes is the memory in bytes that an unpacked field uses in addition to its name and value.
	fieldBytes = 48
)

// pack returns the fields of h in packed form. It returns nil if the packed form is longer than half of the overhead of
// unpacked fields, which is fieldBytes for each field. The fields of an extended CONNECT are never packed, because
// connect adds fields to them.
func pack(h *http2conn.Head) wire.Packed {
	if len(h.Fields) <= fewFields || h.Protocol != "" {
		return nil
	}
	size := wire.PackedSize(h.Fields)
	if 2*size > len(h.Fields)*fieldBytes {
		return nil
	}
	return make(wire.Packed, 0, size).Pack(h.Fields)
}

// refuse prepares the exchange for a request that is rejected because its header section is too long.
func (x *exchange) refuse(end bool) {
	x.request.Method, x.request.Fields, x.size = "", x.request.Fields[:0], requestBytes
	x.refusal = wire.Refuse(wire.WordListTooLong)
	x.body.begin(-1, end)
}

// readFields evaluates the fields Content-Length, Host, Expect and Trailer. It returns false if the request is
// malformed. As in HTTP/1, it sets refusal if the request must be rejected because of Expect or Trailer.
func (x *exchange) readFields(h *http2conn.Head) bool {
	q := &x.request
	x.refusal = nil
	announced := 0 // total length of the Trailer fields, in bytes
	for _, f := range h.Fields {
		switch transport.RoleOf(f.Name) {
		case transport.LengthRole:
			n, err := strconv.ParseUint(wire.String(f.Value), 10, 63)
			if err != nil || q.Length >= 0 && q.Length != int64(n) {
				return false
			}
			q.Length = int64(n)
		case transport.HostRole: // must be equal to :authority (RFC 9113 section 8.3.1)
			if q.Host == "" {
				q.Host = wire.String(f.Value)
			} else if !strings.EqualFold(q.Host, wire.String(f.Value)) {
				return false
			}
		case transport.ExpectRole:
			continues, other := wire.Expectation(f.Value)
			q.Expect100 = q.Expect100 || continues
			if other && x.refusal == nil {
				x.refusal = wire.Refuse(wire.WordExpect)
			}
		case transport.TrailerRole:
			announced += len(f.Value) + len(",")
			if announced <= wire.MaxRequestTrailer && wire.ForbidsTrailers(f.Value) {
				x.refusal = wire.Refuse(wire.WordTrailerName)
			}
		}
	}
	if announced > wire.MaxRequestTrailer {
		x.refusal = wire.Refuse(wire.WordListTooLong)
	}
	return wire.ValidHost(q.Host)
}

// validPath reports whether path can be sent in a request line of HTTP/1.1, where a space or a line break would end the
// path (RFC 9113 section 10.3).
func validPath(path, method string) bool {
	if path == "*" {
		return method == http.MethodOptions
	}
	return strings.HasPrefix(path, "/") && wire.Visible(path) && !wire.BadEscape(path)
}

// serve serves or rejects the request, and then releases the exchange for the next request.
func (x *exchange) serve() {
	if x.refusal != nil {
		rewrite.RecordRefusal(x.server.settings.Bounds, x.conn.remote, x.refusal.Status, x.refusal)
		x.server.proxy.Refuse(x, x.refusal.Status)
	} else {
		if x.request.Length == 0 && x.request.Method != http.MethodConnect {
			x.body.awaitEnd()
		}
		x.server.proxy.Serve(x, x.state)
	}
	x.end()
}

// end waits for the pending output of the response, and releases the stream and the memory of the request.
func (x *exchange) end() {
	x.canceler.Reset()
	x.built.Reset()
	x.body.stop()
	if !x.stream.Closed() {
		if !x.stream.Ended() {
			x.awaitAnswer()
		}
		x.stream.Reset(http2conn.NoError) // for a tunnel whose client has not ended its side
	}
	x.stream.Release()
	x.conn.Flush(true)
	c := x.conn
	x.release()
	c.leave()
}

// release releases the memory of the request, and resets the exchange for the next request.
func (x *exchange) release() {
	x.body.release()
	x.call.Memory.Release()
	x.conn.memory.Sub(x.charged)
	x.charged, x.call.Memory.Account = 0, nil
	x.gone.Store(false)
	x.costly.Store(false)
	select {
	case <-x.woken:
	default:
	}
	clear(x.request.Fields)
	x.request.Fields = x.request.Fields[:0]
	if cap(x.request.Fields) > fieldsKept {
		x.request.Fields = nil
	}
	x.request.Packed = nil
	x.request.Method, x.request.Target, x.request.Host, x.request.Trace = "", "", "", nil
	x.conn, x.stream = nil, nil
}

// fieldsKept is the maximum capacity of request.Fields that is kept for the next request.
const fieldsKept = 32

// awaitAnswer waits up to rewrite.AnswerTimeout for the pending output of the stream. If the response is still
// incomplete, awaitAnswer resets the stream.
func (x *exchange) awaitAnswer() {
	timeout := time.After(rewrite.AnswerTimeout)
	for late := false; x.stream.Waits() && !x.gone.Load() && !late; {
		x.conn.Flush(false)
		select {
		case <-x.woken:
		case <-timeout:
			late = true
		}
	}
	if !x.stream.Ended() {
		x.stream.Reset(http2conn.InternalError)
	}
}

// wake wakes the goroutine that serves the request if the goroutine waits for a change of the exchange. It is safe for
// concurrent use.
func (x *exchange) wake() {
	select {
	case x.woken <- struct{}{}:
	default:
	}
}

// Header implements transport.Exchange.
func (x *exchange) Header(name string) string {
	v, ok := wire.Find(x.request.Fields, name)
	if !ok {
		v, _ = x.request.Packed.Find(name)
	}
	return wire.String(v)
}

// Repeats implements transport.Exchange.
func (x *exchange) Repeats(name string) bool {
	return wire.Repeats(x.request.Fields, name) || x.request.Packed.Repeats(name)
}

// Line implements transport.Exchange.
func (x *exchange) Line() transport.Line {
	q := &x.request
	return transport.Line{
		Method: q.Method, Target: q.Target, Host: q.Host, Major: 2,
		Remote: x.conn.remote, TLS: x.conn.secure, Open: x.open,
	}
}

// Request implements transport.Exchange.
func (x *exchange) Request() *http.Request {
	return x.built.Get(x.gone.Load, func() *http.Request {
		return rewrite.Build(x.Line(), x.request.Packed.Unpack(x.request.Fields))
	})
}

// Wait implements transport.Exchange.
func (x *exchange) Wait(state transport.State) error {
	return rewrite.ClosedFor(x.canceler.Wait(state), x.costly.Load())
}

// Notify implements transport.Exchange.
func (x *exchange) Notify() { x.canceler.Notify() }

// Answer implements transport.Exchange.
func (x *exchange) Answer(a transport.Answer) {
	k := x.server.block()
	defer x.server.putBlock(k)
	k.Status(a.Status())
	a.Fields(k.Field)
	k.Field(transport.Date, x.server.date.Now())
	body, framed := a.Body()
	if framed {
		k.Field(transport.ContentLength, strconv.Itoa(len(body)))
	}
	if x.request.Method == http.MethodHead {
		body = ""
	}
	if x.stream.SendHead(k, body == "") == nil && body != "" {
		_, _ = x.stream.SendData([]byte(body), true) // fails only if the stream has ended
	}
}

// fromClient implements http2conn.Owner for the client's stream of an exchange.
type fromClient exchange

// Head implements http2conn.Owner. h is the trailer section of the request.
func (f *fromClient) Head(by *http2conn.Conn, h *http2conn.Head, _ bool) {
	x := (*exchange)(f)
	if h.Malformed { // reset the stream first, because the worker sends a response when it receives the error
		x.stream.Reset(http2conn.ProtocolError)
		by.FlushLater(x.conn.Conn)
	}
	if word := trailerFault(h); word != "" {
		x.body.fail(&transport.Error{Fault: transport.FaultBadRequest, Err: wire.BadBody(word)})
		return
	}
	x.body.trail(by, rewrite.RequestTrailer(h.Take(nil)))
}

// trailerFault returns the reason why a trailer section must be rejected, or "" if it is valid.
func trailerFault(h *http2conn.Head) wire.Word {
	switch {
	case h.Malformed:
		return wire.WordTrailerName
	case h.TooLarge || h.Size() > wire.MaxRequestTrailer:
		return wire.WordTrailerTooLong
	}
	for _, field := range h.Fields {
		if wire.ForbidsTrailer(field.Name) {
			return wire.WordTrailerName
		}
	}
	return ""
}

// Data implements http2conn.Owner.
func (f *fromClient) Data(by *http2conn.Conn, p []byte, n int, end bool) {
	f.body.add(by, p, n, end)
}

// Failed implements http2conn.Owner. It sets gone first, because the goroutines that it wakes check gone.
func (f *fromClient) Failed(_ *http2conn.Conn, err error) {
	x := (*exchange)(f)
	x.costly.Store(errors.Is(err, http2conn.ErrMemory))
	x.gone.Store(true)
	x.body.fail(errReset)
	x.canceler.Notify()
	x.built.Leave()
	x.wake()
}

// Drained implements http2conn.Owner.
func (f *fromClient) Drained(by *http2conn.Conn) {
	x := (*exchange)(f)
	x.relay.credit(by)
	x.state.WriteDone()
	x.wake()
}
