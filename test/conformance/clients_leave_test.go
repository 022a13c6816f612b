package conformance

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// worker is a user container that works on each request for a time, and counts those
// it works on at once.
type worker struct {
	time      time.Duration
	looks     bool // it stops when its client has gone
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

// askAndLeave sends a request and closes the connection when the app works on it, or,
// where others are before it, after a moment.
func (p *proxy) askAndLeave(h1 bool) {
	p.t.Helper()
	if h1 {
		c := p.sendGet("/work")
		time.Sleep(20 * time.Millisecond) // real time: the clients leave at any stage
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

func TestTheLimitHoldsWhenClientsLeave(t *testing.T) {
	for _, protocol := range []string{"h1", "h2c"} {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			w := &worker{time: 300 * time.Millisecond}
			p.appSpeaking(w, "h1")
			p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=100")
			for range 20 {
				p.askAndLeave(protocol == "h1")
			}
			if _, body := get(t, httpClient(t, "h1"), p.url("/work")); body != "done" {
				t.Errorf("got %q, want done", body)
			}
			if most := w.most.Load(); most != 1 {
				t.Errorf("the app worked on %d requests at once, want 1", most)
			}
			if came := w.came.Load(); came > 15 {
				t.Errorf("%d of 20 requests whose clients had gone came to the app", came)
			}
		})
	}
}

func TestAnAppThatLooksFreesItsSlotAtOnce(t *testing.T) {
	p := newProxy(t)
	p.appSpeaking(&worker{time: time.Minute, looks: true}, "h1")
	p.start("CONTAINER_CONCURRENCY=1", "CLIENT_GONE_GRACE=1m")
	p.askAndLeave(true)
	start := time.Now()
	get(t, httpClient(t, "h1"), p.url("/now"))
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the next request took %v, want it at once", took)
	}
}

func TestASlotIsHeldForTheGraceAtMost(t *testing.T) {
	for grace, held := range map[string]time.Duration{"0": 0, "500ms": 400 * time.Millisecond} {
		t.Run(grace, func(t *testing.T) {
			p := newProxy(t)
			w := &worker{time: time.Minute}
			p.appSpeaking(w, "h1")
			t.Cleanup(func() { w.looks = true })
			p.start("CONTAINER_CONCURRENCY=1", "CLIENT_GONE_GRACE="+grace)
			start := time.Now()
			p.askAndLeave(true)
			answer, _ := get(t, httpClient(t, "h1"), p.url("/now"))
			took := time.Since(start)
			if answer.StatusCode != 200 || took < held || took > 10*time.Second {
				t.Errorf("got %d after %v, want 200 after %v or little more", answer.StatusCode, took, held)
			}
		})
	}
}

func TestARequestThatTimedOutHoldsItsSlot(t *testing.T) {
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
		t.Errorf("the app worked on %d requests at once, want 1", most)
	}
}
