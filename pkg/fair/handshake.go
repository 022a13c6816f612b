package fair

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// Handshakes limits the TLS handshakes on a port. Without this limit, an unauthenticated client could
// use a lot of memory, because crypto/tls accepts certificates of up to 256 KiB and holds both the
// encoded and the parsed form.
type Handshakes struct {
	// Config is the TLS configuration of the server.
	Config *tls.Config

	// Max is the maximum number of incomplete handshakes, at least 1. If it is exceeded, one
	// connection is closed according to the rules of [Semaphore].
	Max int

	// Bytes is the maximum number of bytes received from a client before its handshake is complete.
	// The count can include bytes after the handshake.
	Bytes int

	// Time is the maximum duration of a handshake.
	Time time.Duration

	// Bounds records the connections that are closed because of Max, Bytes or Time. It may be nil.
	Bounds *bound.Recorder

	// Failed is called with the error of each handshake that fails after the first byte. It may be
	// nil. It is called concurrently.
	Failed func(client net.Addr, err error)
}

// Listener returns a listener whose connections have the type *[tls.Conn] and have completed their
// handshakes. It starts to accept connections from ln when Accept is first called. Handshakes run
// concurrently, so that a slow client does not delay other clients. Close stops incomplete handshakes
// and waits for their goroutines.
func (h Handshakes) Listener(ln net.Listener) net.Listener {
	closing, end := context.WithCancel(context.Background())
	return &handshakes{
		Listener: ln,
		settings: h,
		slots:    New(Options{Slots: h.Max, Queue: 1, MinPatience: minPatience, MaxPatience: maxPatience}),
		done:     make(chan accepted),
		closing:  closing,
		end:      end,
	}
}

// handshakes runs the handshakes of one listener.
type handshakes struct {
	net.Listener
	settings Handshakes
	slots    *Semaphore // for connections that Accept has not returned yet

	begin   sync.Once
	done    chan accepted
	closing context.Context
	end     context.CancelFunc // cancels closing
	running sync.WaitGroup
}

// accepted holds the results of one call to Accept.
type accepted struct {
	conn net.Conn
	err  error
}

// Accept implements net.Listener.
func (l *handshakes) Accept() (net.Conn, error) {
	l.begin.Do(func() { l.running.Go(l.accept) })
	select {
	case a := <-l.done:
		return a.conn, a.err
	case <-l.closing.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *handshakes) Close() error {
	err := l.Listener.Close()
	l.begin.Do(func() {}) // accept must not be started after this
	l.end()
	l.running.Wait()
	return err
}

// accept starts handshakes until the listener is closed.
func (l *handshakes) accept() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			if !l.deliver(accepted{err: err}) {
				return
			}
			continue // the caller of handshakes.Accept decides whether to call Accept again
		}
		c := &countedConn{Conn: conn, left: l.settings.Bytes}
		slot, err := l.slots.Acquire(l.closing, Request{Client: Address(peerOf(c)), End: func() bool {
			l.settings.Bounds.Hit(bound.PortHandshake, peerOf(c))
			_ = c.Close()
			return true
		}})
		if err != nil {
			_ = c.Close()
			continue
		}
		_ = c.SetDeadline(time.Now().Add(l.settings.Time))
		slot.Idle()
		l.running.Go(func() {
			defer slot.Release()
			defer context.AfterFunc(l.closing, func() { _ = c.Close() })()
			l.shake(c, slot)
		})
	}
}

// deliver passes the result a to Accept. It returns false if the listener is closed first.
func (l *handshakes) deliver(a accepted) bool {
	select {
	case l.done <- a:
		return true
	case <-l.closing.Done():
		return false
	}
}

// shake runs one handshake.
func (l *handshakes) shake(c *countedConn, slot *Slot) {
	secure := tls.Server(c, l.settings.Config)
	if err := secure.Handshake(); err != nil {
		if c.left == 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			l.settings.Bounds.Hit(bound.PortHandshake, peerOf(c))
		}
		_ = c.Close()
		if c.read > 0 && l.settings.Failed != nil {
			l.settings.Failed(c.RemoteAddr(), err)
		}
		return
	}
	slot.Answered()
	slot.Active() // the slot can no longer be revoked
	c.left = -1
	_ = c.SetDeadline(time.Time{})
	if !l.deliver(accepted{conn: secure}) {
		_ = c.Close() // secure.Close would wait until an alert is sent
	}
}

// A countedConn limits the number of bytes that can be read. After this number of bytes, Read returns an
// error. Read must not be called concurrently.
type countedConn struct {
	net.Conn
	left int // number of bytes that may still be read; a negative number means no limit
	read int // number of bytes read while the limit applied
}

// Read implements net.Conn.
func (c *countedConn) Read(b []byte) (int, error) {
	if c.left < 0 {
		return c.Conn.Read(b)
	}
	if c.left == 0 {
		return 0, fmt.Errorf("the handshake exceeds %d bytes", c.read)
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	c.read += n
	return n, err
}
