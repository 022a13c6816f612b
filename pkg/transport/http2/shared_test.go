package http2_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// newClient2 returns an HTTP client that uses one HTTP/2 connection.
func newClient2(t *testing.T) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// sharedApp is an application that limits canceled requests like nghttp2, which Node.js uses, and
// sends control frames for each request like grpc-go.
type sharedApp struct {
	mu     sync.Mutex // held while a frame is handled
	stream func()     // completes the response to /stream
}

func (a *sharedApp) serve(c *harness.AppConn) {
	f := c.Frames()
	if f.Greet() != nil {
		return
	}
	resets := 0
	f.Follow(func(frame xhttp2.Frame) {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch frame := frame.(type) {
		case *xhttp2.MetaHeadersFrame:
			a.respond(f, frame)
		case *xhttp2.RSTStreamFrame:
			if resets++; resets >= 1000 {
				c.Close()
			}
		}
	})
}

func (a *sharedApp) respond(f *harness.Frames, request *xhttp2.MetaHeadersFrame) {
	id, path := request.StreamID, request.PseudoValue("path")
	for range 3 {
		_ = f.WriteWindowUpdate(0, 1)
		_ = f.WritePing(false, [8]byte{})
	}
	_ = f.WriteHead(id, path == "/fast", ":status", "200")
	if path == "/stream" {
		a.stream = func() { _ = f.WriteData(id, true, []byte("end")) }
	}
}

// callOften makes 5000 calls and cancels every second one. It returns the number of failed calls.
func callOften(t *testing.T, address string) int {
	busy := newClient2(t)
	var failed, number atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for n := number.Add(1); n <= 5000; n = number.Add(1) {
				ctx, cancel := context.WithCancel(t.Context())
				path := []string{"/fast", "/slow"}[n%2]
				q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, http.NoBody)
				if err != nil {
					panic(err)
				}
				r, err := busy.Do(q)
				if err != nil || r.StatusCode != http.StatusOK {
					failed.Add(1)
				}
				cancel()
				if err == nil {
					r.Body.Close()
				}
			}
		})
	}
	all.Wait()
	return int(failed.Load())
}

// The clients share the connections to the app, which closes a connection after many canceled requests. The
// sidecar opens another connection before that happens.
func TestBusyClientDoesNotCloseOtherStreams(t *testing.T) {
	var shared sharedApp
	p := proxytest.Start(t, harness.NewApp(t, shared.serve), nil)
	r, err := newClient2(t).Get("http://" + p.Address + "/stream")
	harness.NoError(t, err)
	defer r.Body.Close()
	harness.Equal(t, callOften(t, p.Address), 0, "failed calls")
	shared.mu.Lock()
	shared.stream()
	shared.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	harness.Equal(t, fmt.Sprintf("%s %v", body, err), "end <nil>", "stream of the other client")
	p.WantBounds()
}

// The app closes the connection if a header section exceeds its limit, like Netty.
func TestLongHeaderSectionDoesNotCloseSharedConnection(t *testing.T) {
	const limit = 8 << 10
	app := harness.NewApp(t, func(conn *harness.AppConn) {
		f := conn.Frames()
		if f.Greet(xhttp2.Setting{ID: xhttp2.SettingMaxHeaderListSize, Val: limit}) != nil {
			return
		}
		f.Follow(func(frame xhttp2.Frame) {
			switch request, _ := frame.(*xhttp2.MetaHeadersFrame); {
			case request == nil:
			case len(harness.FieldOf(request, "x-long")) > limit:
				conn.Close()
			default:
				_ = f.WriteHead(request.StreamID, request.PseudoValue("path") != "/stream", ":status", "200")
			}
		})
	})
	p := start(t, app.Listener, nil)
	r, err := p.Client("HTTP/2").Get("http://" + p.Address + "/stream")
	harness.NoError(t, err)
	defer r.Body.Close()
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Address, http.NoBody)
		harness.NoError(t, err)
		q.Header.Set("X-Long", strings.Repeat("x", 10<<10))
		long, err := p.Client(version).Do(q)
		harness.NoError(t, err)
		long.Body.Close()
		harness.Equal(t, long.StatusCode, http.StatusRequestHeaderFieldsTooLarge, "status", version)
	}
	harness.Equal(t, len(p.Observed(2)), 2, "requests that have ended, without the stream")
}
