package crowd_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/crowd"
)

const patience = 10 * time.Second

// serve starts a server of at most so many connections: / is answered at once,
// /wait when the test lets it.
func serve(t *testing.T, most int) (addr string, release chan struct{}) {
	t.Helper()
	release = make(chan struct{})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			io.WriteString(w, "begun")
			http.NewResponseController(w).Flush()
			<-release
		}
	})}
	crowd.Bound(s, most)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return ln.Addr().String(), release
}

func dial(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a request and reads its answer's head.
func ask(c net.Conn, path string) error {
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil && r.StatusCode != 200 {
		err = errors.New(r.Status)
	}
	return err
}

func TestTheConnectionThatWasWithoutARequestForLongestIsEnded(t *testing.T) {
	addr, _ := serve(t, 3)
	half := dial(t, addr, "GET / HTTP/1.1\r\nHos")
	idle := dial(t, addr, "")
	if err := ask(idle, "/"); err != nil {
		t.Fatal(err)
	}
	last := dial(t, addr, "")
	if err := ask(last, "/"); err != nil {
		t.Fatal(err)
	}
	for i, c := range []net.Conn{half, idle, last} { // in this order
		next := dial(t, addr, "")
		if err := ask(next, "/"); err != nil {
			t.Fatalf("connection %d more: %v", i+1, err)
		}
		if _, err := io.Copy(io.Discard, c); err != nil && isTimeout(err) {
			t.Errorf("connection %d more: the one before has not been ended: %v", i+1, err)
		}
	}
}

func TestAConnectionWhoseRequestIsServedIsNotEndedForAnother(t *testing.T) {
	addr, release := serve(t, 3)
	var busy []net.Conn
	for range 3 {
		c := dial(t, addr, "")
		if err := ask(c, "/wait"); err != nil {
			t.Fatal(err)
		}
		busy = append(busy, c)
	}
	for range 5 {
		if err := ask(dial(t, addr, ""), "/"); err == nil || isTimeout(err) {
			t.Fatalf("one too many: got %v, want its end", err)
		}
	}
	close(release)
	for i, c := range busy {
		b := make([]byte, 64)
		if n, err := c.Read(b); err != nil {
			t.Errorf("busy connection %d: got %q, %v, want the rest of its answer", i, b[:n], err)
		}
	}
	for i := range 3 { // they are idle now
		if err := ask(dial(t, addr, ""), "/"); err != nil {
			t.Errorf("connection %d after them: %v", i+1, err)
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
