// Package fastlane is the lane for plain HTTP/1.1 requests, which are nearly all
// of the traffic: a strict engine on the bare connection, one goroutine for each,
// and no garbage per request. It tells the same story as every lane (package
// queue) and shares the client side (package upstream).
//
// It takes a request only if its head is beyond doubt and it knows all that the
// request asks for. Anything else is judged by net/http: lent for one request
// when its framing is certain, handed over for good when the protocol changes or
// the framing is in doubt, before a byte has gone to the user container. So every
// strange request is still judged by the standard library.
package fastlane

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
)

// Settings of the lane.
type Settings struct {
	MaxHeaderBytes int           // of a request's head
	MaxBodyBytes   int64         // of a request's body, more is answered with 413; 0: no limit
	MaxConnections int           // of clients; more wait in the backlog; 0: no limit
	HeaderTimeout  time.Duration // for a request's head to arrive; 0: none
	FullDuplex     bool          // requests with a body are left to net/http
	ServerTiming   bool          // responses say in Server-Timing how long their requests waited
	AppHost        string        // what the Host of a request without one says

	// Elsewhere makes a connection a guest of the lane on net/http. The watch, which
	// may be nil, is the guest's to stop when it closes the connection.
	Elsewhere func(*net.TCPConn, *hangup.Watch) Guest
}

// A Guest is a connection with the lane on net/http, for one request or for good.
type Guest interface {
	// Lend has the request that early begins with served, and returns when it has
	// ended: back with what the client has sent behind it, or not back, when the
	// connection has been closed.
	Lend(early []byte) (rest []byte, back bool)

	// HandOver gives the connection away, with what has been read from it. begun says
	// that a request has been served on it. closed is called when it has been closed.
	HandOver(early []byte, begun bool, closed func())

	// Hangup says that the client has closed its side. Any goroutine may call it.
	Hangup()
}

// bufferSize is what is written from, and the largest buffer that is kept, in
// bytes. A head that is longer grows its own.
const bufferSize = 32 << 10

// sizes are those of the buffers, in bytes. A connection reads into one that has
// room for what came last time, and goes on in the next larger one when it is
// full: it holds the head while the request is with the user container, and nearly
// all heads are short.
var sizes = [...]int{1 << 10, 4 << 10, bufferSize}

// Lane serves clients. Serve may be called for several listeners.
type Lane struct {
	settings Settings
	proxy    *queue.Proxy
	app      *upstream.App
	watcher  *hangup.Watcher
	buffers  [len(sizes)]sync.Pool // of *[]byte, by sizes
	places   chan struct{}         // one for each connection; nil: no limit
	date     atomic.Pointer[date]
	served   atomic.Uint64
	lent     atomic.Uint64
	given    atomic.Uint64

	stop      chan struct{} // closed by Shutdown
	mu        sync.Mutex
	listeners []net.Listener
	conns     map[*conn]struct{}
	stopping  bool
	over      bool           // Shutdown's time is over
	running   sync.WaitGroup // connections, and Serve
}

// New returns a lane that tells its story to proxy and forwards to app.
func New(s Settings, proxy *queue.Proxy, app *upstream.App, watcher *hangup.Watcher) *Lane {
	l := &Lane{settings: s, proxy: proxy, app: app, watcher: watcher}
	l.conns, l.stop = make(map[*conn]struct{}), make(chan struct{})
	for i, size := range sizes {
		l.buffers[i].New = func() any { b := make([]byte, size); return &b }
	}
	if s.MaxConnections > 0 {
		l.places = make(chan struct{}, s.MaxConnections)
	}
	return l
}

// Counts says how many requests were served here, how many were lent to net/http,
// and how many connections were handed over to it.
func (l *Lane) Counts() (served, lent, given uint64) {
	return l.served.Load(), l.lent.Load(), l.given.Load()
}

// lastLook is how long a connection that is to be closed is still listened to, and
// a listener is still accepted from.
const lastLook = 20 * time.Millisecond

// Serve serves the connections of ln until Shutdown.
func (l *Lane) Serve(ln net.Listener) error {
	l.mu.Lock()
	if l.stopping {
		l.mu.Unlock()
		return ln.Close()
	}
	l.listeners = append(l.listeners, ln)
	l.running.Add(1)
	l.mu.Unlock()
	defer l.running.Done()
	defer ln.Close()
	var delay time.Duration
	for l.takePlace() {
		nc, err := ln.Accept()
		if err != nil {
			l.leavePlace()
			if l.hasStopped() {
				return nil
			}
			if t, ok := err.(interface{ Temporary() bool }); ok && t.Temporary() { // no descriptors left, say
				delay = min(max(2*delay, 5*time.Millisecond), time.Second)
				time.Sleep(delay)
				continue
			}
			return err
		}
		delay = 0
		l.start(nc.(*net.TCPConn))
	}
	return nil
}

// takePlace waits for a place for one more connection; false: the lane has been
// shut down, and all may be held by connections that were handed over.
func (l *Lane) takePlace() bool {
	if l.places == nil {
		return true
	}
	select {
	case l.places <- struct{}{}:
		return true
	default:
	}
	select {
	case l.places <- struct{}{}:
		return true
	case <-l.stop:
		return false
	}
}

func (l *Lane) leavePlace() {
	if l.places != nil {
		<-l.places
	}
}

// start serves a connection in a goroutine of its own.
func (l *Lane) start(nc *net.TCPConn) {
	raw, err := nc.SyscallConn()
	if err != nil {
		nc.Close()
		l.leavePlace()
		return
	}
	c := newConn(l, nc, raw)
	l.mu.Lock()
	l.conns[c] = struct{}{}
	if l.stopping {
		c.retire()
	}
	if l.over {
		c.abandon()
	}
	l.mu.Unlock()
	l.running.Go(func() {
		handed := c.serve()
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
		if !handed {
			l.leavePlace()
		}
	})
}

func (l *Lane) hasStopped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopping
}

// closing reports whether clients are to go elsewhere with their next request.
func (l *Lane) closing() bool { return l.proxy.Drain.Draining() }

// Shutdown accepts what has been accepted by the kernel and then nothing more,
// serves what is on its way and closes each connection when it is idle. When the
// context ends it closes those that are left. Connections that were handed over
// are not its own any more. It may be called once.
func (l *Lane) Shutdown(ctx context.Context) error {
	l.mu.Lock()
	l.stopping = true
	close(l.stop)
	for _, ln := range l.listeners {
		if d, ok := ln.(interface{ SetDeadline(time.Time) error }); ok {
			_ = d.SetDeadline(time.Now().Add(lastLook)) // Accept says why not
		} else {
			ln.Close()
		}
	}
	for c := range l.conns {
		c.retire()
	}
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		l.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	l.over = true
	for c := range l.conns {
		c.abandon()
	}
	l.mu.Unlock()
	<-done
	return ctx.Err()
}

// buffer returns one of at least n bytes, at most bufferSize.
func (l *Lane) buffer(n int) *[]byte {
	i := 0
	for sizes[i] < n {
		i++
	}
	return l.buffers[i].Get().(*[]byte)
}

// putBack takes a buffer back from who held it; nil: nobody held one.
func (l *Lane) putBack(b *[]byte) {
	for i, size := range sizes {
		if b != nil && len(*b) == size {
			l.buffers[i].Put(b)
		}
	}
}

// date is the Date field of one second (RFC 9110 section 6.6.1).
type date struct {
	second int64
	line   string
}

// dateLine returns the Date field line of now.
func (l *Lane) dateLine(now time.Time) string {
	d := l.date.Load()
	if d == nil || d.second != now.Unix() {
		d = &date{now.Unix(), "Date: " + now.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT") + "\r\n"}
		l.date.Store(d)
	}
	return d.line
}
