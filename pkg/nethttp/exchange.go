package nethttp

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
)

// exchange is a request of net/http as the lifecycle sees it. Values are pooled: a
// wake that comes late finds another request, which it only makes look again.
type exchange struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	conn   *conn
	h2     bool

	state   queue.RequestState
	call    upstream.Call
	running call            // that which the alarm breaks off: call, or one over HTTP/2
	head    forward.Request // what the user container gets
	body    *body           // nil: none

	alarm *queue.Alarm

	answered   bool        // a final response has begun
	broken     bool        // the client must see that its response is not whole
	hurried    bool        // the writes of its connection; written by the alarm alone
	stopped    atomic.Bool // StopBody has been called
	pending    bool        // some of the response has been written and not sent
	untilClose bool        // which only the connection's end can tell
}

// begin makes x the exchange of one request.
func (x *exchange) begin(w http.ResponseWriter, r *http.Request, c *conn) {
	x.w, x.r, x.conn = w, r, c
	x.h2 = r.ProtoMajor == 2
	x.answered, x.broken, x.untilClose, x.body = false, false, false, nil
	x.stopped.Store(false)
	r.TLS = c.tls // net/http sees no TLS
	if !x.h2 {
		c.current.Store(x)
	}
}

// end releases the request.
func (x *exchange) end() {
	if !x.h2 {
		x.conn.current.Store(nil)
	}
	x.alarm.Reset()
	if x.hurried { // nobody sets it any more
		x.hurried = false
		x.conn.calm()
	}
	x.w, x.r, x.conn, x.body, x.running = nil, nil, nil, nil, nil
	x.head = forward.Request{}
}

// Header implements queue.Exchange. The names are in canonical case. Over HTTP/2
// net/http leaves the blanks.
func (x *exchange) Header(name string) string { return strings.Trim(x.r.Header.Get(name), " \t") }

// Repeats implements queue.Exchange.
func (x *exchange) Repeats(name string) bool { return len(x.r.Header[name]) > 1 }

// Line implements queue.Exchange.
func (x *exchange) Line() queue.Line {
	r := x.r
	return queue.Line{
		Method: r.Method, Target: r.RequestURI, Host: r.Host, Major: r.ProtoMajor, Minor: r.ProtoMinor,
		Remote: r.RemoteAddr, TLS: r.TLS != nil, Open: x.mayBeOpen(),
	}
}

// mayBeOpen implements Open of [queue.Line]. Over HTTP/2, net/http does not report whether a stream
// with "Content-Length: 0" has ended.
func (x *exchange) mayBeOpen() bool {
	return x.r.ContentLength != 0 || x.h2 && x.r.Header[header.ContentLength] != nil
}

// Request implements queue.Exchange.
func (x *exchange) Request() *http.Request { return x.r }

// Answer implements queue.Exchange.
func (x *exchange) Answer(a *queue.Answer) {
	h := x.w.Header()
	clear(h)
	a.Fields(h.Set)
	if a.GRPC < 0 {
		h.Set(header.ContentLength, strconv.Itoa(len(a.Body)))
		if _, ok := h[header.ContentType]; !ok {
			h[header.ContentType] = nil // net/http shall not guess
		}
	}
	x.closeIfLast(h, false)
	control := http.NewResponseController(x.w)
	control.SetWriteDeadline(time.Now().Add(forward.AnswerTimeout))
	x.fullDuplex() // do not read the body first
	x.answered = true
	x.w.WriteHeader(a.Status)
	if a.Body != "" && x.r.Method != http.MethodHead {
		_, _ = io.WriteString(x.w, a.Body) // a client that has gone gets nothing
	}
}

// fullDuplex lets the response begin before the request's body has ended.
func (x *exchange) fullDuplex() {
	if !x.h2 && x.r.ContentLength != 0 {
		_ = http.NewResponseController(x.w).EnableFullDuplex() // HTTP/1 of net/http can
	}
}

// closeIfLast tells the client to send its next request on another connection: because
// we are draining, because another client waits for its place, or because the rest of
// its request's body has not come and nobody will wait for it (duplex: the user container
// may well).
func (x *exchange) closeIfLast(h http.Header, duplex bool) {
	wanted := x.conn.place.Wanted()
	closing := wanted || x.server.closing()
	switch {
	case !x.h2 && (closing || x.r.Method == http.MethodConnect || // what follows is meant for the tunnel
		!duplex && x.bodyIsLeft()):
		h.Set(header.Connection, "close")
	case x.h2 && closing:
		if wanted {
			x.conn.yields.Store(true)
		}
		x.conn.goAway()
	}
}

// bodyIsLeft reports whether there may be more of the body of an HTTP/1 request than has
// been read.
func (x *exchange) bodyIsLeft() bool {
	return !x.h2 && x.r.ContentLength != 0 && (x.body == nil || !x.body.complete())
}

// leaveBody keeps net/http from waiting for the rest of a body behind the response.
func (x *exchange) leaveBody() {
	if x.bodyIsLeft() {
		x.StopBody()
	}
}

// Wait implements queue.Exchange.
func (x *exchange) Wait(state *queue.RequestState) queue.Reason {
	stop := x.watchContext()
	defer stop()
	return x.alarm.Wait(state)
}

// Notify implements queue.Exchange.
func (x *exchange) Notify() { x.alarm.Notify() }

// hasGone reports whether the client has. In a tunnel one that ends its side has not,
// and where we have stopped the body net/http takes that for the client's end.
func (x *exchange) hasGone() bool {
	return x.state.Phase() != queue.Tunnelled && (x.conn.gone.Load() || !x.stopped.Load() && x.r.Context().Err() != nil)
}

// watchContext wakes x when net/http says that the client has gone.
func (x *exchange) watchContext() (stop func() bool) {
	return context.AfterFunc(x.r.Context(), x.Notify)
}

// lastWrite is how long what there is of a response that is being cut may take to
// be written.
const lastWrite = 100 * time.Millisecond

// unblock makes reads from and writes to the client return: they would wait for
// nobody's good. A client that reads gets what has been said so far.
func (x *exchange) unblock() {
	control := http.NewResponseController(x.w)
	control.SetReadDeadline(past)
	control.SetWriteDeadline(time.Now().Add(lastWrite))
	if x.h2 {
		x.boundWrites()
	}
}

// boundWrites makes a write to the client return, as that of an informational
// response that nobody takes. An answer of our own has a time of its own, and in
// HTTP/2 still a stream.
func (x *exchange) boundWrites() {
	if !x.h2 {
		http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(lastWrite))
		return
	}
	x.hurried = true
	x.conn.hurry()
}

// writeInterim sends an informational response with the fields that have been set,
// and clears them; the client may take only so long for it.
func (x *exchange) writeInterim(status int) {
	h := x.w.Header()
	// It has no length. Over HTTP/2 net/http writes a copy of fields among which there
	// is one; others it still reads when their stream has been reset and we go on.
	h[header.ContentLength] = nil
	x.alarm.WriteStarted(&x.state)
	x.w.WriteHeader(status)
	x.state.WriteDone()
	clear(h)
}

// write passes a piece of the response on; the client may take only so long for it.
func (x *exchange) write(data []byte) (int, error) {
	x.alarm.WriteStarted(&x.state)
	defer x.state.WriteDone()
	return x.w.Write(data)
}

// flush is write for what has been written and not sent.
func (x *exchange) flush() error {
	x.alarm.WriteStarted(&x.state)
	defer x.state.WriteDone()
	return http.NewResponseController(x.w).Flush()
}

// showCut writes what there is of a response that is cut, its head first of all: an
// end without a byte is what a client sees of a connection that was lost, and it
// may then send its request again.
func (x *exchange) showCut() {
	control := http.NewResponseController(x.w)
	control.SetWriteDeadline(time.Now().Add(lastWrite))
	_ = control.Flush()
}

// body is the request's body on its way to the user container. It is read by the goroutine
// that sends it, and looked at by others.
type body struct {
	state  *queue.RequestState
	source io.Reader
	length int64 // of all of it; -1: unknown
	limit  int64 // 0: none

	mu  sync.Mutex
	n   int64
	err error // what source said last, but io.EOF
	eof bool  // source has no more
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.state.AwaitBody()
	n, err := b.source.Read(p)
	b.state.GotBody()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n += int64(n)
	if b.limit > 0 && b.n > b.limit {
		n, err = 0, forward.ErrTooLarge
	}
	if err == io.EOF {
		b.eof = true
	} else if err != nil {
		b.err = err
	}
	return n, err
}

// complete reports whether all of it has been read.
func (b *body) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.eof || b.n == b.length
}

// moved returns how many bytes have been read; of nil none.
func (b *body) moved() int64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// failed returns why reading has failed; nil: it has not.
func (b *body) failed() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
