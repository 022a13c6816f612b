package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func board(readiness observation.Readiness, drain Drain) *Board {
	return New(Sources{
		Settings: func() []Setting { return nil },
		Warnings: func() []string { return nil },
		Version:  "v1", Started: time.Now(), Pod: "hello-1", Namespace: "shop",
		Limit:     func() (int, int) { return 2, 20 },
		Adaptive:  func() (observation.LimitState, bool) { return observation.LimitState{}, false },
		Readiness: func() observation.Readiness { return readiness },
		Check:     func(context.Context) observation.Readiness { return readiness },
		Load:      func() (int, int) { return 2, 3 },
		Waiter:    func() time.Time { return time.Time{} },
		Slots:     func() ([]observation.Holder, int) { return nil, 0 },
		App:       func(time.Duration) observation.AppRequests { return observation.AppRequests{} },
		Drain:     func() Drain { return drain },
		Memory:    func() (int64, int64) { return 3 << 19, 24 << 20 },
		Lost:      func() (uint64, uint64) { return 0, 0 },
		SpanError: func() string { return "" },

		Connections: func() Connections { return Connections{} },
		TLS:         func() TLS { return TLS{} },
	})
}

// newObservation returns the observation of a request that spent the given time in the app. A successful request
// has a response from the app.
func newObservation(reason observation.Reason, took time.Duration) *observation.Observation {
	now := time.Now()
	return &observation.Observation{
		Line:  transport.Line{Method: "GET", Target: "/path?secret=1"},
		Start: now.Add(-took), Slot: now.Add(-took), End: now, Phase: observation.Waiting,
		Reason: reason, Result: transport.Result{Status: reason.Status(), Begun: reason == observation.OK, Err: errors.New("test error")},
	}
}

// refused returns the observation of a request without a slot.
func refused(reason observation.Reason, took time.Duration) *observation.Observation {
	o := newObservation(reason, took)
	o.Slot, o.Phase, o.Err = time.Time{}, observation.Queued, nil
	return o
}

func TestSampleContainsRequestsOfInterval(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	for range 98 {
		b.Observe(newObservation(observation.OK, 10*time.Millisecond))
	}
	b.Observe(newObservation(observation.AppReset, time.Hour))
	b.Observe(newObservation(observation.OK, time.Second))
	b.Observe(newObservation(observation.OK, time.Second))
	excluded := newObservation(observation.OK, time.Hour)
	excluded.Excluded = true
	b.Observe(excluded)
	b.sample()
	b.sample()
	h := b.snapshot().History
	if len(h) != 2 {
		t.Fatalf("got %d samples, want 2", len(h))
	}
	s := h[0]
	if s.Requests != 101 || s.Failures != 1 || s.Running != 2 || s.Waiting != 3 {
		t.Errorf("got %+v, want 101 requests, 1 failure, 2 running, 3 waiting", s)
	}
	if s.P50 < 10 || s.P50 > 12 || s.P99 < 1000 || s.P99 > 1200 {
		t.Errorf("got p50 %v and p99 %v ms, want about 10 and 1000", s.P50, s.P99)
	}
	harness.Equal(t, h[1], sample{Running: 2, Waiting: 3}, "sample without requests")
}

func TestWhyPrintsOneRequestInSingular(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	b.Observe(newObservation(observation.OK, time.Second))
	snap := b.snapshot()
	harness.Contains(t, snap.text(), ": 1 request, 0 failed\n")
}

func TestWhyPrintsFailedRequests(t *testing.T) {
	for _, c := range []struct {
		responses, failures int
		want                string
	}{
		{0, 3, "last 5 minutes: 3 requests, 3 failed: 3 app-reset\n"},
		{2, 3, "last 5 minutes: 5 requests, 3 failed: 3 app-reset; 2 application responses, 0\n  errors\n"},
		{2, 0, "last 5 minutes: 2 requests, 0 failed; 2 application responses, 0 errors\n"},
	} {
		b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
		for range c.responses {
			b.Observe(newObservation(observation.OK, time.Second))
		}
		for range c.failures {
			b.Observe(newObservation(observation.AppReset, time.Second))
		}
		b.sources.Load = func() (int, int) { return 0, 0 }
		snap := b.snapshot()
		snap.Latest.Seconds, snap.Latest.P50 = History.Seconds(), 0
		harness.Contains(t, snap.text(), c.want)
	}
}

func TestWhyPrintsResponseTimes(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	snap := b.snapshot()
	snap.Latest = summary{Seconds: History.Seconds(), Requests: 1234567, Responses: 1134567, Errors: 1034567, P50: 1234, P99: 23456, QueuedP99: 1234}
	harness.Contains(t, snap.text(), "\nlast 5 minutes: 1234567 requests, 100000 failed; 1134567 application responses,\n"+
		"  1034567 errors\n  p50 1.2s, p99 23s, queue p99 1.2s\n")
}

// Previously, the time in the queue included only requests with a response.
func TestWhyPrintsQueueTimeOfClientsThatLeave(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	for range 100 {
		b.Observe(refused(observation.ClientGone, 10*time.Second))
	}
	b.sample()
	harness.Contains(t, b.text(), "100 requests, 100 failed: 100 client-gone\n  no response; queue p99 12s\n")
}

// Previously, an overloaded sidecar showed a median of 0.1 ms while the app took 1 s, because rejected requests
// were included.
func TestLatencyExcludesRequestsWithoutResponse(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	waited := newObservation(observation.OK, time.Second) // half of the time is in the queue
	waited.Slot = waited.Start.Add(500 * time.Millisecond)
	b.Observe(waited)
	cut := newObservation(observation.IdleTimeout, 500*time.Millisecond) // the response began and was not complete
	cut.Begun = true
	b.Observe(cut)
	tunnel := newObservation(observation.OK, time.Hour)
	tunnel.Upgraded = true
	b.Observe(tunnel)
	for range 1000 {
		b.Observe(refused(observation.QueueFull, 50*time.Microsecond))
		b.Observe(refused(observation.QueueTimeout, time.Minute))
		b.Observe(newObservation(observation.AppUnreachable, 50*time.Microsecond))
	}
	b.sample()
	s := b.snapshot().History[0]
	if s.P50 < 500 || s.P50 > 600 || s.P99 < 500 || s.P99 > 600 {
		t.Errorf("got p50 %v and p99 %v ms, want about 500, which is the time in the app", s.P50, s.P99)
	}
	if s.QueuedP99 < 60_000 || s.QueuedP99 > 70_000 {
		t.Errorf("got queue p99 %v ms, want about 60000, because requests with a queue timeout are included", s.QueuedP99)
	}
	if s.Requests != 3003 || s.Failures != 3001 {
		t.Errorf("got %d requests and %d failures, want 3003 and 3001", s.Requests, s.Failures)
	}
}

func TestBoardKeepsNewestSamplesAndFailures(t *testing.T) {
	b := board(observation.Readiness{}, Drain{})
	for i := range samples + 10 {
		for range i {
			b.Observe(newObservation(observation.OK, time.Millisecond))
		}
		b.sample()
	}
	for i := range lastFailures + 5 {
		b.Observe(newObservation(observation.AppReset, time.Duration(i)*time.Second))
	}
	s := b.snapshot()
	if len(s.History) != samples || s.History[0].Requests != 10 || s.History[samples-1].Requests != uint32(samples+9) {
		t.Errorf("got %d samples from %d to %d, want %d from 10 to %d", len(s.History), s.History[0].Requests, s.History[len(s.History)-1].Requests, samples, samples+9)
	}
	if len(s.Failures) != lastFailures || s.Failures[0].Took != 24000 || s.Failures[lastFailures-1].Took != 5000 {
		t.Errorf("got %d failures from %v to %v ms, want %d from 24000 to 5000", len(s.Failures), s.Failures[0].Took, s.Failures[len(s.Failures)-1].Took, lastFailures)
	}
	if f := s.Failures[0]; f.Path != "/path" || f.Reason != "app-reset" || f.Detail != "test error" {
		t.Errorf("got %+v, want the path without its query, the reason and the detail", f)
	}
}

// Previously, 20 rejected requests replaced the failure that showed the problem of the app.
func TestFrequentFailuresDoNotReplaceRareFailures(t *testing.T) {
	b := board(observation.Readiness{}, Drain{})
	for i := range 9 {
		b.Observe(newObservation(observation.AppGarbage, time.Duration(i)*time.Second))
	}
	for range 10_000 {
		b.Observe(refused(observation.QueueFull, time.Millisecond))
	}
	list := b.snapshot().Failures
	if len(list) != lastFailures+ofEachReason {
		t.Fatalf("got %d failures, want the last %d and %d with the rare reason", len(list), lastFailures, ofEachReason)
	}
	for i, f := range list {
		want, took := "queue-full", 1.0
		if i >= lastFailures {
			want, took = "app-garbage", float64(8-(i-lastFailures))*1000
		}
		if f.Reason != want || f.Took != took {
			t.Errorf("failure %d: got %s with %v ms, want %s with %v ms", i, f.Reason, f.Took, want, took)
		}
	}
}

func TestFailuresAreLimitedPerReason(t *testing.T) {
	b := board(observation.Readiness{}, Drain{})
	for i := range 10_000 {
		b.Observe(newObservation(observation.QueueFull+observation.Reason(i)%(observation.NumReasons-1), time.Second))
	}
	s := b.snapshot()
	seen := map[string]int{}
	for _, f := range s.Failures {
		seen[f.Reason]++
	}
	if most := lastFailures + ofEachReason*int(observation.NumReasons); len(s.Failures) > most || len(seen) != len(s.Totals) {
		t.Errorf("got %d failures of %d reasons, want at most %d of %d", len(s.Failures), len(seen), most, len(s.Totals))
	}
	for reason, n := range seen {
		if n < ofEachReason {
			t.Errorf("%s: got %d failures, want at least %d", reason, n, ofEachReason)
		}
	}
}

func TestTotalsCountRequestsByReason(t *testing.T) {
	b := board(observation.Readiness{}, Drain{})
	if got := b.snapshot().Totals; got == nil || len(got) != 0 {
		t.Errorf("without requests: got %v, want an empty map", got)
	}
	for range 500 {
		b.Observe(refused(observation.QueueFull, 0))
		b.sample()
	}
	b.Observe(newObservation(observation.AppGarbage, 0))
	b.Observe(newObservation(observation.OK, 0))
	b.Observe(newObservation(observation.BadRequest, 0))
	b.Observe(newObservation(observation.TooLarge, 0)) // has the same word as BadRequest
	excluded := newObservation(observation.AppReset, 0)
	excluded.Excluded = true
	b.Observe(excluded)
	want := totals{"queue-full": 500, "app-garbage": 1, "ok": 1, "bad-request": 2}
	harness.Equal(t, b.snapshot().Totals, want)
}

func TestKubeletProbesAreNotCounted(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	for _, reason := range []observation.Reason{observation.OK, observation.AppUnreachable} {
		probe := newObservation(reason, time.Second)
		probe.Kind, probe.Err = observation.KubeletRequest, syscall.ECONNREFUSED
		b.Observe(probe)
	}
	b.sample()
	s := b.snapshot()
	harness.Equal(t, s.Totals, totals{}, "totals")
	harness.Equal(t, s.History[0], sample{Running: 2, Waiting: 3}, "sample")
	harness.Equal(t, s.Problem, "", "problem")
}

func TestObserveSuccessfulRequestDoesNotAllocate(t *testing.T) {
	b, o := board(observation.Readiness{}, Drain{}), newObservation(observation.OK, time.Second)
	harness.Equal(t, testing.AllocsPerRun(100, func() { b.Observe(o) }), 0, "allocations")
}

func BenchmarkObserve(b *testing.B) {
	for name, o := range map[string]*observation.Observation{"ok": newObservation(observation.OK, time.Second), "queue-full": refused(observation.QueueFull, time.Millisecond)} {
		b.Run(name, func(b *testing.B) {
			board := board(observation.Readiness{}, Drain{})
			b.ReportAllocs()
			for b.Loop() {
				board.Observe(o)
			}
		})
	}
}

func BenchmarkSample(b *testing.B) {
	board := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	o := newObservation(observation.OK, time.Second)
	for range samples {
		board.Observe(o)
		board.sample()
	}
	b.ReportAllocs()
	for b.Loop() {
		board.Observe(o)
		board.sample()
	}
}

// A client can cause failures with long strings.
func TestFailureTruncatesLongStrings(t *testing.T) {
	b := board(observation.Readiness{}, Drain{})
	o := newObservation(observation.QueueFull, time.Second)
	o.Target, o.Method = "/"+strings.Repeat("x", 1<<20), strings.Repeat("M", 1<<20)
	o.Err = errors.New(strings.Repeat("e", 1<<20))
	b.Observe(o)
	if f := b.snapshot().Failures[0]; len(f.Path) > 512 || len(f.Method) > 512 || len(f.Detail) > 512 || !strings.HasPrefix(f.Path, "/xx") {
		t.Errorf("got path of %d bytes, method of %d bytes and detail of %d bytes, want at most 512 bytes each", len(f.Path), len(f.Method), len(f.Detail))
	}
}

// Addresses of clients on this host and on another host.
const near, far = "127.0.0.1:1", "10.0.0.9:1"

func request(path, peer, host string) *http.Request {
	r := httptest.NewRequest("GET", path, nil)
	r.RemoteAddr, r.Host = peer, host
	return r
}

func TestHandlerServesPageToLocalClientsOnly(t *testing.T) {
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
		r := request(v.path, v.peer, v.host)
		if v.site != "" {
			r.Header.Set("Sec-Fetch-Site", v.site)
		}
		w := httptest.NewRecorder()
		board(observation.Readiness{}, Drain{}).Handler(level, v.profiling).ServeHTTP(w, r)
		harness.Equal(t, w.Code, v.want, v)
	}
}

func TestHandlerSetsSecurityHeaders(t *testing.T) {
	for _, path := range []string{"/", "/status.json", "/debug/pprof/", "/other"} {
		w := httptest.NewRecorder()
		board(observation.Readiness{}, Drain{}).Handler(http.NotFoundHandler(), false).ServeHTTP(w, request(path, near, "localhost:8008"))
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; " +
				"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		} {
			harness.Equal(t, w.Result().Header.Get(name), want, path, name)
		}
	}
}

// Scripts depend on these fields.
func TestStatusJSONContainsPodAndTotals(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	b.Observe(newObservation(observation.AppGarbage, time.Second))
	b.sample()
	w := httptest.NewRecorder()
	b.Handler(http.NotFoundHandler(), false).ServeHTTP(w, request(path, near, "localhost:8008"))
	for _, want := range []string{
		`"pod":"hello-1","namespace":"shop"`, `"totals":{"app-garbage":1}`,
		`"history":[{"running":2,"waiting":3,"requests":1,"failures":1,"errors":0,"p50":0,"p99":0,"queuedP99":0.06}]`, `"reason":"app-garbage","status":502,`,
	} {
		harness.Contains(t, w.Body.String(), want)
	}
}

func TestWhyPrintsState(t *testing.T) {
	synctest.Test(t, testWhyPrintsState) // the fake clock does not advance while the test runs
}

func testWhyPrintsState(t *testing.T) {
	now := time.Now()
	notReady := observation.Readiness{At: now, Phase: observation.PhaseStarting, Since: now.Add(-time.Minute), Probes: []observation.ProbeReadiness{{
		Kind: "tcpSocket", Target: "tcp://127.0.0.1:8080", Phase: observation.PhaseStarting, Tries: 7, Word: "refused", Detail: "dial tcp: refused",
	}}}
	deadline := now.Add(20 * time.Second)
	failing := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	for reason, n := range map[observation.Reason]int{observation.OK: 1, observation.QueueFull: 20, observation.AppGarbage: 3, observation.Draining: 1, observation.AppReset: 1} {
		for range n {
			failing.Observe(newObservation(reason, time.Second))
		}
	}
	for name, v := range map[string]struct {
		board *Board
		ready bool
		want  []string
	}{
		"refused":  {board(notReady, Drain{}), false, []string{"not ready: probe 0 (tcpSocket) starting: refused", "for 1m0s", "7 attempts", "dial tcp: refused", "2 running, 3 waiting (at most 2 and 20)", "memory used by requests: 1.5 MiB of 24.0 MiB"}},
		"ready":    {board(observation.Readiness{Phase: observation.PhaseReady, Since: now.Add(-time.Hour)}, Drain{}), true, []string{"ready for 1h0m0s", "pod hello-1, namespace shop"}},
		"failures": {failing, true, []string{"since the start 0s ago: 26 requests, 25 failed: 20 queue-full, 3 app-garbage, 1 app-reset, 1 draining"}},
		"draining": {board(observation.Readiness{Phase: observation.PhaseReady}, Drain{Draining: true, Since: now.Add(-10 * time.Second), Deadline: deadline, InFlight: 4}), false, []string{"not ready: draining for 10s, because the pod is terminating; requests in flight: 4, aborted in 20s"}},
	} {
		server := httptest.NewServer(v.board.Handler(http.NotFoundHandler(), false))
		defer server.Close()
		var text, asJSON bytes.Buffer
		ready, err := Why(t.Context(), netconn.LoopbackClient(), server.Listener.Addr().(*net.TCPAddr).Port, false, &text)
		harness.NoError(t, err, name)
		harness.Equal(t, ready, v.ready, name, "ready")
		for _, want := range v.want {
			checkScreen(t, text.String(), want)
		}
		if ready, err = Why(t.Context(), netconn.LoopbackClient(), server.Listener.Addr().(*net.TCPAddr).Port, true, &asJSON); ready != v.ready || err != nil || !json.Valid(asJSON.Bytes()) || !strings.Contains(asJSON.String(), `"namespace": "shop"`) {
			t.Errorf("%s as JSON: got %v, %v, %q, want %v, nil, JSON with the namespace", name, ready, err, asJSON.String(), v.ready)
		}
	}
}

func TestWhyWithoutSidecarReturnsError(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	address := server.Listener.Addr().(*net.TCPAddr)
	_, err := Why(t.Context(), netconn.LoopbackClient(), address.Port, false, io.Discard)
	if err == nil {
		t.Fatal("got no error, want one")
	}
	harness.Equal(t, err.Error(), fmt.Sprintf("the sidecar does not respond: dial tcp %v: connect: connection refused; run the command in the container of the sidecar, and set STATUS_PORT to the port of the status page", address))
}

func TestWhyFromOtherServerReturnsAddress(t *testing.T) {
	for status, want := range map[int]string{
		http.StatusNotFound: "is 404 Not Found, not the status of a sidecar; check STATUS_PORT",
		http.StatusOK:       "is not the status of a sidecar; check STATUS_PORT",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		defer server.Close()
		address := server.Listener.Addr().(*net.TCPAddr)
		_, err := Why(t.Context(), netconn.LoopbackClient(), address.Port, false, io.Discard)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the response from %v %s", address, want)) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// A TCP probe of a port with another protocol succeeds, so the pod is ready although all requests fail. After one
// HTTP response, the port is assumed to support HTTP.
func TestResponsesWithoutHTTPAreProblem(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	harness.Equal(t, b.snapshot().Problem, "", "problem without requests")
	reset, garbage := newObservation(observation.AppReset, time.Second), newObservation(observation.AppGarbage, time.Second)
	b.Observe(reset)
	harness.Equal(t, b.FirstProblem(reset), "", "problem after a reset")
	for i := range 3 {
		b.Observe(garbage)
		harness.Equal(t, b.FirstProblem(garbage), map[bool]string{true: NotHTTP}[i == 0], "request", i)
	}
	s := b.snapshot()
	harness.Equal(t, s.Problem, NotHTTP)
	harness.Contains(t, s.text(), "problem: the user container is not an HTTP server\n")
	b.Observe(newObservation(observation.OK, time.Second))
	harness.Equal(t, b.problem(true), "", "problem after an HTTP response")
	fresh := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	fresh.Observe(newObservation(observation.OK, time.Second))
	fresh.Observe(garbage)
	harness.Equal(t, fresh.FirstProblem(garbage), "", "problem after an earlier HTTP response")
	probe := newObservation(observation.OK, time.Second)
	probe.Kind = observation.KubeletRequest
	probed := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	probed.Observe(probe)
	probed.Observe(garbage)
	harness.Equal(t, probed.FirstProblem(garbage), "", "problem after a response to a kubelet probe")
}

func TestRefusedConnectionsOfReadyPodAreProblem(t *testing.T) {
	refused := newObservation(observation.AppUnreachable, time.Second)
	refused.Err = fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	for name, c := range map[string]struct {
		phase  observation.ReadinessPhase
		before *observation.Observation
		want   string
	}{
		"ready":             {observation.PhaseReady, nil, NotListening},
		"not ready":         {observation.PhaseFailing, nil, ""},
		"earlier response":  {observation.PhaseReady, newObservation(observation.OK, time.Second), ""},
		"another TCP error": {observation.PhaseReady, newObservation(observation.AppUnreachable, time.Second), NotListening},
	} {
		b := board(observation.Readiness{Phase: c.phase}, Drain{})
		if c.before != nil {
			b.Observe(c.before)
			harness.Equal(t, b.FirstProblem(c.before), "", name)
		}
		b.Observe(refused)
		harness.Equal(t, b.FirstProblem(refused), c.want, name)
		harness.Equal(t, b.FirstProblem(refused), "", name, "second request")
		harness.Equal(t, b.problem(c.phase == observation.PhaseReady), c.want, name)
	}
}

// Previously, the command probed the user container like the kubelet, and changed the readiness, the metric
// queue_proxy_ready and the log.
func TestWhyDoesNotChangeReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe := func(phase observation.ReadinessPhase, word observation.ReadinessWord, tries int) observation.Readiness {
			return observation.Readiness{Phase: phase, Since: time.Now(), Probes: []observation.ProbeReadiness{
				{Kind: "tcpSocket", Phase: phase, Word: word, Since: time.Now(), Tries: tries},
			}}
		}
		unprobed, passed := probe(observation.PhaseStarting, observation.WordPending, 0), probe(observation.PhaseReady, "", 1)
		refused, pending := probe(observation.PhaseStarting, observation.WordRefused, 1), unprobed
		for _, c := range []struct {
			recorded, result observation.Readiness
			ready            bool
			want             string
		}{
			{unprobed, passed, true, "ready for 0s; no readiness probe was received; this command sent a probe"},
			{unprobed, refused, false, "not ready: probe 0 (tcpSocket) starting: refused (for 1m0s)"},
			{unprobed, pending, false, "not ready: probe 0 (tcpSocket) starting: pending (for 1m0s)"},
			{passed, passed, true, "ready for 1m0s"},
			{passed, pending, true, "ready for 1m0s"},
			{passed, refused, false, "not ready: probe 0 (tcpSocket) failing: refused (for 0s)"},
			{refused, passed, true, "ready for 0s"},
			{refused, refused, false, "not ready: probe 0 (tcpSocket) starting: refused (for 1m0s)"},
		} {
			c.recorded.Since = time.Now().Add(-time.Minute)
			c.result.At, c.result.Since = time.Now(), time.Now()
			b := board(c.recorded, Drain{})
			b.sources.Check = func(context.Context) observation.Readiness { return c.result }
			s := b.check(t.Context())
			harness.Equal(t, s.Ready, c.ready, c.want)
			harness.Equal(t, strings.HasPrefix(s.text(), c.want+"\n"), true, s.text(), "want", c.want)
			after := b.snapshot()
			harness.Equal(t, after.Readiness.Phase, c.recorded.Phase, "phase after the command")
			harness.Equal(t, after.Unprobed, c.recorded.Probes[0].Tries == 0, "unprobed after the command")
		}
	})
}

// The phase is the same as for a prober with these results.
func TestCheckReturnsStartingPhaseUntilReady(t *testing.T) {
	phases := func(phase observation.ReadinessPhase, probes ...observation.ReadinessPhase) (r observation.Readiness) {
		r.Phase = phase
		for _, p := range probes {
			r.Probes = append(r.Probes, observation.ProbeReadiness{Phase: p, Tries: 1})
		}
		return r
	}
	const starting, ready, failing = observation.PhaseStarting, observation.PhaseReady, observation.PhaseFailing
	recorded := phases(starting, ready, starting)
	for _, c := range []struct{ result, want observation.Readiness }{
		{phases(starting, starting, starting), phases(starting, failing, starting)},
		{phases(starting, ready, starting), phases(starting, ready, starting)},
		{phases(starting, ready, ready), phases(ready, ready, ready)},
	} {
		got := checked(recorded, c.result)
		harness.Equal(t, got, c.want)
	}
}
