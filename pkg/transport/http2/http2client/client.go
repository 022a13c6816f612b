// Package http2client sends requests to a user container over HTTP/2 without TLS (RFC 9113). It opens another
// connection only if the existing connections accept no more streams, or if the content of the request could block the
// content of other clients (see [http2conn.Upload]).
package http2client

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// Settings configures a Client.
type Settings struct {
	// Dial opens a connection to the user container.
	Dial func(context.Context) (net.Conn, error)

	// Unsettled is called when a connection ends without a SETTINGS frame from the user container. It is not called for
	// a connection that was opened only to separate the content of clients.
	Unsettled func()

	// Silence is the time without input after which the client sends a check on a connection with open streams. If
	// nothing is received for the same time after the check, the client sends no more requests on the connection. Open
	// requests are not affected, because they have their own timeouts. 0 means 10 seconds.
	Silence time.Duration

	// MaxConns is the maximum number of connections. 0 means 1000.
	MaxConns int

	// MaxHeaderBytes is the maximum size of a response header section in bytes (RFC 9113 section 6.5.2). 0 means
	// 1 MiB.
	MaxHeaderBytes int

	Bounds *bound.Recorder // if nil, events are not recorded
}

const (
	// maxConns is the default of Settings.MaxConns. A user container that accepts one stream per connection needs
	// as many connections as there are concurrent requests. Each client that sends content also needs a connection.
	maxConns = 1000
	// window is the maximum length of unread response content on a stream, in bytes.
	window = 64 << 10
	// connWindow is the maximum length of unread response content on a connection, in bytes. The value is so large that
	// a client that does not read its response never blocks the responses of other clients.
	connWindow = 1 << 30
	// maxHead is the default of Settings.MaxHeaderBytes.
	maxHead = 1 << 20
	// idleTimeout is the time after which an unused connection is closed if other connections are open. Request bursts
	// and canceled requests cause additional connections. The timeout is at least as long as a server is assumed to
	// process an abandoned stream. Each connection has a timer. Package http1client needs only one timer for its pool,
	// because its connections serve one request at a time.
	idleTimeout = 10 * time.Second
	// lastIdleTimeouts is the number of idle timeouts after which the last open connection is closed.
	lastIdleTimeouts = 9
	// settleTimeout is the maximum time to wait for the SETTINGS frame of the user container before a new connection is
	// used. This frame contains the maximum number of streams.
	settleTimeout = time.Second
	// silenceChecks is the number of times per Settings.Silence that the first request in the queue searches for silent
	// connections.
	silenceChecks = 10
	// If an idle connection has unread input, a request waits up to maxReadPauses times readPause until the reader
	// goroutine has handled the input. After that, the request uses another connection.
	readPause     = time.Millisecond
	maxReadPauses = 3
	// If at least carefulConns connections are open, a request can also use a connection on which the user container
	// may still process many canceled requests.
	carefulConns = 16
	// shareTime is the minimum time between a failed optional dial and the next optional dial. It is needed because
	// some user containers accept only one connection.
	shareTime = 10 * time.Second
	// silence is the default of Settings.Silence.
	silence = 10 * time.Second
)

// Client holds the connections to the user container. It is safe for concurrent use.
type Client struct {
	settings Settings
	buffers  *netconn.Buffers
	room     chan struct{}   // contains a value if the first request in the queue can try to open a stream
	bodies   sync.Pool       // contains *[window]byte buffers for unread response content
	running  context.Context // canceled by Close
	stop     context.CancelFunc

	since time.Time // time of the call to New

	mu         sync.Mutex
	conns      []*clientConn // connections that accept streams, oldest first
	made       int           // number of connections that were opened
	dials      int           // number of dials that were started
	dialing    bool          // the last dial is in progress
	optional   bool          // the last dial was started only to separate the content of clients
	shareUntil time.Duration // time since client.since at which the next optional dial is allowed
	queue      queue

	senders atomic.Uint64 // number of calls to NewSender
}

// New returns a client. The first request opens the first connection.
func New(s Settings) *Client {
	s.Silence = cmp.Or(s.Silence, silence)
	s.MaxHeaderBytes = cmp.Or(s.MaxHeaderBytes, maxHead)
	s.MaxConns = cmp.Or(s.MaxConns, maxConns)
	c := &Client{settings: s, since: time.Now(), buffers: http2conn.NewBuffers(), room: make(chan struct{}, 1)}
	c.running, c.stop = context.WithCancel(context.Background())
	c.bodies.New = func() any { return new([window]byte) }
	return c
}

// Close closes idle connections immediately and other connections after their last stream ends. Requests that wait for
// a stream fail, and so do later requests.
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

// NewSender returns a unique value for the Client field of [http2conn.Upload].
func (c *Client) NewSender() uint64 { return c.senders.Add(1) }

// clientConn is a connection to the user container. It implements http2conn.Handler.
type clientConn struct {
	*http2conn.Conn
	client   *Client
	number   int  // sequence number of the connection, starting at 1; guarded by client.mu
	optional bool // the connection was opened by an optional dial
	used     bool // a stream was opened on the connection; guarded by client.mu

	heard atomic.Int64 // time of the last input, in nanoseconds since client.since
	asked int64        // time of the last check, in nanoseconds since client.since; guarded by client.mu

	idle   *time.Timer   // calls endIfIdle; guarded by client.mu
	opened time.Duration // time between client.since and the opening of the last stream; guarded by client.mu
	unused int           // number of consecutive idle timeouts without a stream; guarded by client.mu
}

// Request implements http2conn.Handler. It is never called, because servers send no requests.
func (n *clientConn) Request(uint32, *http2conn.Head, bool) {}

// Full implements http2conn.Handler. It is never called, because servers send no requests.
func (n *clientConn) Full() bool { return false }

// Received implements http2conn.Handler.
func (n *clientConn) Received(bool) { n.heard.Store(int64(time.Since(n.client.since))) }

// silent reports whether the connection has open streams and nothing was received for Settings.Silence after a check.
// If a check is due, silent starts it and returns false. The argument is the time since client.since. client.mu must be held.
func (n *clientConn) silent(passed time.Duration) bool {
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

// Waiting implements http2conn.Handler.
func (n *clientConn) Waiting() {}

// GoingAway implements http2conn.Handler.
func (n *clientConn) GoingAway() { n.client.forget(n) }

// forget removes a connection, so that no more streams are opened on it, and stops its idle timer.
func (c *Client) forget(n *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(n)
	n.idle.Stop()
}

// remove is like forget but does not stop the idle timer. c.mu must be held.
func (c *Client) remove(n *clientConn) {
	if i := slices.Index(c.conns, n); i >= 0 {
		c.conns = slices.Delete(c.conns, i, i+1)
	}
}

// signalRoom wakes the first request in the queue.
func (c *Client) signalRoom() {
	select {
	case c.room <- struct{}{}:
	default: // the channel still contains the last value
	}
}

// Since returns the since argument for a call to Open that retries a request after err. Because the
// existing connections may also be broken, Open does not use them for the retry unless Settings.MaxConns is reached. If
// err reports that the stream was reset, the connections work, and Since returns 0.
func (c *Client) Since(err error) int {
	if _, ok := errors.AsType[*http2conn.ResetError](err); ok {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}

// Open opens a stream and sends the header section of a request. since is the result of [Client.Since] for a retry, and
// otherwise 0. reused reports whether the connection was used before. If no connection accepts a stream, the request
// waits in a FIFO queue. Open then calls waiting, and the wait fails when the returned context is done. The error is
// the cause of this context, an error of Dial, or a *[transport.Error].
func (c *Client) Open(waiting func() (context.Context, context.CancelFunc), q http2conn.Request, since int) (s *http2conn.Stream, reused bool, err error) {
	c.mu.Lock()
	if c.queue.empty() || c.dialing && c.optional {
		if s, reused, _ = c.tryOpen(q, since); s != nil {
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
		s, reused, err = c.openOrDial(q, since)
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

// leave removes w from the queue. If the request failed, it may have received a value from c.room that the next request
// needs, so leave sends another value.
func (c *Client) leave(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.err != nil {
		c.signalRoom()
	}
	c.queue.remove(w)
}

// openOrDial opens a stream for the first request in the queue. If no connection accepts the stream and another
// connection can serve it, openOrDial starts a dial, unless a dial is in progress. s is nil if the request must wait.
func (c *Client) openOrDial(q http2conn.Request, since int) (s *http2conn.Stream, reused bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, reused, why := c.tryOpen(q, since)
	switch {
	case s != nil:
	case c.running.Err() != nil:
		return nil, false, errClosed
	case why.large:
		return nil, false, errLarge
	case (why.inUse || why == refusal{}) && !c.dialing && len(c.conns) < c.settings.MaxConns:
		c.dialing, c.optional = true, why.inUse
		c.dials++
		go c.add(c.optional)
	}
	return s, reused, nil
}

// dialInProgress returns the number of the dial in progress, or 0 if there is none. c.mu must be held.
func (c *Client) dialInProgress() int {
	if c.dialing {
		return c.dials
	}
	return 0
}

// removeSilent removes the silent connections; see clientConn.silent.
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

// refusal describes why no connection accepts a stream. The zero value means that a new connection is needed.
type refusal struct {
	busy  bool // a connection accepts the stream after the pending output of the connection is written
	shut  bool // the user container currently accepts no streams
	large bool // the header section is longer than the user container accepts
	inUse bool // a connection accepts the stream if content of several clients may share the connection
}

// tryOpen opens a stream on an existing connection. s is nil if no connection accepts the stream, or if a separate
// connection can be opened for the content of the request. c.mu must be held, and is released while settle waits.
func (c *Client) tryOpen(q http2conn.Request, since int) (s *http2conn.Stream, reused bool, why refusal) {
	for {
		s, reused, why = c.tryEach(q, since, true)
		if s == nil && !why.busy && !why.large && len(c.conns) >= min(carefulConns, c.settings.MaxConns) {
			s, reused, why = c.tryEach(q, since, false)
		}
		if s != nil || !why.inUse || c.separates() {
			return s, reused, why
		}
		q.Upload.Sharing++
	}
}

// separates reports whether a separate connection can be opened for the content of a request. c.mu must be held.
func (c *Client) separates() bool {
	return len(c.conns) < c.settings.MaxConns && time.Since(c.since) >= c.shareUntil
}

// tryEach opens a stream on the first connection that accepts it. careful has the same meaning as in
// [http2conn.Conn.Open]. c.mu must be held.
func (c *Client) tryEach(q http2conn.Request, since int, careful bool) (s *http2conn.Stream, reused bool, why refusal) {
	for i := 0; i < len(c.conns); {
		n := c.conns[i]
		if n.NoRoom() || n.number <= since && len(c.conns) < c.settings.MaxConns || !c.settle(n) {
			i++
			continue
		}
		now := time.Since(c.since)
		if n.silent(now) {
			c.remove(n)
			continue
		}
		s, err := n.Open(q, careful)
		switch {
		case err == nil:
			reused, n.used, n.unused, n.opened = n.used, true, 0, now
			return s, reused, refusal{}
		case errors.Is(err, http2conn.ErrBusy):
			return nil, false, refusal{busy: true}
		case errors.Is(err, http2conn.ErrLarge):
			return nil, false, refusal{large: true}
		case errors.Is(err, http2conn.ErrFull):
			i++
		case errors.Is(err, http2conn.ErrShut):
			why.shut = true
			i++
		case errors.Is(err, http2conn.ErrInUse):
			why.inUse = true
			i++
		default:
			c.remove(n)
		}
	}
	return nil, false, why
}

// settle waits until the reader goroutine of an idle connection has handled the unread input, because the input may end
// the connection. It returns false if input is still unread after maxReadPauses times readPause. It does not wait for a
// connection with open streams, because these streams would also fail if the connection ended. c.mu must be held, and
// is released during the wait.
func (c *Client) settle(n *clientConn) bool {
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
	errClosed = &transport.Error{Fault: transport.FaultUnreachable, Err: errors.New("client closed")}
	errSettle = errors.New("no SETTINGS from the user container")
	errLarge  = &transport.Error{Fault: transport.FaultHeadLimit, Err: http2conn.ErrLarge}
)

// add opens a connection and adds it to c.conns. optional is the value of c.optional when the dial started. If an
// optional dial fails, no request fails, and optional dials are disabled for shareTime.
func (c *Client) add(optional bool) {
	n, err := c.newConn(c.running)
	if err == nil {
		n.optional = optional
		go n.run()
		select {
		case <-n.SettingsArrived():
		case <-time.After(settleTimeout):
			if optional { // the user container may serve only one connection at a time
				err = errSettle
				go n.End()
			}
		case <-c.running.Done():
		}
		if err == nil && n.Err() != nil {
			err = Failure(n.Err())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialing = false
	switch {
	case c.running.Err() != nil: // Close has already failed all waiting requests
		if n != nil {
			go n.End()
		}
	case err != nil && optional:
		c.shareUntil = time.Since(c.since) + shareTime
	case err != nil: // requests that arrived during this dial stay in the queue and wait for the next dial
		c.queue.fail(err, func(w *waiter) bool { return w.dial != c.dials })
	default:
		c.made++
		n.number = c.made
		c.conns = append(c.conns, n)
	}
	c.signalRoom()
}

func (c *Client) newConn(ctx context.Context) (*clientConn, error) {
	nc, err := c.settings.Dial(ctx)
	if err != nil {
		return nil, err
	}
	l, err := netconn.New(nc.(*net.TCPConn))
	if err != nil {
		nc.Close()
		return nil, err
	}
	n := &clientConn{client: c, opened: time.Since(c.since)}
	n.Conn = http2conn.New(l, http2conn.Config{
		Client: true, Window: window, ConnWindow: connWindow, MaxHeadBytes: c.settings.MaxHeaderBytes, Buffers: c.buffers,
		Bounds: c.settings.Bounds, Room: c.room,
	}, n)
	n.idle = time.AfterFunc(idleTimeout, n.endIfIdle)
	return n, nil
}

// run reads from the connection until it ends, and then removes it from the client.
func (n *clientConn) run() {
	_ = n.Run(nil) // the owners of the streams have received the error
	n.client.forget(n)
	if !n.optional && !n.ReceivedSettings() {
		n.client.settings.Unsettled()
	}
}

// endIfIdle closes the connection if it has had no stream for idleTimeout. The last connection of the client is closed
// only after lastIdleTimeouts times idleTimeout. If the connection is not closed, endIfIdle resets the timer.
func (n *clientConn) endIfIdle() {
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
	last := slices.Equal(n.client.conns, []*clientConn{n})
	keep := n.unused == 0 || last && n.unused < lastIdleTimeouts
	if keep {
		n.idle.Reset(next)
	} else {
		n.client.remove(n) // n must not count as a connection when the idle timer of another connection expires
	}
	n.client.mu.Unlock()
	if !keep {
		n.End()
	}
}
