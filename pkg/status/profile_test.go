package status

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A slowReader takes the head of an answer, and its body only once it is released.
type slowReader struct {
	*httptest.ResponseRecorder
	blocked chan<- struct{} // gets a value when the body waits
	release <-chan struct{}
}

func (w *slowReader) Write(p []byte) (int, error) {
	if w.Code == http.StatusOK {
		w.blocked <- struct{}{}
		<-w.release
	}
	return len(p), nil
}

// profileOf is a request for a profile, by peer.
func profileOf(path, peer string) *http.Request {
	return request("/debug/pprof/"+path, peer, "localhost")
}

// 256 clients at once who ask for all stacks and read slowly each held a buffer of at
// least 1 MiB.
func TestManyGoroutineDumpsAtOnceCostTheMemoryOfOne(t *testing.T) {
	for name, peer := range map[string]string{"a loopback peer": near, "another pod": far} {
		t.Run(name, func(t *testing.T) {
			const clients, bound = 256, 16 << 20
			h := board(probe.State{}, Drain{}).Handler(http.NotFoundHandler(), true)
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
			for range clients { // each has an answer, or waits for its client
				select {
				case <-blocked:
					admitted++
				case w := <-refused:
					if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
						t.Errorf("got %d with Retry-After %q, want 503 with 1", w.Code, w.Header().Get("Retry-After"))
					}
				}
			}
			grown := liveHeap() - before
			close(release)
			all.Wait()
			t.Logf("%d of %d dumps were made at once and hold %d KiB", admitted, clients, grown>>10)
			if admitted != 1 || grown > bound {
				t.Errorf("got %d dumps at once that hold %d bytes, want 1 and at most %d", admitted, grown, bound)
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

// hold serves a profile to a client that does not read it, and returns how to end that.
func hold(h http.Handler, path, peer string) (end func()) {
	blocked, release := make(chan struct{}), make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		h.ServeHTTP(&slowReader{httptest.NewRecorder(), blocked, release}, profileOf(path, peer))
	})
	<-blocked
	return func() { close(release); done.Wait() }
}

func TestAProfileIsRefusedOnlyWhileAnotherOfItsKindIsMade(t *testing.T) {
	for name, v := range map[string]struct {
		path, peer string
		want       int
	}{
		"a second dump":              {"goroutine?debug=2", far, 503},
		"a dump of another kind":     {"heap", far, 503},
		"a dump by somebody on host": {"goroutine?debug=2", near, 200},
		"what needs no profile":      {"cmdline", far, 200},
		"the index":                  {"", far, 200},
		"a recording":                {"mutex?seconds=30", far, 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := board(probe.State{}, Drain{}).Handler(http.NotFoundHandler(), true)
				end := hold(h, "goroutine?debug=2", far)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, profileOf(v.path, v.peer))
				harness.Equal(t, w.Code, v.want, "while a dump is made")
				end()
				w = httptest.NewRecorder()
				h.ServeHTTP(w, profileOf("goroutine?debug=2", far))
				harness.Equal(t, w.Code, http.StatusOK, "afterwards")
			})
		})
	}
}

// A recording keeps its place while it waits for its time to pass.
func TestTwoRecordingsAreMadeAtOnceAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := board(probe.State{}, Drain{}).Handler(http.NotFoundHandler(), false)
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
			t.Errorf("of 20 at once: got %d made and %d refused, want 2 and 18", made.Load(), refused.Load())
		}
	})
}
