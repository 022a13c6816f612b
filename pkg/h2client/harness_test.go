package h2client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 20 * time.Second

// app is a user container: a listener, and what it does with each connection.
type app struct {
	address string

	mu    sync.Mutex
	conns int // that were accepted
}

func (a *app) connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conns
}

// newApp serves each connection by play, until the end of the test.
func newApp(t *testing.T, play func(p *peer)) *app {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &app{address: ln.Addr().String()}
	var running sync.WaitGroup
	var open []net.Conn
	t.Cleanup(func() {
		ln.Close()
		a.mu.Lock()
		for _, c := range open {
			c.Close()
		}
		a.mu.Unlock()
		running.Wait()
	})
	running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			a.mu.Lock()
			p := newPeer(c, a.conns)
			a.conns++
			open = append(open, c)
			a.mu.Unlock()
			running.Go(func() {
				defer c.Close()
				play(p)
			})
		}
	})
	return a
}

// newServer is an app of net/http.
func newServer(t *testing.T, h http.HandlerFunc) *app {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &app{address: ln.Addr().String()}
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			a.mu.Lock()
			a.conns++
			a.mu.Unlock()
		}
	}}
	s.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(ln) }()
	t.Cleanup(func() { s.Close(); <-ended })
	return a
}

// A peer is the app's end of a connection, by golang.org/x/net's Framer.
type peer struct {
	net.Conn
	*http2.Framer
	index int // of the connection, from 0
	turn  int // how many requests came before on it

	block   bytes.Buffer
	encoder *hpack.Encoder
}

func newPeer(c net.Conn, index int) *peer {
	p := &peer{Conn: c, Framer: http2.NewFramer(c, c), index: index}
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.encoder = hpack.NewEncoder(&p.block)
	return p
}

// A script says what a peer does; nil: nothing.
type script struct {
	settings []http2.Setting
	headers  func(p *peer, f *http2.MetaHeadersFrame)
	data     func(p *peer, f *http2.DataFrame)
	other    func(p *peer, f http2.Frame)
}

// newPeers is an app that follows a script on each connection.
func newPeers(t *testing.T, s script) *app {
	return newApp(t, func(p *peer) {
		if p.greet(s.settings...) == nil {
			p.follow(s)
		}
	})
}

// greet sends SETTINGS and reads the client's preface.
func (p *peer) greet(settings ...http2.Setting) error {
	_, err := io.ReadFull(p, make([]byte, len(wire.Preface)))
	return errors.Join(err, p.WriteSettings(settings...))
}

// follow follows a script until the connection ends.
func (p *peer) follow(s script) {
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return
		}
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
		case *http2.SettingsFrame:
			if !f.IsAck() {
				p.WriteSettingsAck()
			}
			if s.other != nil {
				s.other(p, f)
			}
		default:
			if s.other != nil {
				s.other(p, f)
			}
		}
	}
}

// head sends a header block of names and values.
func (p *peer) head(id uint32, end bool, fields ...string) {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		p.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block.Bytes(), EndHeaders: true, EndStream: end})
}

// ok answers with status 200 and a body.
func (p *peer) ok(id uint32, body string) {
	p.head(id, false, ":status", "200")
	p.WriteData(id, true, []byte(body))
}

// newClient returns a client of the app, which ends with the test.
func newClient(t *testing.T, a *app) *h2client.Client {
	t.Helper()
	return newClientOf(t, h2client.Settings{Dial: dialer(a), Unsettled: func() {}})
}

func newClientOf(t *testing.T, s h2client.Settings) *h2client.Client {
	t.Helper()
	c := h2client.New(s)
	t.Cleanup(c.Close)
	return c
}

func dialer(a *app) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", a.address)
	}
}

// An origin notes what it is told.
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
func (o *origin) StopBody() {
	if o.stop != nil {
		o.stop()
	}
}

// newCall returns a call that has begun, of a request without a body.
func newCall(method string) (*h2client.Call, *origin) {
	o := &origin{}
	c := &h2client.Call{Request: &forward.Request{
		Method: method, Target: "/a%2f;b//", Host: "app.example", AppHost: "app", Peer: "192.0.2.1", Length: -1,
	}, Origin: o}
	c.Begin()
	return c, o
}

// newUpload is newCall with a body that is still to come.
func newUpload(method string, body io.Reader) (*h2client.Call, *origin) {
	c, o := newCall(method)
	c.Body, c.Request.Chunked = body, true
	if b, ok := body.(*blocked); ok {
		o.stop = b.stop
	}
	return c, o
}

// get makes a call for the response's whole body. The exchange has ended.
func get(client *h2client.Client, c *h2client.Call) (status int, body string, err error) {
	r, err := c.Do(client)
	if err != nil {
		return 0, "", err
	}
	defer r.Close()
	body, err = content(r)
	return r.Head.Status, body, err
}

// content reads a body to its end.
func content(r *h2client.Response) (string, error) {
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

// mustGet is get where all has to be well.
func mustGet(t *testing.T, client *h2client.Client) string {
	t.Helper()
	c, _ := newCall("GET")
	status, body, err := get(client, c)
	if status != 200 || err != nil {
		t.Fatalf("got %d, %v, want 200", status, err)
	}
	return body
}

// fault returns what a call has failed by; 0: by no fault.
func fault(err error) forward.Fault {
	var e *forward.Error
	if errors.As(err, &e) {
		return e.Fault
	}
	return 0
}

// blocked is a body that gives what it is given, and then nothing until it is stopped.
type blocked struct {
	io.Reader
	once    sync.Once
	stopped chan struct{}
	waits   chan struct{} // closed when nothing is left
}

func newBlocked(text string) *blocked {
	return &blocked{Reader: bytes.NewReader([]byte(text)), stopped: make(chan struct{}), waits: make(chan struct{})}
}

func (b *blocked) stop() { b.once.Do(func() { close(b.stopped) }) }

func (b *blocked) Read(p []byte) (int, error) {
	if n, _ := b.Reader.Read(p); n > 0 {
		return n, nil
	}
	close(b.waits)
	<-b.stopped
	return 0, errors.New("stopped")
}

// zeros is a body without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// await waits for a channel.
func await[T any](t *testing.T, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("got no %s", what)
	}
	return v
}

// field returns the value of a field of a request.
func field(f *http2.MetaHeadersFrame, name string) string {
	i := slices.IndexFunc(f.Fields, func(h hpack.HeaderField) bool { return h.Name == name })
	if i < 0 {
		return ""
	}
	return f.Fields[i].Value
}

func itoa(n int) string { return strconv.Itoa(n) }

// long is head for a block of several frames, which ends the stream.
func (p *peer) long(id uint32, fields ...string) {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		p.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true})
	}
	b := p.block.Bytes()
	const most = 16 << 10
	p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:most], EndStream: true})
	for b = b[most:]; len(b) > most; b = b[most:] {
		p.WriteContinuation(id, false, b[:most])
	}
	p.WriteContinuation(id, true, b)
}
