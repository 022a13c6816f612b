package nethttp_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// start starts this engine in front of the app on a port.
func start(t *testing.T, port int, change func(*queue.Proxy, *proxytest.Options)) *proxytest.Proxy {
	t.Helper()
	return proxytest.StartOn(t, port, func(p *queue.Proxy, o *proxytest.Options) {
		o.NetHTTP, o.UnknownApp = true, true
		if change != nil {
			change(p, o)
		}
	})
}

// startHandler is start in front of an app that is a handler, in HTTP/1.1.
func startHandler(t *testing.T, app http.HandlerFunc, change func(*queue.Proxy, *proxytest.Options)) *proxytest.Proxy {
	t.Helper()
	return start(t, serve(t, true, false, app), change)
}

type connKey struct{}

// serve starts an app that speaks HTTP/1.1, HTTP/2, or both, and returns its port.
func serve(t *testing.T, h1, h2 bool, app http.HandlerFunc) int {
	t.Helper()
	server := &http.Server{
		Protocols:   new(http.Protocols),
		ErrorLog:    log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "PRI" { // net/http shows the preface of HTTP/2 to its handlers
				w.WriteHeader(http.StatusHTTPVersionNotSupported)
				return
			}
			app(w, r)
		}),
	}
	server.Protocols.SetHTTP1(h1)
	server.Protocols.SetUnencryptedHTTP2(h2)
	ln := harness.Listen(t)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(ln) }()
	t.Cleanup(func() { server.Close(); <-ended })
	return ln.Addr().(*net.TCPAddr).Port
}

// breakOff closes the connection on which an app has got a request.
func breakOff(r *http.Request) { r.Context().Value(connKey{}).(net.Conn).Close() }
