package http2_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// selectiveApp never reads the content of requests for /unread. It reads the content of other requests and then
// responds. Each connection has the default window of 65,535 bytes.
type selectiveApp struct {
	unread      atomic.Int32 // number of requests for /unread
	connections atomic.Int32
}

func (a *selectiveApp) serve(c *harness.AppConn) {
	f := c.Frames()
	if f.Greet() != nil {
		return
	}
	a.connections.Add(1)
	unread := map[uint32]bool{}
	f.Follow(func(frame xhttp2.Frame) {
		switch frame := frame.(type) {
		case *xhttp2.MetaHeadersFrame:
			if frame.PseudoValue("path") == "/unread" {
				unread[frame.StreamID] = true
				a.unread.Add(1)
			}
			if frame.StreamEnded() {
				_ = f.WriteHead(frame.StreamID, true, ":status", "200")
			}
		case *xhttp2.DataFrame:
			if unread[frame.StreamID] {
				return
			}
			if n := frame.Length; n > 0 {
				_ = f.WriteWindowUpdate(0, n)
				_ = f.WriteWindowUpdate(frame.StreamID, n)
			}
			if frame.StreamEnded() {
				_ = f.WriteHead(frame.StreamID, true, ":status", "200")
			}
		}
	})
}

// upload sends content of n bytes. If declared is false, the request has no Content-Length.
func upload(ctx context.Context, client *http.Client, url string, n int, declared bool) error {
	var body io.Reader = bytes.NewReader(make([]byte, n))
	if !declared {
		body = io.MultiReader(body)
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return err
	}
	r, err := client.Do(q)
	if err == nil {
		r.Body.Close()
	}
	return err
}

func TestUnreadUploadsDoNotDelayOtherClients(t *testing.T) {
	for _, declared := range []bool{false, true} {
		var app selectiveApp
		ctx, cancel := context.WithCancel(t.Context())
		p := proxytest.Start(t, harness.NewApp(t, app.serve), nil)
		other := newClient2(t)
		harness.NoError(t, upload(ctx, other, "http://"+p.Address+"/", 100, declared))
		attacker := newClient2(t)
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() { _ = upload(ctx, attacker, "http://"+p.Address+"/unread", 100_000, declared) })
		}
		harness.Until(t, "the application receives the requests", func() bool { return app.unread.Load() == 60 })
		for _, n := range []int{1, 100, 10_000, 100_000, 1_000_000} {
			harness.NoError(t, upload(ctx, other, "http://"+p.Address+"/", n, true))
			harness.NoError(t, upload(ctx, other, "http://"+p.Address+"/", n, false))
		}
		if got := app.connections.Load(); got > 4 {
			t.Errorf("got %d connections to the application, want at most 4", got)
		}
		cancel()
		all.Wait()
	}
}
