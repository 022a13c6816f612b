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

// ProtocolRequest is a request target that an App answers with status 204. A proxy uses it to
// detect that the app supports HTTP/1.1. The request and its connection are not counted.
const ProtocolRequest = "/protocol"

// An App is a user container whose connections are served by a function of the test. A
// connection is closed when the function returns.
type App struct {
	Listener net.Listener
	Port     int

	over chan struct{} // closed at the end of the test

	mu       sync.Mutex
	used     int // number of connections with input
	open     map[net.Conn]bool
	requests []string
}

// An AppConn is the server side of a connection to an App.
type AppConn struct {
	*net.TCPConn
	In    *bufio.Reader // input of the connection
	Index int           // number of connections that were used before

	app *App
}

// NewApp starts an app on a free port. The app stops at the end of the test.
func NewApp(t testing.TB, serve func(c *AppConn)) *App {
	t.Helper()
	return ServeApp(t, Listen(t), serve)
}

// ServeApp is like NewApp, but uses the given listener and closes it at the end of the test.
//
// serve is called only for connections with input, because on a busy machine, a process of
// another test can connect to a port that was used before.
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
	if a.open == nil { // the test has ended, so close the connection
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
	detection := string(first) == "@" // the sidecar may send this invalid request to detect the protocol
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

// Address returns the host and port of the app.
func (a *App) Address() string { return a.Listener.Addr().String() }

// Connections returns the number of used connections.
func (a *App) Connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// Requests returns the request lines that were read by AppConn.Head and AppConn.Request.
func (a *App) Requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// Forget resets the number of connections and the list of requests.
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

// Head reads the header section of a request. It returns nil if the read fails.
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

// Request reads a request with its body. It returns nil if the read fails.
func (c *AppConn) Request() *Message {
	m := c.Head()
	if m == nil || m.ReadBody(c.In) != nil {
		return nil
	}
	return m
}

// Frames returns an HTTP/2 view of the connection. The caller must not use the connection
// directly afterwards.
func (c *AppConn) Frames() *Frames { return NewFrames(bufferedConn{c.TCPConn, c.In}) }

// A bufferedConn is a connection with buffered input.
type bufferedConn struct {
	*net.TCPConn
	in *bufio.Reader
}

func (c bufferedConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// Send writes text. It ignores errors, because the peer may have closed the connection.
func (c *AppConn) Send(text string) { _, _ = io.WriteString(c, text) }

// Hang waits until the peer closes the connection.
func (c *AppConn) Hang() { _, _ = io.Copy(io.Discard, c.In) }

// Idle waits until the end of the test without reading.
func (c *AppConn) Idle() { <-c.app.over }

// Reset closes the connection with RST.
func (c *AppConn) Reset() {
	c.SetLinger(0)
	c.Close()
}

// Echo serves requests with responses that contain the request target.
func Echo(c *AppConn) {
	for m := c.Request(); m != nil; m = c.Request() {
		c.Send(OK(m.Target()))
	}
}

// Listen listens on a free port of the loopback address.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	return ListenOn(t, "127.0.0.1:0")
}

// ListenOn listens on an address. If another process uses the port, ListenOn waits until the
// port is free.
func ListenOn(t testing.TB, address string) (ln net.Listener) {
	t.Helper()
	Until(t, "free port", func() (ok bool) {
		var err error
		ln, err = net.Listen("tcp", address)
		return err == nil
	})
	return ln
}

// FreePorts returns n different unused ports.
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
