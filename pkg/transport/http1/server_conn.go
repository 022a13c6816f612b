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

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// chunkRoom is the minimum space in bytes that the buffer has after the header section of a request with a chunked
// body. The chunks are read into this space and decoded there, because the header section stays in the buffer.
const chunkRoom = 4 << 10

// past is a time in the past. A deadline that is set to past interrupts a blocked read or write.
var past = time.Unix(1, 0)

// serverConn is a client connection. The reader goroutine reads the requests, runs their lifecycles and writes the
// responses. Another goroutine reads and forwards a long request body.
type serverConn struct {
	server *Server
	nc     *netconn.Conn
	watch  *netconn.Watch
	place  *netconn.Place
	memory *netconn.Account
	held   int // number of bytes that are charged to memory for the read buffer and the request

	// The following fields are owned by the reader goroutine. buf[r:w] holds unread input. An idle
	// connection has no buffer.
	pooled      *[]byte
	buf         []byte
	r, w        int
	need        int                // minimum size of the next buffer in bytes, estimated from the previous input
	err         error              // error of the last read
	reading     func(uintptr) bool // tryRead, created once to avoid an allocation
	first       bool               // no request was served on this connection yet
	headStarted bool               // a header section is incomplete, and HeaderTimeout is running
	skipped     bool               // an empty line before the next request was skipped
	refused     bool               // the last header section was rejected
	agreed      bool               // ALPN selected HTTP/1.1
	receiving   atomic.Bool        // the reader goroutine reads from the socket, or has input that it has not processed yet

	// The following fields are owned by the writer goroutine.
	left     []byte             // remaining bytes of the first slice of the current write
	then     []byte             // remaining bytes of the second slice, which is written after left
	writeErr error              // error of the current write
	writing  func(uintptr) bool // tryWrite, created once to avoid an allocation
	clocked  bool               // the send timeout of the client applies to the write
	counted  bool               // output that the client does not read is charged to the memory budget
	unread   int                // number of bytes charged for output that the client does not read
	offered  atomic.Bool        // the send timeout is running, because a write was incomplete
	gone     atomic.Bool        // the client closed its side of the connection
	costly   atomic.Bool        // the connection was closed because of the memory budget

	cancelHandshake atomic.Pointer[context.CancelFunc] // nil if no TLS handshake is in progress

	exchange

	// The following fields control when the connection is closed. They are guarded by mu.
	mu         sync.Mutex
	idle       bool // the reader waits for the first byte of a header section
	incomplete bool // the TLS handshake or a header section is incomplete
	retiring   bool // retire was called
	evicted    bool // evict has closed the connection
}

func newServerConn(l *Server, nc *netconn.Conn) *serverConn {
	c := &serverConn{server: l, nc: nc, incomplete: true} // the TLS handshake or the first header section is incomplete
	c.reading, c.writing = c.tryRead, c.tryWrite
	c.exchange.init(c)
	c.memory = l.settings.Memory.Open(c.remote, c.evictMemory)
	c.call.Memory.Account = c.memory
	if l.watcher != nil {
		c.watch = l.watcher.Add(nc.TCP(), c.hangup)
	}
	return c
}

// hangup records that the client has closed its side of the connection, and aborts a handshake or request.
func (c *serverConn) hangup() {
	c.gone.Store(true)
	c.endHandshake()
	c.canceler.Notify()
	c.built.Leave()
}

// serve serves requests until the connection is closed or handed to the HTTP/2 engine. It returns true
// if the HTTP/2 engine owns the connection. If secure is not nil, serve first completes a TLS
// handshake.
func (c *serverConn) serve(secure *netconn.Server) (given bool) {
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
			if c.admit() {
				c.server.proxy.Serve(&c.exchange, c.state)
			} else {
				c.server.proxy.Reject(&c.exchange, c.state, false)
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

// handshake completes a TLS handshake and returns the protocol that ALPN selected, or "" if there is none. It is
// not inlined, so that the goroutine does not keep its stack frame for the lifetime of the connection.
//
//go:noinline
func (c *serverConn) handshake(secure *netconn.Server) (protocol string, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.cancelHandshake.Store(&cancel)
	defer c.cancelHandshake.Store(nil)
	if c.gone.Load() { // hangup may have been called before cancelHandshake was set
		c.endHandshake()
	}
	if err := c.nc.Handshake(ctx, secure, c.handshakeWaits); err != nil {
		return "", err
	}
	return c.nc.TLS().NegotiatedProtocol, nil
}

// handshakeWaits is called each time the handshake starts or stops waiting for the client. client reports whether the
// handshake waits for the client. answered has the same meaning as in [netconn.Conn.Handshake]. The connection can be
// evicted only while the handshake waits for the client.
func (c *serverConn) handshakeWaits(client, answered bool) {
	switch {
	case client && answered:
		c.place.Greeted()
	case client:
		c.place.Idle(false)
	default:
		c.place.Serving()
	}
}

// endHandshake cancels a handshake that waits in the queue of handshakes. It is safe for concurrent use.
func (c *serverConn) endHandshake() {
	if cancel := c.cancelHandshake.Load(); cancel != nil {
		(*cancel)()
	}
}

// giveAway hands the connection to the HTTP/2 engine.
func (c *serverConn) giveAway() {
	c.watch.Stop()
	early := bytes.Clone(c.buf[c.r:c.w])
	c.release()
	c.charge(0)
	c.memory.Close()
	c.canceler.Stop()
	c.server.http2(c.nc, early, c.place)
}

// what classifies the next input from the client.
type what uint8

const (
	request what = iota
	http2        // the HTTP/2 connection preface
	end          // end of the input, or a rejected header section
)

// next reads input until the buffer contains a complete request header section or the HTTP/2 preface, or until the
// connection must be closed.
func (c *serverConn) next() what {
	c.skipped = false
	c.headStarted = c.first // the timeout for the first header section starts before its first byte arrives
	if c.headStarted {
		c.awaitHead()
	}
	for {
		c.skipEmptyLine()
		if c.w > c.r {
			if what, known := c.classify(); known {
				if c.headStarted && !c.gotHead() {
					return end
				}
				return what
			}
			c.startHead()
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

// skipEmptyLine skips one empty line before a request line (RFC 9112 section 2.2). Some clients send an empty line
// after a request body. The connection stays idle, because the empty line does not start a request. skipEmptyLine is
// not inlined, so that the stack of an idle connection stays small.
//
//go:noinline
func (c *serverConn) skipEmptyLine() {
	const crlf = "\r\n"
	if !c.skipped && c.w-c.r >= len(crlf) && string(c.buf[c.r:c.r+len(crlf)]) == crlf {
		c.skipped = true
		c.r += len(crlf)
		c.request.Reset() // the parser may already have parsed the CR
	}
}

// startHead starts HeaderTimeout if the timeout is not running.
func (c *serverConn) startHead() {
	if !c.headStarted {
		c.headStarted = true
		c.awaitHead()
	}
}

// classify returns the type of the buffered input. known is false if the input is incomplete.
func (c *serverConn) classify() (w what, known bool) {
	b := c.buf[c.r:c.w]
	// Only the first bytes of a connection can start HTTP/2 with prior knowledge (RFC 9113 section
	// 3.3). A client that selected HTTP/1.1 by ALPN must use HTTP/1.1.
	if c.first && !c.agreed && !c.skipped {
		if is, maybe := wire.HasPreface(b); is || maybe {
			return http2, is
		}
	}
	n, err := c.request.Parse(b)
	q := &c.request
	if status := c.refusal(n, len(b), err); status != 0 {
		rewrite.RecordRefusal(c.server.settings.Bounds, c.remote, status, err)
		c.refuse(status)
		return end, true
	}
	switch {
	case n == 0:
		return 0, false
	case q.Chunked && len(c.buf)-c.r-n < chunkRoom:
		c.makeRoom(n + chunkRoom)
		_, _ = q.Parse(c.buf[c.r:c.w]) // parse again, because makeRoom moved the bytes
	}
	c.begin(n)
	return request, true
}

// refusal returns the status code for a header section that is rejected, or 0 if the header section is
// valid or incomplete. n is the length of the header section in bytes, or 0 if it is incomplete.
// arrived is the number of buffered bytes. err is the error of the parser.
func (c *serverConn) refusal(n, arrived int, err error) (status int) {
	limit := c.server.settings.MaxHeaderBytes
	switch {
	// A header section that is too long is rejected with status 431, even if it is also malformed (RFC 6585 section 5).
	case err != nil && n <= limit:
		if refused, ok := errors.AsType[*wire.Error](err); ok {
			return refused.Status
		}
		return http.StatusBadRequest
	case n > limit, n == 0 && arrived >= limit:
		return http.StatusRequestHeaderFieldsTooLarge
	}
	return 0
}

// refuse sends an error response for a rejected header section. After that, the connection is closed, because the end
// of the rejected request is unknown.
func (c *serverConn) refuse(status int) {
	c.abandonHead()
	c.server.proxy.Refuse(&c.exchange, status)
}

// abandonHead prepares the exchange for the response to an incomplete or invalid header section. After the response,
// the connection is closed.
func (c *serverConn) abandonHead() {
	c.refused = true
	c.request.Abandon(c.buf[c.r:c.w])
	c.request.Minor, c.request.Close = 1, true
	c.exchange.begin(0)
}

// wait waits for input and appends it to the buffer. It returns an error if the connection is evicted, or if the
// connection is retiring and no input arrives.
func (c *serverConn) wait() error {
	c.makeRoom(c.w - c.r + 1)
	defer c.place.Serving() // until the next call to Idle or Reading, the connection is not evicted
	if c.w > 0 {
		c.place.Reading()
		return c.read()
	}
	for {
		last := c.enterIdle()
		c.place.Idle(!c.first) // called after enterIdle, because evict requires an idle connection
		err := c.read()
		retiring, evicted := c.leaveIdle()
		switch {
		case evicted:
			return errEvicted
		case last || !retiring || !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

var errEvicted = errors.New("idle connection closed because of the connection limit")

// enterIdle marks the connection as idle. last reports whether the connection is retiring. If it is, the next read is
// the last one, and its timeout is netconn.ShutdownDelay.
func (c *serverConn) enterIdle() (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = true
	if c.retiring {
		c.nc.SetReadDeadline(time.Now().Add(netconn.ShutdownDelay))
	}
	return c.retiring
}

// leaveIdle marks the connection as not idle. It returns the fields retiring and evicted.
func (c *serverConn) leaveIdle() (retiring, evicted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = false
	if c.retiring {
		c.limitHead()
	}
	return c.retiring, c.evicted
}

// awaitHead records that a header section is incomplete, and starts its timeout.
func (c *serverConn) awaitHead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.incomplete = true
	c.limitHead()
}

// gotHead records that the header section is complete, and stops its timeout. It returns false if the connection
// was evicted and the request must not be served.
func (c *serverConn) gotHead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.incomplete = false
	c.limitHead()
	return !c.evicted
}

// evict closes the connection so that another connection can be served. It returns false if a request is being
// served or if there is unread input. It is safe for concurrent use.
func (c *serverConn) evict() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.idle && !c.incomplete {
		return false
	}
	// Check the socket before the field receiving. Otherwise the reader goroutine could set receiving and empty the
	// socket between the two checks, and its input would be overlooked.
	if !c.nc.Silent() || c.receiving.Load() {
		return false
	}
	c.evicted = true
	c.nc.SetReadDeadline(past)
	c.endHandshake()
	return true
}

// limitHead sets the read deadline if a header section is incomplete, and otherwise clears it. If the connection is
// retiring, the timeout is netconn.LingerTime instead of HeaderTimeout, so that slow clients do not delay the
// termination of the pod. c.mu must be held, so that limitHead cannot replace the deadline that evict has set.
func (c *serverConn) limitHead() {
	if c.evicted {
		return // keep the deadline that evict set
	}
	limit := c.server.settings.HeaderTimeout
	if c.retiring {
		limit = netconn.LingerTime
	}
	if !c.incomplete || limit == 0 {
		c.nc.SetReadDeadline(time.Time{})
		return
	}
	c.nc.SetReadDeadline(time.Now().Add(limit))
}

// retire causes the connection to be closed when it is idle and no input arrives. It is safe for concurrent use, and
// must be called at most once.
func (c *serverConn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retiring = true
	switch {
	case c.idle:
		c.nc.SetReadDeadline(past)
	case c.incomplete:
		c.limitHead()
	}
}

// abandon closes the connection immediately, even during a request. It is safe for concurrent use.
func (c *serverConn) abandon() {
	c.hangup()
	c.nc.Cut()
}

// makeRoom moves the unread input to the start of the buffer. If the connection has a buffer, makeRoom
// enlarges it to at least n bytes.
func (c *serverConn) makeRoom(n int) {
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

// hold allocates a read buffer if the connection has no buffer.
func (c *serverConn) hold() {
	if c.buf != nil {
		return
	}
	c.pooled = c.server.buffers.Get(c.need)
	c.buf = *c.pooled
}

// read waits for input and appends it to the buffer.
func (c *serverConn) read() error {
	if err := c.nc.WaitRead(c.reading); err != nil {
		return err
	}
	return c.err
}

// tryRead reads available input from the socket. done is false if no input is available. tryRead then releases an empty
// buffer, so that a waiting connection holds no buffer.
func (c *serverConn) tryRead(fd uintptr) (done bool) {
	c.hold()
	c.receiving.Store(true) // must precede the read that empties the socket; see evict
	n, err := c.nc.TryRead(fd, c.buf[c.w:])
	switch {
	case errors.Is(err, netconn.ErrAgain):
		c.receiving.Store(false)
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
	// If the buffer is full, read more input into a larger buffer without another wait for the socket. HTTP/2 input
	// stays in the socket, because the HTTP/2 engine would keep a copy of it until the connection is closed.
	for c.w == len(c.buf) && c.w < bufferSize && !c.hasPreface() {
		c.makeRoom(c.w + 1)
		n, _ = c.nc.TryRead(fd, c.buf[c.w:]) // after an error, the next read returns the error again
		c.w += n
	}
	if first {
		c.need = min(c.w+1, bufferSize)
	}
	return true
}

// hasPreface reports whether the input starts with the HTTP/2 connection preface.
func (c *serverConn) hasPreface() bool {
	is, _ := wire.HasPreface(c.buf[c.r:c.w])
	return is
}

// write writes p and then q. It returns the total number of written bytes.
func (c *serverConn) write(p, q []byte) (n int, err error) {
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

// tryWrite writes c.left and c.then. done is false if the socket buffer is full and the write must continue later.
func (c *serverConn) tryWrite(fd uintptr) (done bool) {
	c.left, c.then, c.writeErr = c.nc.TryWriteAll(fd, c.left, c.then)
	if errors.Is(c.writeErr, netconn.ErrAgain) {
		c.offer()
		c.chargeUnread()
		return false
	}
	return true
}

// offer starts the send timeout if the timeout applies to the current write and is not running.
func (c *serverConn) offer() {
	if c.clocked && !c.offered.Load() {
		c.offered.Store(true)
		c.canceler.WriteStarted(c.state)
	}
}

// release releases the read buffer with its content.
func (c *serverConn) release() {
	c.server.buffers.Put(c.pooled)
	c.pooled, c.buf, c.r, c.w = nil, nil, 0, 0
}

// dropHead removes the references of the request to the read buffer, which contains its header section.
func (c *serverConn) dropHead() {
	c.request.Reset()
	c.exchange.head.Release()
}

// finish releases the request after its lifecycle ends. It reports whether the connection can serve another request.
func (c *serverConn) finish() bool {
	if !c.exchange.end() || c.gone.Load() {
		return false
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
		if c.pooled == nil { // a buffer larger than bufferSize is not pooled
			c.release()
			c.dropHead()
		}
	}
	c.charge(0)
	c.request.Shrink(manyFields)
	return true
}

// close closes the connection. If the connection is closed after a complete response, close lets the client read this
// response first.
func (c *serverConn) close() {
	c.watch.Stop()
	c.built.Reset()
	c.release()
	c.dropHead() // release the memory before Linger, which may wait for the client
	c.charge(0)
	if c.last && !c.broken && !c.gone.Load() {
		c.nc.Linger(c.refused)
	}
	switch {
	case c.broken && c.untilClose:
		c.nc.Reset() // a FIN would mark the truncated response as complete
	case c.broken:
		c.nc.Cut()
	default:
		c.nc.Close()
	}
	c.memory.Close()
	c.canceler.Stop()
}
