// Package http2 serves HTTP/2 (RFC 9113). One goroutine reads the frames of all streams of a connection. Each request
// is served by a separate goroutine, which runs the request lifecycle of package proxy. If the user container uses
// HTTP/2, the goroutine that reads the response from the user container also sends it to the client.
package http2

import (
	"context"
	"errors"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

const (
	// maxStreams is the advertised limit of concurrent streams on a connection. Knative's queue-proxy uses the same
	// value.
	maxStreams = 250
	// maxRunning is the maximum number of requests that a connection serves concurrently, including requests whose
	// streams have ended. When maxRunning is reached, the connection accepts no more requests until one of them ends.
	maxRunning = 2 * maxStreams
	// window is the maximum length of unread request content on a stream, in bytes. The window of the connection,
	// connWindow, is large enough for all streams. Otherwise the bodies of queued requests could fill this window, and
	// the body of a request that has a slot would have to wait for the queued requests.
	window     = 64 << 10
	connWindow = maxStreams * window
)

// Server serves HTTP/2 connections of clients.
type Server struct {
	settings rewrite.ServerSettings
	proxy    transport.Handler
	app      *http1client.App
	client   *http2client.Client
	buffers  *netconn.Buffers
	workers  workers
	blocks   sync.Pool // contains *http2conn.Block
	unpacked sync.Pool // contains *[]wire.Field; see rewrite.Request.Unpacked
	date     transport.DateCache

	conns *netconn.Conns[*serverConn]
}

// New returns a server that passes requests to handler. Requests are forwarded with app if the user container uses
// HTTP/1.1, and with client if it uses HTTP/2.
func New(s rewrite.ServerSettings, handler transport.Handler, app *http1client.App, client *http2client.Client) *Server {
	server := &Server{settings: s, proxy: handler, app: app, client: client, buffers: http2conn.NewBuffers()}
	server.conns = netconn.NewConns(func(c *serverConn) { go c.End() }, func(c *serverConn) { c.Close(errShutdown) })
	server.workers.server = server
	server.blocks.New = func() any { return new(http2conn.Block) }
	return server
}

// ServeConn starts a goroutine that serves a connection, closes it, and then calls place.Leave. early contains the
// bytes that were already read from the connection. place is the entry of the connection in the connection limit.
func (s *Server) ServeConn(l *netconn.Conn, early []byte, place *netconn.Place) {
	c := newServerConn(s, l, place)
	c.late = s.closing()
	place.Handled(c.evict)
	place.Idle(false)
	s.conns.Serve(c, func() {
		_ = c.Run(early) // the owners of the streams have received the error
		c.afterClose()
		place.Leave()
	})
	if !c.late && s.closing() { // the drain has begun, and Server.GoAway may have been called before Serve added c
		c.GoAway()
	}
}

var errShutdown = errors.New("http2: server closed")

// closing reports whether clients must send their next requests on another connection.
func (s *Server) closing() bool { return s.proxy.Draining() }

// GoAway sends GOAWAY on all connections, so that clients send their next requests on other connections. Requests that
// still arrive are served, because clients may have sent them before they received GOAWAY (RFC 9113 section 6.8).
// GoAway does not block.
func (s *Server) GoAway() {
	s.conns.Each(func(c *serverConn) { go c.GoAway() })
}

// Shutdown closes each connection after its requests are served, and waits until all connections are closed. When ctx
// is done, Shutdown closes the remaining connections immediately. It must be called at most once.
func (s *Server) Shutdown(ctx context.Context) error {
	return s.conns.Shutdown(ctx, func() {
		s.conns.Wait()
		s.workers.wait()
	})
}

// block returns an empty header block from the pool. The caller must return it with putBlock. The pool also keeps long
// blocks until the next garbage collection, because requests with long header sections often occur together.
func (s *Server) block() *http2conn.Block {
	b := s.blocks.Get().(*http2conn.Block)
	b.Reset()
	return b
}

func (s *Server) putBlock(b *http2conn.Block) { s.blocks.Put(b) }
