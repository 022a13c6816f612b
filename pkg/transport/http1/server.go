// Package http1 is the strict HTTP/1.x engine. It uses one goroutine for each connection (package netconn) and
// allocates no memory for a request. It runs the request lifecycle of package proxy and forwards requests with
// package http1client.
//
// If a connection uses HTTP/2, because of ALPN or the connection preface, the engine hands the
// connection to the HTTP/2 engine.
package http1

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// bufferSize is the size of the write buffer and the maximum size of a pooled read buffer, in bytes. For a longer
// header section, a larger buffer is allocated that is not pooled.
const bufferSize = 32 << 10

// Server serves clients. Serve may be called for several listeners.
type Server struct {
	settings rewrite.ServerSettings
	http2    func(c *netconn.Conn, early []byte, place *netconn.Place)
	proxy    transport.Handler
	app      *http1client.App
	client   *http2client.Client // used if the user container supports only HTTP/2
	watcher  *netconn.Watcher
	buffers  *netconn.Buffers
	date     transport.DateCache
	served   atomic.Uint64
	given    atomic.Uint64

	listeners *netconn.Listeners
	conns     *netconn.Conns[*serverConn] // connections that were not handed to the HTTP/2 engine
}

// New returns a server that runs requests through proxy and forwards them to app. It uses client
// instead if the app supports only HTTP/2. http2 takes over a connection that uses HTTP/2 and must
// close it. early contains the bytes that were already read from the connection, and http2 must
// release place after it closes the connection. http2 must not block.
func New(s rewrite.ServerSettings, server transport.Handler, app *http1client.App, client *http2client.Client, watcher *netconn.Watcher,
	http2 func(c *netconn.Conn, early []byte, place *netconn.Place),
) *Server {
	l := &Server{settings: s, proxy: server, app: app, client: client, watcher: watcher, http2: http2}
	l.conns, l.listeners = netconn.NewConns((*serverConn).retire, (*serverConn).abandon), netconn.NewListeners()
	// A connection reads into a pooled buffer that has the size of its previous input, and switches to
	// the next larger size if the buffer is full. Small sizes save memory, because most header
	// sections are short and the buffer is held until the user container has responded.
	l.buffers = netconn.NewBuffers(1<<10, 4<<10, bufferSize)
	return l
}

// Counts returns the number of served requests and the number of connections that were handed to the
// HTTP/2 engine.
func (l *Server) Counts() (served, given uint64) { return l.served.Load(), l.given.Load() }

// GiveTime is the maximum time after the call to Shutdown during which a connection may still be handed to the
// HTTP/2 engine, because its protocol is not yet known.
const GiveTime = netconn.LastLook + netconn.LingerTime

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

// start waits for a place and serves the connection in a new goroutine. It returns false if the server
// is shutting down.
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

// Shutdown serves the connections that the kernel has already accepted, and then stops the listeners.
// It completes the requests in flight and closes each connection when it is idle. When ctx is
// canceled, Shutdown closes the remaining connections. It ignores connections that were handed to the
// HTTP/2 engine. It must be called at most once.
func (l *Server) Shutdown(ctx context.Context) error {
	l.listeners.Stop()
	return l.conns.Shutdown(ctx, func() {
		l.listeners.Wait()
		l.conns.Wait()
	})
}
