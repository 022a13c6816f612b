package nethttp_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
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
func startHandler(t *testing.T, app http.Handler, change func(*queue.Proxy, *proxytest.Options)) *proxytest.Proxy {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "PRI" { // net/http shows the preface of HTTP/2 to its handlers
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
			return
		}
		app.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	return start(t, server.Listener.Addr().(*net.TCPAddr).Port, change)
}

// targets records the request targets that an app sees.
type targets struct {
	mu   sync.Mutex
	list []string
}

func (l *targets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	l.mu.Lock()
	l.list = append(l.list, r.RequestURI)
	l.mu.Unlock()
	io.WriteString(w, r.RequestURI)
}

func (l *targets) get() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// blocking is an app whose requests wait to be freed, and that tells when the
// client of one has gone.
type blocking struct {
	running atomic.Int32
	gone    atomic.Int32
	free    chan struct{}
}

func (b *blocking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.running.Add(1)
	defer b.running.Add(-1)
	select {
	case <-b.free:
	case <-r.Context().Done():
		b.gone.Add(1)
	}
}
