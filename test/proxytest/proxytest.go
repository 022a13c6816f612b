// Package proxytest starts a proxy for tests: the engine, all layers and an application,
// without the rest of the process. Only tests import it.
package proxytest

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/stats"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/reference"
)

// Options are the settings of a Proxy.
type Options struct {
	rewrite.ServerSettings

	Reference  bool // use package reference instead of the engines
	TLS        bool // clients connect over TLS
	Narrow     bool // minimize the buffers of the sockets to clients
	UnknownApp bool // do not detect the protocol of the app at startup
}

// A Proxy is an engine in front of an app. It stops at the end of the test. The test fails if
// Serve returns an error or if net/http logs a panic.
type Proxy struct {
	T       testing.TB
	Queue   *proxy.Proxy
	Bounds  *bound.Recorder // limits of the engines and of the client side
	HTTP1   *http1.Server
	HTTP2   *http2.Server
	Address string

	reference *reference.Server
	app       *http1client.App
	h2client  *http2client.Client
	clientTLS *tls.Config // TLS configuration of clients; nil if they do not use TLS
	log       harness.Buffer
	counter   counter
	shutdown  sync.Once

	mu           sync.Mutex
	observations []observation.Observation
}

// Start starts a proxy in front of an app. If change is not nil, Start calls it before the proxy
// accepts connections, so that change can modify the proxy and the options.
func Start(t testing.TB, app *harness.App, change func(*proxy.Proxy, *Options)) *Proxy {
	t.Helper()
	return StartOn(t, app.Port, change)
}

// StartOn is like Start for the app on a port. change must set UnknownApp unless the app is a
// harness.App.
func StartOn(t testing.TB, port int, change func(*proxy.Proxy, *Options)) *Proxy {
	t.Helper()
	p := &Proxy{T: t, Bounds: bound.NewRecorder()}
	p.Queue = &proxy.Proxy{
		Ready:   func(context.Context) error { return nil },
		Drain:   proxy.NewDrain(proxy.DrainSettings{}),
		Stats:   stats.New(time.Now()),
		Observe: p.observe,
	}
	o := Options{ServerSettings: rewrite.ServerSettings{MaxHeaderBytes: 256 << 10, AppHost: fmt.Sprintf("127.0.0.1:%d", port), Bounds: p.Bounds}}
	if change != nil {
		change(p.Queue, &o)
	}
	watcher, err := netconn.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	p.app = http1client.New(http1client.Settings{Port: port, ConnectRetry: 50 * time.Millisecond, Bounds: p.Bounds})
	p.h2client = http2client.New(http2client.Settings{Dial: p.app.Dial, Unsettled: p.app.Forget, Bounds: p.Bounds})
	p.newEngines(o, watcher)
	ended := p.serve(o)
	t.Cleanup(func() {
		p.Shutdown()
		if err := <-ended; err != nil {
			t.Errorf("Serve: got %v, want nil", err)
		}
		p.app.Close()
		p.h2client.Close()
		watcher.Close()
		if text := p.log.String(); strings.Contains(text, "panic") || strings.Contains(text, "superfluous") {
			t.Errorf("unexpected log of net/http:\n%s", text)
		}
	})
	if !o.UnknownApp {
		p.LearnProtocol()
	}
	return p
}

func (p *Proxy) newEngines(o Options, watcher *netconn.Watcher) {
	p.reference = reference.New(o.ServerSettings, p.Queue, p.app, p.h2client, log.New(&p.log, "", 0))
	p.HTTP2 = http2.New(o.ServerSettings, p.Queue, p.app, p.h2client)
	p.counter.Handler = p.Queue
	p.HTTP1 = http1.New(o.ServerSettings, &p.counter, p.app, p.h2client, watcher, func(c *netconn.Conn, early []byte, place *netconn.Place) {
		p.counter.given.Add(1)
		p.HTTP2.ServeConn(c, early, place)
	})
}

// A counter counts the requests that the HTTP/1 engine serves, and the connections that it passes to the HTTP/2 engine.
type counter struct {
	transport.Handler
	served, given atomic.Uint64
}

func (c *counter) Serve(x transport.Exchange, state transport.State) {
	c.served.Add(1)
	c.Handler.Serve(x, state)
}

// serve starts to serve. The returned channel receives the result.
func (p *Proxy) serve(o Options) (ended chan error) {
	ln := harness.Listen(p.T)
	p.Address = ln.Addr().String()
	if raw, err := ln.(*net.TCPListener).SyscallConn(); o.Narrow && err == nil {
		_ = harness.Narrow("", "", raw)
	}
	var config *tls.Config
	if o.TLS {
		config, p.clientTLS = harness.TLS(p.T)
	}
	ended = make(chan error, 1)
	go func() {
		if o.Reference {
			ended <- p.reference.Serve(ln, config)
		} else {
			ended <- p.HTTP1.Serve(ln, config)
		}
	}()
	return ended
}

// observe stores an observation. It copies the strings, because they are valid only during the
// call.
func (p *Proxy) observe(o *observation.Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := *o
	for _, s := range []*string{&kept.Method, &kept.Target, &kept.Host} {
		*s = strings.Clone(*s)
	}
	p.observations = append(p.observations, kept)
}

// Shutdown stops the engines in order. Further calls do nothing.
func (p *Proxy) Shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	_ = p.ShutdownWithin(ctx)
}

// ShutdownWithin is like Shutdown with a deadline. It returns the error of the HTTP/1 engine.
func (p *Proxy) ShutdownWithin(ctx context.Context) (err error) {
	p.shutdown.Do(func() {
		err = p.HTTP1.Shutdown(ctx)
		_ = p.HTTP2.Shutdown(ctx)
		_ = p.reference.Shutdown(ctx)
	})
	return err
}

// noClient is the client of a request that the proxy itself sends.
type noClient struct{}

func (noClient) Sending()            {}
func (noClient) Info(*wire.Response) {}
func (noClient) Waiting()            {}
func (noClient) StopBody()           {}
func (noClient) BodyArrived() bool   { return false }

// LearnProtocol sends a request that is not counted, so that the proxy detects that the app
// supports HTTP/1.1.
func (p *Proxy) LearnProtocol() {
	p.T.Helper()
	c := &http1client.Call{Call: rewrite.Call{
		Request: &rewrite.Request{Method: "GET", Target: harness.ProtocolRequest, Host: "a", Length: -1},
		Client:  noClient{},
	}}
	c.Begin()
	r, err := c.Do(p.app)
	for err == nil {
		_, err = r.Next()
	}
	if err != io.EOF {
		p.T.Fatal(err)
	}
	r.Close()
}

// Dial opens a raw connection to the proxy.
func (p *Proxy) Dial() *harness.Client {
	p.T.Helper()
	return harness.Dial(p.T, p.Address)
}

// Connect opens a connection, over TLS if the proxy serves TLS.
func (p *Proxy) Connect(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Address)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(harness.Patience))
	if p.clientTLS != nil {
		return tls.Client(c, p.clientTLS)
	}
	return c
}

// Client returns a net/http client for one version: "HTTP/1.1" or "HTTP/2".
func (p *Proxy) Client(version string) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(version == "HTTP/1.1")
	protocols.SetUnencryptedHTTP2(version == "HTTP/2")
	tr := &http.Transport{Protocols: protocols, DisableCompression: true}
	p.T.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: harness.Patience}
}

// HoldMemory opens connections until the usage of the budget has increased by n bytes. The requests of
// a connection hold 32 KiB, as with many clients that send small requests. The last connection holds
// up to 64 KiB. release closes the connections.
func HoldMemory(b *netconn.Budget, n int) (release func()) {
	const each = netconn.ConnectionBytes
	var closers []func()
	before, _ := b.Usage()
	for left := n; left > 0; {
		a := b.Open("other", func() {})
		used, _ := b.Usage() // subtract the initial usage, because the budget can include the connections themselves
		left = n - int(used-before)
		held := each
		if left < 2*each {
			held = max(left, 0)
		}
		a.Add(held)
		left -= held
		closers = append(closers, func() { a.Sub(held); a.Close() })
	}
	return func() {
		for _, c := range closers {
			c()
		}
	}
}

// Counts returns the number of requests that the HTTP/1 engine has served, and the number of connections that it has
// passed to the HTTP/2 engine.
func (p *Proxy) Counts() (served, given uint64) {
	return p.counter.served.Load(), p.counter.given.Load()
}

// WantCounts checks the result of Counts.
func (p *Proxy) WantCounts(served, given uint64) {
	p.T.Helper()
	if gotServed, gotGiven := p.Counts(); gotServed != served || gotGiven != given {
		p.T.Errorf("got %d requests and %d connections passed to HTTP/2, want %d and %d", gotServed, gotGiven, served, given)
	}
}

// WantBounds waits until an event is recorded for each of the named bounds and client errors. It reports an error if
// there is an event for another bound or client error, or an event without a peer.
func (p *Proxy) WantBounds(names ...bound.Name) {
	p.T.Helper()
	for _, name := range names {
		harness.Until(p.T, "event of the bound "+name.String(), func() bool { return p.Bounds.Count(name) > 0 })
	}
	for _, s := range p.Bounds.States(time.Now()) {
		if !slices.Contains(names, s.Name) || s.Peer == "" {
			p.T.Errorf("got %d events of bound %v from peer %q, want a peer and one of the bounds %v", s.Count, s.Name, s.Peer, names)
		}
	}
}

// Observed waits for n observations and returns all observations.
func (p *Proxy) Observed(n int) (all []observation.Observation) {
	p.T.Helper()
	harness.Until(p.T, fmt.Sprintf("%d observations", n), func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		all = slices.Clone(p.observations)
		return len(all) >= n
	})
	return all
}

// InFlight waits until n requests are in flight.
func (p *Proxy) InFlight(n int) {
	p.T.Helper()
	harness.Until(p.T, fmt.Sprintf("%d requests in flight", n), func() bool {
		got, _ := p.Queue.Drain.Flights()
		return got == n
	})
}

// fewGoroutines is the number of goroutines that a server may start after the first count, such
// as its accept loop.
const fewGoroutines = 4

// WantReleased waits until no request holds a slot, is queued, or is counted in the statistics. Tests that attack the
// proxy call it after their connections are closed. goroutines is the result of [Goroutines] before the attack. If it
// is negative, goroutines are not counted, because other proxies run in the same process.
func (p *Proxy) WantReleased(goroutines int) {
	p.T.Helper()
	load := func() (running, queued int) {
		if p.Queue.Limit == nil {
			return 0, 0
		}
		return p.Queue.Limit.Load()
	}
	end := time.Now().Add(harness.Patience)
	for _, c := range []struct {
		name string
		most int
		load func() int
	}{
		{"slots", 0, func() int { running, _ := load(); return running }},
		{"places in the queue", 0, func() int { _, queued := load(); return queued }},
		{"requests in the statistics", 0, func() int { return p.Queue.Stats.Report(time.Now()).InFlight }},
		{"requests in flight", 0, func() int { n, _ := p.Queue.Drain.Flights(); return n }},
		{"goroutines", goroutines + fewGoroutines, Goroutines},
	} {
		if goroutines < 0 && c.name == "goroutines" {
			continue
		}
		got := c.load()
		for ; got > c.most && time.Now().Before(end); got = c.load() {
			time.Sleep(time.Millisecond)
		}
		if got > c.most {
			p.T.Errorf("%s: got %d after the clients disconnected, want at most %d", c.name, got, c.most)
		}
	}
}

// Goroutines returns the number of goroutines that run code of the proxy, except goroutines that read HTTP/2
// connections to the user container.
func Goroutines() (n int) {
	all := make([]byte, 1<<20)
	for runtime.Stack(all, true) == len(all) {
		all = make([]byte, 2*len(all))
	}
	for stack := range strings.SplitSeq(string(bytes.TrimRight(all, "\x00")), "\n\n") {
		if strings.Contains(stack, "queue-proxy/pkg/") && !strings.Contains(stack, "queue-proxy/pkg/transport/http2/http2client.(*clientConn).run") {
			n++
		}
	}
	return n
}

// Waiting waits until n requests are queued.
func (p *Proxy) Waiting(n int) {
	p.T.Helper()
	harness.Until(p.T, fmt.Sprintf("%d queued requests", n), func() bool {
		_, got := p.Queue.Limit.Load()
		return got == n
	})
}
