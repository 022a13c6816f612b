// Package httplane is the lane on net/http: HTTP/1.0 and 1.1 in full, HTTP/2 with
// prior knowledge or after TLS, upgrades, trailers, full duplex and odd clients.
// It is the reference for other lanes: correct first.
//
// Every connection is read by a guard (guard.go) before net/http sees a byte.
package httplane

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// Settings of the lane.
type Settings struct {
	MaxHeaderBytes int           // of a request's head; more is answered with 431
	MaxBodyBytes   int64         // of a request's body, more is answered with 413; 0: no limit
	MaxConnections int           // of clients, over all listeners; more wait in the backlog; 0: no limit
	HeaderTimeout  time.Duration // for a request's head to arrive; 0: none
	FullDuplex     bool          // an answer before the request's end does not cost an HTTP/1 client its connection
	AppPort        int           // what the Host of a request without one says
}

// http2Streams is how many requests an HTTP/2 client may have open at once on a
// connection, as Knative's queue-proxy has it.
const http2Streams = 250

// bodyBuffer is how much of a body is read at once.
const bodyBuffer = 32 << 10

// Lane serves clients by net/http. Serve may be called for several listeners.
type Lane struct {
	settings Settings
	proxy    *queue.Proxy
	app      *upstream.App
	appHost  string
	watcher  *hangup.Watcher
	server   *http.Server
	places   chan struct{} // one for each connection; nil: no limit
	idle     sync.Pool     // of *exchange
	buffers  sync.Pool     // of *[]byte, for bodies that come from the standard library
}

// New returns a lane that tells its story to proxy and forwards to app. What
// net/http has to say goes to errors.
func New(s Settings, proxy *queue.Proxy, app *upstream.App, watcher *hangup.Watcher, errors *log.Logger) *Lane {
	l := &Lane{
		settings: s,
		proxy:    proxy,
		app:      app,
		appHost:  net.JoinHostPort("127.0.0.1", strconv.Itoa(s.AppPort)),
		watcher:  watcher,
	}
	if s.MaxConnections > 0 {
		l.places = make(chan struct{}, s.MaxConnections)
	}
	l.idle.New = func() any { return l.newExchange() }
	l.buffers.New = func() any { b := make([]byte, bodyBuffer); return &b }
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // also what a guard shows of a TLS connection
	l.server = &http.Server{
		Handler:                      l,
		Protocols:                    protocols,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: http2Streams},
		ReadHeaderTimeout:            s.HeaderTimeout,
		MaxHeaderBytes:               s.MaxHeaderBytes + guardBuffer, // the guard is the stricter one
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     errors,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			g, _ := c.(*guard)
			return context.WithValue(ctx, guardKey{}, g)
		},
	}
	return l
}

type guardKey struct{}

func (l *Lane) newExchange() *exchange {
	x := &exchange{lane: l, woken: make(chan struct{}, 1)}
	x.call.OnSend = func() { x.life.Enter(queue.Waiting) }
	x.call.OnInfo = func(head *wire.Response) { x.inform(head) }
	x.call.StopBody = x.stopBody
	return x
}

// Serve serves the connections of ln until Shutdown, whose return it does not
// wait for. A config makes it speak TLS.
func (l *Lane) Serve(ln net.Listener, config *tls.Config) error {
	err := l.server.Serve(&guarded{Listener: ln, lane: l, config: config})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// closing reports whether clients are to go elsewhere with their next request.
func (l *Lane) closing() bool { return l.proxy.Drain.Draining() }

// Shutdown closes the listeners and the idle connections and waits for the
// others; when the context ends it closes those too.
func (l *Lane) Shutdown(ctx context.Context) error {
	err := l.server.Shutdown(ctx)
	if err != nil {
		l.server.Close()
	}
	return err
}

// ServeHTTP implements http.Handler.
func (l *Lane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g, _ := r.Context().Value(guardKey{}).(*guard)
	x := l.idle.Get().(*exchange)
	x.begin(w, r, g)
	l.proxy.Serve(x, &x.life)
	broken := x.broken
	if broken && x.untilClose && x.guard != nil {
		x.guard.reset.Store(true)
	}
	x.finishBody()
	x.end()
	l.idle.Put(x)
	if broken {
		panic(http.ErrAbortHandler)
	}
}

// guarded is a listener whose connections have guards.
type guarded struct {
	net.Listener
	lane   *Lane
	config *tls.Config
}

// Accept implements net.Listener.
func (l *guarded) Accept() (net.Conn, error) {
	if l.lane.places != nil {
		l.lane.places <- struct{}{}
	}
	c, err := l.Listener.Accept()
	if err != nil {
		l.release()
		return nil, err
	}
	g := &guard{Conn: c, maxHead: l.lane.settings.MaxHeaderBytes, onClose: l.release}
	g.bare, _ = c.(*net.TCPConn)
	if g.bare != nil && l.lane.watcher != nil {
		g.watch = l.lane.watcher.Add(g.bare, g.hangup)
	}
	if l.config != nil {
		g.Conn = tls.Server(c, l.config)
	}
	return g, nil
}

// release gives a connection's place back.
func (l *guarded) release() {
	if l.lane.places != nil {
		<-l.lane.places
	}
}
