package http1client

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// app returns an App for a user container that runs the given function. The App has already detected
// that the user container supports HTTP/1.1.
func app(t testing.TB, serve func(conn *harness.AppConn)) *App {
	t.Helper()
	a := unknownApp(t, harness.NewApp(t, serve).Port)
	a.versions.setH1(true)
	return a
}

// unknownApp returns an App without a detected protocol.
func unknownApp(t testing.TB, port int) *App {
	t.Helper()
	a := New(Settings{Port: port, Bounds: bound.NewRecorder()})
	t.Cleanup(a.Close)
	return a
}

// readRequest reads a request with its body. It returns nil if there is none.
func readRequest(conn *harness.AppConn) (r *http.Request, body string) {
	r = readHead(conn)
	if r == nil {
		return nil, ""
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, string(b)
	}
	return r, string(b)
}

// readHead reads the header section of a request. It returns nil if there is none.
func readHead(conn *harness.AppConn) *http.Request {
	r, err := http.ReadRequest(conn.In)
	if err != nil {
		return nil
	}
	return r
}

// answers sends the same response to each request.
func answers(text string) func(conn *harness.AppConn) {
	return func(conn *harness.AppConn) {
		for readHead(conn) != nil {
			conn.Send(text)
		}
	}
}

// answersOnce responds to the first request and reads no further input.
func answersOnce(text string) func(conn *harness.AppConn) {
	return func(conn *harness.AppConn) {
		readHead(conn)
		conn.Send(text)
		conn.Hang()
	}
}

// testCall is a Call with a client that records the calls to its methods.
type testCall struct {
	Call
	request rewrite.Request
	sends   int
	infos   []int
	stopped chan struct{} // closed by the first StopBody
	once    sync.Once
	arrived bool // the complete body has arrived

	// Optional hooks.
	sending, waiting, stop func()
}

// newCall returns a request for target without a body.
func newCall(method, target string) *testCall {
	k := &testCall{stopped: make(chan struct{})}
	k.request = rewrite.Request{Method: method, Target: target, Host: "app", Length: -1}
	k.Request, k.Client = &k.request, k
	return k
}

func (k *testCall) Sending() {
	k.sends++
	if k.sending != nil {
		k.sending()
	}
}

func (k *testCall) Info(r *wire.Response) { k.infos = append(k.infos, r.Status) }

func (k *testCall) Waiting() {
	if k.waiting != nil {
		k.waiting()
	}
}

func (k *testCall) StopBody() {
	k.once.Do(func() { close(k.stopped) })
	if k.stop != nil {
		k.stop()
	}
}

func (k *testCall) BodyArrived() bool { return k.arrived }

// head returns the header section that Do sends.
func (k *testCall) head() []byte { return k.request.AppendHTTP1(nil) }

// field adds a field to the header section.
func (k *testCall) field(name, value string) *testCall {
	k.request.Fields = append(k.request.Fields, wire.Field{Name: []byte(name), Value: []byte(value)})
	return k
}

// with adds a body to the request. The length -1 means chunked.
func (k *testCall) with(body io.Reader, length int64) *testCall {
	k.Body, k.request.Length, k.request.Chunked = body, length, length < 0
	return k
}

// outcome is the result of a request.
type outcome struct {
	status  int
	body    string
	trailer string
	err     error
}

// do sends the request and reads the complete response.
func (k *testCall) do(a *App) (got outcome) {
	r, err := k.Do(a)
	if err != nil {
		return outcome{err: err}
	}
	return k.finish(r)
}

// finish reads the rest of a response.
func (k *testCall) finish(r *Response) (got outcome) {
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
	r.Close()
	return got
}

// idle returns the number of idle connections.
func idle(a *App) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.idle)
}

// want checks a complete response.
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

// doOn is like do, but uses the given new connection.
func (k *testCall) doOn(a *App, c *clientConn) (got outcome) {
	k.attach(c)
	r, _, err := k.exchange(a, c)
	if err != nil {
		c.close()
		return outcome{err: err}
	}
	return k.finish(r)
}

// pipe is one end of a connection in memory. It is used with synctest, and for more connections than
// the host has ports.
type pipe struct {
	net.Conn          // reads the output of the other end
	out      net.Conn // the other end, which receives the output of this end
}

// pipes returns both ends of a connection in memory.
func pipes() (near, far *pipe) {
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

// slotted returns a connection that uses a slot, as if the App had opened it.
func slotted(a *App, nc net.Conn) *clientConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open++
	c := newClientConn(nc, a.buffers)
	c.slot.Store(a)
	return c
}
