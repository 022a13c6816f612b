package upstream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is how long anything here may take before the test has failed.
const bound = 20 * time.Second

// script is a user container that says what a test wants it to say. It closes
// a connection when play returns.
type script struct {
	ln   net.Listener
	port int
	over chan struct{}

	mu    sync.Mutex
	turns int // connections on which something has been said
	open  map[net.Conn]bool
}

// peer is one connection as the user container sees it.
type peer struct {
	*net.TCPConn
	in   *bufio.Reader
	turn int           // how many connections were used before
	over chan struct{} // closed at the end of the test
}

// serve starts a user container on the address, whose port may be 0.
func serve(t testing.TB, address string, play func(p *peer)) *script {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, ln, play)
}

// serveOn lets play have the connections on which something has been said: on a
// busy machine somebody else's test may knock at what was its port before.
func serveOn(t testing.TB, ln net.Listener, play func(p *peer)) *script {
	s := &script{ln: ln, port: ln.Addr().(*net.TCPAddr).Port, over: make(chan struct{}), open: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p := &peer{TCPConn: c.(*net.TCPConn), in: bufio.NewReader(c), over: s.over}
			p.SetDeadline(time.Now().Add(bound))
			s.mu.Lock()
			s.open[c] = true
			s.mu.Unlock()
			all.Go(func() {
				defer p.Close()
				if _, err := p.in.Peek(1); err != nil {
					return
				}
				s.mu.Lock()
				p.turn = s.turns
				s.turns++
				s.mu.Unlock()
				play(p)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		close(s.over)
		s.mu.Lock()
		for c := range s.open {
			c.Close()
		}
		s.mu.Unlock()
		all.Wait()
	})
	return s
}

// app returns an App for a user container that plays, and has been heard to
// speak HTTP/1.1.
func app(t testing.TB, play func(p *peer)) *App {
	t.Helper()
	a := stranger(t, serve(t, "127.0.0.1:0", play).port)
	a.speech.learnH1(true)
	return a
}

// stranger returns an App of which nothing is known.
func stranger(t testing.TB, port int) *App {
	t.Helper()
	a := New(Settings{Port: port})
	t.Cleanup(a.Close)
	return a
}

// connections returns how many connections have been used.
func (s *script) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turns
}

// request reads a request with its body; nil when none came.
func (p *peer) request() (r *http.Request, body string) {
	r = p.head()
	if r == nil {
		return nil, ""
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, string(b)
	}
	return r, string(b)
}

// head reads a request's head; nil when none came.
func (p *peer) head() *http.Request {
	r, err := http.ReadRequest(p.in)
	if err != nil {
		return nil
	}
	return r
}

// say sends bytes.
func (p *peer) say(s string) { io.WriteString(p, s) }

// hang waits until the other side has closed the connection.
func (p *peer) hang() { io.Copy(io.Discard, p.in) }

// rst closes the connection with a reset.
func (p *peer) rst() {
	p.SetLinger(0)
	p.Close()
}

// asker is a Call, and the client that it has come from, which remembers what an engine
// would have been told.
type asker struct {
	Call
	request forward.Request
	sends   int
	infos   []int
	stopped chan struct{} // closed by the first StopBody
	once    sync.Once
	arrived bool // all of the body

	// What is done on the way; nil: nothing.
	sending, waiting, stop func()
}

// ask returns a request for target without a body.
func ask(method, target string) *asker {
	k := &asker{stopped: make(chan struct{})}
	k.request = forward.Request{Method: method, Target: target, Host: "app", Length: -1}
	k.Request, k.Client = &k.request, k
	return k
}

func (k *asker) Sending() {
	k.sends++
	if k.sending != nil {
		k.sending()
	}
}

func (k *asker) Info(r *wire.Response) { k.infos = append(k.infos, r.Status) }

func (k *asker) Waiting() {
	if k.waiting != nil {
		k.waiting()
	}
}

func (k *asker) StopBody() {
	k.once.Do(func() { close(k.stopped) })
	if k.stop != nil {
		k.stop()
	}
}

func (k *asker) BodyArrived() bool { return k.arrived }

// head returns the head that is sent.
func (k *asker) head() []byte { return k.request.AppendHTTP1(nil) }

// field adds a field to the head.
func (k *asker) field(name, value string) *asker {
	k.request.Fields = append(k.request.Fields, wire.Field{Name: []byte(name), Value: []byte(value)})
	return k
}

// with gives the request a body; length -1: chunked.
func (k *asker) with(body io.Reader, length int64) *asker {
	k.Body, k.request.Length, k.request.Chunked = body, length, length < 0
	return k
}

// outcome is all that came of a request.
type outcome struct {
	status  int
	body    string
	trailer string
	err     error
	sent    bool
}

// do sends the request and takes the response to its end.
func (k *asker) do(a *App) (got outcome) {
	r, err := k.Do(a)
	if err != nil {
		return outcome{err: err}
	}
	return k.finish(r)
}

// finish takes a response to its end.
func (k *asker) finish(r *Response) (got outcome) {
	got.status = r.Head.Status
	var body strings.Builder
	for {
		data, err := r.Next()
		body.Write(data)
		if err == io.EOF {
			for _, f := range r.Trailer() {
				got.trailer += string(f.Name) + "=" + string(f.Value) + ";"
			}
			break
		}
		if err != nil {
			got.err = err
			break
		}
	}
	got.body = body.String()
	got.sent = r.Close()
	return got
}

// fault returns the fault of err, 0 where it has none.
func fault(err error) forward.Fault {
	var e *forward.Error
	if errors.As(err, &e) {
		return e.Fault
	}
	return 0
}

// idle returns how many connections wait for a request.
func idle(a *App) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.idle)
}

// want checks an answer that came whole.
func (got outcome) want(t *testing.T, status int, body string) {
	t.Helper()
	if got.err != nil || got.status != status || got.body != body {
		t.Fatalf("got %d %q, %v, want %d %q", got.status, short(got.body), got.err, status, short(body))
	}
}

func short(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}

// soon waits until a fact holds.
func soon(t *testing.T, fact string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got no sign within %v, want %s", bound, fact)
		}
	}
}

// within returns what f does, and fails the test if it takes too long.
func within[T any](t *testing.T, what string, f func() T) T {
	t.Helper()
	done := make(chan T, 1)
	go func() { done <- f() }()
	select {
	case v := <-done:
		return v
	case <-time.After(bound):
		t.Fatalf("%s: got nothing within %v", what, bound)
		panic("unreachable")
	}
}

// doOn is do on a given connection, fresh and never reused.
func (k *asker) doOn(a *App, c *conn) (got outcome) {
	k.attach(c)
	r, _, err := k.exchange(a, c)
	if err != nil {
		c.close()
		return outcome{err: err}
	}
	return k.finish(r)
}

// pipe is one end of a connection in memory, for bubbles of synctest and for
// numbers of connections that the system has no ports for.
type pipe struct {
	net.Conn          // in: what the other end writes
	out      net.Conn // where to write
}

// link returns both ends of a connection in memory.
func link() (near, far *pipe) {
	a, b := net.Pipe()
	c, d := net.Pipe()
	return &pipe{Conn: a, out: c}, &pipe{Conn: d, out: b}
}

func (p *pipe) Write(b []byte) (int, error)        { return p.out.Write(b) }
func (p *pipe) CloseWrite() error                  { return p.out.Close() }
func (p *pipe) Close() error                       { p.out.Close(); return p.Conn.Close() }
func (p *pipe) SetWriteDeadline(t time.Time) error { return p.out.SetWriteDeadline(t) }
func (p *pipe) SetDeadline(t time.Time) error {
	p.out.SetWriteDeadline(t)
	return p.Conn.SetReadDeadline(t)
}

// nobody returns a port on which nothing listens until open is called.
func nobody(t *testing.T) (port int, open func() net.Listener) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "nobody")
	t.Cleanup(func() { f.Close() })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return name.(*syscall.SockaddrInet4).Port, func() net.Listener {
		if err := syscall.Listen(fd, 16); err != nil {
			t.Fatal(err)
		}
		ln, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
}
