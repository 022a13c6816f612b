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
	SendTimeout    time.Duration // for an HTTP/2 client to take a byte of what is written; the clock of its request comes first
	FullDuplex     bool          // an answer before the request's end does not cost an HTTP/1 client its connection
	ServerTiming   bool          // responses say in Server-Timing how long their requests waited
	AppPort        int           // what the Host of a request without one says
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
	places   chan struct{} // one for each connection; nil: no limit
	idle     sync.Pool     // of *exchange
	buffers  sync.Pool     // of *[]byte, for bodies that come from the standard library

	mu        sync.Mutex
	listeners []net.Listener
	guards    map[*guard]struct{}  // of the connections that are open and not tunnels
	tunnels   map[*talker]struct{} // WebSockets
	stopping  bool
	guests    *guests
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
		tunnels:  make(map[*talker]struct{}),
		changed:  make(chan struct{}),
		guests:   newGuests(),
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
			if g, ok := c.(*guard); ok && g.loan != nil && state == http.StateIdle {
				g.loan.idle.Store(true)
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

// ServeGuests serves the guests of another lane until Shutdown, before which that
// lane has to have ended.
func (l *Lane) ServeGuests() error {
	err := l.server.Serve(l.guests)
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

// Farewell tells the WebSocket clients that the server goes away. It does not
// wait for clients that do not read.
func (l *Lane) Farewell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := range l.tunnels {
		go t.leave()
	}
}

// Shutdown accepts what the kernel has accepted, and then nothing more, serves
// what is on its way and closes each connection when it is idle. When the context
// ends it closes those that are left.
func (l *Lane) Shutdown(ctx context.Context) error {
	l.mu.Lock()
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
	l.mu.Unlock()
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

// enter notes a WebSocket, leave forgets it.
func (l *Lane) enter(t *talker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tunnels[t] = struct{}{}
}

func (l *Lane) leave(t *talker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tunnels, t)
}

// ServeHTTP implements http.Handler.
func (l *Lane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g, _ := r.Context().Value(guardKey{}).(*guard)
	x := l.idle.Get().(*exchange)
	x.begin(w, r, g)
	l.proxy.Serve(x, &x.life)
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
		if l.lane.hasStopped() { // net/http would try again
			l.Listener.Close()
			err = net.ErrClosed
		}
		return nil, err
	}
	g := &guard{Conn: c, maxHead: l.lane.settings.MaxHeaderBytes, headTime: l.lane.settings.HeaderTimeout, onClose: l.closed}
	g.bare, _ = c.(*net.TCPConn)
	if g.bare != nil && l.lane.watcher != nil {
		g.watch = l.lane.watcher.Add(g.bare, g.hangup)
	}
	if l.config != nil {
		g.Conn = tls.Server(c, l.config)
	}
	l.lane.open(g)
	return g, nil
}

// closed forgets a connection and gives its place back.
func (l *guarded) closed(g *guard) {
	l.lane.gone(g)
	l.release()
}

// release gives a connection's place back.
func (l *guarded) release() {
	if l.lane.places != nil {
		<-l.lane.places
	}
}
