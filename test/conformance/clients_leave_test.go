package conformance

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// worker is a user container that spends a fixed time on each request and counts concurrent
// requests.
type worker struct {
	time      time.Duration
	looks     bool // the handler returns when the client closes the connection
	now, most atomic.Int64
	came      atomic.Int64
}

func (w *worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.came.Add(1)
	n := w.now.Add(1)
	defer w.now.Add(-1)
	for most := w.most.Load(); n > most && !w.most.CompareAndSwap(most, n); most = w.most.Load() {
	}
	if r.URL.Path == "/now" {
		return
	}
	gone := r.Context().Done()
	if !w.looks {
		gone = nil
	}
	select {
	case <-time.After(w.time):
	case <-gone:
	}
	io.WriteString(rw, "done")
}

// sendAndDisconnect sends a request and closes the connection after 20 ms, while the app is
// processing the request or the request is queued.
func (p *proxy) sendAndDisconnect(h1 bool) {
	p.t.Helper()
	if h1 {
		c := p.sendGet("/work")
		time.Sleep(20 * time.Millisecond) // wait, because the clients must close their connections at different stages
		c.Close()
		return
	}
	client := httpClient(p.t, "h2c")
	client.Timeout = 20 * time.Millisecond
	if res, err := client.Get(p.url("/work")); err == nil {
		res.Body.Close()
	}
	client.CloseIdleConnections()
}

func TestLimitHoldsAfterClientsDisconnect(t *testing.T) {
	for _, protocol := range []string{"h1", "h2c"} {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			w := &worker{time: 300 * time.Millisecond}
			p.appSpeaking(w, "h1")
			p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=100")
			for range 20 {
				p.sendAndDisconnect(protocol == "h1")
			}
			if _, body := get(t, httpClient(t, "h1"), p.url("/work")); body != "done" {
				t.Errorf("got %q, want done", body)
			}
			if most := w.most.Load(); most != 1 {
				t.Errorf("the app had %d concurrent requests, want 1", most)
			}
			if came := w.came.Load(); came > 15 {
				t.Errorf("the app received %d of 20 canceled requests, want at most 15", came)
			}
		})
	}
}

func TestAppThatStopsReleasesSlot(t *testing.T) {
	p := newProxy(t)
	p.appSpeaking(&worker{time: time.Minute, looks: true}, "h1")
	p.start("CONTAINER_CONCURRENCY=1", "CLIENT_GONE_GRACE=1m")
	p.sendAndDisconnect(true)
	start := time.Now()
	get(t, httpClient(t, "h1"), p.url("/now"))
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the next request took %v, want at most 5s", took)
	}
}

func TestClientGoneGraceLimitsHeldSlot(t *testing.T) {
	for grace, held := range map[string]time.Duration{"0": 0, "500ms": 400 * time.Millisecond} {
		t.Run(grace, func(t *testing.T) {
			p := newProxy(t)
			w := &worker{time: time.Minute}
			p.appSpeaking(w, "h1")
			t.Cleanup(func() { w.looks = true })
			p.start("CONTAINER_CONCURRENCY=1", "CLIENT_GONE_GRACE="+grace)
			start := time.Now()
			p.sendAndDisconnect(true)
			answer, _ := get(t, httpClient(t, "h1"), p.url("/now"))
			took := time.Since(start)
			if answer.StatusCode != 200 || took < held || took > 10*time.Second {
				t.Errorf("got %d after %v, want 200 after %v and before 10s", answer.StatusCode, took, held)
			}
		})
	}
}

func TestTimedOutRequestKeepsSlot(t *testing.T) {
	p := newProxy(t)
	w := &worker{time: 1500 * time.Millisecond}
	p.appSpeaking(w, "h1")
	p.start("CONTAINER_CONCURRENCY=1", "REVISION_TIMEOUT_SECONDS=1")
	answer, _ := get(t, httpClient(t, "h1"), p.url("/work"))
	if answer.StatusCode != 504 {
		t.Fatalf("got %s, want 504", answer.Status)
	}
	if answer, _ := get(t, httpClient(t, "h1"), p.url("/now")); answer.StatusCode != 200 {
		t.Errorf("got %s, want 200", answer.Status)
	}
	if most := w.most.Load(); most != 1 {
		t.Errorf("the app had %d concurrent requests, want 1", most)
	}
}
