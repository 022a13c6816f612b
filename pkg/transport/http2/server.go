// Package http2 serves HTTP/2 (RFC 9113). One goroutine reads all streams of a connection. Each request has its own
// goroutine, which runs the request lifecycle of package proxy. If the user container uses HTTP/2, the goroutine
// that reads the response also sends it to the client.
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
	// maxStreams is the advertised maximum number of open streams of a connection. Knative's queue-proxy uses the
	// same value.
	maxStreams = 250
	// maxRunning is the maximum number of requests of a connection that are being served, including requests whose
	// streams have ended. When this number is reached, the connection accepts no more requests until one of these
	// requests has been served.
	maxRunning = 2 * maxStreams
	// window is the maximum length of unread request content on a stream, in bytes. The window of the connection is
	// large enough for all streams. Otherwise the bodies of queued requests could fill the window of the
	// connection, and the request that has a slot would wait for the queued requests.
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

// New returns a server that runs requests through proxy. It forwards them to app, or through client if the
// user container uses HTTP/2.
func New(s rewrite.ServerSettings, front transport.Handler, app *http1client.App, client *http2client.Client) *Server {
	server := &Server{settings: s, proxy: front, app: app, client: client, buffers: http2conn.NewBuffers()}
	server.conns = netconn.NewConns(func(c *serverConn) { go c.End() }, func(c *serverConn) { c.Close(errShutdown) })
	server.workers.server = server
	server.blocks.New = func() any { return new(http2conn.Block) }
	return server
}

// ServeConn serves a connection in another goroutine and closes it. early contains the bytes that were already
// read. place is the entry of the connection in the connection limit. ServeConn releases place after the connection
// is closed.
func (s *Server) ServeConn(l *netconn.Conn, early []byte, place *netconn.Place) {
	c := newServerConn(s, l, place)
	c.late = s.closing()
	place.Handled(c.evict)
	place.Idle(false)
	s.conns.Serve(c, func() {
		_ = c.Run(early) // Run has already reported the error to the owners and the handler
		c.over()
		place.Leave()
	})
	if !c.late && s.closing() { // the drain began in the meantime, and GoAway may have missed the connection
		c.GoAway()
	}
}

var errShutdown = errors.New("http2: server closed")

// closing reports whether clients must send their next requests on another connection.
func (s *Server) closing() bool { return s.proxy.Draining() }

// GoAway asks all clients to send their next requests on another connection. Requests that still arrive on the
// connections are served, because clients may have sent them before they received GOAWAY (RFC 9113 section 6.8).
// GoAway does not wait for clients that do not read.
func (s *Server) GoAway() {
	s.conns.Each(func(c *serverConn) { go c.GoAway() })
}

// Shutdown serves the accepted requests and then closes each connection. When ctx is done, it closes the
// remaining connections. It must be called at most once.
func (s *Server) Shutdown(ctx context.Context) error {
	return s.conns.Shutdown(ctx, func() {
		s.conns.Wait()
		s.workers.wait()
	})
}

// block returns an empty header block. It must be returned with putBlock. The pool also keeps long blocks until the
// next garbage collection, because requests with long header sections often occur together.
func (s *Server) block() *http2conn.Block {
	b := s.blocks.Get().(*http2conn.Block)
	b.Reset()
	return b
}

func (s *Server) putBlock(b *http2conn.Block) { s.blocks.Put(b) }
