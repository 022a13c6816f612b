package harness

import (
	"bufio"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// ProtocolRequest is the target of a request that an App answers with 204 by itself: a
// proxy that sends it finds out that the app speaks HTTP/1.1. It counts as no
// connection and no request.
const ProtocolRequest = "/protocol"

// An App is a user container that a test scripts: a function serves each of its
// connections, which ends when the function returns.
type App struct {
	Listener net.Listener
	Port     int

	over chan struct{} // closed at the end of the test

	mu       sync.Mutex
	used     int // connections on which something has come
	open     map[net.Conn]bool
	requests []string
}

// An AppConn is a connection as the app has it.
type AppConn struct {
	*net.TCPConn
	In    *bufio.Reader // what the proxy sends
	Index int           // how many connections were used before

	app *App
}

// NewApp starts an app on a port of its own. It ends with the test.
func NewApp(t testing.TB, serve func(c *AppConn)) *App {
	t.Helper()
	return ServeApp(t, Listen(t), serve)
}

// ServeApp is NewApp on a listener, which it closes at the end of the test.
//
// serve gets the connections on which something comes and no others: on a busy machine
// another process may connect to what was its own port before.
func ServeApp(t testing.TB, ln net.Listener, serve func(c *AppConn)) *App {
	a := &App{Listener: ln, Port: ln.Addr().(*net.TCPAddr).Port, over: make(chan struct{}), open: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() { a.serve(c.(*net.TCPConn), serve) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		close(a.over)
		a.closeAll()
		running.Wait()
	})
	return a
}

func (a *App) serve(tcp *net.TCPConn, serve func(c *AppConn)) {
	tcp.SetDeadline(time.Now().Add(Patience))
	a.mu.Lock()
	if a.open == nil { // the test is over
		a.mu.Unlock()
		tcp.Close()
		return
	}
	a.open[tcp] = true
	a.mu.Unlock()
	defer func() {
		tcp.Close()
		a.mu.Lock()
		delete(a.open, tcp)
		a.mu.Unlock()
	}()
	c := &AppConn{TCPConn: tcp, In: bufio.NewReader(tcp), app: a}
	first, err := c.In.Peek(1)
	detection := string(first) == "@" // a bad request, by which the sidecar detects the protocol
	if err != nil || !detection && c.answerProtocolRequest() {
		return
	}
	a.mu.Lock()
	c.Index = a.used
	if !detection {
		a.used++
	}
	a.mu.Unlock()
	serve(c)
}

func (a *App) closeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.open {
		c.Close()
	}
	a.open = nil
}

// Address returns the app's host and port.
func (a *App) Address() string { return a.Listener.Addr().String() }

// Connections returns how many connections have been used.
func (a *App) Connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// Requests returns the request lines that AppConn.Head and AppConn.Request have read.
func (a *App) Requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// Forget begins to count connections and requests anew.
func (a *App) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used, a.requests = 0, nil
}

func (c *AppConn) answerProtocolRequest() bool {
	begin := "GET " + ProtocolRequest
	if b, _ := c.In.Peek(len(begin)); string(b) != begin {
		return false
	}
	_, _ = ReadHead(c.In)
	c.Send("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	return true
}

// Head reads a request's head; nil: none has come.
func (c *AppConn) Head() *Message {
	m, err := ReadHead(c.In)
	if err != nil {
		return nil
	}
	c.app.mu.Lock()
	defer c.app.mu.Unlock()
	c.app.requests = append(c.app.requests, m.Start)
	return m
}

// Request reads a request with its body; nil: none has come.
func (c *AppConn) Request() *Message {
	m := c.Head()
	if m == nil || m.ReadBody(c.In) != nil {
		return nil
	}
	return m
}

// Frames returns the connection as one that speaks HTTP/2, from here on.
func (c *AppConn) Frames() *Frames { return NewFrames(bufferedConn{c.TCPConn, c.In}) }

// A bufferedConn is a connection of which a part has been read ahead.
type bufferedConn struct {
	*net.TCPConn
	in *bufio.Reader
}

func (c bufferedConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// Send writes bytes. That the other side has gone is no error here.
func (c *AppConn) Send(text string) { _, _ = io.WriteString(c, text) }

// Hang waits until the other side has closed the connection.
func (c *AppConn) Hang() { _, _ = io.Copy(io.Discard, c.In) }

// Idle waits until the end of the test, and reads nothing.
func (c *AppConn) Idle() { <-c.app.over }

// Reset closes the connection with a reset.
func (c *AppConn) Reset() {
	c.SetLinger(0)
	c.Close()
}

// Echo is an app that answers each request with its target.
func Echo(c *AppConn) {
	for m := c.Request(); m != nil; m = c.Request() {
		c.Send(OK(m.Target()))
	}
}

// Listen listens on a free port of this host.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	return ListenOn(t, "127.0.0.1:0")
}

// ListenOn listens on an address. It waits while another process has taken the port.
func ListenOn(t testing.TB, address string) (ln net.Listener) {
	t.Helper()
	Until(t, "free port", func() (ok bool) {
		var err error
		ln, err = net.Listen("tcp", address)
		return err == nil
	})
	return ln
}

// FreePorts returns ports that nobody listens on, and no port twice.
func FreePorts(t testing.TB, n int) (ports []string) {
	t.Helper()
	for range n {
		ln := ListenOn(t, ":0")
		defer ln.Close()
		_, port, err := net.SplitHostPort(ln.Addr().String())
		NoError(t, err)
		ports = append(ports, port)
	}
	return ports
}
