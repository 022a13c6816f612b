//go:build linux

package netconn_test

import (
	"net"
	"testing"

	"go.uber.org/goleak"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCallbackRunsOnceForEachClose(t *testing.T) {
	w, err := netconn.NewWatcher()
	harness.NoError(t, err)
	defer w.Close()
	leave := map[string]func(c *net.TCPConn){
		"close":      func(c *net.TCPConn) { c.Close() },
		"half-close": func(c *net.TCPConn) { c.CloseWrite() },
		"reset":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"bytes, then close": func(c *net.TCPConn) {
			c.Write([]byte("GET / HTTP/1.1\r\n\r\n")) // unread input
			c.Close()
		},
	}
	for name, leave := range leave {
		t.Run(name, func(t *testing.T) {
			client, server := harness.Pair(t)
			gone := make(chan struct{}, 2)
			if w.Add(server, func() { gone <- struct{}{} }) == nil {
				t.Fatal("got no watch, want one")
			}
			leave(client)
			harness.Receive(t, gone, "call")
			server.Close()
			if len(gone) != 0 {
				t.Error("got a second call, want one")
			}
		})
	}
}

func TestAddDetectsEarlierClose(t *testing.T) {
	w, err := netconn.NewWatcher()
	harness.NoError(t, err)
	defer w.Close()
	client, server := harness.Pair(t)
	client.Close()
	gone := make(chan struct{})
	w.Add(server, func() { close(gone) })
	harness.Receive(t, gone, "call")
}

func TestStoppedWatchDoesNotCallBack(t *testing.T) {
	w, err := netconn.NewWatcher()
	harness.NoError(t, err)
	client, server := harness.Pair(t)
	called := false
	w.Add(server, func() { called = true }).Stop()

	// The events of two connections arrive in order.
	other, watched := harness.Pair(t)
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
