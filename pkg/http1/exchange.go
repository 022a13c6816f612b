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

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// exchange is a request of a connection as the lifecycle sees it. Its head stays
// in the connection's buffer, untouched, until that has ended.
type exchange struct {
	c       *conn
	request wire.Request
	size    int // of the head
	at      int // index in the connection's buffer: what is behind the head and not consumed
	state   queue.RequestState
	alarm   *queue.Alarm
	head    forward.Request // what the user container gets
	call    upstream.Call
	running call // that which the alarm breaks off: call, or one over HTTP/2
	body    body
	pooled  *[]byte // from the engine's buffers; what is written is made here
	out     []byte
	remote  string // the client's address and port

	// What breaks a Forward off, made once: before its response begins, and then.
	abortApp, abortBoth func()

	waiting    bool // out holds what is to be written before we wait
	last       bool // no request is served behind this one
	untilClose bool // only the end of the connection tells that of the response
	broken     bool // not all of what the response's head has promised was written
	begun      bool // bytes of the final response have been written
	stopped    bool // StopBody has been called
	uploading  bool // uploadBytes are part of the memory budget

	writeErr error // of the last write

	interim interim
	built   forward.Built // by Request
}

func (x *exchange) init(c *conn) {
	x.c = c
	x.alarm = queue.NewAlarm(x.hasGone)
	x.remote = c.nc.RemoteAddr().String()
	x.head.Peer, x.head.AppHost = c.nc.Client().String(), c.server.settings.AppHost
	x.abortApp = func() {
		x.running.Abort()
		c.nc.SetWriteDeadline(past) // of an informational response that nobody takes
	}
	x.abortBoth = func() {
		x.running.Abort()
		c.nc.SetDeadline(past)
	}
	x.call.Request, x.call.Client = &x.head, x
	x.body.x = x
	x.body.chunks.MaxTrailer = wire.MaxRequestTrailer
}

// Sending implements forward.Client.
func (x *exchange) Sending() { x.state.Enter(queue.Waiting) }

// Waiting implements forward.Client.
func (x *exchange) Waiting() {
	_ = x.flush(nil) // whoever writes next gets the error
	x.leaveRoom()
}

// StopBody implements forward.Client.
func (x *exchange) StopBody() {
	x.stopped = true
	x.c.nc.SetReadDeadline(past)
}

// BodyArrived implements forward.Client.
func (x *exchange) BodyArrived() bool { return x.body.here() }

// hasGone reports whether the client has. In a tunnel one that ends its side has not.
func (x *exchange) hasGone() bool {
	return x.c.gone.Load() && (x.state.Phase() != queue.Tunnelled || x.c.costly.Load())
}

// begin makes x the exchange of the request whose head takes the next n bytes.
func (x *exchange) begin(n int) {
	x.size, x.at = n, x.c.r+n
	x.last, x.broken, x.waiting, x.stopped, x.untilClose = false, false, false, false, false
	x.interim.begin(false)
	x.body.begin(&x.request)
}

// end releases the request and reports whether the connection is where the next
// one begins.
func (x *exchange) end() bool {
	x.alarm.Reset()
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

// Header implements queue.Exchange. The string points into the buffer.
func (x *exchange) Header(name string) string {
	v, _ := wire.Find(x.request.Fields, name)
	return wire.String(v)
}

// Repeats implements queue.Exchange.
func (x *exchange) Repeats(name string) bool { return wire.Repeats(x.request.Fields, name) }

// Line implements queue.Exchange.
func (x *exchange) Line() queue.Line {
	q := &x.request
	return queue.Line{
		Method: wire.String(q.Method), Target: wire.String(q.Target), Host: wire.String(q.Host), Major: 1, Minor: q.Minor,
		Remote: x.remote, TLS: x.c.nc.Secure(), Open: q.Chunked || q.ContentLength > 0,
	}
}

// Request implements queue.Exchange. It is read again by net/http, from a copy of
// the head: few ask for it, and the engine keeps nothing in net/http's form.
func (x *exchange) Request() *http.Request {
	return x.built.Get(x.c.gone.Load, func() *http.Request {
		head := bytes.Clone(x.c.buf[x.c.r : x.c.r+x.size])
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
		if err != nil { // a target that net/http does not take
			return forward.Build(x.Line(), x.request.Fields)
		}
		r.Body, r.RemoteAddr = http.NoBody, x.remote
		return r
	})
}

// Wait implements queue.Exchange.
func (x *exchange) Wait(state *queue.RequestState) queue.Reason {
	return x.closedFor(x.alarm.Wait(state))
}

// Notify implements queue.Exchange.
func (x *exchange) Notify() { x.alarm.Notify() }

// Answer implements queue.Exchange.
func (x *exchange) Answer(a *queue.Answer) {
	x.last = x.endsConnection(false)
	x.answer(a, x.request.Minor)
}

// endsConnection reports whether the client is to send its next request on another
// connection: because we are draining, because another client waits for this one's
// place, because the body of its request is not there yet and nobody will wait for it
// (duplex: the user container may well), or because what follows is meant for a tunnel
// that there is not.
func (x *exchange) endsConnection(duplex bool) bool {
	return x.request.Close || x.request.Form == wire.Authority || x.c.server.closing() || x.c.place.Wanted() || !duplex && !x.body.here()
}

// answer sends an answer of our own to a client of HTTP/1.minor.
func (x *exchange) answer(a *queue.Answer, minor int) {
	x.endInterim()
	x.room()
	b := appendStatus(x.out[:0], minor, a.Status, http.StatusText(a.Status))
	a.Fields(func(name, value string) { b = wire.AppendField(b, name, value) })
	b = wire.AppendField(b, header.Date, x.c.server.date.Now())
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(len(a.Body)), 10)
	b = append(b, "\r\n"...)
	b = x.appendConnection(b, minor, false)
	b = append(b, "\r\n"...)
	// The head of an answer to HEAD is that of one to GET (RFC 9110 section 9.3.2).
	if wire.String(x.request.Method) != http.MethodHead {
		b = append(b, a.Body...)
	}
	x.out, x.waiting = b, true
	x.c.clocked = false
	x.c.nc.SetWriteDeadline(time.Now().Add(forward.AnswerTimeout))
	x.writeErr = nil
	_ = x.flush(nil) // who can't get it has gone
	if errors.Is(x.writeErr, os.ErrDeadlineExceeded) {
		x.c.hit(bound.SendTimeout)
	}
	x.c.nc.SetWriteDeadline(time.Time{})
}

// appendConnection appends what becomes of the connection, where a client does not
// expect it: one of HTTP/1.0 expects its end (RFC 9112 section C.2.2). upgrade lists the option
// of an Upgrade field.
func (x *exchange) appendConnection(b []byte, minor int, upgrade bool) []byte {
	switch {
	case upgrade && x.last:
		return wire.AppendField(b, header.Connection, "Upgrade, close")
	case upgrade:
		return wire.AppendField(b, header.Connection, "Upgrade")
	case x.last && minor > 0:
		return wire.AppendField(b, header.Connection, "close")
	case !x.last && minor == 0:
		return wire.AppendField(b, header.Connection, "keep-alive")
	}
	return b
}

// room makes sure that there is a buffer to write from.
func (x *exchange) room() {
	if x.pooled == nil {
		x.pooled = x.c.server.buffers.Get(bufferSize)
		x.out = (*x.pooled)[:0]
	}
}

// leaveRoom gives the buffer back, until there is something to write.
func (x *exchange) leaveRoom() {
	x.c.server.buffers.Put(x.pooled)
	x.pooled, x.out = nil, nil
}

// flush writes what waits in out, and data behind it. Once it has failed it fails.
func (x *exchange) flush(data []byte) error {
	if x.waiting && !x.broken {
		x.c.counted = true
		n, err := x.c.write(x.out, data)
		x.c.counted = false
		x.begun = x.begun || n > 0
		x.broken, x.writeErr = err != nil, err
	}
	x.waiting = false
	x.out = x.out[:0]
	if x.broken {
		return errBroken
	}
	return nil
}

// appendStatus appends a status line to a client of HTTP/1.minor.
func appendStatus(b []byte, minor, status int, reason string) []byte {
	b = append(b, "HTTP/1."...)
	b = append(b, byte('0'+min(minor, 1)), ' ')
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, reason...)
	return append(b, "\r\n"...)
}

// body is the request's body: what has arrived with the head, and then what comes
// on the connection. It is read by the sending goroutine and looked at by others.
type body struct {
	x       *exchange
	chunked bool
	chunks  wire.Chunks

	mu    sync.Mutex
	left  int64           // bytes of a body with a length that were not read
	count forward.Counter // of the bytes that were read
	over  bool            // all of it has been read
	err   error           // but io.EOF
}

func (b *body) begin(q *wire.Request) {
	length, framing := q.BodyLength()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count, b.err, b.left = forward.Counter{Length: -1, Max: b.x.c.server.settings.MaxBodyBytes}, nil, 0
	b.chunked = framing == wire.Chunked
	b.over = framing == wire.None || length == 0
	if b.chunked {
		b.chunks.Reset()
	} else if framing == wire.Length {
		b.left = length
	}
}

// none reports whether the request has no body.
func (b *body) none() bool { return !b.chunked && b.left == 0 }

// arrived returns the body if all of it has come with the head, and there is one.
func (b *body) arrived() ([]byte, bool) {
	rest := b.x.c.buf[b.x.at:b.x.c.w]
	if b.chunked || b.left == 0 || b.left > int64(len(rest)) {
		return nil, false
	}
	return rest[:b.left], true
}

// took consumes n bytes behind the head that have arrived. b.mu is held.
func (b *body) took(n int) {
	x := b.x
	if x.at += n; x.at == x.c.w { // room for more
		x.at = x.c.r + x.size
		x.c.w = x.at
	}
}

// here reports whether all of the body has arrived.
func (b *body) here() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return true
	}
	_, all := b.arrived()
	return all
}

// discard drops a body that nobody has read, if all of it has arrived. It reports
// whether the connection is where the next request begins. It does not wait for more: what
// follows an unread body would be taken for a request (RFC 9112 section 9.3).
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

// Read implements io.Reader. Only now that the body is wanted the client is asked to send
// it (RFC 9110 section 10.1.1).
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

// read reads bytes of the content.
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
		b.mu.Unlock() // a read waits for the client, and others look at the body meanwhile
		n, err = c.nc.Read(p)
		b.mu.Lock()
		if err == io.EOF { // RFC 9112 section 8: it is not complete
			err = io.ErrUnexpectedEOF
		}
	}
	if b.left -= int64(n); b.left == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// readChunks decodes what has arrived, as much of it as p takes. What comes is
// read into the room behind the head.
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
			return n, err
		}
		n += copy(p[n:], data)
		b.took(k)
		if b.chunks.Done() {
			return n, io.EOF
		}
	}
	return n, nil
}

// failed returns why reading has failed, nil if it has not.
func (b *body) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// moved returns how many bytes of content have been read.
func (b *body) moved() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count.N
}
