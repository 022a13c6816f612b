// Package http1 is the strict HTTP/1.x engine. It uses one goroutine for each connection and allocates no memory for a
// typical request. It runs the request lifecycle of package proxy and forwards requests with package http1client.
//
// If the client selects HTTP/2 by ALPN or sends the HTTP/2 connection preface, the engine hands the connection to the
// HTTP/2 engine.
package http1

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// bufferSize is the size of the write buffer and the maximum size of a pooled read buffer, in bytes. A longer header
// section is read into a larger buffer that is not pooled.
const bufferSize = 32 << 10

// Server serves client connections. Serve can be called for several listeners.
type Server struct {
	settings rewrite.ServerSettings
	http2    func(c *netconn.Conn, early []byte, place *netconn.Place)
	proxy    transport.Handler
	app      *http1client.App
	client   *http2client.Client // used if the user container supports only HTTP/2
	watcher  *netconn.Watcher
	buffers  *netconn.Buffers
	date     transport.DateCache

	listeners *netconn.Listeners
	conns     *netconn.Conns[*serverConn] // connections that were not handed to the HTTP/2 engine
}

// New returns a server that passes requests to handler. Requests are forwarded with app, or with client if the user
// container supports only HTTP/2. The function http2 takes over each connection that uses HTTP/2. It must not block,
// and it must cause place.Leave to be called after the connection is closed. early contains the bytes that were already
// read from the connection.
func New(s rewrite.ServerSettings, handler transport.Handler, app *http1client.App, client *http2client.Client, watcher *netconn.Watcher,
	http2 func(c *netconn.Conn, early []byte, place *netconn.Place),
) *Server {
	l := &Server{settings: s, proxy: handler, app: app, client: client, watcher: watcher, http2: http2}
	l.conns, l.listeners = netconn.NewConns((*serverConn).retire, (*serverConn).abandon), netconn.NewListeners()
	// A connection reads into a pooled buffer that has the size of its previous input, and switches to the next larger
	// size if the buffer is full. Small sizes save memory, because most header sections are short and the buffer is
	// held until the user container responds.
	l.buffers = netconn.NewBuffers(1<<10, 4<<10, bufferSize)
	return l
}

// GiveTime is the maximum time that the server waits after Shutdown to determine the protocol of a connection. During
// this time, connections can still be handed to the HTTP/2 engine.
const GiveTime = netconn.ShutdownDelay + netconn.LingerTime

// Serve accepts connections from ln and serves them until Shutdown is called. If config is not nil, Serve uses TLS.
// The listener must return *net.TCPConn connections.
func (l *Server) Serve(ln net.Listener, config *tls.Config) error {
	if !l.listeners.Add(ln) {
		return nil
	}
	defer l.listeners.Done()
	defer ln.Close()
	var secure *netconn.Server
	if config != nil {
		secure = netconn.NewServer(config, l.settings.HeaderTimeout, l.settings.Bounds)
	}
	for {
		nc, err := ln.Accept()
		if err != nil {
			if l.listeners.Stopped() {
				return nil
			}
			return err
		}
		if !l.start(nc.(*net.TCPConn), secure) {
			return nil
		}
	}
}

// start waits until the connection limit admits the connection, and serves the connection in a new goroutine. It
// returns false if the server is shutting down.
func (l *Server) start(nc *net.TCPConn, secure *netconn.Server) bool {
	bytes, err := netconn.New(nc)
	if err != nil {
		nc.Close()
		return true
	}
	c := newServerConn(l, bytes)
	var ok bool
	if c.place, ok = l.settings.Connections.Enter(c.remote, c.evict, l.listeners.Stopping); !ok {
		c.close()
		return false
	}
	l.conns.Serve(c, func() {
		if given := c.serve(secure); !given {
			c.place.Leave()
		}
	})
	return true
}

// closing reports whether a connection must be closed after its current request.
func (l *Server) closing() bool { return l.proxy.Draining() }

// Shutdown stops the listeners after the connections in their backlogs are accepted. It completes the requests in
// progress and closes each connection when it becomes idle. When ctx is canceled, Shutdown closes the remaining
// connections immediately. It ignores connections that were handed to the HTTP/2 engine. It must be called at most
// once.
func (l *Server) Shutdown(ctx context.Context) error {
	l.listeners.Stop()
	return l.conns.Shutdown(ctx, func() {
		l.listeners.Wait()
		l.conns.Wait()
	})
}
