package sidecar

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// The delay after a failed accept starts at minAcceptDelay and doubles after each further failure, up to
// maxAcceptDelay.
const (
	minAcceptDelay = 5 * time.Millisecond
	maxAcceptDelay = time.Second
)

// A retryListener retries a failed Accept if the process or the host has no free file descriptors or
// memory. The connection remains in the kernel backlog.
type retryListener struct {
	net.Listener
	failed func(error) // called for each failed accept; must not block

	interrupt func()        // closes stopped; safe to call more than once
	stopped   chan struct{} // closed by Close and SetDeadline
}

func newRetryListener(ln net.Listener, failed func(error)) *retryListener {
	stopped := make(chan struct{})
	return &retryListener{Listener: ln, failed: failed, interrupt: sync.OnceFunc(func() { close(stopped) }), stopped: stopped}
}

// listen calls listenTCP and wraps the listener in a retryListener.
func (s *sidecar) listen(ctx context.Context, address string, set control) (net.Listener, error) {
	ln, err := listenTCP(ctx, address, set)
	if err != nil {
		return nil, err
	}
	operation := "accept on " + ln.Addr().String()
	return newRetryListener(ln, func(err error) { s.shortages.recordShortage(operation, err) }), nil
}

// Accept implements net.Listener.
func (l *retryListener) Accept() (net.Conn, error) {
	delay := minAcceptDelay
	for {
		c, err := l.Listener.Accept()
		if err == nil || !transport.Exhausted(err) {
			return c, err
		}
		l.failed(err)
		select {
		case <-time.After(delay):
		case <-l.stopped:
			return nil, err
		}
		delay = min(2*delay, maxAcceptDelay)
	}
}

// Close implements net.Listener.
func (l *retryListener) Close() error {
	l.interrupt()
	return l.Listener.Close()
}

// SetDeadline sets the deadline for Accept. It also ends a retry delay, and Accept does not retry
// afterwards.
func (l *retryListener) SetDeadline(t time.Time) error {
	l.interrupt()
	return l.Listener.(*net.TCPListener).SetDeadline(t)
}
