// Package http2 is the engine for HTTP/2 (RFC 9113). One goroutine reads for all streams
// of a connection; each request has a goroutine of its own, in which the lifecycle of a
// request runs (package queue). What comes from a user container that speaks HTTP/2 too
// is passed on by the goroutine that has read it.
package http2

import (
	"context"
	"errors"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/h2"
	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/link"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/socket"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
)

const (
	// maxStreams is the advertised maximum number of open streams of a connection, which is
	// the same as in Knative's queue-proxy.
	maxStreams = 250
	// maxRunning is the maximum number of requests of a connection that are being served,
	// including those whose streams have ended. At this number, the connection accepts no
	// more requests until one of them has been served.
	maxRunning = 2 * maxStreams
	// window is how much of a request's body is received before it is read, in bytes. The
	// connection's window has room for all its streams: else bodies of requests that wait
	// for a slot could fill it, and the one that has the slot would wait for them.
	window     = 64 << 10
	connWindow = maxStreams * window
)

// Server serves connections on which clients speak HTTP/2.
type Server struct {
	settings forward.Settings
	proxy    *queue.Proxy
	app      *upstream.App
	client   *h2client.Client
	buffers  *socket.Buffers
	workers  workers
	blocks   sync.Pool // of *h2.Block
	unpacked sync.Pool // of *[]wire.Field; see forward.Request.Unpacked
	date     forward.Date

	conns *link.Conns[*conn]
}

// New returns a server that runs requests through proxy and forwards them to app, or by
// client where the app speaks HTTP/2.
func New(s forward.Settings, proxy *queue.Proxy, app *upstream.App, client *h2client.Client) *Server {
	server := &Server{settings: s, proxy: proxy, app: app, client: client, buffers: h2.NewBuffers()}
	server.conns = link.NewConns(func(c *conn) { go c.End() }, func(c *conn) { c.Close(errShutdown) })
	server.workers.server = server
	server.blocks.New = func() any { return new(h2.Block) }
	return server
}

// ServeConn serves a connection, on which nothing has been read but early, and closes it.
// It returns at once. place is the connection's part of the limit of connections, and is
// left when it has been closed.
func (s *Server) ServeConn(l *link.Conn, early []byte, place *connlimit.Place) {
	c := newConn(s, l, place)
	c.late = s.closing()
	place.Handled(c.evict)
	place.Idle(false)
	s.conns.Serve(c, func() {
		_ = c.Run(early) // all who had a part in it have been notified
		c.over()
		place.Leave()
	})
	if !c.late && s.closing() { // the drain began, and GoAway may not have found the connection
		c.GoAway()
	}
}

var errShutdown = errors.New("http2: the server has been shut down")

// closing reports whether clients are to go elsewhere with their next request.
func (s *Server) closing() bool { return s.proxy.Drain.Draining() }

// GoAway tells all clients to send their next requests elsewhere; what they send on their
// connections all the same is served: it may have been on its way (RFC 9113 section 6.8). It
// does not wait for clients that do not read.
func (s *Server) GoAway() {
	s.conns.Each(func(c *conn) { go c.GoAway() })
}

// Shutdown serves the requests that have come, and then closes each connection. When the
// context ends it closes those that are left. It may be called once.
func (s *Server) Shutdown(ctx context.Context) error {
	return s.conns.Shutdown(ctx, func() {
		s.conns.Wait()
		s.workers.wait()
	})
}

// block returns an empty header block, which putBlock takes back. A long one is kept too,
// until the garbage collector comes: requests with long heads rarely come alone.
func (s *Server) block() *h2.Block {
	b := s.blocks.Get().(*h2.Block)
	b.Reset()
	return b
}

func (s *Server) putBlock(b *h2.Block) { s.blocks.Put(b) }
