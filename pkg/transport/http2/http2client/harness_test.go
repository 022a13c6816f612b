package http2client_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An app is a user container that uses HTTP/2.
type app struct {
	address     string
	connections func() int // returns the number of accepted connections
}

// newApp starts an app that calls serve for each connection. It is closed at the end of the test.
func newApp(t *testing.T, serve func(p *peer)) *app {
	t.Helper()
	a := harness.NewApp(t, func(conn *harness.AppConn) {
		serve(&peer{Frames: conn.Frames(), index: conn.Index})
	})
	return &app{address: a.Address(), connections: a.Connections}
}

// newServer starts an app that uses the net/http server.
func newServer(t *testing.T, h http.HandlerFunc) *app {
	t.Helper()
	ln := harness.Listen(t)
	var connections atomic.Int32
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}}
	s.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(ln) }()
	t.Cleanup(func() { s.Close(); <-ended })
	return &app{address: ln.Addr().String(), connections: func() int { return int(connections.Load()) }}
}

// A peer is the app side of a connection.
type peer struct {
	*harness.Frames
	index int // index of the connection, from 0
	turn  int // number of earlier requests on the connection
}

// A script contains the handlers of a peer. A nil handler ignores its frames.
type script struct {
	settings []http2.Setting
	headers  func(p *peer, f *http2.MetaHeadersFrame)
	data     func(p *peer, f *http2.DataFrame)
	other    func(p *peer, f http2.Frame)
}

// newPeers starts an app that follows a script on each connection.
func newPeers(t *testing.T, s script) *app {
	return newApp(t, func(p *peer) {
		if p.Greet(s.settings...) == nil {
			p.follow(s)
		}
	})
}

// follow calls the handlers of a script until the connection closes.
func (p *peer) follow(s script) {
	p.Follow(func(f http2.Frame) {
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if s.headers != nil {
				s.headers(p, f)
			}
			p.turn++
		case *http2.DataFrame:
			if s.data != nil {
				s.data(p, f)
			}
		default:
			if s.other != nil {
				s.other(p, f)
			}
		}
	})
}

// ok responds with status 200 and a body.
func (p *peer) ok(id uint32, body string) {
	p.WriteHead(id, false, ":status", "200")
	p.WriteData(id, true, []byte(body))
}

// newClient returns a client of the app. It is closed at the end of the test.
func newClient(t *testing.T, a *app) *http2client.Client {
	t.Helper()
	return newClientOf(t, http2client.Settings{Dial: dialer(a), Unsettled: func() {}})
}

func newClientOf(t *testing.T, s http2client.Settings) *http2client.Client {
	t.Helper()
	c := http2client.New(s)
	t.Cleanup(c.Close)
	return c
}

func dialer(a *app) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", a.address)
	}
}

// An origin records the calls to its methods.
type origin struct {
	sends   int
	infos   []int
	sending func()
	waiting func()
	stop    func()
}

func (o *origin) Sending() {
	o.sends++
	if o.sending != nil {
		o.sending()
	}
}

func (o *origin) Info(h *wire.Response) { o.infos = append(o.infos, h.Status) }
func (o *origin) Waiting() {
	if o.waiting != nil {
		o.waiting()
	}
}
func (o *origin) BodyArrived() bool { return false }
func (o *origin) StopBody() {
	if o.stop != nil {
		o.stop()
	}
}

// newCall returns a call for a request without a body. Begin was already called.
func newCall(method string) (*http2client.Call, *origin) {
	o := &origin{}
	c := &http2client.Call{Call: rewrite.Call{Client: o, Request: &rewrite.Request{
		Method: method, Target: "/a%2f;b//", Host: "app.example", AppHost: "app", Peer: "192.0.2.1", Length: -1,
	}}}
	c.Begin()
	return c, o
}

// newUpload is like newCall, but adds a body of unknown length.
func newUpload(method string, body io.Reader) (*http2client.Call, *origin) {
	c, o := newCall(method)
	c.Body, c.Request.Chunked = body, true
	if b, ok := body.(*harness.BlockedBody); ok {
		o.stop = b.Stop
	}
	return c, o
}

// get makes a call, reads the complete response and closes it.
func get(client *http2client.Client, c *http2client.Call) (status int, body string, err error) {
	r, err := c.Do(client)
	if err != nil {
		return 0, "", err
	}
	defer r.Close()
	body, err = content(r)
	return r.Head.Status, body, err
}

// content reads the complete body.
func content(r *http2client.Response) (string, error) {
	var all []byte
	for {
		p, err := r.Next()
		all = append(all, p...)
		if err == io.EOF {
			return string(all), nil
		}
		if err != nil {
			return string(all), err
		}
	}
}

// mustGet is like get, but fails the test if the request fails.
func mustGet(t *testing.T, client *http2client.Client) string {
	t.Helper()
	c, _ := newCall("GET")
	status, body, err := get(client, c)
	if status != 200 || err != nil {
		t.Fatalf("got %d, %v, want 200", status, err)
	}
	return body
}

func itoa(n int) string { return strconv.Itoa(n) }
