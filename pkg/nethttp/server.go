// Package nethttp is the engine on the standard library's net/http, for a whole process:
// a fallback, and what packages http1 and http2 are compared with. It reads requests as
// net/http does: what that lets through, or refuses, it does not validate again.
package nethttp

import (
	"context"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/link"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// http2Streams is how many requests an HTTP/2 client may have open at once on a
// connection, as Knative's queue-proxy has it.
const http2Streams = 250

// http2Frame is the longest frame that is received, in bytes: net/http makes a
// buffer for a frame that is announced, and keeps it.
const http2Frame = 64 << 10

// http2Window is how much of a stream's body is received before it is read, in bytes.
// A connection's window has room for all its streams: else bodies of requests that
// wait for a slot could fill it, and the one that has the slot would wait for them.
const http2Window = 64 << 10

// Server serves clients by net/http. Serve may be called for several listeners.
type Server struct {
	settings forward.Settings
	proxy    *queue.Proxy
	app      *upstream.App
	client   *h2client.Client // for an app that speaks HTTP/2
	watcher  *hangup.Watcher
	server   *http.Server
	idle     sync.Pool // of *exchange

	listeners *link.Listeners
	mu        sync.Mutex
	conns     map[*conn]struct{}
}

// New returns a server that runs requests through proxy and forwards them to app, or by
// client where the app speaks HTTP/2. What net/http has to say goes to errors.
func New(settings forward.Settings, proxy *queue.Proxy, app *upstream.App, client *h2client.Client, watcher *hangup.Watcher, errors *log.Logger) *Server {
	s := &Server{
		settings: settings,
		proxy:    proxy,
		app:      app,
		client:   client,
		watcher:  watcher,
		conns:    make(map[*conn]struct{}),

		listeners: link.NewListeners(),
	}
	s.idle.New = func() any { return s.newExchange() }
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // which is what it sees of a TLS connection
	s.server = &http.Server{
		Handler:   s,
		Protocols: protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: http2Streams, MaxReadFrameSize: http2Frame,
			MaxReceiveBufferPerStream: http2Window, MaxReceiveBufferPerConnection: http2Streams * http2Window,
			WriteByteTimeout: settings.SendTimeout + forward.AnswerTimeout,
		},
		ReadHeaderTimeout:            settings.HeaderTimeout,
		MaxHeaderBytes:               settings.MaxHeaderBytes,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     errors,
		ConnState: func(c net.Conn, state http.ConnState) {
			if c, ok := c.(*conn); ok {
				c.becomes(state)
			}
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	return s
}

type connKey struct{}

func (s *Server) newExchange() *exchange {
	x := &exchange{server: s}
	x.alarm = queue.NewAlarm(x.hasGone)
	x.call.Request, x.call.Client = &x.head, x
	return x
}

// Serve serves the connections of ln until Shutdown, whose return it does not
// wait for. A config makes it speak TLS.
func (s *Server) Serve(ln net.Listener, config *tls.Config) error {
	if !s.listeners.Add(ln) {
		return nil
	}
	defer s.listeners.Done()
	l := &listener{Listener: ln, server: s}
	if config != nil {
		l.secure = link.NewServer(config, s.settings.HeaderTimeout, s.settings.Bounds)
	}
	err := s.server.Serve(l)
	if s.listeners.Stopped() {
		return nil
	}
	return err
}

// closing reports whether clients are to go elsewhere with their next request.
func (s *Server) closing() bool { return s.proxy.Drain.Draining() }

// GoAway tells the HTTP/2 clients to send their next requests elsewhere; what
// they send on their connections all the same is served. HTTP/1 clients see it
// with their next answers, as long as the drain is on. It does not wait for
// clients that do not read.
func (s *Server) GoAway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		go c.goAway()
	}
}

// Shutdown stops listening, serves what is on its way and closes each connection when
// it is idle. When the context ends it closes those that are left. It does not wait
// for tunnels.
func (s *Server) Shutdown(ctx context.Context) error {
	s.listeners.Stop()
	s.listeners.Wait() // for what the kernel had accepted
	err := s.server.Shutdown(ctx)
	if err != nil {
		s.server.Close()
	}
	return err
}

// open notes a connection.
func (s *Server) open(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
}

// gone forgets a connection that has been closed.
func (s *Server) gone(c *conn) {
	c.place.Leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn)
	if !c.answered.Swap(true) {
		c.place.Answered()
	}
	x := s.idle.Get().(*exchange)
	x.begin(w, r, c)
	if announcesTooMuch(r.Trailer) {
		x.Answer(&queue.Answer{Status: http.StatusRequestHeaderFieldsTooLarge, Body: http.StatusText(http.StatusRequestHeaderFieldsTooLarge) + "\n", Reason: queue.BadRequest, GRPC: -1})
	} else {
		s.proxy.Serve(x, &x.state)
	}
	broken := x.broken
	if broken {
		x.showCut()
	}
	broken = broken || !x.answered // or net/http would say 200 to a client that is thought to have gone
	if broken && x.untilClose {
		c.reset.Store(true)
	}
	x.leaveBody()
	x.end()
	s.idle.Put(x)
	if broken {
		panic(http.ErrAbortHandler)
	}
}

// announcesTooMuch reports whether the names of announced trailers are longer than
// trailers may be. net/http has taken them apart, into fourteen times as much memory,
// which is not to be held while the request waits.
func announcesTooMuch(trailer http.Header) bool {
	size := 0
	for name := range trailer {
		if size += len(name) + len(","); size > wire.MaxRequestTrailer {
			return true
		}
	}
	return false
}
