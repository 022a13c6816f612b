// Package http1client sends requests to the user container over HTTP/1.1. It contains the connection pool, the retries,
// upgraded connections, and the detection of the HTTP versions that the user container supports.
//
// The package implements HTTP/1.1 itself, because net/http.Transport discards responses that arrive before the
// request was sent, bytes after a 101 response, and request trailers. net/http.Transport also does not report
// whether a byte of a failed request was written. HTTP/2 is implemented by package http2client.
package http1client

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// Settings contains the settings of an App.
type Settings struct {
	Port         int           // port of the user container, in 1..65535; App.Dial selects the address
	MaxIdle      int           // maximum number of idle connections; 0 means 1000
	MaxConns     int           // maximum number of open HTTP/1.1 connections; 0 means no limit
	ConnectRetry time.Duration // maximum duration of the retries after a failed dial (docs/promises.md 3.7)

	// H2C reports whether the configuration declares that the user container supports HTTP/2. If H2C is true, the
	// HTTP/2 preface is sent even if the user container responds in HTTP/1.1.
	H2C bool

	// MaxHeaderBytes is the maximum length of a response header section in bytes. 0 means 1 MiB.
	MaxHeaderBytes int

	// OnFull is called each time a request begins to wait because MaxConns is reached. It must not block. It may be
	// nil.
	OnFull func()

	// Control sets the options of a socket before it connects (see [net.Dialer]). It may be nil.
	Control func(network, address string, c syscall.RawConn) error

	Bounds *bound.Recorder // records the limits that the user container exceeds; may be nil
}

const (
	defaultMaxIdle = 1000
	// idleTimeout is the maximum time that a connection stays idle in the pool. If the user container closes the
	// connection earlier, the connection is not reused.
	idleTimeout = 90 * time.Second
	// keepAliveMargin is subtracted from the timeout in a Keep-Alive field, so that a connection is not reused while
	// the user container closes it.
	keepAliveMargin = time.Second
)

// App is a client for the user container. It is safe for concurrent use.
type App struct {
	settings  Settings
	addresses [2]string
	buffers   *netconn.Buffers

	mu      sync.Mutex
	idle    []*clientConn // idle connections, the most recently used connection last
	sweep   *time.Timer   // calls expire; nil before the first idle connection
	closed  bool          // Close was called
	open    int           // number of slots in use
	waiters list.List     // elements of type *waiter in FIFO order
	full    time.Time     // see bound.Pool.Reached

	versions versions

	sendsBodyToHEAD atomic.Bool // the user container has sent a body in response to HEAD; see putWhenSilent
}

// New returns an App. It does not open a connection before the first request.
func New(s Settings) *App {
	if s.MaxIdle <= 0 {
		s.MaxIdle = defaultMaxIdle
	}
	s.MaxHeaderBytes = cmp.Or(s.MaxHeaderBytes, maxHead)
	port := strconv.Itoa(s.Port)
	return &App{
		settings:  s,
		buffers:   netconn.NewBuffers(smallSize, pieceSize, bufferSize),
		addresses: [2]string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)},
	}
}

// Close closes the idle connections. Connections in use are closed after their current request.
func (a *App) Close() {
	a.mu.Lock()
	a.closed = true
	idle := a.idle
	a.idle = nil
	if a.sweep != nil {
		a.sweep.Stop()
	}
	a.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// take returns the most recently used idle connection, or nil if there is none. The user container may have closed the
// connection, so the caller must check the connection before it sends a request.
func (a *App) take() *clientConn {
	for {
		a.mu.Lock()
		n := len(a.idle)
		if n == 0 {
			a.mu.Unlock()
			return nil
		}
		c := a.idle[n-1]
		a.idle[n-1] = nil
		a.idle = a.idle[:n-1]
		a.mu.Unlock()
		if time.Now().Before(c.expires) {
			c.reused = true
			return c
		}
		c.close()
	}
}

// put adds c to the pool, or closes c. keepAlive is the timeout in the Keep-Alive field of the response. A negative
// value means that the response has no such timeout.
func (a *App) put(c *clientConn, keepAlive time.Duration) {
	life := idleTimeout
	if keepAlive >= 0 {
		life = min(life, keepAlive-keepAliveMargin)
	}
	c.park()
	c.expires = time.Now().Add(life)
	if !a.keep(c, life > 0) {
		c.close()
	}
}

// keep passes a connection to a waiter or adds it to the pool. It returns false if the connection
// must be closed.
func (a *App) keep(c *clientConn, usable bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || !usable {
		return false
	}
	if a.passLocked(c) {
		return true
	}
	if a.waiters.Len() > 0 || len(a.idle) >= a.settings.MaxIdle {
		return false
	}
	a.idle = append(a.idle, c)
	if a.sweep == nil {
		a.sweep = time.AfterFunc(idleTimeout, a.expire)
	} else if len(a.idle) == 1 {
		a.sweep.Reset(idleTimeout)
	}
	return true
}

// headSilence is the time to wait for unexpected input after a response to HEAD with a positive Content-Length. Some
// user containers violate RFC 9110 section 9.3.2 and send the body, whose first bytes arrive within this time. If the
// connection were reused, the body would be parsed as the next response.
const headSilence = 10 * time.Millisecond

// putWhenSilent is called after a response to HEAD with a positive Content-Length. It adds the connection to the pool
// if nothing arrives for headSilence, and otherwise closes it. If the user container has ever sent a body in response
// to HEAD, putWhenSilent closes the connection immediately.
func (a *App) putWhenSilent(c *clientConn, keepAlive time.Duration) {
	if a.sendsBodyToHEAD.Load() {
		c.close()
		return
	}
	c.park()
	time.AfterFunc(headSilence, func() {
		if c.alive() {
			a.put(c, keepAlive)
			return
		}
		c.SetReadDeadline(time.Now().Add(headSilence))
		if n, _ := c.Read(make([]byte, 1)); n > 0 { // bytes of a body, not EOF
			a.settings.Bounds.Hit(bound.AppHeadBody, c.RemoteAddr().String())
			a.sendsBodyToHEAD.Store(true)
		}
		c.close()
	})
}

// expire closes the idle connections that have expired.
func (a *App) expire() {
	var expired []*clientConn
	now := time.Now()
	a.mu.Lock()
	a.idle = slices.DeleteFunc(a.idle, func(c *clientConn) bool {
		if now.Before(c.expires) {
			return false
		}
		expired = append(expired, c)
		return true
	})
	if len(a.idle) > 0 {
		a.sweep.Reset(idleTimeout / 2)
	}
	a.mu.Unlock()
	for _, c := range expired {
		c.close()
	}
}

const (
	dialAgain   = 10 * time.Millisecond // time between two attempts to open a connection (docs/promises.md 3.7)
	dialTimeout = 10 * time.Second      // timeout of one attempt; a listener with a full backlog does not respond
)

// dialAside calls Dial in a new goroutine. Package net needs a large stack, and the goroutine that serves a client
// connection would keep the large stack.
func (a *App) dialAside(ctx context.Context) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err = a.Dial(ctx)
	}()
	<-done
	return c, err
}

// Dial opens a connection to the user container on 127.0.0.1, or on ::1 if no process listens on 127.0.0.1. If both
// addresses refuse the connection or the sidecar lacks a local resource, Dial retries until Settings.ConnectRetry has
// passed. The error is a *[transport.Error], or the cause of ctx.
func (a *App) Dial(ctx context.Context) (net.Conn, error) {
	end := time.Now().Add(a.settings.ConnectRetry)
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: -1, Control: a.settings.Control}
	for {
		var first error
		for _, address := range a.addresses {
			c, err := d.DialContext(ctx, "tcp", address)
			if err == nil {
				return c, nil
			}
			if first == nil || errors.Is(first, syscall.ENETUNREACH) { // ENETUNREACH: the host does not have 127.0.0.1
				first = err
			}
			if !refused(err) {
				break
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		fault := transport.FaultLocal
		if !isLocal(first) {
			fault = transport.FaultUnreachable
			a.versions.forget()
		}
		if fault == transport.FaultUnreachable && !refused(first) || !time.Now().Add(dialAgain).Before(end) {
			return nil, &transport.Error{Fault: fault, Err: first}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(dialAgain):
		}
	}
}
