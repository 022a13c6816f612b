package http1

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/link"
	"github.com/queue-proxy/queue-proxy/pkg/memory"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// chunkRoom is the minimum room after a header section for a chunked body, in bytes. The chunks are
// read and decoded after the header section, which remains in the buffer.
const chunkRoom = 4 << 10

// past is a deadline that has long gone by.
var past = time.Unix(1, 0)

// conn is a client's connection. One goroutine reads requests from it, runs
// their lifecycles and writes their answers; the sending of a long body has another.
type conn struct {
	server *Server
	nc     *link.Conn
	watch  *hangup.Watch
	place  *connlimit.Place
	memory *memory.Account
	held   int // bytes of the reader in memory

	// Of the reader. buf[r:w] has been read and not consumed. An idle connection
	// has no buffer.
	pooled  *[]byte
	buf     []byte
	r, w    int
	need    int                // bytes that the next buffer has to have, as far as the last one can tell
	err     error              // of the last read
	reading func(uintptr) bool // tryRead, made once
	first   bool               // no request has been served
	owing   bool               // a head has begun to arrive
	skipped bool               // an empty line before the next head was skipped
	refused bool               // the last header section was rejected
	agreed  bool               // on HTTP/1.1, by ALPN
	taking  atomic.Bool        // the reader takes bytes from the socket, or has some that it has not looked at

	// Of the writer.
	left     []byte             // of what is being written,
	then     []byte             // and what comes behind it
	writeErr error              //
	writing  func(uintptr) bool // tryWrite, made once
	clocked  bool               // the write has a deadline
	counted  bool               // the write is part of the memory budget if the client does not read
	unread   int                // bytes in memory that the client does not read
	offered  atomic.Bool        // a write was incomplete because the socket buffer was full
	gone     atomic.Bool        // the client has closed its side
	costly   atomic.Bool        // the connection is closed because of the memory budget

	cancelHandshake atomic.Pointer[context.CancelFunc] // nil if no TLS handshake is in progress

	exchange

	// Of the end.
	mu       sync.Mutex
	idle     bool // the reader waits for the first byte of a head
	owed     bool // the client owes a head, or the rest of one
	retiring bool
	evicted  bool // it ends, so that another connection can be served
}

func newConn(l *Server, nc *link.Conn) *conn {
	c := &conn{server: l, nc: nc, owed: true} // its handshake, and its first head
	c.reading, c.writing = c.tryRead, c.tryWrite
	c.exchange.init(c)
	c.memory = l.settings.Memory.Open(c.remote, c.evictMemory)
	c.call.Memory = c.memory
	if l.watcher != nil {
		c.watch = l.watcher.Add(nc.TCP(), c.hangup)
	}
	return c
}

// hangup records that the client has closed its side of the connection.
func (c *conn) hangup() {
	c.gone.Store(true)
	c.endHandshake()
	c.alarm.Notify()
	c.built.Leave()
}

// serve serves requests until the connection ends or, given away, is not ours any
// more. It is made a TLS connection first where secure is not nil.
func (c *conn) serve(secure *link.Server) (given bool) {
	if secure != nil {
		switch protocol, err := c.handshake(secure); {
		case err != nil:
			c.watch.Stop()
			c.nc.Cut()
			c.memory.Close()
			return false
		case protocol == "h2":
			c.giveAway()
			return true
		default:
			c.agreed = protocol != ""
		}
	}
	for c.first = true; ; c.first = false {
		what := c.next()
		switch what {
		case request:
			c.server.served.Add(1)
			if c.admit() {
				c.server.proxy.Serve(&c.exchange, &c.state)
			} else {
				c.server.proxy.Reject(&c.exchange, &c.state, false)
			}
			if c.first {
				c.place.Answered()
			}
			if !c.finish() {
				c.close()
				return false
			}
		case http2:
			c.giveAway()
			return true
		case end:
			c.close()
			return false
		}
	}
}

// handshake completes a TLS handshake and returns the protocol of ALPN, or "" if there is none. It is not
// inlined, because each connection would hold its stack.
//
//go:noinline
func (c *conn) handshake(secure *link.Server) (protocol string, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.cancelHandshake.Store(&cancel)
	defer c.cancelHandshake.Store(nil)
	if c.gone.Load() { // hangup may not have found cancelHandshake
		c.endHandshake()
	}
	if err := c.nc.Handshake(ctx, secure, c.handshakeWaits); err != nil {
		return "", err
	}
	return c.nc.TLS().NegotiatedProtocol, nil
}

// handshakeWaits is called when a handshake begins or ends to wait for the client. The connection is not
// closed for another one while the handshake waits for the sidecar.
func (c *conn) handshakeWaits(client, answered bool) {
	switch {
	case client && answered:
		c.place.Greeted()
	case client:
		c.place.Idle(false)
	default:
		c.place.Serving()
	}
}

// endHandshake ends a handshake that is in the queue. It may be called concurrently.
func (c *conn) endHandshake() {
	if cancel := c.cancelHandshake.Load(); cancel != nil {
		(*cancel)()
	}
}

// giveAway gives the connection to the engine for HTTP/2.
func (c *conn) giveAway() {
	c.server.given.Add(1)
	c.watch.Stop()
	early := bytes.Clone(c.buf[c.r:c.w])
	c.release()
	c.charge(0)
	c.memory.Close()
	c.alarm.Stop()
	c.server.http2(c.nc, early, c.place)
}

// what is what the client has sent.
type what uint8

const (
	request what = iota
	http2        // its preface
	end          // nothing that is served
)

// next reads what comes next: the head of a request, unless HTTP/2 begins.
func (c *conn) next() what {
	c.skipped = false
	c.owing = c.first // a new connection owes its first head from the beginning
	if c.owing {
		c.awaitHead()
	}
	for {
		c.skipEmptyLine()
		if c.w > c.r {
			if what, known := c.classify(); known {
				if c.owing && !c.gotHead() {
					return end
				}
				return what
			}
			c.owe()
			if !c.growHead() {
				return end
			}
		}
		if err := c.wait(); err != nil {
			c.recordLateHead(err)
			return end
		}
	}
}

// skipEmptyLine skips one empty line before a request line (RFC 9112 section 2.2). Some
// clients send it after a body, and it does not begin a request: the connection stays idle. It is
// not inlined, so that the stack of a connection that waits in next stays small.
//
//go:noinline
func (c *conn) skipEmptyLine() {
	const crlf = "\r\n"
	if !c.skipped && c.w-c.r >= len(crlf) && string(c.buf[c.r:c.r+len(crlf)]) == crlf {
		c.skipped = true
		c.r += len(crlf)
		c.request.Reset() // it may have read the CR
	}
}

// owe notes that a head has begun to arrive.
func (c *conn) owe() {
	if !c.owing {
		c.owing = true
		c.awaitHead()
	}
}

// classify decides what has arrived; not known: it is not complete.
func (c *conn) classify() (w what, known bool) {
	b := c.buf[c.r:c.w]
	// Only the first bytes of a connection can begin HTTP/2 with prior knowledge (RFC 9113
	// section 3.3). Who has agreed on HTTP/1.1 by ALPN is held to it.
	if c.first && !c.agreed && !c.skipped {
		if is, maybe := wire.HasPreface(b); is || maybe {
			return http2, is
		}
	}
	n, err := c.request.Parse(b)
	q := &c.request
	if status := c.refusal(n, len(b), err); status != 0 {
		c.recordRefusal(status, err)
		c.refuse(status)
		return end, true
	}
	switch {
	case n == 0:
		return 0, false
	case q.Chunked && len(c.buf)-c.r-n < chunkRoom:
		c.makeRoom(n + chunkRoom)
		_, _ = q.Parse(c.buf[c.r:c.w]) // again: it has moved
	}
	c.begin(n)
	return request, true
}

// refusal returns the status for a head that is not served, 0 for one that is. n is its
// length, 0 if it is not complete; so many bytes have arrived.
func (c *conn) refusal(n, arrived int, err error) (status int) {
	limit := c.server.settings.MaxHeaderBytes
	switch {
	// A head that is too long is that first of all, whatever else it is (RFC 6585 section 5).
	case err != nil && n <= limit:
		if refused, ok := errors.AsType[*wire.Refused](err); ok {
			return refused.Status
		}
		return http.StatusBadRequest
	case n > limit, n == 0 && arrived >= limit:
		return http.StatusRequestHeaderFieldsTooLarge
	}
	return 0
}

// refuse answers a head that is not served. Where its request ends, and another one could
// begin, nobody knows: so it is the last of its connection.
func (c *conn) refuse(status int) {
	c.answerLast(&queue.Answer{Status: status, Body: http.StatusText(status) + "\n", Reason: queue.BadRequest, GRPC: -1})
}

// answerLast sends the last response of the connection, to a request without a valid head.
func (c *conn) answerLast(a *queue.Answer) {
	c.refused = true
	c.exchange.begin(0)
	c.request.Reset()
	c.last = true
	c.exchange.answer(a, 1)
}

// wait reads more bytes behind those that are there. A connection that retires
// ends here, when it is idle and nothing comes, and one that is evicted.
func (c *conn) wait() error {
	c.makeRoom(c.w - c.r + 1)
	defer c.place.Serving() // until it is said again that it waits
	if c.w > 0 {
		c.place.Reading()
		return c.read()
	}
	for {
		last := c.rest()
		c.place.Idle(!c.first) // behind rest: evict must find the connection idle
		err := c.read()
		retiring, evicted := c.stir()
		switch {
		case evicted:
			return errEvicted
		case last || !retiring || !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

var errEvicted = errors.New("closed so that another connection can be served")

// rest notes that the connection is idle, and reports whether this is its last
// look at what comes.
func (c *conn) rest() (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = true
	if c.retiring {
		c.nc.SetReadDeadline(time.Now().Add(link.LastLook))
	}
	return c.retiring
}

// stir notes that the connection is not idle any more, and reports whether it
// retires and whether it was evicted.
func (c *conn) stir() (retiring, evicted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = false
	if c.retiring {
		c.limitHead()
	}
	return c.retiring, c.evicted
}

// awaitHead notes that the client owes the rest of a head, and gives it so much
// time.
func (c *conn) awaitHead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = true
	c.limitHead()
}

// gotHead notes that the head is there. It reports whether the request may be
// served: not if the connection was evicted in the meantime.
func (c *conn) gotHead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = false
	c.limitHead()
	return !c.evicted
}

// evict ends the connection, so that another one can be served, and reports whether
// it does: not while a request is being served, nor when one is about to be read.
// Any goroutine may call it.
func (c *conn) evict() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.idle && !c.owed {
		return false
	}
	if !c.nc.Silent() || c.taking.Load() { // in this order: what is not in the socket any more was taken before
		return false // the reader sees to what has come
	}
	c.evicted = true
	c.nc.SetReadDeadline(past)
	c.endHandshake()
	return true
}

// limitHead sets the deadline of what the client owes. One that is late when we
// end does not hold the pod. c.mu is held, so that no deadline that is set here can undo
// that of an eviction.
func (c *conn) limitHead() {
	if c.evicted {
		return // the deadline has long gone by
	}
	limit := c.server.settings.HeaderTimeout
	if c.retiring {
		limit = link.LingerTime
	}
	if !c.owed || limit == 0 {
		c.nc.SetReadDeadline(time.Time{})
		return
	}
	c.nc.SetReadDeadline(time.Now().Add(limit))
}

// retire makes the connection end once it is idle and nothing is on its way. Any
// goroutine may call it, once.
func (c *conn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retiring = true
	switch {
	case c.idle:
		c.nc.SetReadDeadline(past)
	case c.owed:
		c.limitHead()
	}
}

// abandon ends the connection whatever is going on. Any goroutine may call it.
func (c *conn) abandon() {
	c.hangup()
	c.nc.Cut()
}

// makeRoom moves what is there to the front, and sees to it that a buffer, if
// there is one, has room for n bytes in all.
func (c *conn) makeRoom(n int) {
	if c.r > 0 {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	if c.buf == nil || len(c.buf) >= n {
		return
	}
	old, pooled, w := c.buf, c.pooled, c.w
	c.pooled, c.buf = nil, nil
	if n <= bufferSize {
		c.need = n
		c.hold()
	} else {
		c.buf = make([]byte, max(n, 2*len(old)))
	}
	copy(c.buf, old[:w])
	c.server.buffers.Put(pooled)
}

// hold sees to it that there is a buffer.
func (c *conn) hold() {
	if c.buf != nil {
		return
	}
	c.pooled = c.server.buffers.Get(c.need)
	c.buf = *c.pooled
}

// read reads what comes next.
func (c *conn) read() error {
	if err := c.nc.WaitRead(c.reading); err != nil {
		return err
	}
	return c.err
}

// tryRead reads what is there. It gives the buffer back before it has to wait
// without a byte in it.
func (c *conn) tryRead(fd uintptr) (done bool) {
	c.hold()
	c.taking.Store(true) // before the socket is empty: see evict
	n, err := c.nc.TryRead(fd, c.buf[c.w:])
	switch {
	case errors.Is(err, link.ErrAgain):
		c.taking.Store(false)
		if c.w == 0 {
			c.release()
		}
		return false
	case err != nil:
		c.err = err
		return true
	}
	c.err = nil
	first := c.w == 0
	c.w += n
	// If the buffer is full, the rest of the header section is read into a larger buffer without
	// another wait for the socket. HTTP/2 input is left in the socket, because the HTTP/2 engine would
	// keep this buffer until the connection is closed.
	for c.w == len(c.buf) && c.w < bufferSize && !c.hasPreface() {
		c.makeRoom(c.w + 1)
		n, _ = c.nc.TryRead(fd, c.buf[c.w:]) // an error will be there for the next one
		c.w += n
	}
	if first {
		c.need = min(c.w+1, bufferSize)
	}
	return true
}

// hasPreface reports whether the connection begins with the preface of HTTP/2.
func (c *conn) hasPreface() bool {
	is, _ := wire.HasPreface(c.buf[c.r:c.w])
	return is
}

// write writes all of p and then all of q.
func (c *conn) write(p, q []byte) (n int, err error) {
	c.left, c.then, c.writeErr = p, q, nil
	err = c.nc.WaitWrite(c.writing)
	if c.unread != 0 {
		c.memory.Sub(c.unread)
		c.unread = 0
	}
	n = len(p) + len(q) - len(c.left) - len(c.then)
	c.left, c.then = nil, nil
	if c.offered.Load() {
		c.offered.Store(false)
		c.state.WriteDone()
	}
	return n, cmp.Or(err, c.writeErr)
}

// tryWrite writes as much as possible. It returns false if the client has to read first.
func (c *conn) tryWrite(fd uintptr) (done bool) {
	c.left, c.then, c.writeErr = c.nc.TryWriteAll(fd, c.left, c.then)
	if errors.Is(c.writeErr, link.ErrAgain) {
		c.offer()
		c.chargeUnread()
		return false
	}
	return true
}

// offer starts the client's time for what is being written.
func (c *conn) offer() {
	if c.clocked && !c.offered.Load() {
		c.offered.Store(true)
		c.alarm.WriteStarted(&c.state)
	}
}

// release gives the buffer back.
func (c *conn) release() {
	c.server.buffers.Put(c.pooled)
	c.pooled, c.buf, c.r, c.w = nil, nil, 0, 0
}

// finish releases the request that was served, and reports whether another one
// may follow.
func (c *conn) finish() bool {
	if !c.exchange.end() || c.gone.Load() {
		return false
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
		if c.pooled == nil { // one that had grown
			c.release()
			c.request.Reset() // it points into the buffer
			c.exchange.head.Release()
		}
	}
	c.charge(0)
	c.request.Shrink(manyFields)
	return true
}

// close closes the connection so that what was answered can be read.
func (c *conn) close() {
	c.watch.Stop()
	if c.last && !c.broken && !c.gone.Load() {
		c.nc.Linger(c.refused)
	}
	switch {
	case c.broken && c.untilClose:
		c.nc.Reset() // its end would say that nothing is missing
	case c.broken:
		c.nc.Cut()
	default:
		c.nc.Close()
	}
	c.release()
	c.charge(0)
	c.memory.Close()
	c.alarm.Stop()
}
