// Package http1 is the engine for HTTP/1.x: strict, on a connection of package link,
// one goroutine for each, and no garbage per request. It runs the lifecycle of a request
// (package queue) and shares the client side (package upstream).
//
// A connection on which HTTP/2 begins, by ALPN or by its preface, is given to another
// engine as a whole.
package http1

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"

	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/link"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/socket"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
)

// bufferSize is what is written from, and the largest buffer that is kept, in
// bytes. A head that is longer grows its own.
const bufferSize = 32 << 10

// Server serves clients. Serve may be called for several listeners.
type Server struct {
	settings forward.Settings
	http2    func(c *link.Conn, early []byte, place *connlimit.Place)
	proxy    *queue.Proxy
	app      *upstream.App
	client   *h2client.Client // for an app that speaks HTTP/2 alone
	watcher  *hangup.Watcher
	buffers  *socket.Buffers
	date     forward.Date
	served   atomic.Uint64
	given    atomic.Uint64

	listeners *link.Listeners
	conns     *link.Conns[*conn] // those that are given away are not among them
}

// New returns a server that runs requests through proxy and forwards them to app, or by
// client where the app speaks HTTP/2 alone. http2 serves a connection on which HTTP/2
// begins, from now on, and closes it: early has been read from it, and place is the
// connection's, to be left when it is closed. It returns at once.
func New(s forward.Settings, proxy *queue.Proxy, app *upstream.App, client *h2client.Client, watcher *hangup.Watcher,
	http2 func(c *link.Conn, early []byte, place *connlimit.Place),
) *Server {
	l := &Server{settings: s, proxy: proxy, app: app, client: client, watcher: watcher, http2: http2}
	l.conns, l.listeners = link.NewConns((*conn).retire, (*conn).abandon), link.NewListeners()
	// A connection reads into a buffer that has room for what came last time, and goes on in
	// the next larger one when it is full: it holds the head while the request is with the
	// user container, and nearly all heads are short.
	l.buffers = socket.NewBuffers(1<<10, 4<<10, bufferSize)
	return l
}

// Counts returns how many requests were served, and how many connections were given to
// the engine for HTTP/2.
func (l *Server) Counts() (served, given uint64) { return l.served.Load(), l.given.Load() }

// GiveTime is how long after the beginning of Shutdown a connection that has not said
// what it speaks may still be given to the engine for HTTP/2.
const GiveTime = link.LastLook + link.LingerTime

// Serve serves the connections of ln until Shutdown. A config makes it speak TLS.
func (l *Server) Serve(ln net.Listener, config *tls.Config) error {
	if !l.listeners.Add(ln) {
		return nil
	}
	defer l.listeners.Done()
	defer ln.Close()
	var secure *link.Server
	if config != nil {
		secure = link.NewServer(config, l.settings.HeaderTimeout, l.settings.Bounds)
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

// start serves a connection in a goroutine of its own, once there is a place for it;
// false: the engine has been shut down before.
func (l *Server) start(nc *net.TCPConn, secure *link.Server) bool {
	bytes, err := link.New(nc)
	if err != nil {
		nc.Close()
		return true
	}
	c := newConn(l, bytes)
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

// closing reports whether clients are to go elsewhere with their next request.
func (l *Server) closing() bool { return l.proxy.Drain.Draining() }

// Shutdown accepts what has been accepted by the kernel and then nothing more,
// serves what is on its way and closes each connection when it is idle. When the
// context ends it closes those that are left. Connections that were given
// away are not its own any more. It may be called once.
func (l *Server) Shutdown(ctx context.Context) error {
	l.listeners.Stop()
	return l.conns.Shutdown(ctx, func() {
		l.listeners.Wait()
		l.conns.Wait()
	})
}
