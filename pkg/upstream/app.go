// Package upstream is the client side towards the user container, shared by all
// engines: connections and the pool of idle ones, the strict reader of responses,
// the replay rule, upgrades, and what HTTP the user container speaks.
//
// HTTP/1.1 is our own, because net/http's Transport loses answers that come
// before the request has been sent, bytes right behind an upgrade and request
// trailers, and hides whether a byte of a failed request was written. HTTP/2 is
// package h2client.
package upstream

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

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/socket"
)

// Settings say where the user container is and how it is treated.
type Settings struct {
	Port         int           // 1..65535, on 127.0.0.1 and, when nothing listens there, on [::1]
	MaxIdle      int           // connections kept for the next request; 0: defaultMaxIdle
	MaxConns     int           // maximum number of open HTTP/1 connections; 0 means no limit
	ConnectRetry time.Duration // how long a refused connection is tried again (promises.md 3.7)

	// H2C reports whether the configuration declares HTTP/2 for the user container. The preface is
	// then sent even if the user container responds in HTTP/1.1.
	H2C bool

	// MaxHeaderBytes is the maximum length in bytes of the head of a response; 0: maxHead.
	MaxHeaderBytes int

	// OnFull is called if a request waits because MaxConns is reached. It must not block. It may
	// be nil.
	OnFull func()

	Bounds *bound.Recorder // records the bounds that the user container exceeds; nil: events are not recorded
}

const (
	defaultMaxIdle = 1000
	// idleTimeout closes connections that nobody used for so long. Servers that
	// close theirs earlier are noticed by their FIN.
	idleTimeout = 90 * time.Second
	// keepAliveMargin is how long before the end that the user container has
	// announced (Keep-Alive: timeout) a connection is no longer used.
	keepAliveMargin = time.Second
)

// App is the user container as a place to send requests to. It is safe for
// concurrent use.
type App struct {
	settings  Settings
	addresses [2]string
	buffers   *socket.Buffers

	mu      sync.Mutex
	idle    []*conn // the most recently used one last
	sweep   *time.Timer
	closed  bool
	open    int       // slots in use
	waiters list.List // of *waiter, the oldest first
	full    time.Time // see bound.Pool.Reached

	speech speech

	sendsBodyToHEAD atomic.Bool // it has: see putWhenSilent
}

// New returns an App. Nothing is dialled before the first request.
func New(s Settings) *App {
	if s.MaxIdle <= 0 {
		s.MaxIdle = defaultMaxIdle
	}
	s.MaxHeaderBytes = cmp.Or(s.MaxHeaderBytes, maxHead)
	port := strconv.Itoa(s.Port)
	return &App{
		settings:  s,
		buffers:   socket.NewBuffers(smallSize, pieceSize, bufferSize),
		addresses: [2]string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)},
	}
}

// Close closes the idle connections; those in use are closed after their use.
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

// take returns an idle connection, or nil. Whether it is still of use is seen when
// it is to be used.
func (a *App) take() *conn {
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

// put keeps c for the next request.
func (a *App) put(c *conn, keepAlive time.Duration) {
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
func (a *App) keep(c *conn, usable bool) bool {
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

// headSilence is how long a connection is watched behind a response to HEAD that has
// announced a length. An app that sends the body all the same, against RFC 9110 section
// 9.3.2, has begun it by then: it would be taken for the next response.
const headSilence = 10 * time.Millisecond

// putWhenSilent is put behind a response to HEAD that has announced a length: once the
// connection has been silent for headSilence, and not at all for an app that was not.
func (a *App) putWhenSilent(c *conn, keepAlive time.Duration) {
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
		if n, _ := c.Read(make([]byte, 1)); n > 0 { // and not its end
			a.settings.Bounds.Hit(bound.AppHeadBody, c.RemoteAddr().String())
			a.sendsBodyToHEAD.Store(true)
		}
		c.close()
	})
}

// expire closes what has been idle for too long.
func (a *App) expire() {
	var expired []*conn
	now := time.Now()
	a.mu.Lock()
	a.idle = slices.DeleteFunc(a.idle, func(c *conn) bool {
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

// Intervals of dialling (promises.md 3.7).
const (
	dialAgain   = 10 * time.Millisecond
	dialTimeout = 10 * time.Second // a full backlog answers nothing at all
)

// dialAside is Dial on a stack of its own: package net goes deep, and the stack of
// a goroutine that once went as deep stays large while it serves its connection.
func (a *App) dialAside(ctx context.Context) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err = a.Dial(ctx)
	}()
	<-done
	return c, err
}

// Dial opens a connection to the user container on IPv4, or on IPv6 if nothing listens on IPv4.
// If the connection is refused or if the sidecar lacks a local resource, Dial repeats this until
// ConnectRetry has passed.
func (a *App) Dial(ctx context.Context) (net.Conn, error) {
	end := time.Now().Add(a.settings.ConnectRetry)
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: -1}
	for {
		var first error
		for _, address := range a.addresses {
			c, err := d.DialContext(ctx, "tcp", address)
			if err == nil {
				return c, nil
			}
			if first == nil || errors.Is(first, syscall.ENETUNREACH) { // there is no 127.0.0.1
				first = err
			}
			if !refused(err) {
				break
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		fault := forward.Local
		if !isLocal(first) {
			fault = forward.Unreachable
			a.speech.forget()
		}
		if fault == forward.Unreachable && !refused(first) || !time.Now().Add(dialAgain).Before(end) {
			return nil, &forward.Error{Fault: fault, Err: first}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(dialAgain):
		}
	}
}
