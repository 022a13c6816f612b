package nethttp_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestTheSlotIsHeldUntilTheAppIsDone(t *testing.T) {
	var most, now atomic.Int32
	proxy := startHandler(t, func(w http.ResponseWriter, r *http.Request) {
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
	}, func(p *queue.Proxy, _ *proxytest.Options) { p.Limit = queue.NewLimit(3, 100) })
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
