package status

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A slowReader is a ResponseWriter that blocks writes of the body until it is released.
type slowReader struct {
	*httptest.ResponseRecorder
	blocked chan<- struct{} // receives a value when a write blocks
	release <-chan struct{}
}

func (w *slowReader) Write(p []byte) (int, error) {
	if w.Code == http.StatusOK {
		w.blocked <- struct{}{}
		<-w.release
	}
	return len(p), nil
}

// profileOf returns a request from peer for a profile.
func profileOf(path, peer string) *http.Request {
	return request("/debug/pprof/"+path, peer, "localhost")
}

// Previously, each of 256 concurrent clients that requested all stacks and read slowly held at least 1 MiB.
func TestConcurrentDumpsAreLimitedToOne(t *testing.T) {
	for name, peer := range map[string]string{"local client": near, "other client": far} {
		t.Run(name, func(t *testing.T) {
			const clients, limit = 256, 16 << 20
			h := board(observation.Readiness{}, Drain{}).Handler(http.NotFoundHandler(), true)
			blocked, release, refused := make(chan struct{}, clients), make(chan struct{}), make(chan *slowReader, clients)
			before := liveHeap()
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					w := &slowReader{httptest.NewRecorder(), blocked, release}
					if h.ServeHTTP(w, profileOf("goroutine?debug=2", peer)); w.Code != http.StatusOK {
						refused <- w
					}
				})
			}
			admitted := 0
			for range clients { // each request has a response or blocks
				select {
				case <-blocked:
					admitted++
				case w := <-refused:
					if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
						t.Errorf("got status %d, Retry-After %q; want 503, 1", w.Code, w.Header().Get("Retry-After"))
					}
				}
			}
			grown := liveHeap() - before
			close(release)
			all.Wait()
			t.Logf("%d of %d concurrent dumps were served and hold %d KiB", admitted, clients, grown>>10)
			if admitted != 1 || grown > limit {
				t.Errorf("got %d concurrent dumps that hold %d bytes, want 1 dump and at most %d bytes", admitted, grown, limit)
			}
		})
	}
}

func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// hold requests a profile with a client that does not read the response until end is called.
func hold(h http.Handler, path, peer string) (end func()) {
	blocked, release := make(chan struct{}), make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		h.ServeHTTP(&slowReader{httptest.NewRecorder(), blocked, release}, profileOf(path, peer))
	})
	<-blocked
	return func() { close(release); done.Wait() }
}

func TestProfileLimitsArePerKindAndClient(t *testing.T) {
	for name, v := range map[string]struct {
		path, peer string
		want       int
	}{
		"second dump":             {"goroutine?debug=2", far, 503},
		"dump of another kind":    {"heap", far, 503},
		"dump for a local client": {"goroutine?debug=2", near, 200},
		"command line":            {"cmdline", far, 200},
		"index":                   {"", far, 200},
		"recording":               {"mutex?seconds=30", far, 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := board(observation.Readiness{}, Drain{}).Handler(http.NotFoundHandler(), true)
				end := hold(h, "goroutine?debug=2", far)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, profileOf(v.path, v.peer))
				harness.Equal(t, w.Code, v.want, "status during another dump")
				end()
				w = httptest.NewRecorder()
				h.ServeHTTP(w, profileOf("goroutine?debug=2", far))
				harness.Equal(t, w.Code, http.StatusOK, "status after the dump")
			})
		})
	}
}

// A recording uses its slot for its whole duration.
func TestConcurrentRecordingsAreLimitedToTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := board(observation.Readiness{}, Drain{}).Handler(http.NotFoundHandler(), false)
		var made, refused atomic.Int32
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, profileOf("mutex?seconds=30", near))
				switch w.Code {
				case http.StatusOK:
					made.Add(1)
				case http.StatusServiceUnavailable:
					refused.Add(1)
				}
			})
		}
		all.Wait()
		if made.Load() != 2 || refused.Load() != 18 {
			t.Errorf("got %d recordings and %d responses with 503, want 2 and 18", made.Load(), refused.Load())
		}
	})
}
