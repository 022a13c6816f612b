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
	at       int // index of the first unread byte after the header section in the buffer of the connection
	state    transport.State
	canceler *transport.Canceler
	head     rewrite.Request // request to the user container
	call     http1client.Call
	running  call // call that the canceler aborts: &call, or a call over HTTP/2
	body     body
	pooled   *[]byte // from the buffers of the server; the backing array of out
	out      []byte
	remote   string // address and port of the client

	// abortApp aborts Forward before the response begins, and abortBoth after that. The functions are created once
	// to avoid allocations.
	abortApp, abortBoth func()

	direct     bool // the second part of the current write is not in out
	waiting    bool // out holds bytes that must be written before the exchange blocks
	last       bool // the connection is closed after this request
	untilClose bool // the response ends when the connection is closed
	broken     bool // the response was not written completely
	begun      bool // bytes of the final response have been written
	stopped    bool // StopBody has been called

	writeErr error // error of the last write

	interim interim
	built   rewrite.Built // result of Request
}

func (x *exchange) init(c *serverConn) {
	x.c = c
	x.state = c.server.proxy.NewState()
	x.canceler = transport.NewCanceler(x.hasGone)
	x.remote = c.nc.RemoteAddr().String()
	x.head.Peer, x.head.AppHost = c.nc.Client().String(), c.server.settings.AppHost
	x.abortApp = func() {
		x.running.Abort()
		c.nc.SetWriteDeadline(past) // for an informational response that the client does not read
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
func (x *exchange) BodyArrived() bool { return x.body.here() }

// hasGone reports whether the client closed the connection. A half-closed tunnel does not count, because its client
// may still receive bytes.
func (x *exchange) hasGone() bool {
	return x.c.gone.Load() && (!x.state.Upgraded() || x.c.costly.Load())
}

// begin starts the exchange for the request whose header section has n bytes.
func (x *exchange) begin(n int) {
	x.size, x.at = n, x.c.r+n
	x.last, x.broken, x.waiting, x.stopped, x.untilClose = false, false, false, false, false
	x.interim.begin(false)
	x.body.begin(&x.request)
}

// end releases the request. It returns true if the connection can serve the next request.
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
	// The response to HEAD has the same header section as the response to GET (RFC 9110 section
	// 9.3.2).
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

// endsConnection reports whether the connection must be closed after the request. This is the case if the client
// requested it, if the method is CONNECT (the bytes after the request are not HTTP), if the server is draining, or
// if another client waits for the place of the connection. If duplex is false, the connection must also be closed
// if the request body did not arrive completely. If duplex is true, the user container may still read the body.
func (x *exchange) endsConnection(duplex bool) bool {
	return x.request.Close || x.request.Form == wire.Authority || x.c.server.closing() || x.c.place.Wanted() || !duplex && !x.body.here()
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

// room allocates the output buffer if there is none.
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

// flush writes x.out, if x.waiting is true, and then data. After a failed write, it returns errBroken. flush may
// release the output buffer.
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
		x.leaveRoom() // the next buffer can be smaller
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

// body is the request body. It consists of the bytes that arrived together with the header section and of the bytes
// that are read from the connection after that. The goroutine that forwards the body calls Read. The methods that
// lock mu are safe for concurrent use.
type body struct {
	x       *exchange
	chunked bool
	chunks  wire.Chunks

	mu    sync.Mutex
	left  int64             // remaining bytes of a body with Content-Length
	count transport.Counter // number of content bytes that were read
	over  bool              // the body was read completely
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

// none reports whether the request has no body, or a body with Content-Length that has no bytes left. It returns
// false for a chunked body.
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

// took consumes n buffered bytes of the body. b.mu must be held.
func (b *body) took(n int) {
	x := b.x
	if x.at += n; x.at == x.c.w { // all consumed: reuse the space after the header section
		x.at = x.c.r + x.size
		x.c.w = x.at
	}
}

// here reports whether the request has no body or the complete body has arrived.
func (b *body) here() bool {
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

// Read implements io.Reader. The first call sends 100 Continue if the client expects it, because the body is not
// needed before (RFC 9110 section 10.1.1).
func (b *body) Read(p []byte) (int, error) {
	x := b.x
	if err := x.sayContinue(); err != nil {
		return 0, err
	}
	x.state.AwaitBody()
	n, err := b.read(p)
	x.state.GotBody()
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

// read reads content without limits and timeouts.
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
		b.mu.Unlock() // the read may block while other goroutines call methods of b
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

// readChunks decodes buffered chunks into p. If no bytes are buffered, it reads more input into the
// buffer after the header section.
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
