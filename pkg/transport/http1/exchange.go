package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// exchange implements transport.Exchange for one request of a connection. The header section remains unchanged in
// the buffer of the connection until the request ends.
type exchange struct {
	c        *serverConn
	request  wire.Request
	size     int // length of the header section in bytes
	at       int // index in c.buf of the first unread byte after the header section
	state    transport.State
	canceler *transport.Canceler
	head     rewrite.Request // request to the user container
	call     http1client.Call
	running  call // the call to abort: &exchange.call, or a call over HTTP/2
	body     body
	pooled   *[]byte // backing array of out, from the buffers of the server; nil if there is none
	out      []byte  // output buffer
	remote   string  // address and port of the client

	// abortApp aborts Forward before the response begins, and abortBoth aborts it afterwards. The functions are stored
	// to avoid allocations for each request.
	abortApp, abortBoth func()

	direct     bool // the current write includes bytes of the response that are not in out
	waiting    bool // out contains bytes that must be written before the exchange blocks
	last       bool // the connection is closed after this request
	untilClose bool // the close of the connection marks the end of the response
	broken     bool // the response was not written completely, or the connection carries a tunnel
	begun      bool // bytes of the final response were written, so that no error response can be sent
	stopped    bool // StopBody was called

	writeErr error // error of the last write

	interim interim
	built   rewrite.Built // contains the result of Request
}

func (x *exchange) init(c *serverConn) {
	x.c = c
	x.state = c.server.proxy.NewState()
	x.canceler = transport.NewCanceler(x.hasGone)
	x.remote = c.nc.RemoteAddr().String()
	x.head.Peer, x.head.AppHost = c.nc.Client().String(), c.server.settings.AppHost
	x.abortApp = func() {
		x.running.Abort()
		c.nc.SetWriteDeadline(past) // Forward may be writing an informational response
	}
	x.abortBoth = func() {
		x.running.Abort()
		c.nc.SetDeadline(past)
	}
	x.call.Request, x.call.Client = &x.head, x
	x.body.x = x
	x.body.chunks.MaxTrailer = wire.MaxRequestTrailer
}

// Sending implements rewrite.Client.
func (x *exchange) Sending() { x.state.Send() }

// Waiting implements rewrite.Client.
func (x *exchange) Waiting() {
	_ = x.flush(nil) // ignore the error, because the next write returns it
	x.leaveRoom()
}

// StopBody implements rewrite.Client.
func (x *exchange) StopBody() {
	x.stopped = true
	x.c.nc.SetReadDeadline(past)
}

// BodyArrived implements rewrite.Client.
func (x *exchange) BodyArrived() bool { return x.body.complete() }

// hasGone reports whether the client has closed the connection. It returns false if the client has closed only its side
// of a tunnel, because the client may still receive bytes.
func (x *exchange) hasGone() bool {
	return x.c.gone.Load() && (!x.state.Upgraded() || x.c.costly.Load())
}

// begin prepares the exchange for a request whose header section has n bytes.
func (x *exchange) begin(n int) {
	x.size, x.at = n, x.c.r+n
	x.last, x.broken, x.waiting, x.stopped, x.untilClose = false, false, false, false, false
	x.interim.begin(false)
	x.body.begin(&x.request)
}

// end releases the request and discards its buffered body. It returns true if the connection can serve another request.
func (x *exchange) end() bool {
	x.canceler.Reset()
	x.built.Reset()
	x.running = nil
	x.leaveRoom()
	if !x.body.discard() {
		x.last = true
	}
	if x.last || x.broken {
		return false
	}
	if x.stopped {
		x.c.nc.SetReadDeadline(time.Time{})
	}
	x.c.r = x.at
	return true
}

// Header implements transport.Exchange. The result refers to the buffer of the connection.
func (x *exchange) Header(name string) string {
	v, _ := wire.Find(x.request.Fields, name)
	return wire.String(v)
}

// Repeats implements transport.Exchange.
func (x *exchange) Repeats(name string) bool { return wire.Repeats(x.request.Fields, name) }

// Line implements transport.Exchange.
func (x *exchange) Line() transport.Line {
	q := &x.request
	return transport.Line{
		Method: wire.String(q.Method), Target: wire.String(q.Target), Host: wire.String(q.Host), Major: 1, Minor: q.Minor,
		Remote: x.remote, TLS: x.c.nc.Secure(), Open: q.Chunked || q.ContentLength > 0,
	}
}

// Request implements transport.Exchange. It parses a copy of the header section with net/http. The engine
// does not store an http.Request, because few requests need it.
func (x *exchange) Request() *http.Request {
	return x.built.Get(x.c.gone.Load, func() *http.Request {
		head := bytes.Clone(x.c.buf[x.c.r : x.c.r+x.size])
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
		if err != nil { // net/http rejected the request target
			return rewrite.Build(x.Line(), x.request.Fields)
		}
		r.Body, r.RemoteAddr = http.NoBody, x.remote
		return r
	})
}

// Wait implements transport.Exchange.
func (x *exchange) Wait(state transport.State) error {
	return rewrite.ClosedFor(x.canceler.Wait(state), x.c.costly.Load())
}

// Notify implements transport.Exchange.
func (x *exchange) Notify() { x.canceler.Notify() }

// Answer implements transport.Exchange.
func (x *exchange) Answer(a transport.Answer) {
	x.last = x.endsConnection(false)
	minor := x.request.Minor
	x.endInterim()
	x.room()
	b := appendStatus(x.out[:0], minor, a.Status(), http.StatusText(a.Status()))
	a.Fields(func(name, value string) { b = wire.AppendField(b, name, value) })
	b = wire.AppendField(b, transport.Date, x.c.server.date.Now())
	body, _ := a.Body()
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n"...)
	b = x.appendConnection(b, minor, false)
	b = append(b, "\r\n"...)
	// A response to HEAD has the same header section as a response to GET, but no content (RFC 9110 section 9.3.2).
	if wire.String(x.request.Method) != http.MethodHead {
		b = append(b, body...)
	}
	x.out, x.waiting = b, true
	x.c.clocked = false
	x.c.nc.SetWriteDeadline(time.Now().Add(rewrite.AnswerTimeout))
	x.writeErr = nil
	_ = x.flush(nil) // ignore the error, because the client may have disconnected
	if errors.Is(x.writeErr, os.ErrDeadlineExceeded) {
		x.c.hit(bound.SendTimeout)
	}
	x.c.nc.SetWriteDeadline(time.Time{})
}

// endsConnection reports whether the connection must be closed after the request. It returns true if the client
// requested it, if the pod is draining, or if another connection waits because of the connection limit. It also returns
// true for CONNECT, because the bytes after the request are not HTTP, and for an incomplete request body. If duplex is
// true, an incomplete body is ignored, because the user container may read the rest of the body during the response.
func (x *exchange) endsConnection(duplex bool) bool {
	return x.request.Close || string(x.request.Method) == http.MethodConnect || x.c.server.closing() || x.c.place.Wanted() || !duplex && !x.body.complete()
}

// appendConnection appends a Connection field if the persistence of the connection is not the default for the HTTP
// version. By default, HTTP/1.0 closes the connection and HTTP/1.1 keeps it open (RFC 9112 sections 9.3 and C.2.2).
// If upgrade is true, the field also contains the Upgrade option.
func (x *exchange) appendConnection(b []byte, minor int, upgrade bool) []byte {
	switch {
	case upgrade && x.last:
		return wire.AppendField(b, transport.Connection, "Upgrade, close")
	case upgrade:
		return wire.AppendField(b, transport.Connection, "Upgrade")
	case x.last && minor > 0:
		return wire.AppendField(b, transport.Connection, "close")
	case !x.last && minor == 0:
		return wire.AppendField(b, transport.Connection, "keep-alive")
	}
	return b
}

// room allocates the output buffer if the exchange has no output buffer.
func (x *exchange) room() {
	if x.pooled == nil {
		x.pooled = x.c.server.buffers.Get(x.c.memory.BufferSize(bufferSize))
		x.out = (*x.pooled)[:0]
	}
}

// leaveRoom releases the output buffer.
func (x *exchange) leaveRoom() {
	x.c.server.buffers.Put(x.pooled)
	x.pooled, x.out = nil, nil
}

// flush writes x.out and data. It writes nothing if x.waiting is false. After a failed write, it returns errBroken. It
// may release the output buffer.
func (x *exchange) flush(data []byte) error {
	if x.waiting && !x.broken {
		x.direct = len(data) > 0
		x.c.counted = true
		n, err := x.c.write(x.out, data)
		x.c.counted = false
		x.begun = x.begun || n > 0
		x.broken, x.writeErr = err != nil, err
	}
	x.waiting = false
	x.out = x.out[:0]
	if x.c.memory.BufferSize(bufferSize) < bufferSize {
		x.leaveRoom() // if memory is scarce, the next buffer is smaller
	}
	if x.broken {
		return errBroken
	}
	return nil
}

// appendStatus appends the status line of a response to a client that uses HTTP/1.minor.
func appendStatus(b []byte, minor, status int, reason string) []byte {
	b = append(b, "HTTP/1."...)
	b = append(b, byte('0'+min(minor, 1)), ' ')
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, reason...)
	return append(b, "\r\n"...)
}

// body is the request body. Its first bytes may be in the read buffer after the header section. The rest is read from
// the connection. The goroutine that forwards the body calls Read. The methods that lock mu are safe for concurrent
// use.
type body struct {
	x       *exchange
	chunked bool
	chunks  wire.Chunks

	mu    sync.Mutex
	left  int64             // remaining bytes of a body with Content-Length
	count transport.Counter // counts the content bytes that were read
	over  bool              // the complete body was read
	err   error             // first error of Read except io.EOF
}

func (b *body) begin(q *wire.Request) {
	length, framing := q.BodyLength()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count, b.err, b.left = transport.Counter{Length: -1, Max: b.x.c.server.settings.MaxBodyBytes}, nil, 0
	b.chunked = framing == wire.Chunked
	b.over = framing == wire.None || length == 0
	if b.chunked {
		b.chunks.Reset()
	} else if framing == wire.Length {
		b.left = length
	}
}

// none reports whether the body is not chunked and has no bytes left.
func (b *body) none() bool { return !b.chunked && b.left == 0 }

// arrived returns the remaining body if it has a Content-Length, is not empty, and is completely
// buffered.
func (b *body) arrived() ([]byte, bool) {
	rest := b.x.c.buf[b.x.at:b.x.c.w]
	if b.chunked || b.left == 0 || b.left > int64(len(rest)) {
		return nil, false
	}
	return rest[:b.left], true
}

// took marks n buffered bytes of the body as read. b.mu must be held.
func (b *body) took(n int) {
	x := b.x
	if x.at += n; x.at == x.c.w { // all buffered bytes were read, so the space after the header section is free
		x.at = x.c.r + x.size
		x.c.w = x.at
	}
}

// complete reports whether the request has no body or the complete body has arrived.
func (b *body) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return true
	}
	_, all := b.arrived()
	return all
}

// discard discards an unread body that has arrived completely. If bytes are missing, discard returns false without
// waiting for the bytes. The caller must then close the connection, because the rest of the body would be parsed as
// a request (RFC 9112 section 9.3).
func (b *body) discard() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return true
	}
	if all, ok := b.arrived(); ok {
		b.took(len(all))
		return true
	}
	return false
}

// Read implements io.Reader. The first call sends a 100 (Continue) response if the client waits for it (RFC 9110
// section 10.1.1).
func (b *body) Read(p []byte) (int, error) {
	x := b.x
	if err := x.sendContinue(); err != nil {
		return 0, err
	}
	x.state.AwaitBody()
	n, err := b.read(p)
	if n > 0 || err == nil || errors.Is(err, io.EOF) {
		x.state.GotBody(errors.Is(err, io.EOF))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if tooLarge := b.count.Add(n, false); tooLarge != nil {
		n, err = 0, tooLarge
	}
	if err == io.EOF {
		b.over = true
	} else if err != nil {
		b.err = err
	}
	return n, err
}

// read is like Read, but does not count the content, apply timeouts, or send a response.
func (b *body) read(p []byte) (int, error) {
	c := b.x.c
	if b.chunked {
		return b.readChunks(p)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), b.left)]
	var n int
	var err error
	if have := c.buf[b.x.at:c.w]; len(have) > 0 {
		n = copy(p, have)
		b.took(n)
	} else {
		b.mu.Unlock() // the read may block, and other goroutines call methods of b in the meantime
		n, err = c.nc.Read(p)
		b.mu.Lock()
		if err == io.EOF { // the body is incomplete (RFC 9112 section 8)
			err = io.ErrUnexpectedEOF
		}
	}
	if b.left -= int64(n); b.left == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// readChunks decodes buffered chunks into p. If no bytes of the body are buffered, it first reads more input into the
// space after the header section.
func (b *body) readChunks(p []byte) (n int, err error) {
	c := b.x.c
	b.mu.Lock()
	defer b.mu.Unlock()
	for n < len(p) {
		have := c.buf[b.x.at:c.w]
		if len(have) == 0 && n > 0 {
			break
		}
		if len(have) == 0 {
			room := c.buf[c.w:]
			b.mu.Unlock()
			k, err := c.nc.Read(room)
			b.mu.Lock()
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return 0, err
			}
			c.w += k
			continue
		}
		data, k, err := b.chunks.Next(have[:min(len(have), len(p)-n)])
		if err != nil {
			return n, &transport.Error{Fault: transport.FaultBadRequest, Err: err}
		}
		n += copy(p[n:], data)
		b.took(k)
		if b.chunks.Done() {
			return n, io.EOF
		}
	}
	return n, nil
}

// failed returns the error of Read, or nil.
func (b *body) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// moved returns the number of content bytes that were read.
func (b *body) moved() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count.N
}
