// Package httplane is the lane on net/http: HTTP/1.0 and 1.1 in full, HTTP/2 with
// prior knowledge or after TLS, upgrades, trailers, full duplex and odd clients.
// It is the reference for other lanes: correct first.
//
// Every connection is read by a guard (guard.go) before net/http sees a byte.
package httplane

import (
	"context"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/goaway"
	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// Settings of the lane.
type Settings struct {
	MaxHeaderBytes int              // of a request's head; more is answered with 431
	MaxBodyBytes   int64            // of a request's body, more is answered with 413; 0: no limit
	Connections    *connlimit.Limit // of clients; nil: no limit
	HeaderTimeout  time.Duration    // for a request's head to arrive; 0: none
	SendTimeout    time.Duration    // for an HTTP/2 client to take a byte of what is written; the clock of its request comes first
	FullDuplex     bool             // an answer before the request's end does not cost an HTTP/1 client its connection
	ServerTiming   bool             // responses say in Server-Timing how long their requests waited
	AppPort        int              // what the Host of a request without one says
	WebSockets     *goaway.Set      // those that are open are in it; nil: nobody wants to know
}

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
	idle     sync.Pool     // of *exchange
	buffers  sync.Pool     // of *[]byte, for bodies that come from the standard library
	stop     chan struct{} // closed by Shutdown

	mu        sync.Mutex
	listeners []net.Listener
	guards    map[*guard]struct{} // of the connections that are open and not tunnels
	stopping  bool
	accepted  *accepted
	changed   chan struct{} // closed and renewed when a guard goes
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
		guards:   make(map[*guard]struct{}),
		changed:  make(chan struct{}),
		accepted: newAccepted(),
		stop:     make(chan struct{}),
	}
	l.idle.New = func() any { return l.newExchange() }
	l.buffers.New = func() any { b := make([]byte, bodyBuffer); return &b }
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // also what a guard shows of a TLS connection
	l.server = &http.Server{
		Handler:   l,
		Protocols: protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: http2Streams, MaxReadFrameSize: http2Frame,
			MaxReceiveBufferPerStream: http2Window, MaxReceiveBufferPerConnection: http2Streams * http2Window,
			WriteByteTimeout: s.SendTimeout + answerTimeout,
		},
		ReadHeaderTimeout:            s.HeaderTimeout,
		MaxHeaderBytes:               s.MaxHeaderBytes + guardBuffer, // the guard is the stricter one
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     errors,
		ConnState: func(c net.Conn, state http.ConnState) {
			if g, ok := c.(*guard); ok {
				g.becomes(state)
			}
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			g, _ := c.(*guard)
			return context.WithValue(ctx, guardKey{}, g)
		},
	}
	return l
}

type guardKey struct{}

func (l *Lane) newExchange() *exchange {
	x := &exchange{lane: l}
	x.alarm = queue.NewAlarm(x.hasGone)
	x.call.OnSend = x.makeHead
	x.call.OnSent = x.leaveHead
	x.call.OnInfo = func(head *wire.Response) { x.inform(head) }
	x.call.StopBody = x.stopBody
	x.call.Arrived = x.bodyArrived
	return x
}

// Serve serves the connections of ln until Shutdown, whose return it does not
// wait for. A config makes it speak TLS.
func (l *Lane) Serve(ln net.Listener, config *tls.Config) error {
	l.mu.Lock()
	if l.stopping {
		l.mu.Unlock()
		return ln.Close()
	}
	l.listeners = append(l.listeners, ln)
	l.mu.Unlock()
	err := l.server.Serve(&guarded{Listener: ln, lane: l, config: config})
	if l.hasStopped() {
		return nil
	}
	return err
}

// ServeAccepted serves the connections of [Lane.ServeConn] until Shutdown.
func (l *Lane) ServeAccepted() error {
	err := l.server.Serve(l.accepted)
	if l.hasStopped() {
		return nil
	}
	return err
}

// closing reports whether clients are to go elsewhere with their next request.
func (l *Lane) closing() bool { return l.proxy.Drain.Draining() }

// GoAway tells the HTTP/2 clients to send their next requests elsewhere; what
// they send on their connections all the same is served. HTTP/1 clients hear it
// with their next answers, as long as the drain is on. It does not wait for
// clients that do not read.
func (l *Lane) GoAway() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range l.guards {
		go g.goAway()
	}
}

// StopListening accepts what the kernel has accepted, and then nothing more but what
// ServeConn is given. HTTP/1 connections are closed when they are idle. It may be called again.
func (l *Lane) StopListening() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopping {
		close(l.stop)
	}
	l.stopping = true
	for _, ln := range l.listeners {
		if d, ok := ln.(interface{ SetDeadline(time.Time) error }); ok {
			_ = d.SetDeadline(time.Now().Add(lastLook)) // guarded closes it then
		} else {
			ln.Close()
		}
	}
	for g := range l.guards {
		g.retire()
	}
}

// Shutdown stops listening, serves what is on its way and closes each connection when
// it is idle. When the context ends it closes those that are left. It does not wait
// for tunnels.
func (l *Lane) Shutdown(ctx context.Context) error {
	l.StopListening()
	l.awaitHTTP1(ctx)
	err := l.server.Shutdown(ctx) // HTTP/2 has a way of its own, with a last GOAWAY
	if err != nil {
		l.server.Close()
	}
	return err
}

// awaitHTTP1 waits until no HTTP/1 connection is open, or the context ends. It
// has to come before the server's own shutdown, which forgets requests whose
// heads it has just read.
func (l *Lane) awaitHTTP1(ctx context.Context) {
	for {
		open := 0
		l.mu.Lock()
		for g := range l.guards {
			if g.talker.Load() == nil {
				open++
			}
		}
		changed := l.changed
		l.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (l *Lane) hasStopped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopping
}

// open notes a connection.
func (l *Lane) open(g *guard) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.guards[g] = struct{}{}
	if l.stopping {
		g.retire()
	}
}

// gone forgets a connection, which has been closed or become a tunnel.
func (l *Lane) gone(g *guard) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.guards, g)
	close(l.changed)
	l.changed = make(chan struct{})
}

// ServeHTTP implements http.Handler.
func (l *Lane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g, _ := r.Context().Value(guardKey{}).(*guard)
	if g != nil {
		g.answered.Store(true)
	}
	x := l.idle.Get().(*exchange)
	x.begin(w, r, g)
	if x.h2 && announcesTooMuch(r.Trailer) { // over HTTP/1.1 the guard has refused it
		x.Answer(&queue.Answer{Status: http.StatusRequestHeaderFieldsTooLarge, Body: http.StatusText(http.StatusRequestHeaderFieldsTooLarge) + "\n", Why: queue.BadRequest, GRPC: -1})
	} else {
		l.proxy.Serve(x, &x.life)
	}
	broken := x.broken
	if broken {
		x.showCut()
	}
	broken = broken || !x.answered // or net/http would say 200 to a client that is thought to have gone
	if broken && x.untilClose && x.guard != nil {
		x.guard.reset.Store(true)
	}
	x.finishBody()
	if g != nil {
		g.serving.Store(false)
	}
	x.end()
	l.idle.Put(x)
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

// guarded is a listener whose connections have guards.
type guarded struct {
	net.Listener
	lane   *Lane
	config *tls.Config
}

// Accept implements net.Listener.
func (l *guarded) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		if l.lane.hasStopped() { // net/http would try again
			l.Listener.Close()
			err = net.ErrClosed
		}
		return nil, err
	}
	g := &guard{Conn: c, maxHead: l.lane.settings.MaxHeaderBytes, headTime: l.lane.settings.HeaderTimeout}
	g.bare, _ = c.(*net.TCPConn)
	if l.config != nil {
		g.Conn = tls.Server(c, l.config)
	}
	var ok bool
	if g.place, ok = l.lane.settings.Connections.Enter(g.evict, l.lane.stop); !ok {
		c.Close()
		l.Listener.Close()
		return nil, net.ErrClosed
	}
	g.onClose = func(g *guard) {
		l.lane.gone(g)
		g.place.Leave()
	}
	if g.bare != nil && l.lane.watcher != nil {
		g.watch = l.lane.watcher.Add(g.bare, g.hangup)
	}
	l.lane.open(g)
	return g, nil
}
