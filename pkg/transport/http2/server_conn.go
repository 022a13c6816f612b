package http2

import (
	"errors"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// serverConn is a connection of a client. It implements http2conn.Handler.
type serverConn struct {
	*http2conn.Conn
	server *Server
	place  *netconn.Place
	remote string // address and port of the client
	peer   string // IP address of the client, as in X-Forwarded-For
	secure bool   // the connection uses TLS
	late   bool   // the connection was accepted during the drain
	memory *netconn.Account
	sender uint64 // identifies the connection for http2conn.Upload

	// The following fields are owned by the reader goroutine.
	fresh   []*worker // workers that have received a request but have not been started yet
	stirred bool      // Waiting was called, and the incomplete frame has not arrived yet

	leaving sync.Once // starts the timer of goAway

	mu      sync.Mutex
	running int  // number of requests that are being served
	ended   bool // afterClose was called
	evicted bool // evict has closed the connection
	full    bool // Full returned true, and Resume has not been called since
}

func newServerConn(s *Server, l *netconn.Conn, place *netconn.Place) *serverConn {
	c := &serverConn{server: s, place: place, remote: l.RemoteAddr().String(), peer: l.Client().String(), secure: l.Secure(), sender: s.client.NewSender()}
	c.mu.Lock() // evictMemory waits for mu, because it can be called before Conn is set
	defer c.mu.Unlock()
	c.memory = s.settings.Memory.Open(c.remote, c.evictMemory)
	send := s.settings.SendTimeout
	if send > 0 {
		send += rewrite.AnswerTimeout
	}
	c.Conn = http2conn.New(l, http2conn.Config{
		Window: window, ConnWindow: connWindow, MaxStreams: maxStreams, MaxHeadBytes: s.settings.MaxHeaderBytes,
		HeadTimeout: s.settings.HeaderTimeout, SendTimeout: send, Connect: true, Buffers: s.buffers,
		Memory: c.memory, Bounds: s.settings.Bounds,
	}, c)
	return c
}

// evictMemory closes the connection because the memory budget is exhausted. It waits until newServerConn has set Conn.
// It is safe for concurrent use.
func (c *serverConn) evictMemory() {
	c.mu.Lock()
	conn := c.Conn
	c.mu.Unlock()
	conn.Close(http2conn.ErrMemory)
}

// lateTime is the time between the first response and GOAWAY on a connection that was accepted during the drain.
const lateTime = time.Second

// goAway sends GOAWAY. It is called when a response begins during the drain. GOAWAY corresponds to the field
// "Connection: close" of HTTP/1.1, which HTTP/2 does not allow (RFC 9113 section 8.2.2).
//
// If the client has no other address, it reconnects immediately after GOAWAY. A gRPC library that receives GOAWAY at
// the beginning of each connection reconnects thousands of times per second. Therefore goAway delays GOAWAY by lateTime
// on a connection that was accepted during the drain.
func (c *serverConn) goAway() {
	if !c.late {
		c.GoAway()
		return
	}
	c.leaving.Do(func() { time.AfterFunc(lateTime, c.GoAway) })
}

// afterClose is called after the connection is closed. It closes the account of the connection if no request is being
// served. Otherwise leave closes the account after the last request.
func (c *serverConn) afterClose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.running == 0 {
		c.memory.Close()
	}
}

// Full implements http2conn.Handler. A request counts until its worker finishes, even if the stream was reset.
// Otherwise a client that resets its streams could cause an unlimited number of concurrent requests (CVE-2023-44487,
// CVE-2025-8671).
func (c *serverConn) Full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = c.running >= maxRunning
	return c.full
}

// Request implements http2conn.Handler.
func (c *serverConn) Request(id uint32, h *http2conn.Head, end bool) {
	if !c.enter() {
		c.Refuse(id, http2conn.RefusedStream)
		return
	}
	w := c.server.workers.get()
	x := &w.exchange
	x.conn = c
	if h.TooLarge {
		x.refuse(end)
	} else if !x.read(c, h, end) {
		c.RefuseMalformed(id, "malformed header section")
		c.drop(w)
		return
	}
	if !c.memory.Admit(x.size) {
		c.reject(id, x, end)
		c.drop(w)
		return
	}
	x.charged = x.size
	if x.stream = c.Accept(id, (*fromClient)(x), end); x.stream == nil {
		c.drop(w)
		return
	}
	c.fresh = append(c.fresh, w)
}

// reject rejects a request because the memory budget is exhausted (docs/promises.md 3.12). It does not block, because
// it is called by the reader goroutine.
func (c *serverConn) reject(id uint32, x *exchange, end bool) {
	grpc := transport.IsGRPC(x.Header(transport.ContentType))
	if grpc {
		x.stream = c.Accept(id, nil, end)
		grpc = x.stream != nil
	}
	c.server.proxy.Reject(x, x.state, !grpc)
	x.canceler.Reset()
	x.built.Reset()
	if !grpc {
		c.Conn.Reject(id)
	}
	c.FlushLater(c.Conn)
}

// drop returns a worker to the pool without serving its request.
func (c *serverConn) drop(w *worker) {
	w.exchange.release()
	if !c.server.workers.put(w) {
		w.work <- false
	}
	c.leave()
}

// Received implements http2conn.Handler. It starts the workers of the new requests. At this time, the content that
// arrived together with the HEADERS frame is already in the body.
func (c *serverConn) Received(partly bool) {
	if c.stirred && !partly {
		c.stirred = false
		if len(c.fresh) == 0 && !c.busy() {
			c.place.Idle(false)
		}
	}
	for i, w := range c.fresh {
		c.fresh[i] = nil
		w.start()
	}
	c.fresh = c.fresh[:0]
}

// Waiting implements http2conn.Handler.
func (c *serverConn) Waiting() {
	c.stirred = true
	c.place.ReadingUnlessServing()
}

// GoingAway implements http2conn.Handler. It does nothing, because only the client opens streams.
func (c *serverConn) GoingAway() {}

// busy reports whether requests are being served.
func (c *serverConn) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running > 0
}

// enter increments the number of running requests. It returns false if the connection was evicted.
func (c *serverConn) enter() bool {
	c.mu.Lock()
	ok := !c.evicted
	first := c.running == 0
	if ok {
		c.running++
		c.memory.Serve(c.running)
	}
	c.mu.Unlock()
	if ok && first {
		c.place.Serving()
	}
	return ok
}

// leave decrements the number of running requests. After the last request, the connection is marked as idle, and is
// closed if another connection waits because of the connection limit.
func (c *serverConn) leave() {
	c.mu.Lock()
	c.running--
	c.memory.Serve(c.running)
	last := c.running == 0
	if last && c.ended {
		c.memory.Close()
	}
	resume := c.full && c.running < maxRunning
	if resume {
		c.full = false
	}
	c.mu.Unlock()
	if resume {
		c.Resume()
	}
	if !last {
		return
	}
	wanted := c.place.Wanted()
	c.place.Idle(true)
	if wanted { // new streams of the client must not keep the connection open
		c.End()
	}
}

// evict closes an idle connection so that another connection can be served. It does nothing and returns false if a
// request is being served. It is safe for concurrent use.
func (c *serverConn) evict() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running > 0 {
		return false
	}
	c.evicted = true
	go c.End()
	time.AfterFunc(evictTime, func() { c.Close(errEvicted) })
	return true
}

var errEvicted = errors.New("http2: idle connection closed because of the connection limit")

// evictTime is the time after which an evicted connection is closed even if the client has not read GOAWAY.
const evictTime = 20 * time.Millisecond
