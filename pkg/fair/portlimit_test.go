package fair_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

const headBytes = 10 << 10

// serve starts a server with a limit of most connections. The server responds to / immediately. The
// response to /wait ends after the test closes release, the response to /body after the client has sent
// its body, and the response to /deaf after the client has read it.
func serve(t *testing.T, most int) (addr string, release chan struct{}) {
	addr, release, _ = serveWaiting(t, most)
	return addr, release
}

// serveWaiting is like serve, but also returns a channel that receives a value when a handler begins to
// wait for its client.
func serveWaiting(t *testing.T, most int) (addr string, release, waiting chan struct{}) {
	t.Helper()
	release, waiting = make(chan struct{}), make(chan struct{}, 100)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/wait":
			io.WriteString(w, "begun")
			http.NewResponseController(w).Flush()
			<-release
		case "/body":
			fair.Waiting(r.Context(), func() { waiting <- struct{}{}; io.Copy(io.Discard, r.Body) })
		case "/deaf":
			waiting <- struct{}{}
			w.Write(make([]byte, 64<<20))
		case "/come": // the body is received before the response begins
			fair.Waiting(r.Context(), func() { io.Copy(io.Discard, r.Body) })
			io.WriteString(w, "begun")
			http.NewResponseController(w).Flush()
			<-release
		}
	})}
	limit := fair.LimitPort(s, fair.PortLimits{Connections: most, HeadBytes: headBytes})
	ln := harness.Listen(t)
	done := make(chan error, 1)
	go func() { done <- s.Serve(limit.Listener(ln)) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return ln.Addr().String(), release, waiting
}

func dial(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	return dialFrom(t, "127.0.0.1", addr, text)
}

// dialFrom connects from another loopback address.
func dialFrom(t *testing.T, client, addr, text string) net.Conn {
	t.Helper()
	c := harness.DialBy(t, &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}, addr)
	c.Send(text)
	return c
}

// ask sends a request and reads the header of the response.
func ask(c net.Conn, path string) error {
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
	return answered(c)
}

// answered reads the header of a response, whose status must be 200.
func answered(c net.Conn) error {
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return err
}

func TestConnectionLimitClosesLongestIdle(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, 3)
	half := dial(t, addr, "GET / HTTP/1.1\r\nHos")
	idle := dial(t, addr, "")
	harness.NoError(t, ask(idle, "/"))
	last := dial(t, addr, "")
	harness.NoError(t, ask(last, "/"))
	for i, c := range []net.Conn{half, idle, last} { // the order matters
		next := dial(t, addr, "")
		harness.NoError(t, ask(next, "/"), "connection", i+1, "more")
		if _, err := io.Copy(io.Discard, c); err != nil && harness.IsTimeout(err) {
			t.Errorf("additional connection %d: got an open previous connection (%v), want it closed", i+1, err)
		}
	}
}

func TestConnectionLimitKeepsActiveConnection(t *testing.T) {
	t.Parallel()
	addr, release := serve(t, 3)
	var busy []net.Conn
	for range 3 {
		c := dial(t, addr, "")
		harness.NoError(t, ask(c, "/wait"))
		busy = append(busy, c)
	}
	for range 5 {
		if err := ask(dial(t, addr, ""), "/"); err == nil || harness.IsTimeout(err) {
			t.Fatalf("connection above the limit: got %v, want a closed connection", err)
		}
	}
	close(release)
	for i, c := range busy {
		b := make([]byte, 64)
		if n, err := c.Read(b); err != nil {
			t.Errorf("busy connection %d: got %q, %v, want the rest of the response", i, b[:n], err)
		}
	}
	for i := range 3 { // the connections are now idle
		if err := ask(dial(t, addr, ""), "/"); err != nil {
			t.Errorf("additional connection %d: got error %v, want none", i+1, err)
		}
	}
}

// A connection that is used occasionally is kept even if many unused connections are opened.
func TestConnectionLimitKeepsUsedConnection(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, 6)
	used := dial(t, addr, "")
	for range 5 {
		harness.NoError(t, ask(used, "/"), "a connection that is used")
		for _, text := range []string{"", "GET / HTTP/1.1\r\nHos", "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf"} {
			for range 6 {
				dial(t, addr, text)
			}
			harness.NoError(t, ask(dial(t, addr, ""), "/"), "additional connection") // the server has accepted all earlier connections
		}
	}
}

// A connection is closed in favor of others if its client does not send a body or does not read the
// response.
func TestConnectionLimitClosesWaitingRequest(t *testing.T) {
	t.Parallel()
	addr, release, waiting := serveWaiting(t, 3)
	defer close(release)
	come := dial(t, addr, "POST /come HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nb")
	if _, err := http.ReadResponse(bufio.NewReader(come), nil); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"half a body":                 "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf",
		"a response that is not read": "GET /deaf HTTP/1.1\r\nHost: a\r\n\r\n",
		"a body in small chunks":      "POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
	} {
		for range 2 {
			dial(t, addr, text)
			<-waiting
		}
		for i := range 3 {
			// The first attempts can fail because the server has not yet recorded that the other two
			// connections wait.
			harness.Until(t, name+": response with 2 waiting connections", func() bool { return ask(dial(t, addr, ""), "/") == nil })
			harness.NoError(t, ask(dial(t, addr, ""), "/"), name, "connection", i+1, "after 2 waiting connections")
		}
	}
	come.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := come.Read(make([]byte, 100)); !harness.IsTimeout(err) {
		t.Errorf("active connection: got %d bytes, %v, want an open connection", n, err)
	}
}
