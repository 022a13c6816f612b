package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

func board(readiness probe.State, drain Drain) *Board {
	return New(Sources{
		Settings: func() []Setting { return nil },
		Version:  "v1", Started: time.Now(), Limit: 2, Depth: 20,
		Readiness: func() probe.State { return readiness },
		Ask:       func(context.Context) error { return nil },
		Load:      func() (int, int) { return 2, 3 },
		Drain:     func() Drain { return drain },
	})
}

func observation(why queue.Why, took time.Duration) *queue.Observation {
	now := time.Now()
	return &queue.Observation{
		Line:  queue.Line{Method: "GET", Target: "/path?secret=1"},
		Start: now.Add(-took), End: now, Phase: queue.Waiting,
		Result: queue.Result{Why: why, Status: why.Status(), Err: errors.New("what the system said")},
	}
}

func TestASampleSaysWhatHappenedInItsInterval(t *testing.T) {
	b := board(probe.State{Phase: probe.Ready}, Drain{})
	for range 98 {
		b.Observe(observation(queue.OK, 10*time.Millisecond))
	}
	b.Observe(observation(queue.AppReset, time.Second))
	b.Observe(observation(queue.OK, time.Second))
	excluded := observation(queue.OK, time.Hour)
	excluded.Excluded = true
	b.Observe(excluded)
	b.sample()
	b.sample()
	h := b.Snapshot().History
	if len(h) != 2 {
		t.Fatalf("got %d samples, want 2", len(h))
	}
	s := h[0]
	if s.Requests != 100 || s.Failures != 1 || s.Running != 2 || s.Waiting != 3 {
		t.Errorf("got %+v, want 100 requests, 1 failure, 2 running, 3 waiting", s)
	}
	if s.P50 < 10 || s.P50 > 12 || s.P99 < 1000 || s.P99 > 1200 {
		t.Errorf("got p50 %v and p99 %v ms, want about 10 and 1000", s.P50, s.P99)
	}
	if h[1].Requests != 0 || h[1].P50 != 0 {
		t.Errorf("got %+v in an empty interval, want nothing", h[1])
	}
}

func TestOnlyTheNewestSamplesAndFailuresAreKept(t *testing.T) {
	b := board(probe.State{}, Drain{})
	for i := range samples + 10 {
		for range i {
			b.took.add(time.Millisecond)
		}
		b.sample()
	}
	for i := range failures + 5 {
		b.Observe(observation(queue.AppReset, time.Duration(i)*time.Second))
	}
	s := b.Snapshot()
	if len(s.History) != samples || s.History[0].Requests != 10 || s.History[samples-1].Requests != uint32(samples+9) {
		t.Errorf("got %d samples from %d to %d, want %d from 10 to %d", len(s.History), s.History[0].Requests, s.History[len(s.History)-1].Requests, samples, samples+9)
	}
	if len(s.Failures) != failures || s.Failures[0].Took != 24000 || s.Failures[failures-1].Took != 5000 {
		t.Errorf("got %d failures from %v to %v ms, want %d from 24000 to 5000", len(s.Failures), s.Failures[0].Took, s.Failures[len(s.Failures)-1].Took, failures)
	}
	if f := s.Failures[0]; f.Path != "/path" || f.Reason != "app-reset" || f.Detail != "what the system said" {
		t.Errorf("got %+v, want the path without its query, the reason and the detail", f)
	}
}

// Who fails on purpose cannot make us keep what he sent.
func TestAFailureIsKeptInBoundedMemory(t *testing.T) {
	b := board(probe.State{}, Drain{})
	o := observation(queue.QueueFull, time.Second)
	o.Target, o.Method = "/"+strings.Repeat("x", 1<<20), strings.Repeat("M", 1<<20)
	b.Observe(o)
	if f := b.Snapshot().Failures[0]; len(f.Path) > 512 || len(f.Method) > 512 || !strings.HasPrefix(f.Path, "/xx") {
		t.Errorf("got a path of %d bytes and a method of %d, want at most 512", len(f.Path), len(f.Method))
	}
}

func TestThePageIsForPeopleOnThisHostAlone(t *testing.T) {
	level := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "level") })
	for _, v := range []struct {
		peer, host, site, path string
		profiling              bool
		want                   int
	}{
		{"127.0.0.1:1", "localhost:8008", "", "/", false, 200},
		{"[::1]:1", "[::1]:8008", "", "/status.json", false, 200},
		{"[::ffff:127.0.0.1]:1", "127.0.0.1", "same-origin", "/log-level", false, 200},
		{"127.0.0.1:1", "localhost", "", "/debug/pprof/cmdline", false, 200},
		{"127.0.0.1:1", "evil.example:8008", "", "/", false, 403},
		{"127.0.0.1:1", "localhost.evil.example", "", "/", false, 403},
		{"127.0.0.1:1", "localhost:8008", "cross-site", "/log-level", false, 403},
		{"10.0.0.9:1", "localhost:8008", "", "/", false, 403},
		{"10.0.0.9:1", "10.0.0.1:8008", "", "/debug/pprof/cmdline", false, 403},
		{"10.0.0.9:1", "10.0.0.1:8008", "", "/debug/pprof/cmdline", true, 200},
		{"10.0.0.9:1", "localhost", "", "/status.json", true, 404},
		{"10.0.0.9:1", "localhost", "", "/log-level", true, 404},
		{"127.0.0.1:1", "localhost", "", "/other", false, 404},
	} {
		r := httptest.NewRequest("GET", v.path, nil)
		r.RemoteAddr, r.Host = v.peer, v.host
		if v.site != "" {
			r.Header.Set("Sec-Fetch-Site", v.site)
		}
		w := httptest.NewRecorder()
		board(probe.State{}, Drain{}).Handler(level, v.profiling).ServeHTTP(w, r)
		if w.Code != v.want {
			t.Errorf("%+v: got %d, want %d", v, w.Code, v.want)
		}
	}
}

func TestWhySaysWhatIsKnown(t *testing.T) {
	now := time.Now()
	refused := probe.State{At: now, Phase: probe.Starting, Since: now.Add(-time.Minute), Probes: []probe.ProbeState{{
		Kind: "tcpSocket", Target: "tcp://127.0.0.1:8080", Phase: probe.Starting, Tries: 7, Word: probe.Refused, Detail: "dial tcp: refused",
	}}}
	deadline := now.Add(20 * time.Second)
	for name, v := range map[string]struct {
		board *Board
		ready bool
		want  []string
	}{
		"refused":  {board(refused, Drain{}), false, []string{"not ready: probe 0 (tcpSocket) starting: refused", "for 1m0s", "asked 7 times", "dial tcp: refused", "2 running, 3 waiting (at most 2 and 20)"}},
		"ready":    {board(probe.State{Phase: probe.Ready, Since: now.Add(-time.Hour)}, Drain{}), true, []string{"ready for 1h0m0s"}},
		"draining": {board(probe.State{Phase: probe.Ready}, Drain{Draining: true, Deadline: &deadline, InFlight: 4}), false, []string{"not ready: draining, the pod is ending; 4 in flight, what is left is cut in 20s"}},
	} {
		server := httptest.NewServer(v.board.Handler(http.NotFoundHandler(), false))
		defer server.Close()
		var text, asJSON bytes.Buffer
		ready, err := Why(t.Context(), server.Listener.Addr().String(), false, &text)
		if ready != v.ready || err != nil {
			t.Errorf("%s: got %v, %v, want %v, nil", name, ready, err, v.ready)
		}
		for _, want := range v.want {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s: got %q, want it to say %q", name, text.String(), want)
			}
		}
		if ready, err = Why(t.Context(), server.Listener.Addr().String(), true, &asJSON); ready != v.ready || err != nil || !json.Valid(asJSON.Bytes()) {
			t.Errorf("%s as JSON: got %v, %v, %q, want %v, nil, JSON", name, ready, err, asJSON.String(), v.ready)
		}
	}
}

func TestWhyWithoutASidecarIsAnError(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	if _, err := Why(t.Context(), server.Listener.Addr().String(), false, io.Discard); err == nil {
		t.Error("got no error, want one")
	}
}
