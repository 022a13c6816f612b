package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// newReal returns a Prober for probes in JSON.
func newReal(t *testing.T, o Options, list string) *Prober {
	t.Helper()
	probes, errs := Parse(list, true)
	if errs != nil {
		t.Fatal(errs)
	}
	p := New(probes, o)
	t.Cleanup(func() {
		harness.Equal(t, p.Stop(context.Background()), nil, "Stop")
	})
	return p
}

// TestProberFollowsAppLifecycle starts an app that responds with 503, becomes ready and stops. The callers have a
// timeout of 300 ms, which is the timeout of the activator.
func TestProberFollowsAppLifecycle(t *testing.T) {
	port := refusedPort(t)
	var mu sync.Mutex
	var told []string
	p := newReal(t, Options{OnChange: func(c Change) {
		mu.Lock()
		defer mu.Unlock()
		word := c.Now.Probes[0].Word
		if now := string(c.Now.Phase) + " " + string(word); word != observation.WordTimeout && (len(told) == 0 || now != told[len(told)-1]) { // ignore timeouts, because an attempt can take longer than 100 ms on a busy host
			told = append(told, now)
		}
	}}, fmt.Sprintf(`[null,{"httpGet":{"port":%d,"path":"/health"}}]`, port))
	ready := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		return p.Ready(ctx) == nil
	}
	is := func(phase observation.ReadinessPhase, word observation.ReadinessWord) func() bool {
		return func() bool {
			got := ready()
			s := p.State()
			return got == (phase == observation.PhaseReady) && s.Phase == phase && s.Probes[0].Word == word
		}
	}

	harness.Until(t, "refused", is(observation.PhaseStarting, observation.WordRefused))
	var status atomic.Int32
	status.Store(503)
	app := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) })}
	l := harness.ListenOn(t, fmt.Sprintf("127.0.0.1:%d", port))
	go func() { _ = app.Serve(l) }()
	harness.Until(t, "503", is(observation.PhaseStarting, observation.WordStatus))
	status.Store(200)
	harness.Until(t, "ready", is(observation.PhaseReady, ""))
	_ = app.Close()
	harness.Until(t, "refused again", is(observation.PhaseFailing, observation.WordRefused))

	mu.Lock()
	defer mu.Unlock()
	harness.Equal(t, told, []string{"starting refused", "starting status", "ready ", "failing refused"}, "changes")
}

func TestConcurrentCallersSendAtMostTwoRequests(t *testing.T) {
	release := make(chan struct{})
	app := newRawApp(t, "127.0.0.1:0", func(c *net.TCPConn, _ string) {
		<-release
		_, _ = io.WriteString(c, httpStatus(200))
	})
	p := newReal(t, Options{}, fmt.Sprintf(`[{"httpGet":{"port":%d},"periodSeconds":1,"timeoutSeconds":30}]`, app.port))
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			harness.Equal(t, p.Ready(t.Context()), nil)
		})
	}
	harness.Until(t, "50 callers wait", func() bool { return p.State().Askers == 50 })
	close(release)
	callers.Wait()
	if got := len(app.hits()); got > 2 {
		t.Errorf("got %d requests, want at most 2", got)
	}
}

func TestStopCancelsBlockedRun(t *testing.T) {
	over := make(chan struct{})
	app := newRawApp(t, "127.0.0.1:0", func(*net.TCPConn, string) { <-over })
	t.Cleanup(func() { close(over) }) // runs before the cleanup that waits for the app
	p := newReal(t, Options{}, fmt.Sprintf(`[{"httpGet":{"port":%d},"periodSeconds":1,"timeoutSeconds":3600}]`, app.port))
	heard := make(chan error, 1)
	go func() { heard <- p.Ready(context.Background()) }()
	harness.Until(t, "the app receives a request", func() bool { return len(app.hits()) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	harness.Equal(t, p.Stop(ctx), nil, "Stop")
	var e *notReady
	if err := <-heard; !errors.As(err, &e) || e.Word != observation.WordStopped {
		t.Errorf("waiting caller: got %v, want stopped", err)
	}
}
