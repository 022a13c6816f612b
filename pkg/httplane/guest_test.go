package httplane_test

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/httplane"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/stats"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
)

// An inn is a lane that has guests alone.
type inn struct {
	lane *httplane.Lane
	seen chan queue.Observation
}

func newInn(t *testing.T, app http.HandlerFunc) *inn {
	t.Helper()
	server := httptest.NewServer(app)
	t.Cleanup(server.Close)
	n := &inn{seen: make(chan queue.Observation, 10)}
	proxy := &queue.Proxy{
		Ready:   func(context.Context) error { return nil },
		Drain:   queue.NewDrain(queue.DrainSettings{}),
		Stats:   stats.New(time.Now()),
		Observe: func(o *queue.Observation) { n.seen <- *o },
	}
	port := server.Listener.Addr().(*net.TCPAddr).Port
	a := upstream.New(upstream.Settings{Port: port})
	n.lane = httplane.New(httplane.Settings{MaxHeaderBytes: 1 << 20, AppPort: port}, proxy, a, nil, log.New(io.Discard, "", 0))
	done := make(chan error)
	go func() { done <- n.lane.ServeGuests() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = n.lane.Shutdown(ctx)
		if err := <-done; err != nil {
			t.Errorf("ServeGuests: got %v, want nil", err)
		}
		a.Close()
	})
	return n
}

// pair returns both ends of a connection.
func pair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestALoanShowsOneRequestAndReturnsTheRest(t *testing.T) {
	n := newInn(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RequestURI) })
	client, server := pair(t)
	guest := n.lane.Guest(server, nil)
	in := bufio.NewReader(client)
	for range 3 {
		rest, back := guest.Lend([]byte("GET /one HTTP/1.1\r\nHost: a\r\n\r\nGET /two HTTP/1.1\r\n"))
		if want := "GET /two HTTP/1.1\r\n"; !back || string(rest) != want {
			t.Fatalf("got %q, back %v, want %q, true", rest, back, want)
		}
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(r.Body); string(body) != "/one" || r.Close {
			t.Errorf("got %q, close %v, want /one, false", body, r.Close)
		}
	}
	if _, back := guest.Lend([]byte("GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")); back {
		t.Error("got a connection back that the client wanted to end, want it closed")
	}
}

func TestAGuestWhoseClientLeftBeforeItCameIsNotServed(t *testing.T) {
	n := newInn(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	client, server := pair(t)
	guest := n.lane.Guest(server, nil)
	guest.Hangup()
	if _, back := guest.Lend([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")); back {
		t.Error("got the connection back, want it closed")
	}
	if o := <-n.seen; o.Why != queue.ClientGone {
		t.Errorf("got %v, want %v", o.Why, queue.ClientGone)
	}
	if b, _ := io.ReadAll(client); len(b) > 0 {
		t.Errorf("got %q, want nothing", b)
	}
}
