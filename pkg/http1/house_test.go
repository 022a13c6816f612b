package http1_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/http1"
	"github.com/queue-proxy/queue-proxy/pkg/http2"
	"github.com/queue-proxy/queue-proxy/pkg/nethttp"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/stats"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 10 * time.Second

// An app is a user container that says what a test wants it to say. It closes a
// connection when play returns.
type app struct {
	ln   net.Listener
	port int

	mu    sync.Mutex
	turns int
	open  map[net.Conn]bool
	saw   []string // the request lines that came
}

// peer is one connection as the user container sees it.
type peer struct {
	net.Conn
	in   *bufio.Reader
	app  *app
	turn int // how many connections were used before
}

func newApp(t testing.TB, play func(p *peer)) *app {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveApp(t, ln, play)
}

func serveApp(t testing.TB, ln net.Listener, play func(p *peer)) *app {
	a := &app{ln: ln, port: ln.Addr().(*net.TCPAddr).Port, open: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p := &peer{Conn: c, in: bufio.NewReader(c), app: a}
			a.mu.Lock()
			a.open[c] = true
			a.mu.Unlock()
			all.Go(func() {
				defer func() {
					c.Close()
					a.mu.Lock()
					delete(a.open, c)
					a.mu.Unlock()
				}()
				if p.acquainted() {
					return
				}
				a.mu.Lock()
				p.turn = a.turns
				a.turns++
				a.mu.Unlock()
				play(p)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		a.mu.Lock()
		for c := range a.open {
			c.Close()
		}
		a.mu.Unlock()
		all.Wait()
	})
	return a
}

// acquaintance is what a house says to an app to hear what it speaks.
const acquaintance = "/acquaintance"

// acquainted answers an acquaintance, which is no part of any play.
func (p *peer) acquainted() bool {
	begin := "GET " + acquaintance
	if b, _ := p.in.Peek(len(begin)); string(b) != begin {
		return false
	}
	_, _ = readHead(p.in)
	p.say("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	return true
}

// listenAgain listens where an app did that has closed its listener.
func listenAgain(t testing.TB, a *app) net.Listener {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) { // while somebody has taken the port
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", a.port))
		if err == nil {
			return ln
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// request reads a whole request; nil when none came.
func (p *peer) request() *message {
	m := p.head()
	if m == nil {
		return nil
	}
	if m.readBody(p.in) != nil {
		return nil
	}
	return m
}

// head reads a request's head; nil when none came.
func (p *peer) head() *message {
	m, err := readHead(p.in)
	if err != nil {
		return nil
	}
	p.app.mu.Lock()
	p.app.saw = append(p.app.saw, m.start)
	p.app.mu.Unlock()
	return m
}

func (p *peer) say(s string) { io.WriteString(p, s) }

// hang waits until the other side has closed the connection.
func (p *peer) hang() { io.Copy(io.Discard, p.in) }

// lines returns the request lines that came.
func (a *app) lines() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.saw)
}

// connections returns how many connections have been made.
func (a *app) connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.turns
}

// echo answers each request with its target.
func echo(p *peer) {
	for {
		m := p.request()
		if m == nil {
			return
		}
		p.say(ok(m.target()))
	}
}

// ok is a response with a body.
func ok(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// A message is a request or a response as it stood on the wire.
type message struct {
	start    string
	fields   []string // "name: value", the name in lower case
	body     string
	trailers []string
	told     bool // by a length or the last chunk where the body ends
}

func (m *message) target() string { return strings.Split(m.start, " ")[1] }

func (m *message) status() int {
	n, _ := strconv.Atoi(strings.Split(m.start, " ")[1])
	return n
}

// get returns the values of a field, joined.
func (m *message) get(name string) string {
	var all []string
	for _, f := range m.fields {
		if n, v, _ := strings.Cut(f, ": "); n == name {
			all = append(all, v)
		}
	}
	return strings.Join(all, "|")
}

var errNotHTTP = errors.New("not HTTP/1.1")

// readLine reads a line that ends in CRLF.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return line, err
	}
	text, found := strings.CutSuffix(line, "\r\n")
	if !found || strings.Contains(text, "\r") {
		return "", errNotHTTP
	}
	return text, nil
}

func readFields(r *bufio.Reader) (fields []string, err error) {
	for {
		line, err := readLine(r)
		if line == "" || err != nil {
			return fields, err
		}
		name, value, found := strings.Cut(line, ":")
		if !found || strings.ContainsAny(name, " \t") {
			return nil, errNotHTTP
		}
		fields = append(fields, strings.ToLower(name)+": "+strings.Trim(value, " \t"))
	}
}

func readHead(r *bufio.Reader) (*message, error) {
	start, err := readLine(r)
	if err != nil {
		return nil, err
	}
	if strings.Count(start, " ") < 2 && !strings.HasPrefix(start, "HTTP/") {
		return nil, errNotHTTP
	}
	fields, err := readFields(r)
	return &message{start: start, fields: fields}, err
}

// readBody reads a body of a request, or of a response that may have one.
func (m *message) readBody(r *bufio.Reader) error {
	response := strings.HasPrefix(m.start, "HTTP/")
	coding, length := m.get("transfer-encoding"), m.get("content-length")
	switch {
	case coding != "" && length != "":
		return errNotHTTP
	case coding == "chunked":
		for {
			line, err := readLine(r)
			if err != nil {
				return err
			}
			n, err := strconv.ParseUint(line, 16, 31)
			if err != nil {
				return err
			}
			if n == 0 {
				m.trailers, err = readFields(r)
				m.told = err == nil
				return err
			}
			if err := m.take(r, int64(n)); err != nil {
				return err
			}
			if end, err := readLine(r); err != nil || end != "" {
				return cmp.Or(err, errNotHTTP)
			}
		}
	case coding != "":
		return errNotHTTP
	case length != "":
		n, err := strconv.ParseInt(length, 10, 64)
		if err != nil {
			return err
		}
		m.told = true
		return m.take(r, n)
	case response:
		b, err := io.ReadAll(r)
		m.body += string(b)
		return err
	}
	m.told = true
	return nil
}

func (m *message) take(r *bufio.Reader, n int64) error {
	var b bytes.Buffer
	_, err := io.CopyN(&b, r, n)
	m.body += b.String()
	return err
}

// readResponse reads an answer to a request with the method, informational ones
// apart.
func readResponse(r *bufio.Reader, method string) (infos []*message, m *message, err error) {
	for {
		if m, err = readHead(r); err != nil {
			return infos, m, err
		}
		status := m.status()
		if status >= 200 || status == 101 {
			break
		}
		infos = append(infos, m)
	}
	if s := m.status(); method == "HEAD" || s == 101 || s == 204 || s == 304 {
		m.told = true
		return infos, m, nil
	}
	return infos, m, m.readBody(r)
}

// A house is an engine in front of an app, with everything that lies between.
type house struct {
	t       testing.TB
	proxy   *queue.Proxy
	app     *upstream.App
	http1   *http1.Server
	http2   *http2.Server
	nethttp *nethttp.Server
	client  *h2client.Client
	address string
	secure  *tls.Config // a client's; nil: plain
	log     *safeBuffer
	served  chan error // Serve's result
	end     sync.Once

	mu   sync.Mutex
	seen []queue.Observation
}

// settings of a house, with what most tests leave alone.
type settings struct {
	http1.Settings
	reference bool // net/http serves all
	unknown   bool // nobody has heard the app yet
	narrow    bool // the engine's sockets hold little
	secure    bool // over TLS
}

// build makes a house in front of an app that has been heard to speak HTTP/1.1.
// change may alter its parts before anybody comes.
func build(t testing.TB, a *app, change func(*queue.Proxy, *settings)) *house {
	t.Helper()
	h := &house{t: t, log: &safeBuffer{}, served: make(chan error, 1)}
	h.proxy = &queue.Proxy{
		Ready: func(context.Context) error { return nil },
		Drain: queue.NewDrain(queue.DrainSettings{}),
		Stats: stats.New(time.Now()),
		Observe: func(o *queue.Observation) {
			h.mu.Lock()
			defer h.mu.Unlock()
			seen := *o
			for _, s := range []*string{&seen.Method, &seen.Target, &seen.Host} {
				*s = strings.Clone(*s)
			}
			h.seen = append(h.seen, seen)
		},
	}
	s := settings{Settings: http1.Settings{MaxHeaderBytes: 256 << 10, AppHost: fmt.Sprintf("127.0.0.1:%d", a.port)}}
	if change != nil {
		change(h.proxy, &s)
	}
	watcher, err := hangup.New()
	if err != nil {
		t.Fatal(err)
	}
	h.app = upstream.New(upstream.Settings{Port: a.port, ConnectRetry: 50 * time.Millisecond})
	h.client = h2client.New(h2client.Settings{Dial: h.app.Dial, Unsettled: h.app.Forget})
	h.nethttp = nethttp.New(nethttp.Settings{
		MaxHeaderBytes: s.MaxHeaderBytes,
		MaxBodyBytes:   s.MaxBodyBytes,
		HeaderTimeout:  s.HeaderTimeout,
		FullDuplex:     s.FullDuplex,
		AppHost:        s.AppHost,
	}, h.proxy, h.app, h.client, watcher, log.New(h.log, "", 0))
	h.http2 = http2.New(http2.Settings{
		MaxHeaderBytes: s.MaxHeaderBytes,
		MaxBodyBytes:   s.MaxBodyBytes,
		HeaderTimeout:  s.HeaderTimeout,
		AppHost:        s.AppHost,
	}, h.proxy, h.app, h.client)
	s.HTTP2 = h.http2.ServeConn
	h.http1 = http1.New(s.Settings, h.proxy, h.app, h.client, watcher)

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = ln.Addr().String()
	if raw, err := ln.(*net.TCPListener).SyscallConn(); s.narrow && err == nil {
		_ = raw.Control(narrow)
	}
	var config *tls.Config
	if s.secure {
		config, h.secure = configs(t)
	}
	go func() {
		if s.reference {
			h.served <- h.nethttp.Serve(ln, config)
		} else {
			h.served <- h.http1.Serve(ln, config)
		}
	}()
	t.Cleanup(func() {
		h.shutdown()
		if err := <-h.served; err != nil {
			t.Errorf("Serve: got %v, want nil", err)
		}
		h.app.Close()
		h.client.Close()
		watcher.Close()
		if text := h.log.String(); strings.Contains(text, "panic") || strings.Contains(text, "superfluous") {
			t.Errorf("net/http said:\n%s", text)
		}
	})
	if !s.unknown {
		h.acquaint()
	}
	return h
}

// configs returns the TLS configurations of a server and of its clients.
func configs(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return &tls.Config{Certificates: []tls.Certificate{pair}}, &tls.Config{InsecureSkipVerify: true}
}

// connect opens a connection, in TLS if that is what is served.
func (h *house) connect(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", h.address)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	if h.secure != nil {
		return tls.Client(c, h.secure)
	}
	return c
}

// shutdown ends both engines in their order, once.
func (h *house) shutdown() {
	h.end.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = h.http1.Shutdown(ctx)
		_ = h.http2.Shutdown(ctx)
		_ = h.nethttp.Shutdown(ctx)
	})
}

// nobody is a client that waits for nothing.
type nobody struct{}

func (nobody) Sending()            {}
func (nobody) Info(*wire.Response) {}
func (nobody) Waiting()            {}
func (nobody) StopBody()           {}
func (nobody) BodyArrived() bool   { return false }

// acquaint has the app be heard to speak HTTP/1.1, by a request that does not
// count.
func (h *house) acquaint() {
	c := &upstream.Call{
		Request: &forward.Request{Method: "GET", Target: acquaintance, Host: "a", Length: -1},
		Client:  nobody{},
	}
	c.Begin()
	r, err := c.Do(h.app)
	for err == nil {
		_, err = r.Next()
	}
	if err != io.EOF {
		h.t.Fatal(err)
	}
	r.Close()
}

// counts is what the engine counts.
type counts struct{ served, given uint64 }

func (h *house) counts() (c counts) {
	c.served, c.given = h.http1.Counts()
	return c
}

// wantCounts reports an error unless the engine has counted so.
func (h *house) wantCounts(served, given uint64) {
	h.t.Helper()
	if got, want := h.counts(), (counts{served, given}); got != want {
		h.t.Errorf("got %+v, want %+v", got, want)
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// observed waits for n observations.
func (h *house) observed(n int) []queue.Observation {
	h.t.Helper()
	var seen []queue.Observation
	h.poll(fmt.Sprintf("%d observations", n), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		seen = slices.Clone(h.seen)
		return len(seen) >= n
	})
	return seen
}

func (h *house) poll(what string, ok func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("got no %s within %v", what, patience)
		}
	}
}

// inFlight waits until so many requests are in flight.
func (h *house) inFlight(n int) {
	h.t.Helper()
	h.poll(fmt.Sprintf("%d in flight", n), func() bool { got, _ := h.proxy.Drain.Flights(); return got == n })
}

// A client is a connection that a test writes by hand.
type client struct {
	*net.TCPConn
	t testing.TB
	r *bufio.Reader
}

func (h *house) dial() *client { return h.dialBy(&net.Dialer{}) }

func (h *house) dialBy(d *net.Dialer) *client {
	h.t.Helper()
	c, err := d.Dial("tcp", h.address)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &client{TCPConn: c.(*net.TCPConn), t: h.t, r: bufio.NewReader(c)}
}

// narrow makes a socket, and what is accepted from it, hold as little as the kernel
// allows.
func narrow(fd uintptr) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1)
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1)
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// receive reads the final response to a request with the method.
func (c *client) receive(method string) *message {
	c.t.Helper()
	_, m, err := readResponse(c.r, method)
	if err != nil {
		c.t.Fatalf("reading a response: %v", err)
	}
	return m
}

// wantBody reads a response to a GET with that body.
func (c *client) wantBody(want string) {
	c.t.Helper()
	if m := c.receive("GET"); m.status() != http.StatusOK || m.body != want {
		c.t.Errorf("got %s %.100q, want 200 %.100q", m.start, m.body, want)
	}
}

// get asks for a path, whose answer is the path.
func (c *client) get(path string) {
	c.t.Helper()
	c.send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
	c.wantBody(path)
}

// ended reports an error unless the connection ends without another byte.
func (c *client) ended() {
	c.t.Helper()
	if b, err := c.r.ReadByte(); err == nil {
		rest, _ := io.ReadAll(c.r)
		c.t.Errorf("got %q, want the connection to end", string(b)+string(rest))
	} else if isTimeout(err) {
		c.t.Error("got silence, want the connection to end")
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
