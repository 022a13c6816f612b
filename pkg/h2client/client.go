// Package h2client sends requests to a user container that speaks HTTP/2 without TLS
// (RFC 9113), over few connections: one until it is full.
package h2client

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/h2"
	"github.com/queue-proxy/queue-proxy/pkg/link"
	"github.com/queue-proxy/queue-proxy/pkg/socket"
)

// Settings of a client.
type Settings struct {
	// Dial opens a connection to the user container.
	Dial func(context.Context) (net.Conn, error)

	// Unsettled is called when a connection has ended that never spoke HTTP/2.
	Unsettled func()

	// Silence is how long nothing may come on a connection with open streams before the user
	// container is asked for a sign of life, and how long that may take before the connection
	// takes no more requests; 0: 10 s. Those that it has are bounded by their own clocks.
	Silence time.Duration

	// MaxConns is the maximum number of connections; 0: maxConns.
	MaxConns int

	// MaxHeaderBytes is the maximum length in bytes of the head of a response, as RFC 9113 section
	// 6.5.2 counts; 0: maxHead.
	MaxHeaderBytes int

	Bounds *bound.Recorder // nil: events are not recorded
}

const (
	// maxConns is Settings.MaxConns where that is 0. An app that takes a single stream on each
	// connection needs as many as there are requests.
	maxConns = 1000
	// window is how much of a response may come before it is taken, in bytes.
	window = 64 << 10
	// connWindow is the same of all responses of a connection together: clients that share
	// it must not wait for each other.
	connWindow = 1 << 30
	// maxHead is Settings.MaxHeaderBytes where that is 0.
	maxHead = 1 << 20
	// idleTimeout closes connections that nobody used for so long where there are others:
	// those that were made for many requests at once, or because clients have left so many.
	// Abandoned streams count for no longer.
	idleTimeout = 10 * time.Second
	// lastIdleTimeouts is how often as long the last connection is kept.
	lastIdleTimeouts = 9
	// settleTimeout is how long a new connection is not used because its SETTINGS, which say
	// how many streams it takes, have not come.
	settleTimeout = time.Second
	// fullPause is how long a request waits before it looks again for a connection that
	// takes it, where there are as many as there may be.
	fullPause = 5 * time.Millisecond
	// readPause is how long the reader of an idle connection on which something has come is
	// given to handle it, and maxReadPauses how often, before another connection is used.
	readPause     = time.Millisecond
	maxReadPauses = 3
	// carefulConns is the number of connections up to which requests avoid a connection on which
	// the user container may still work on many canceled requests.
	carefulConns = 16
	// silence is Settings.Silence where that is 0.
	silence = 10 * time.Second
)

// Client holds the connections to the user container. It is safe for concurrent use.
type Client struct {
	settings Settings
	buffers  *socket.Buffers
	bodies   sync.Pool       // of *[window]byte, for responses that wait to be read
	running  context.Context // until Close
	stop     context.CancelFunc

	since time.Time // when it was made

	mu    sync.Mutex
	conns []*conn // that take streams, the oldest first
	made  int     // how many there have been
	dial  *dial   // that is going on; nil: none
}

// A dial is shared by all who need a connection.
type dial struct {
	done chan struct{} // closed when err is set
	err  error
}

// New returns a client. Nothing is dialled before the first request.
func New(s Settings) *Client {
	s.Silence = cmp.Or(s.Silence, silence)
	s.MaxHeaderBytes = cmp.Or(s.MaxHeaderBytes, maxHead)
	s.MaxConns = cmp.Or(s.MaxConns, maxConns)
	c := &Client{settings: s, since: time.Now(), buffers: h2.NewBuffers()}
	c.running, c.stop = context.WithCancel(context.Background())
	c.bodies.New = func() any { return new([window]byte) }
	return c
}

// Close closes the connections that are idle; those in use end with their last stream.
// Requests that come later fail.
func (c *Client) Close() {
	c.mu.Lock()
	conns := c.conns
	c.conns = nil
	c.stop()
	c.mu.Unlock()
	for _, n := range conns {
		n.End()
	}
}

// conn is one connection, and what it tells.
type conn struct {
	*h2.Conn
	client *Client
	number int  // from 1; guarded by client.mu
	used   bool // it has taken a stream; guarded by client.mu

	heard atomic.Int64 // when something has come, in nanoseconds since the client was made
	asked int64        // time of the last check of a silent connection, likewise; guarded by client.mu

	idle   *time.Timer // closes it; guarded by client.mu
	unused int         // how often idle has expired since it took a stream; guarded by client.mu
}

// Request implements h2.Handler; servers send none.
func (n *conn) Request(uint32, *h2.Head, bool) {}

// Full implements h2.Handler; servers send no requests.
func (n *conn) Full() bool { return false }

// Received implements h2.Handler.
func (n *conn) Received(bool) { n.heard.Store(int64(time.Since(n.client.since))) }

// silent reports whether the user container does not read the connection any more, as far
// as one can tell. client.mu is held.
func (n *conn) silent() bool {
	now := int64(time.Since(n.client.since))
	heard := n.heard.Load()
	switch {
	case n.Streams() == 0 || now-heard < int64(n.client.settings.Silence):
		return false
	case n.asked <= heard:
		n.asked = now
		go n.Check()
	}
	return now-n.asked >= int64(n.client.settings.Silence)
}

// Waiting implements h2.Handler.
func (n *conn) Waiting() {}

// GoingAway implements h2.Handler.
func (n *conn) GoingAway() { n.client.forget(n) }

// forget takes a connection out of those that take streams.
func (c *Client) forget(n *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(n)
	n.idle.Stop()
}

// remove is forget for a connection that may still be idle. c.mu is held.
func (c *Client) remove(n *conn) {
	if i := slices.Index(c.conns, n); i >= 0 {
		c.conns = slices.Delete(c.conns, i, i+1)
	}
}

// Since returns what Open needs to send a request again that has failed with err: on a
// connection that is made from now on, because the others may be as dead as the one that
// it was sent on, but for one that was refused by a user container that lives.
func (c *Client) Since(err error) int {
	if _, ok := errors.AsType[*h2.ResetError](err); ok {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}

// Open opens a stream of owner by sending the head of a request; end: it has nothing else.
// since is 0, or what Since has returned. reused says that the connection has been used
// before. Where a connection has to be made, the context may end the waiting for it; the
// error is then its cause, or that of Dial, or a *[forward.Error].
func (c *Client) Open(waiting func() (context.Context, context.CancelFunc), owner h2.Owner, head *h2.Block, end bool, since int) (s *h2.Stream, reused bool, err error) {
	s, reused, why := c.tryOpen(owner, head, end, since)
	if s != nil {
		return s, reused, nil
	}
	ctx, cancel := waiting()
	defer cancel()
	for s == nil {
		if why.busy != nil {
			err = awaitRoom(ctx, why.busy)
		} else {
			err = c.connect(ctx, why.shut)
		}
		if err != nil {
			return nil, false, err
		}
		s, reused, why = c.tryOpen(owner, head, end, since)
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

// refusal says why another connection is of no use where none takes a stream. The zero
// value: it is.
type refusal struct {
	busy <-chan struct{} // closed when what was sent has been taken
	shut bool            // the user container takes no streams at all at the moment
}

// tryOpen opens a stream on one of the connections; nil: none takes it.
func (c *Client) tryOpen(owner h2.Owner, head *h2.Block, end bool, since int) (s *h2.Stream, reused bool, why refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, reused, why = c.tryEach(owner, head, end, since, true)
	if s == nil && why.busy == nil && len(c.conns) >= carefulConns {
		return c.tryEach(owner, head, end, since, false)
	}
	return s, reused, why
}

// tryEach opens a stream on the first connection that accepts it. careful has the
// same meaning as for [h2.Conn.Open]. c.mu is held.
func (c *Client) tryEach(owner h2.Owner, head *h2.Block, end bool, since int, careful bool) (s *h2.Stream, reused bool, why refusal) {
	for i := 0; i < len(c.conns); {
		n := c.conns[i]
		if n.number <= since && len(c.conns) < c.settings.MaxConns || !c.settle(n) {
			i++
			continue
		}
		if n.silent() {
			c.remove(n)
			continue
		}
		s, err := n.Open(owner, head, end, careful)
		switch {
		case err == nil:
			reused, n.used, n.unused = n.used, true, 0
			n.idle.Reset(idleTimeout)
			return s, reused, refusal{}
		case errors.Is(err, h2.ErrBusy):
			return nil, false, refusal{busy: n.Writable()}
		case errors.Is(err, h2.ErrFull):
			i++
		case errors.Is(err, h2.ErrShut):
			why.shut = true
			i++
		default:
			c.remove(n)
		}
	}
	return nil, false, why
}

// settle waits until the reader of an idle connection has handled what has come: it may be
// its end. It reports false where the reader does not get to it. Streams on a connection
// that is not idle would fail by its end as well. c.mu is held.
func (c *Client) settle(n *conn) bool {
	for range maxReadPauses {
		if !n.used || n.Streams() > 0 || n.Link().Silent() || n.Err() != nil {
			return true
		}
		c.mu.Unlock()
		time.Sleep(readPause)
		c.mu.Lock()
	}
	return false
}

// connect returns when there is a new connection, or when it is worth while to look
// again.
func (c *Client) connect(ctx context.Context, shut bool) error {
	whole, err := c.awaitDial(ctx, shut)
	if err != nil && !whole && ctx.Err() == nil { // a dial may take long, and is owed to everybody
		_, err = c.awaitDial(ctx, shut)
	}
	return err
}

var errClosed = &forward.Error{Fault: forward.Unreachable, Err: errors.New("the client is closed")}

// awaitDial waits for a dial, or for a moment where none is of use. whole says that it was
// there from its beginning.
func (c *Client) awaitDial(ctx context.Context, shut bool) (whole bool, err error) {
	c.mu.Lock()
	if c.running.Err() != nil {
		c.mu.Unlock()
		return true, errClosed
	}
	wait := shut || len(c.conns) >= c.settings.MaxConns
	d := c.dial
	if d == nil && !wait {
		whole = true
		d = &dial{done: make(chan struct{})}
		c.dial = d
		go c.add(d)
	}
	c.mu.Unlock()
	if wait {
		select {
		case <-time.After(fullPause):
			return true, nil
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
	}
	select {
	case <-d.done:
		return whole, d.err
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
}

// add makes a connection, for all who wait for d.
func (c *Client) add(d *dial) {
	n, err := c.newConn(c.running)
	if err == nil {
		go n.run()
		settled := time.NewTimer(settleTimeout)
		select {
		case <-n.Settled():
		case <-settled.C:
		case <-c.running.Done():
		}
		settled.Stop()
		if err = n.Err(); err != nil {
			err = Failure(err)
		}
	}
	c.mu.Lock()
	c.dial = nil
	switch {
	case c.running.Err() != nil:
		d.err = errClosed
		if n != nil {
			defer n.End()
		}
	case err != nil:
		d.err = err
	default:
		c.made++
		n.number = c.made
		c.conns = append(c.conns, n)
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
		Client: true, Window: window, ConnWindow: connWindow, MaxHeadBytes: c.settings.MaxHeaderBytes, Buffers: c.buffers,
		Bounds: c.settings.Bounds,
	}, n)
	n.idle = time.AfterFunc(idleTimeout, n.endIfIdle)
	return n, nil
}

// run runs the connection to its end.
func (n *conn) run() {
	_ = n.Run(nil) // the owners of its streams have been notified
	n.client.forget(n)
	if !n.Spoke() {
		n.client.settings.Unsettled()
	}
}

// endIfIdle ends a connection that nobody has used for one idleTimeout, the last one for
// some more.
func (n *conn) endIfIdle() {
	n.client.mu.Lock()
	if n.Streams() > 0 {
		n.unused = 0
	} else {
		n.unused++
	}
	last := slices.Equal(n.client.conns, []*conn{n})
	keep := n.unused == 0 || last && n.unused < lastIdleTimeouts
	if keep {
		n.idle.Reset(idleTimeout)
	} else {
		n.client.remove(n) // or it would count as another when the next one expires
	}
	n.client.mu.Unlock()
	if !keep {
		n.End()
	}
}
