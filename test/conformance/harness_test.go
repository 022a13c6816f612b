package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// This file contains helpers for tests of shutdown, timeouts and restarts: an HTTP/2
// client that returns each frame, and clients that send many requests and record the
// result of each request.

// An h2Event is a frame that was received from a server.
type h2Event struct {
	frame  http2.FrameType
	stream uint32
	code   http2.ErrCode // error code, set for RST_STREAM and GOAWAY
	last   uint32        // last stream ID, set for GOAWAY
	fields []field       // decoded header block, set for HEADERS
	data   string        // payload, set for DATA
	end    bool          // the frame has the END_STREAM flag
	credit int           // increment, set for WINDOW_UPDATE

	connects bool // the SETTINGS frame contains SETTINGS_ENABLE_CONNECT_PROTOCOL with the value 1
}

func (e h2Event) String() string {
	return fmt.Sprintf("%v stream %d code %v last %d end %v %v %.60q", e.frame, e.stream, e.code, e.last, e.end, e.fields, e.data)
}

// An h2Peer is an HTTP/2 client connection. It acknowledges SETTINGS and PING, replenishes the
// flow control windows, and records all frames.
type h2Peer struct {
	t *testing.T
	net.Conn

	sending sync.Mutex
	framer  *http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder

	mu     sync.Mutex
	events []h2Event
	end    error // error that ended the connection; nil while it is open
}

// dialH2 opens an HTTP/2 connection and waits for the SETTINGS of the server.
func dialH2(t *testing.T, addr string) *h2Peer {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newH2Peer(t, c)
}

func newH2Peer(t *testing.T, c net.Conn) *h2Peer {
	t.Helper()
	p := &h2Peer{t: t, Conn: c, framer: http2.NewFramer(c, c)}
	p.encoder = hpack.NewEncoder(&p.block)
	p.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.SetDeadline(time.Now().Add(2 * patience))
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := p.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.read()
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	p.await("the server's SETTINGS", func(e h2Event) bool { return e.frame == http2.FrameSettings })
	return p
}

func (p *h2Peer) read() {
	for {
		f, err := p.framer.ReadFrame()
		if err != nil {
			p.mu.Lock()
			p.end = err
			p.mu.Unlock()
			return
		}
		e := h2Event{frame: f.Header().Type, stream: f.Header().StreamID}
		p.sending.Lock()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			v, _ := f.Value(http2.SettingEnableConnectProtocol)
			e.connects = v == 1
			if !f.IsAck() {
				p.framer.WriteSettingsAck()
			}
		case *http2.WindowUpdateFrame:
			e.credit = int(f.Increment)
		case *http2.PingFrame:
			if !f.IsAck() {
				p.framer.WritePing(true, f.Data)
			}
		case *http2.MetaHeadersFrame:
			e.end = f.StreamEnded()
			for _, h := range f.Fields {
				e.fields = append(e.fields, field{h.Name, h.Value})
			}
		case *http2.DataFrame:
			e.data, e.end = string(f.Data()), f.StreamEnded()
			if n := uint32(len(f.Data())); n > 0 {
				p.framer.WriteWindowUpdate(0, n)
				p.framer.WriteWindowUpdate(f.StreamID, n)
			}
		case *http2.RSTStreamFrame:
			e.code = f.ErrCode
		case *http2.GoAwayFrame:
			e.code, e.last = f.ErrCode, f.LastStreamID
		}
		p.sending.Unlock()
		p.mu.Lock()
		p.events = append(p.events, e)
		p.mu.Unlock()
	}
}

// open sends the header section of a request. If end is true, the request has no body.
func (p *h2Peer) open(stream uint32, end bool, method, target string, fields ...string) {
	p.t.Helper()
	all := []field{{":method", method}, {":scheme", "http"}, {":authority", "a.test"}, {":path", target}}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		all = append(all, field{strings.ToLower(name), value})
	}
	if err := p.raw(stream, end, all); err != nil {
		p.t.Fatalf("stream %d: send: %v", stream, err)
	}
}

// control calls write when no other frame is being written.
func (p *h2Peer) control(write func(*http2.Framer) error) {
	p.t.Helper()
	p.sending.Lock()
	defer p.sending.Unlock()
	if err := write(p.framer); err != nil {
		p.t.Fatal(err)
	}
}

// raw sends a block of fields without validation.
func (p *h2Peer) raw(stream uint32, end bool, fields []field) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	p.block.Reset()
	for _, f := range fields {
		p.encoder.WriteField(hpack.HeaderField{Name: f.Name, Value: f.Value})
	}
	return p.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: p.block.Bytes(), EndStream: end, EndHeaders: true,
	})
}

// data sends a part of a request body.
func (p *h2Peer) data(stream uint32, end bool, text string) {
	p.t.Helper()
	p.sending.Lock()
	defer p.sending.Unlock()
	if err := p.framer.WriteData(stream, end, []byte(text)); err != nil {
		p.t.Fatalf("stream %d: send: %v", stream, err)
	}
}

// reset sends RST_STREAM.
func (p *h2Peer) reset(stream uint32, code http2.ErrCode) {
	p.t.Helper()
	p.sending.Lock()
	defer p.sending.Unlock()
	if err := p.framer.WriteRSTStream(stream, code); err != nil {
		p.t.Fatalf("stream %d: send: %v", stream, err)
	}
}

// seen returns the frames received so far and the error that ended the connection.
func (p *h2Peer) seen() ([]h2Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]h2Event(nil), p.events...), p.end
}

// await waits for the first frame that matches.
func (p *h2Peer) await(what string, is func(h2Event) bool) (found h2Event) {
	p.t.Helper()
	poll(p.t, what, func() error {
		events, end := p.seen()
		for _, e := range events {
			if is(e) {
				found = e
				return nil
			}
		}
		if end != nil {
			p.t.Fatalf("%s: connection closed with %v after %v", what, end, events)
		}
		return errNotYet
	})
	return found
}

// goAway waits for the first GOAWAY frame.
func (p *h2Peer) goAway() h2Event {
	p.t.Helper()
	return p.await("a GOAWAY", func(e h2Event) bool { return e.frame == http2.FrameGoAway })
}

// goAways waits until the connection ends and returns all GOAWAY frames.
func (p *h2Peer) goAways() (all []h2Event) {
	p.t.Helper()
	poll(p.t, "the server closes the connection", func() error {
		if _, end := p.seen(); end == nil {
			return errNotYet
		}
		return nil
	})
	events, end := p.seen()
	if !errors.Is(end, io.EOF) {
		p.t.Errorf("connection closed with %v, want EOF", end)
	}
	for _, e := range events {
		if e.frame == http2.FrameGoAway {
			all = append(all, e)
		}
	}
	return all
}

// An h2Answer is the response of a stream.
type h2Answer struct {
	status int
	fields []field // header fields of the response
	body   string
	reset  http2.ErrCode // error code of RST_STREAM; NO_ERROR if the stream was not reset
	cut    bool          // the stream was reset before the end of the response
}

func (a h2Answer) get(name string) string {
	if v := values(a.fields, name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// answer waits until a stream ends. RST_STREAM after a complete response only asks the client
// to stop sending (RFC 9113 section 8.1), so it does not set cut.
func (p *h2Peer) answer(stream uint32) (a h2Answer) {
	p.t.Helper()
	p.await(fmt.Sprintf("the end of stream %d", stream), func(e h2Event) bool {
		return e.stream == stream && (e.end || e.frame == http2.FrameRSTStream)
	})
	events, _ := p.seen()
	ended := false
	for _, e := range events {
		if e.stream != stream {
			continue
		}
		if e.frame == http2.FrameHeaders && a.status == 0 {
			for _, f := range e.fields {
				if f.Name == ":status" {
					a.status, _ = strconv.Atoi(f.Value)
				}
			}
			a.fields = e.fields
		}
		a.body += e.data
		ended = ended || e.end
		if e.frame == http2.FrameRSTStream {
			a.reset, a.cut = e.code, !ended
		}
	}
	return a
}

// draining waits until a probe reports that the pod is shutting down.
func (p *proxy) draining() {
	p.t.Helper()
	p.poll("probes report the drain", func() error {
		if m := dial(p.t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 503 || m.Body != shuttingDown {
			return fmt.Errorf("got %q with %q", m.Start, m.Body)
		}
		return nil
	})
}

// awaitLog waits until a log line contains all words.
func (p *proxy) awaitLog(words ...string) {
	p.t.Helper()
	p.poll(fmt.Sprintf("the log contains %q", words), func() error {
		if !p.out.HasLine(words...) {
			return errNotYet
		}
		return nil
	})
}

// An attempt is a client's record of one request.
type attempt struct {
	id, client string
	method     string
	began      time.Time
	ended      time.Time
	fresh      bool // first request on its connection
	dialled    bool // the client could connect
	begun      bool // at least one byte of a response has arrived
	whole      bool // the response is complete
	status     int
	body       string
	word       string // reason in Proxy-Status; empty if the response is not from the sidecar
	err        error
}

func (a attempt) String() string {
	return fmt.Sprintf("%s %s by %s: fresh %v, dialled %v, begun %v, whole %v, status %d, word %q, body %.40q, error %v",
		a.method, a.id, a.client, a.fresh, a.dialled, a.begun, a.whole, a.status, a.word, a.body, a.err)
}

// traffic is a group of clients. Each client sends requests sequentially until the group is
// stopped, and records the results.
type traffic struct {
	t    *testing.T
	p    *proxy
	stop chan struct{}
	halt sync.Once
	all  sync.WaitGroup

	mu      sync.Mutex
	ledger  []attempt
	closes  []websocket.StatusCode // status codes of received Close frames
	noClose []error                // errors of WebSocket connections that ended without a Close frame
	echoed  int                    // number of echoed WebSocket messages
}

func newTraffic(t *testing.T, p *proxy) *traffic {
	c := &traffic{t: t, p: p, stop: make(chan struct{})}
	t.Cleanup(c.end)
	return c
}

// end stops all clients and waits for their last responses.
func (c *traffic) end() {
	c.halt.Do(func() { close(c.stop) })
	c.all.Wait()
}

func (c *traffic) stopped() bool {
	select {
	case <-c.stop:
		return true
	case <-c.p.done: // the sidecar has exited
		return true
	default:
		return false
	}
}

func (c *traffic) note(a attempt) {
	a.ended = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ledger = append(c.ledger, a)
}

// attempts returns the recorded requests.
func (c *traffic) attempts() []attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]attempt(nil), c.ledger...)
}

// answered returns the number of complete responses so far.
func (c *traffic) answered() (n int) {
	for _, a := range c.attempts() {
		if a.whole {
			n++
		}
	}
	return n
}

// pause is the delay before a client retries to connect.
const pause = 5 * time.Millisecond

// http1 adds n HTTP/1.1 clients. They use persistent connections or a new connection for each
// request. If a connection ends before the first byte of a response, the client sends the
// request again on a new connection, as RFC 9112 section 9.3.1 allows. The second attempt has a
// new ID, so both attempts are recorded.
func (c *traffic) http1(n int, keepAlive bool, method, target string) {
	name := "h1 close"
	if keepAlive {
		name = "h1 keep-alive"
	}
	for range n {
		c.all.Go(func() {
			client := &http1Client{traffic: c, name: name, keepAlive: keepAlive, method: method, target: target}
			defer client.hangUp()
			for !c.stopped() {
				a := client.request()
				c.note(a)
				if !a.dialled {
					time.Sleep(pause)
				}
			}
		})
	}
}

// An http1Client sends requests sequentially over HTTP/1.1.
type http1Client struct {
	*traffic
	name, method, target string
	keepAlive            bool

	conn net.Conn // nil if the next request needs a new connection
	in   *bufio.Reader
}

func (k *http1Client) hangUp() {
	if k.conn != nil {
		k.conn.Close()
	}
	k.conn = nil
}

// request sends a request and reads the response.
func (k *http1Client) request() attempt {
	a := attempt{id: newID(), client: k.name, method: k.method, began: time.Now()}
	if k.conn == nil {
		a.fresh = true
		conn, err := net.Dial("tcp", k.p.addr())
		if err != nil {
			a.err = err
			return a
		}
		k.conn, k.in = conn, bufio.NewReader(conn)
	}
	a.dialled = true
	k.conn.SetDeadline(time.Now().Add(patience))
	fields, body := []string{"X-Id: " + a.id}, ""
	if !k.keepAlive {
		fields = append(fields, "Connection: close")
	}
	if k.method == "POST" {
		fields, body = append(fields, "Content-Length: 4"), "body"
	}
	var m *message
	if _, a.err = io.WriteString(k.conn, request(k.method, k.target, fields...)+body); a.err == nil {
		m, a.err = readResponse(k.in, k.method)
	}
	if m != nil && m.Start != "" {
		a.begun, a.status, a.body = true, m.status(), m.Body
		a.word = word(m.get("Proxy-Status"))
		if a.err == nil {
			a.err = m.Cut
		}
	}
	a.whole = a.begun && a.err == nil
	if !a.whole || !k.keepAlive || strings.EqualFold(m.get("Connection"), "close") {
		k.hangUp()
	}
	return a
}

// h2c adds Go HTTP/2 clients. The parameter each is the number of concurrent requests on each
// connection.
func (c *traffic) h2c(connections, each int, target string) {
	for range connections {
		client := httpClient(c.t, "h2c")
		client.Timeout = patience
		for range each {
			c.all.Go(func() {
				for !c.stopped() {
					a := attempt{id: newID(), client: "h2c", method: "GET", began: time.Now()}
					r, _ := http.NewRequest("GET", c.p.url(target), nil)
					r.Header.Set("X-Id", a.id)
					var answer *http.Response
					if answer, a.err = client.Do(r); a.err == nil {
						a.begun, a.status = true, answer.StatusCode
						a.word = word(answer.Header.Get("Proxy-Status"))
						var b []byte
						b, a.err = io.ReadAll(answer.Body)
						answer.Body.Close()
						a.body, a.whole = string(b), a.err == nil
					}
					a.dialled = !errors.Is(a.err, syscall.ECONNREFUSED)
					c.note(a)
					if !a.dialled {
						time.Sleep(pause)
					}
				}
			})
		}
	}
}

// webSockets adds WebSocket clients. Each client waits for the echo of a message before it sends
// the next message, and sends a Close frame when the group is stopped.
func (c *traffic) webSockets(n int) {
	for i := range n {
		c.all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			defer cancel()
			ws, _, err := websocket.Dial(ctx, "ws://"+c.p.addr()+"/ws", nil)
			if err != nil {
				c.t.Errorf("WebSocket %d: %v", i, err)
				return
			}
			defer ws.CloseNow()
			for !c.stopped() {
				want := newID()
				err := ws.Write(ctx, websocket.MessageText, []byte(want))
				var got []byte
				if err == nil {
					_, got, err = ws.Read(ctx)
				}
				if err == nil && string(got) != want {
					err = fmt.Errorf("got %q, want %q", got, want)
				}
				c.mu.Lock()
				switch code := websocket.CloseStatus(err); {
				case err == nil:
					c.echoed++
				case code != -1:
					c.closes = append(c.closes, code)
				default:
					c.noClose = append(c.noClose, err)
				}
				c.mu.Unlock()
				if err != nil {
					return
				}
			}
			if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil {
				c.t.Errorf("WebSocket %d: close: %v", i, err)
			}
		})
	}
}

// word returns the reason in the Proxy-Status member of queue-proxy.
func word(status string) string {
	for member := range strings.SplitSeq(status, ",") {
		member = strings.TrimSpace(member)
		if !strings.HasPrefix(member, "queue-proxy") {
			continue
		}
		if _, rest, ok := strings.Cut(member, `details="`); ok {
			w, _, _ := strings.Cut(rest, `"`)
			return w
		}
		return "no reason"
	}
	return ""
}

// A restartableApp is a user container whose server can be stopped and started again on the same
// address.
type restartableApp struct {
	p       *proxy
	handler http.Handler

	mu     sync.Mutex
	server *http.Server
	conns  map[net.Conn]bool
	hard   atomic.Bool // close connections with RST
}

func (a *restartableApp) start() {
	a.p.t.Helper()
	var speaks http.Protocols
	speaks.SetHTTP1(true)
	speaks.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: a.handler, Protocols: &speaks, ErrorLog: quiet}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch state {
		case http.StateNew:
			a.conns[c] = true
		case http.StateClosed:
			delete(a.conns, c)
		}
	}
	l := a.p.listen()
	a.mu.Lock()
	a.server, a.conns = s, map[net.Conn]bool{}
	a.mu.Unlock()
	go s.Serve(l)
}

// kill immediately closes the server and all its connections, like the kernel when a process is
// killed.
func (a *restartableApp) kill() {
	a.mu.Lock()
	s := a.server
	if a.hard.Load() {
		for c := range a.conns {
			if tcp, ok := c.(*net.TCPConn); ok {
				tcp.SetLinger(0)
			}
		}
	}
	a.mu.Unlock()
	s.Close()
}
