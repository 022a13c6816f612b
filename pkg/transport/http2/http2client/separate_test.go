package http2client_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// newReceiving returns an app that responds to requests without content. seen receives the index of the connection
// of each request.
func newReceiving(t *testing.T) (a *app, seen chan int) {
	seen = make(chan int, 1000)
	return newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
		seen <- p.index
		if f.StreamEnded() {
			p.ok(f.StreamID, "")
		}
	}}), seen
}

// startUpload starts a request whose content does not end before the test ends.
func startUpload(t *testing.T, client *http2client.Client) <-chan error {
	t.Helper()
	body := harness.NewBlockedBody("")
	c, _ := newUpload("POST", body)
	done := run(client, c)
	t.Cleanup(func() { c.Abort(); <-done })
	return done
}

// newInterceptedClient returns a client that calls intercept before each dial except the first. If intercept returns
// an error, the dial fails. dials is the number of dials.
func newInterceptedClient(t *testing.T, a *app, intercept func() error) (client *http2client.Client, dials *atomic.Int32) {
	dials = new(atomic.Int32)
	return newClientOf(t, http2client.Settings{Unsettled: func() {}, Dial: func(ctx context.Context) (net.Conn, error) {
		if dials.Add(1) > 1 {
			if err := intercept(); err != nil {
				return nil, err
			}
		}
		return dialer(a)(ctx)
	}}), dials
}

func TestContentOfClientsUsesSeparateConnections(t *testing.T) {
	a, seen := newReceiving(t)
	client := newClient(t, a)
	for i := range 3 {
		startUpload(t, client)
		harness.Equal(t, harness.Receive(t, seen, "request"), i, "connection of the upload")
	}
	mustGet(t, client)
	harness.Equal(t, harness.Receive(t, seen, "request"), 0, "connection of a request without content")
	harness.Equal(t, a.connections(), 3, "connections")
}

func TestSeparateConnectionsAreBounded(t *testing.T) {
	a, seen := newReceiving(t)
	client := newFullClient(t, a, 5)
	for range 10 {
		startUpload(t, client)
		harness.Receive(t, seen, "request")
	}
	harness.Equal(t, a.connections(), 5, "connections")
}

// The user container accepts one connection.
func TestContentSharesConnectionAfterFailedDial(t *testing.T) {
	a, seen := newReceiving(t)
	client, dials := newInterceptedClient(t, a, func() error { return errors.New("refused") })
	for range 4 {
		startUpload(t, client)
		harness.Equal(t, harness.Receive(t, seen, "request"), 0, "connection")
	}
	harness.Equal(t, dials.Load(), 2, "dials")
}

// The user container serves one connection at a time.
func TestContentSharesConnectionWithoutSettings(t *testing.T) {
	seen := make(chan int, 10)
	a := newApp(t, func(p *peer) {
		if p.index == 0 && p.Greet() == nil {
			p.follow(script{headers: func(*peer, *http2.MetaHeadersFrame) { seen <- 0 }})
		}
	})
	client := newClientOf(t, http2client.Settings{Dial: dialer(a), Unsettled: func() { t.Error("Unsettled is called") }})
	for range 3 {
		startUpload(t, client)
		harness.Receive(t, seen, "request")
	}
	harness.Equal(t, a.connections(), 2, "connections")
}

func TestRequestsDoNotWaitForSeparateConnection(t *testing.T) {
	a, seen := newReceiving(t)
	dialing, release := make(chan struct{}), make(chan struct{})
	client, _ := newInterceptedClient(t, a, func() error {
		close(dialing)
		<-release
		return nil
	})
	startUpload(t, client)
	harness.Receive(t, seen, "first upload")
	startUpload(t, client)
	harness.Receive(t, dialing, "dial")
	mustGet(t, client)
	harness.Equal(t, harness.Receive(t, seen, "request without content"), 0, "connection")
	close(release)
	harness.Equal(t, harness.Receive(t, seen, "second upload"), 1, "connection")
}
