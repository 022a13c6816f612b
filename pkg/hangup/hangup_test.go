//go:build linux

package hangup_test

import (
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a TCP connection.
func pair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	harness.NoError(t, err)
	s, err := ln.Accept()
	harness.NoError(t, err)
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestGoneIsCalledOnceForEachWayOfLeaving(t *testing.T) {
	w, err := hangup.New()
	harness.NoError(t, err)
	defer w.Close()
	leave := map[string]func(c *net.TCPConn){
		"close":      func(c *net.TCPConn) { c.Close() },
		"half-close": func(c *net.TCPConn) { c.CloseWrite() },
		"reset":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"bytes, then close": func(c *net.TCPConn) {
			c.Write([]byte("GET / HTTP/1.1\r\n\r\n")) // nobody reads it
			c.Close()
		},
	}
	for name, leave := range leave {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t)
			gone := make(chan struct{}, 2)
			if w.Add(server, func() { gone <- struct{}{} }) == nil {
				t.Fatal("got no watch, want one")
			}
			leave(client)
			select {
			case <-gone:
			case <-time.After(5 * time.Second):
				t.Fatal("got no call within 5 s of the client leaving, want one")
			}
			server.Close()
			if len(gone) != 0 {
				t.Error("got a second call, want one")
			}
		})
	}
}

func TestAClientThatLeftBeforeTheWatchIsNoticed(t *testing.T) {
	w, err := hangup.New()
	harness.NoError(t, err)
	defer w.Close()
	client, server := pair(t)
	client.Close()
	gone := make(chan struct{})
	w.Add(server, func() { close(gone) })
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		t.Fatal("got no call, want one")
	}
}

func TestAStoppedWatchDoesNotCall(t *testing.T) {
	w, err := hangup.New()
	harness.NoError(t, err)
	client, server := pair(t)
	called := false
	w.Add(server, func() { called = true }).Stop()

	// A second connection's event comes after the first one's.
	other, watched := pair(t)
	gone := make(chan struct{})
	w.Add(watched, func() { close(gone) })
	client.Close()
	other.Close()
	<-gone
	w.Close()
	if called {
		t.Error("got a call after Stop, want none")
	}
}
