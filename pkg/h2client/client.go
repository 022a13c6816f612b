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
	// idleTimeout is the time after which an unused connection is closed if there are others.
	// Such connections were opened for many concurrent or canceled requests. Abandoned streams
	// count for at most this time. A connection is shared by its streams, and has its own timer. Package upstream
	// has one timer for its pool of connections, each of which serves one request at a time.
	idleTimeout = 10 * time.Second
	// lastIdleTimeouts is how often as long the last connection is kept.
	lastIdleTimeouts = 9
	// settleTimeout is how long a new connection is not used because its SETTINGS, which say
	// how many streams it takes, have not come.
	settleTimeout = time.Second
	// silenceChecks is the number of times in Settings.Silence that the first request of the
	// queue checks whether a connection is silent.
	silenceChecks = 10
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
	room     chan struct{}   // holds a value if the first request of the queue can be sent now
	bodies   sync.Pool       // of *[window]byte, for responses that wait to be read
	running  context.Context // until Close
	stop     context.CancelFunc

	since time.Time // when it was made

	mu      sync.Mutex
	conns   []*conn // that take streams, the oldest first
	made    int     // how many there have been
	dials   int     // number of dials that were started
	dialing bool    // the last of them is in progress
	queue   queue
}

// New returns a client. Nothing is dialled before the first request.
func New(s Settings) *Client {
	s.Silence = cmp.Or(s.Silence, silence)
	s.MaxHeaderBytes = cmp.Or(s.MaxHeaderBytes, maxHead)
	s.MaxConns = cmp.Or(s.MaxConns, maxConns)
	c := &Client{settings: s, since: time.Now(), buffers: h2.NewBuffers(), room: make(chan struct{}, 1)}
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
	c.queue.fail(errClosed, func(*waiter) bool { return true })
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

	idle   *time.Timer   // calls endIfIdle; guarded by client.mu
	opened time.Duration // time when the last stream was opened, relative to client.since; guarded by client.mu
	unused int           // number of times that idle has expired without a stream; guarded by client.mu
}

// Request implements h2.Handler; servers send none.
func (n *conn) Request(uint32, *h2.Head, bool) {}

// Full implements h2.Handler; servers send no requests.
func (n *conn) Full() bool { return false }

// Received implements h2.Handler.
func (n *conn) Received(bool) { n.heard.Store(int64(time.Since(n.client.since))) }

// silent reports whether the connection has open streams and the user container has not sent
// anything for too long. passed is the time since client.since. client.mu is held.
func (n *conn) silent(passed time.Duration) bool {
	now, heard := int64(passed), n.heard.Load()
	switch {
	case now-heard < int64(n.client.settings.Silence) || n.Streams() == 0:
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

// signalRoom wakes the first request of the queue.
func (c *Client) signalRoom() {
	select {
	case c.room <- struct{}{}:
	default: // it has not received the last value yet
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

// Open opens a stream of owner by sending the head of a request. end reports whether the
// request has no content. If since is not 0, it is a value returned by Since. reused reports
// whether the connection has been used before. If no connection accepts a stream, Open waits in a FIFO
// queue, and the context of waiting can end the wait. The error is the cause of the context, an
// error of Dial, or a *[forward.Error].
func (c *Client) Open(waiting func() (context.Context, context.CancelFunc), owner h2.Owner, head *h2.Block, end bool, since int) (s *h2.Stream, reused bool, err error) {
	c.mu.Lock()
	if c.queue.empty() {
		if s, reused, _ = c.tryOpen(owner, head, end, since); s != nil {
			c.mu.Unlock()
			return s, reused, nil
		}
	}
	w := c.queue.push(c.dialInProgress())
	c.mu.Unlock()
	defer c.leave(w)
	ctx, cancel := waiting()
	defer cancel()
	select {
	case <-w.first:
	case <-w.failed:
		return nil, false, w.err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	check := time.NewTicker(max(c.settings.Silence/silenceChecks, 1))
	defer check.Stop()
	for {
		s, reused, err = c.openOrDial(owner, head, end, since)
		if s != nil || err != nil {
			return s, reused, err
		}
		select {
		case <-c.room:
		case <-check.C:
			c.removeSilent()
		case <-w.failed:
			return nil, false, w.err
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// leave removes a waiter from the queue. A request that has failed may have received a value
// from c.room that was for the next one.
func (c *Client) leave(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.err != nil {
		c.signalRoom()
	}
	c.queue.remove(w)
}

// openOrDial opens a stream for the first request of the queue. If a new connection is useful
// and none is being opened, it starts to open one. s is nil if the request has to wait.
func (c *Client) openOrDial(owner h2.Owner, head *h2.Block, end bool, since int) (s *h2.Stream, reused bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, reused, why := c.tryOpen(owner, head, end, since)
	switch {
	case s != nil:
	case c.running.Err() != nil:
		return nil, false, errClosed
	case why.large:
		return nil, false, errLarge
	case why == refusal{} && !c.dialing && len(c.conns) < c.settings.MaxConns:
		c.dialing = true
		c.dials++
		go c.add()
	}
	return s, reused, nil
}

// dialInProgress returns the number of the dial that is in progress, or 0. c.mu is held.
func (c *Client) dialInProgress() int {
	if c.dialing {
		return c.dials
	}
	return 0
}

// removeSilent removes the connections that the user container no longer reads.
func (c *Client) removeSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Since(c.since)
	for _, n := range slices.Clone(c.conns) {
		if n.silent(now) {
			c.remove(n)
		}
	}
}

// refusal is the reason why another connection is not useful if no connection accepts a
// stream. The zero value means that it is useful.
type refusal struct {
	busy  bool // a connection can be used after its output was written
	shut  bool // the user container accepts no streams at the moment
	large bool // the header section is longer than the user container accepts
}

// tryOpen opens a stream on one of the connections. s is nil if none accepts it. c.mu is held,
// but not during settle.
func (c *Client) tryOpen(owner h2.Owner, head *h2.Block, end bool, since int) (s *h2.Stream, reused bool, why refusal) {
	s, reused, why = c.tryEach(owner, head, end, since, true)
	if s == nil && !why.busy && !why.large && len(c.conns) >= min(carefulConns, c.settings.MaxConns) {
		return c.tryEach(owner, head, end, since, false)
	}
	return s, reused, why
}

// tryEach opens a stream on the first connection that accepts it. careful has the
// same meaning as for [h2.Conn.Open]. c.mu is held.
func (c *Client) tryEach(owner h2.Owner, head *h2.Block, end bool, since int, careful bool) (s *h2.Stream, reused bool, why refusal) {
	for i := 0; i < len(c.conns); {
		n := c.conns[i]
		if n.Crowded() || n.number <= since && len(c.conns) < c.settings.MaxConns || !c.settle(n) {
			i++
			continue
		}
		now := time.Since(c.since)
		if n.silent(now) {
			c.remove(n)
			continue
		}
		s, err := n.Open(owner, head, end, careful)
		switch {
		case err == nil:
			reused, n.used, n.unused, n.opened = n.used, true, 0, now
			return s, reused, refusal{}
		case errors.Is(err, h2.ErrBusy):
			return nil, false, refusal{busy: true}
		case errors.Is(err, h2.ErrLarge):
			return nil, false, refusal{large: true}
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

var (
	errClosed = &forward.Error{Fault: forward.Unreachable, Err: errors.New("the client is closed")}
	errLarge  = &forward.Error{Fault: forward.HeadLimit, Err: h2.ErrLarge}
)

// add opens a connection.
func (c *Client) add() {
	n, err := c.newConn(c.running)
	if err == nil {
		go n.run()
		select {
		case <-n.Settled():
		case <-time.After(settleTimeout):
		case <-c.running.Done():
		}
		if err = n.Err(); err != nil {
			err = Failure(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialing = false
	switch {
	case c.running.Err() != nil: // Close has ended the wait of all requests
		if n != nil {
			go n.End()
		}
	case err != nil: // a dial can take long, so requests that came during this one wait for the next one
		c.queue.fail(err, func(w *waiter) bool { return w.dial != c.dials })
	default:
		c.made++
		n.number = c.made
		c.conns = append(c.conns, n)
	}
	c.signalRoom()
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
	n := &conn{client: c, opened: time.Since(c.since)}
	n.Conn = h2.New(l, h2.Config{
		Client: true, Window: window, ConnWindow: connWindow, MaxHeadBytes: c.settings.MaxHeaderBytes, Buffers: c.buffers,
		Bounds: c.settings.Bounds, Room: c.room,
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
	next := idleTimeout
	switch idle := time.Since(n.client.since) - n.opened; {
	case n.Streams() > 0:
		n.unused = 0
	case n.unused == 0 && idle < idleTimeout: // a stream was opened since the last call
		next -= idle
	default:
		n.unused++
	}
	last := slices.Equal(n.client.conns, []*conn{n})
	keep := n.unused == 0 || last && n.unused < lastIdleTimeouts
	if keep {
		n.idle.Reset(next)
	} else {
		n.client.remove(n) // or it would count as another when the next one expires
	}
	n.client.mu.Unlock()
	if !keep {
		n.End()
	}
}
