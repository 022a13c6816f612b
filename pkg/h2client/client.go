// Package h2client sends requests to a user container that speaks HTTP/2 without TLS
// (RFC 9113), over few connections: one until it is full.
package h2client

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/h2"
	"github.com/queue-proxy/queue-proxy/pkg/link"
)

// Settings of a client.
type Settings struct {
	// Dial opens a connection to the user container.
	Dial func(context.Context) (net.Conn, error)

	// Unsettled is called when a connection has ended that never spoke HTTP/2.
	Unsettled func()
}

const (
	// maxConns bounds the connections to the user container: one that takes a single stream
	// on each needs as many as there are requests.
	maxConns = 1000
	// window is how much of a response may come before it is taken, in bytes.
	window = 64 << 10
	// connWindow is the same of all responses of a connection together: clients that share
	// it must not wait for each other.
	connWindow = 1 << 30
	// maxHead bounds the head of a response, in bytes.
	maxHead = 256 << 10
	// idleTimeout closes connections that nobody used for so long.
	idleTimeout = 90 * time.Second
	// settleTimeout is how long a new connection is not used because its SETTINGS, which say
	// how many streams it takes, have not come.
	settleTimeout = time.Second
	// fullPause is how long a request waits before it looks again for a connection that
	// takes it, where there are as many as there may be.
	fullPause = 5 * time.Millisecond
)

// Client holds the connections to the user container. It is safe for concurrent use.
type Client struct {
	settings Settings
	buffers  h2.Buffers
	bodies   sync.Pool // of *[window]byte, for responses that wait to be read

	mu     sync.Mutex
	conns  []*conn // that take streams, the oldest first
	dial   *dial   // that is going on; nil: none
	closed bool
}

// A dial is shared by all who need a connection.
type dial struct {
	done chan struct{} // closed when err is set
	err  error
}

// New returns a client. Nothing is dialled before the first request.
func New(s Settings) *Client {
	c := &Client{settings: s}
	c.bodies.New = func() any { return new([window]byte) }
	return c
}

// Close closes the connections that are idle; those in use end with their last stream.
func (c *Client) Close() {
	c.mu.Lock()
	conns := c.conns
	c.conns, c.closed = nil, true
	c.mu.Unlock()
	for _, n := range conns {
		n.End()
	}
}

// conn is one connection, and what it tells.
type conn struct {
	*h2.Conn
	client *Client
	used   bool // it has taken a stream; guarded by client.mu

	idle *time.Timer // closes it; guarded by client.mu
}

// Request implements h2.Handler; servers send none.
func (n *conn) Request(uint32, *h2.Head, bool) {}

// Received implements h2.Handler.
func (n *conn) Received(bool) {}

// Waiting implements h2.Handler.
func (n *conn) Waiting() {}

// GoingAway implements h2.Handler.
func (n *conn) GoingAway() { n.client.forget(n) }

// forget takes a connection out of those that take streams.
func (c *Client) forget(n *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.conns {
		if other == n {
			c.conns = append(c.conns[:i], c.conns[i+1:]...)
			break
		}
	}
	n.idle.Stop()
}

// Open opens a stream of owner by sending the head of a request; end: it has nothing else.
// reused says that the connection has been used before. Where a connection has to be
// made, the context may end the waiting for it; the error is then its cause, or that of
// Dial.
func (c *Client) Open(context func() (context.Context, context.CancelFunc), owner h2.Owner, head *h2.Block, end bool) (s *h2.Stream, reused bool, err error) {
	s, reused, busy := c.tryOpen(owner, head, end)
	if s != nil {
		return s, reused, nil
	}
	ctx, cancel := context()
	defer cancel()
	for s == nil {
		if busy != nil {
			err = awaitRoom(ctx, busy)
		} else {
			err = c.connect(ctx)
		}
		if err != nil {
			return nil, false, err
		}
		s, reused, busy = c.tryOpen(owner, head, end)
	}
	return s, reused, nil
}

// awaitRoom waits until busy is closed.
func awaitRoom(ctx context.Context, busy <-chan struct{}) error {
	select {
	case <-busy:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tryOpen opens a stream on one of the connections; nil: none takes it. Where that is only
// because what was sent has not been taken, busy is closed when it has been.
func (c *Client) tryOpen(owner h2.Owner, head *h2.Block, end bool) (s *h2.Stream, reused bool, busy <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 0; i < len(c.conns); {
		n := c.conns[i]
		if n.used && n.Streams() == 0 && !n.Link().Silent() {
			// What has come may be its end, of which the reader has not told yet. Other streams
			// would have failed by it.
			c.mu.Unlock()
			time.Sleep(time.Millisecond)
			c.mu.Lock()
		}
		s, err := n.Open(owner, head, end)
		if err == nil {
			reused, n.used = n.used, true
			n.idle.Reset(idleTimeout)
			return s, reused, nil
		}
		if errors.Is(err, h2.ErrBusy) {
			return nil, false, n.Writable()
		}
		if errors.Is(err, h2.ErrFull) {
			i++
		} else if i < len(c.conns) && c.conns[i] == n {
			c.conns = append(c.conns[:i], c.conns[i+1:]...)
		}
	}
	return nil, false, nil
}

// connect returns when there is a new connection, or when it is worth while to look
// again.
func (c *Client) connect(ctx context.Context) error {
	c.mu.Lock()
	full := len(c.conns) >= maxConns
	d := c.dial
	if d == nil && !full {
		d = &dial{done: make(chan struct{})}
		c.dial = d
		go c.add(context.WithoutCancel(ctx), d)
	}
	c.mu.Unlock()
	if full {
		select {
		case <-time.After(fullPause):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// add makes a connection, for all who wait for d.
func (c *Client) add(ctx context.Context, d *dial) {
	n, err := c.newConn(ctx)
	if err == nil {
		go n.run()
		settled := time.NewTimer(settleTimeout)
		select {
		case <-n.Settled():
		case <-settled.C:
		}
		settled.Stop()
		err = n.Err()
	}
	c.mu.Lock()
	c.dial = nil
	if err == nil && !c.closed {
		c.conns = append(c.conns, n)
	}
	d.err = err
	if c.closed && n != nil {
		defer n.End()
	}
	c.mu.Unlock()
	close(d.done)
}

func (c *Client) newConn(ctx context.Context) (*conn, error) {
	nc, err := c.settings.Dial(ctx)
	if err != nil {
		return nil, err
	}
	l, err := link.New(nc.(*net.TCPConn))
	if err != nil {
		nc.Close()
		return nil, err
	}
	n := &conn{client: c}
	n.Conn = h2.New(l, h2.Config{
		Client: true, Window: window, ConnWindow: connWindow, MaxHeadBytes: maxHead, Buffers: &c.buffers,
	}, n)
	n.idle = time.AfterFunc(idleTimeout, n.endIfIdle)
	return n, nil
}

// run runs the connection to its end.
func (n *conn) run() {
	_ = n.Run(nil) // the owners of its streams have been told
	n.client.forget(n)
	select {
	case <-n.Settled():
	default:
		n.client.settings.Unsettled()
	}
}

// endIfIdle ends a connection that nobody uses.
func (n *conn) endIfIdle() {
	n.client.mu.Lock()
	busy := n.Streams() > 0
	if busy {
		n.idle.Reset(idleTimeout)
	}
	n.client.mu.Unlock()
	if !busy {
		n.client.forget(n)
		n.End()
	}
}
