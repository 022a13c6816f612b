package nethttp_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestTheDrainsDeadlineCutsWhatIsInFlight(t *testing.T) {
	app := &blocking{free: make(chan struct{})}
	defer close(app.free)
	proxy := startHandler(t, app, nil)
	c := proxy.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	harness.Until(t, "running request", func() bool { return app.running.Load() == 1 })
	proxy.Queue.Drain.Begin(true)
	proxy.Queue.Drain.Abort()
	m := c.Receive("GET")
	if want := `queue-proxy; error=destination_unavailable; details="draining"`; m.Status() != 503 || m.Body != "shutting down\n" || m.Get("proxy-status") != want || !m.Closes() {
		t.Errorf("got %d %q, Proxy-Status %q, close %v, want 503, %q, close true", m.Status(), m.Body, m.Get("proxy-status"), m.Closes(), want)
	}
}

func TestTheSlotIsHeldUntilTheAppIsDone(t *testing.T) {
	var most, now atomic.Int32
	proxy := startHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, strings.Repeat("x", 10_000))
	}), func(p *queue.Proxy, _ *proxytest.Options) { p.Limit = queue.NewLimit(3, 100) })
	var all sync.WaitGroup
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		client := proxy.Client(protocol)
		for range 10 {
			all.Go(func() {
				for i := range 30 {
					r, err := client.Post("http://"+proxy.Address+"/", "", strings.NewReader(strings.Repeat("y", i*100)))
					if err != nil {
						t.Error(err)
						return
					}
					n, err := io.Copy(io.Discard, r.Body)
					r.Body.Close()
					if r.StatusCode != 200 || n != 10_000 || err != nil {
						t.Errorf("got %d, %d bytes, %v, want 200, 10000", r.StatusCode, n, err)
					}
				}
			})
		}
	}
	all.Wait()
	if got := most.Load(); got > 3 {
		t.Errorf("got %d requests in the app at once, want at most 3", got)
	}
	if running, waiting := proxy.Queue.Limit.Load(); running != 0 || waiting != 0 {
		t.Errorf("got %d running and %d waiting after the last answer, want none", running, waiting)
	}
}
