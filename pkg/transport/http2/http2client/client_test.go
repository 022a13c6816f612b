package http2client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestRequestsOfAllHostsShareConnection(t *testing.T) {
	a := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "T")
		io.WriteString(w, r.Host+" "+r.RequestURI+" "+string(body))
		w.Header().Set("T", "end")
	})
	client := newClient(t, a)
	for _, host := range []string{"a.example", "b.example", "c.example:8080"} {
		c, _ := newCall("POST")
		c.Request.Host, c.Content, c.Request.Length = host, []byte("hello"), 5
		r, err := c.Do(client)
		harness.NoError(t, err)
		body, err := content(r)
		trailer := r.Trailer()
		r.Close()
		if want := host + " /a%2f;b// hello"; body != want || err != nil || len(trailer) != 1 || string(trailer[0].Value) != "end" {
			t.Errorf("got %q, %v, trailer %q, want %q, trailer end", body, err, trailer, want)
		}
	}
	harness.Equal(t, a.connections(), 1, "connections")
}

// gate is an app that responds after the channel open is closed.
type gate struct {
	*app
	began chan *peer // receives the peer of each request
	open  chan struct{}
}

// newGate returns an app that accepts the given number of streams on each connection.
func newGate(t *testing.T, streams uint32) *gate {
	g := &gate{began: make(chan *peer, 100), open: make(chan struct{})}
	g.app = newApp(t, func(p *peer) {
		if p.Greet(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: streams}) != nil {
			return
		}
		var mu sync.Mutex
		var running sync.WaitGroup
		defer running.Wait()
		open := uint32(0)
		p.follow(script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
			id := f.StreamID
			mu.Lock()
			open++
			if open > streams {
				t.Errorf("got %d streams on a connection, want at most %d", open, streams)
			}
			mu.Unlock()
			g.began <- p
			running.Go(func() {
				<-g.open
				mu.Lock()
				defer mu.Unlock()
				open--
				p.ok(id, itoa(p.index))
			})
		}})
	})
	return g
}

func TestConnectionIsUsedUntilFull(t *testing.T) {
	g := newGate(t, 3)
	client := newClient(t, g.app)
	var running sync.WaitGroup
	seen := make([]atomic.Int32, 10)
	for range 7 { // open the streams sequentially, so that the first connection is full before the second one is opened
		running.Go(func() {
			body := mustGet(t, client)
			seen[body[0]-'0'].Add(1)
		})
		harness.Receive(t, g.began, "request")
	}
	harness.Equal(t, g.connections(), 3, "connections for 7 requests")
	close(g.open)
	running.Wait()
	for i, want := range []int32{3, 3, 1} {
		harness.Equal(t, seen[i].Load(), want, "requests on connection", i)
	}
	if body := mustGet(t, client); body != "0" || g.connections() != 3 {
		t.Errorf("got the next request on connection %s of %d, want connection 0 of 3", body, g.connections())
	}
}

// A burst of requests or of canceled requests opens many connections.
func TestIdleConnectionsCloseBeforeLastConnection(t *testing.T) {
	g := newGate(t, 1)
	client := newClient(t, g.app)
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() { mustGet(t, client) })
		harness.Receive(t, g.began, "request")
	}
	harness.Equal(t, client.ExpireIdle(), 4, "connections in use")
	close(g.open)
	running.Wait()
	for i := range http2client.LastIdleTimeouts - 1 {
		harness.Equal(t, client.ExpireIdle(), 1, "connections kept after", i, "more")
	}
	mustGet(t, client)
	harness.Equal(t, g.connections(), 4, "accepted connections")
	for range http2client.LastIdleTimeouts - 1 {
		harness.Equal(t, client.ExpireIdle(), 1, "connections, one that was used since")
	}
	harness.Equal(t, client.ExpireIdle(), 0, "connections at the end")
}

func TestConcurrentRequestsRespectStreamLimit(t *testing.T) {
	g := newGate(t, 2)
	close(g.open)
	client := newClient(t, g.app)
	var running sync.WaitGroup
	for range 50 {
		running.Go(func() { mustGet(t, client) })
	}
	running.Wait()
}

func TestStreamLimitChangesAreApplied(t *testing.T) {
	began, raised := make(chan uint32, 10), make(chan struct{})
	a := newPeers(t, script{
		settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 1}},
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			began <- f.StreamID
			switch {
			case p.index == 0 && p.turn == 0:
				p.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
			case p.index == 0 && p.turn == 1:
				p.ok(f.StreamID, "second")
				p.ok(1, "first")
			default:
				t.Error("got another connection, want more streams on the first one")
			}
		},
		other: func(p *peer, f http2.Frame) {
			if s, ok := f.(*http2.SettingsFrame); ok && s.IsAck() && p.turn == 1 {
				close(raised)
			}
		},
	})
	client := newClient(t, a)
	var running sync.WaitGroup
	running.Go(func() {
		harness.Equal(t, mustGet(t, client), "first")
	})
	harness.Receive(t, began, "request")
	harness.Receive(t, raised, "acknowledgement")
	harness.Equal(t, mustGet(t, client), "second")
	running.Wait()
}

// The client must not open more connections to an app that accepts no streams.
func TestAppWithoutStreamsReceivesOneConnection(t *testing.T) {
	const roundTrips = 100
	a := newPeers(t, script{
		settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 0}},
		headers:  func(p *peer, f *http2.MetaHeadersFrame) { p.ok(f.StreamID, "") },
		other: func(p *peer, f http2.Frame) {
			if s, ok := f.(*http2.SettingsFrame); ok && !s.IsAck() {
				p.WritePing(false, [8]byte{})
			}
			if f, ok := f.(*http2.PingFrame); !ok {
				return
			} else if n := f.Data[0]; n < roundTrips {
				p.WritePing(false, [8]byte{n + 1})
			} else {
				p.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 10})
			}
		},
	})
	client := newClient(t, a)
	var running sync.WaitGroup
	for range 3 {
		running.Go(func() { mustGet(t, client) })
	}
	running.Wait()
	harness.Equal(t, a.connections(), 1, "connections")
}

func TestDialErrorFailsWaitingRequests(t *testing.T) {
	const waiters = 20
	dialling, release := make(chan struct{}, 1000), make(chan struct{})
	want := &transport.Error{Fault: transport.FaultUnreachable, Err: io.ErrClosedPipe}
	client := newClientOf(t, http2client.Settings{Unsettled: func() {}, Dial: func(context.Context) (net.Conn, error) {
		dialling <- struct{}{}
		<-release
		return nil, want
	}})
	var waiting []<-chan error
	for range waiters {
		c, _ := newCall("GET")
		waiting = append(waiting, run(client, c))
	}
	harness.Receive(t, dialling, "dial")
	close(release)
	for _, failed := range waiting {
		if err := harness.Receive(t, failed, "error"); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// A dial is retried until its timeout expires. A request that arrives shortly before the timeout waits for another
// dial, which has the full timeout.
func TestRequestDuringFailedDialWaitsForNextDial(t *testing.T) {
	a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) { p.ok(f.StreamID, "late") }})
	dialling, release := make(chan struct{}, 10), make(chan struct{})
	var dials atomic.Int32
	client := newClientOf(t, http2client.Settings{Unsettled: func() {}, Dial: func(ctx context.Context) (net.Conn, error) {
		if dials.Add(1) > 1 {
			return dialer(a)(ctx)
		}
		dialling <- struct{}{}
		<-release
		return nil, &transport.Error{Fault: transport.FaultUnreachable}
	}})
	c, _ := newCall("GET")
	first := run(client, c)
	harness.Receive(t, dialling, "dial")
	second, joined := make(chan error, 1), make(chan struct{})
	go func() {
		_, _, err := client.Open(func() (context.Context, context.CancelFunc) {
			close(joined)
			return noContext()
		}, http2conn.Request{Owner: newReceiver(), Head: newHead(), End: true}, 0)
		second <- err
	}()
	harness.Receive(t, joined, "second request")
	close(release)
	if err := harness.Receive(t, first, "error"); transport.FaultOf(err) != transport.FaultUnreachable {
		t.Errorf("got %v, want unreachable", err)
	}
	harness.Equal(t, harness.Receive(t, second, "stream"), nil, "error of the later request")
}

// A receiver is an owner that ignores responses.
type receiver struct{ failed chan error }

func newReceiver() *receiver { return &receiver{make(chan error, 1)} }

func (*receiver) Head(*http2conn.Conn, *http2conn.Head, bool) {}
func (*receiver) Data(*http2conn.Conn, []byte, int, bool)     {}
func (*receiver) Drained(*http2conn.Conn)                     {}
func (r *receiver) Failed(_ *http2conn.Conn, err error)       { r.failed <- err }

func TestAppWithoutHTTP2IsReported(t *testing.T) {
	for name, answer := range map[string]string{
		"HTTP/1.1": "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
		"nothing":  "",
		"GOAWAY":   "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
	} {
		t.Run(name, func(t *testing.T) {
			a := newApp(t, func(p *peer) {
				p.Read(make([]byte, 1))
				io.WriteString(p, answer)
			})
			unsettled := make(chan struct{}, 100)
			client := newClientOf(t, http2client.Settings{Dial: dialer(a), Unsettled: func() { unsettled <- struct{}{} }})
			c, _ := newCall("GET")
			if _, err := c.Do(client); transport.FaultOf(err) == 0 {
				t.Errorf("got %v, want a fault", err)
			}
			harness.Receive(t, unsettled, "report")
		})
	}
}

func TestClosedHTTP2ConnectionIsNotReported(t *testing.T) {
	a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
		p.ok(f.StreamID, "")
		p.Close()
	}})
	client := newClientOf(t, http2client.Settings{Dial: dialer(a), Unsettled: func() { t.Error("got a report, want none") }})
	for range 3 {
		mustGet(t, client)
	}
}

func TestRequestAfterCloseReturnsError(t *testing.T) {
	var dials atomic.Int32
	a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) { p.ok(f.StreamID, "") }})
	client := newClientOf(t, http2client.Settings{Unsettled: func() {}, Dial: func(ctx context.Context) (net.Conn, error) {
		dials.Add(1)
		return dialer(a)(ctx)
	}})
	mustGet(t, client)
	client.Close()
	c, _ := newCall("GET")
	if _, err := c.Do(client); transport.FaultOf(err) != transport.FaultUnreachable {
		t.Errorf("got %v, want unreachable", err)
	}
	harness.Equal(t, dials.Load(), 1, "dials")
}

func TestCloseWaitsForOpenResponse(t *testing.T) {
	away, release := make(chan *http2.GoAwayFrame, 1), make(chan uint32, 1)
	a := newPeers(t, script{
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			p.WriteHead(f.StreamID, false, ":status", "200")
			release <- f.StreamID
		},
		other: func(p *peer, f http2.Frame) {
			if f, ok := f.(*http2.GoAwayFrame); ok {
				away <- f
				p.WriteData(<-release, true, []byte("whole"))
			}
		},
	})
	client := newClient(t, a)
	c, _ := newCall("GET")
	r, err := c.Do(client)
	harness.NoError(t, err)
	defer r.Close()
	client.Close()
	// nghttp2 treats GOAWAY with the ID of a client stream as an error (RFC 9113 section 6.8).
	if f := harness.Receive(t, away, "GOAWAY"); f.LastStreamID != 0 || f.ErrCode != http2.ErrCodeNo {
		t.Errorf("got GOAWAY of stream %d, %v, want 0, no error", f.LastStreamID, f.ErrCode)
	}
	if body, err := content(r); body != "whole" || err != nil {
		t.Errorf("got %q, %v, want whole", body, err)
	}
}

func TestCloseCancelsDial(t *testing.T) {
	dialling, ended := make(chan struct{}), make(chan struct{})
	client := newClientOf(t, http2client.Settings{Unsettled: func() {}, Dial: func(ctx context.Context) (net.Conn, error) {
		close(dialling)
		<-ctx.Done()
		close(ended)
		return nil, context.Cause(ctx)
	}})
	c, _ := newCall("GET")
	failed := run(client, c)
	harness.Receive(t, dialling, "dial")
	client.Close()
	harness.Receive(t, ended, "end of the dial")
	if err := harness.Receive(t, failed, "error"); err == nil {
		t.Error("got a response, want an error")
	}
}

func TestClosedIdleConnectionIsNotUsed(t *testing.T) {
	for range 50 {
		closing := make(chan *peer, 1)
		a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
			p.ok(f.StreamID, "")
			if p.index == 0 {
				closing <- p
			}
		}})
		client := newClient(t, a)
		mustGet(t, client)
		(<-closing).Close()
		c, _ := newCall("POST")
		if status, _, err := get(client, c); status != 200 || err != nil {
			t.Fatalf("got %d, %v, want 200 on another connection", status, err)
		}
		client.Close()
	}
}
