//go:build soak

package soak

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

var (
	length = flag.Duration("time", 30*time.Minute, "duration of the run, in which traffic and rests alternate")
	seed   = flag.Uint64("seed", 1, "seed of the random requests and faults")
)

// The limits of the sidecar are low so that requests are queued.
const (
	concurrency = 20
	depth       = 30
)

// Duration and number of turns. The number of rests depends on the duration of the run.
const (
	longest  = time.Minute
	shortest = 10 * time.Second
	turns    = 24
	leastOf  = 4 // number of turns of the shortest run
)

// A soak is a run of the test.
type soak struct {
	t         *testing.T
	rng       *rand.Rand
	begun     time.Time
	port      struct{ serving, tls, user, admin, autoscaler, metrics, status int }
	dir       string // directory of the programs and the certificate
	sidecar   *process
	app       *process
	collector *collector
	scraper   *http.Client // client with one connection to each internal port, during traffic and rest
	autos     autoscaler
	looking   sync.Mutex // locked during a measurement and during concurrent scrapes

	mu      sync.Mutex // protects the following fields
	books   *ledger.Books
	entries []ledger.Entry
	sums    sums
	strange []string // unexpected output of the sidecar

	verdicts [ledger.Verdicts]int
	left     int // number of requests that are broken because the client canceled them
	unread   int // number of canceled requests that the sidecar never read
	faults   map[string]int
	probes   probes
	base     *sample
	samples  []sample
}

func TestSoak(t *testing.T) {
	s := begin(t)
	turn := max(shortest, min(longest, *length/turns))
	for n := 0; n < leastOf || time.Since(s.begun)+turn < *length; n++ {
		s.traffic(n, turn)
		s.rest(n)
		if t.Failed() {
			break
		}
	}
	if long() && !t.Failed() {
		s.longRest()
	}
	s.end()
	s.report()
}

// long reports whether the run is long enough to determine slopes and to write the document.
func long() bool { return *length >= 30*time.Minute }

// begin starts all processes and returns when the sidecar is ready.
func begin(t *testing.T) *soak {
	s := &soak{
		t: t, rng: rand.New(rand.NewPCG(*seed, 0)), begun: time.Now(), dir: t.TempDir(),
		books: ledger.NewBooks(), sums: newSums(), faults: map[string]int{},
		scraper: &http.Client{Timeout: ledger.Patience, Transport: &http.Transport{MaxConnsPerHost: 1}},
	}
	t.Logf("seed %d, %v", *seed, *length)
	for name, path := range map[string]string{"queue-proxy": "cmd/queue-proxy", "app": "test/app"} {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(s.dir, name), "../../"+path)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", path, err, out)
		}
	}
	if err := ledger.WritePair(s.dir); err != nil {
		t.Fatal(err)
	}
	next := 20000 + os.Getpid()%1000*10 // ports below the range of local ports
	for _, port := range []*int{&s.port.serving, &s.port.tls, &s.port.user, &s.port.admin, &s.port.autoscaler, &s.port.metrics, &s.port.status} {
		for ; ; next++ {
			if l, err := net.Listen("tcp", ":"+strconv.Itoa(next)); err == nil {
				l.Close()
				break
			}
		}
		*port = next
		next++
	}
	s.collector = newCollector(t)
	s.startApp()
	s.sidecar = start(t, filepath.Join(s.dir, "queue-proxy"), s.environment(), s.logged)
	t.Cleanup(func() {
		s.scraper.CloseIdleConnections()
		s.app.kill()
		s.sidecar.kill()
	})
	s.eventually("the sidecar is ready", func() error {
		return s.probes.ask(s.scraper, local(s.port.serving), "queue")
	})
	s.scraper.CloseIdleConnections()
	s.autos.follow(s)
	return s
}

func (s *soak) environment() []string {
	var env []string
	for name, value := range map[string]any{
		"QUEUE_SERVING_PORT":     s.port.serving,
		"QUEUE_SERVING_TLS_PORT": s.port.tls,
		"USER_PORT":              s.port.user,
		"ADMIN_PORT":             s.port.admin,
		"AUTOSCALER_PORT":        s.port.autoscaler,
		"METRICS_PORT":           s.port.metrics,
		"STATUS_PORT":            s.port.status,
		"TLS_CERT_DIR":           s.dir,

		"CONTAINER_CONCURRENCY":                   concurrency,
		"QUEUE_DEPTH":                             depth,
		"QUEUE_TIMEOUT_SECONDS":                   3,
		"REVISION_TIMEOUT_SECONDS":                60,
		"REVISION_TIMEOUT_SCOPE":                  "request",
		"REVISION_RESPONSE_START_TIMEOUT_SECONDS": 2,
		"REVISION_IDLE_TIMEOUT_SECONDS":           5,
		"HEADER_TIMEOUT":                          "8s",
		"BODY_TIMEOUT":                            "1s",
		"DRAIN_QUIET_PERIOD":                      "500ms",
		"DRAIN_DEADLINE":                          "20s",

		"SERVING_POD":             "pod1",
		"SERVING_REVISION":        "rev",
		"SERVING_READINESS_PROBE": fmt.Sprintf(`{"httpGet":{"path":"/ready","port":%d},"periodSeconds":1}`, s.port.user),
		"SERVER_TIMING":           true,
		"REQUEST_LOG":             true,
		"METRICS_NAMES":           "all",
		"OBSERVABILITY_CONFIG":    `{"tracing":{"protocol":"http/protobuf","endpoint":"` + s.collector.URL + `/v1/traces","samplingRate":1}}`,
	} {
		env = append(env, fmt.Sprintf("%s=%v", name, value))
	}
	return env
}

// startApp starts the app with a random timeout for idle connections.
func (s *soak) startApp() {
	s.t.Helper()
	idle := []string{"0s", "0s", "5ms", "3s"}[s.rng.IntN(4)]
	s.app = start(s.t, filepath.Join(s.dir, "app"), nil, func(line string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.books.App(line)
	}, "-ledger", "-host", "127.0.0.1", "-port", strconv.Itoa(s.port.user), "-keepalive-timeout", idle)
}

// logged processes a line of the sidecar's output.
func (s *soak) logged(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.books.Sidecar(line); l != nil {
		s.sums.add(l)
		return
	}
	for _, sign := range []string{"panic", "fatal error", "goroutine "} {
		if strings.Contains(line, sign) {
			s.strange = append(s.strange, line)
		}
	}
}

// traffic starts the clients and the faults for the given duration and returns after all
// clients have stopped.
func (s *soak) traffic(n int, d time.Duration) {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	var clients sync.WaitGroup
	s.startClients(ctx, &clients, fmt.Sprintf("t%d", n))
	s.injectFaults(ctx, &clients, fmt.Sprintf("f%d", n))
	clients.Wait()
}

// rest brings the sidecar to the same idle state each time, without clients and with a new app.
// Then it compares all counters and records.
func (s *soak) rest(n int) {
	s.t.Helper()
	s.app.kill()
	s.startApp()
	s.eventually("the counters agree", s.disagreements)
	s.collector.CloseClientConnections()
	s.join()
	now := s.atRest()
	s.samples = append(s.samples, now)
	s.t.Logf("%4.1f min, rest %d: %v; total: %v", time.Since(s.begun).Minutes(), n, &now, s.summary())
	if s.t.Failed() {
		s.writeState()
	}
}

// join reconciles all requests since the last rest and starts new records.
func (s *soak) join() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]bool{}
	lost := 0
	lose := func(format string, args ...any) {
		if lost++; lost <= 10 {
			s.t.Errorf(format, args...)
		}
	}
	for i := range s.entries {
		e := &s.entries[i]
		known[e.ID] = true
		v, word := s.books.Reconcile(e, ledger.Exceptions{})
		s.verdicts[v]++
		if v == ledger.Lost {
			lose("%s %s (%s): got a lost request: %s", e.Method, e.Path, e.ID, word)
			if i > 0 {
				before := &s.entries[i-1]
				s.t.Logf("previous request %s %s (%s): %+v, logged as %+v", before.Method, before.Path, before.ID, *before, s.books.Logged[before.ID])
			}
		}
		if e.Left {
			s.left++
		}
		if len(s.books.Logged[e.ID]) == 0 {
			s.unread++
		}
	}
	s.reconcileLog(known, lose)
	if lost > 10 {
		s.t.Errorf("lost %d requests", lost-10)
	}
	s.books, s.entries = ledger.NewBooks(), nil
	for _, line := range s.strange {
		s.t.Errorf("unexpected output of the sidecar: %s", line)
	}
	s.strange = nil
}

// reconcileLog compares the request log and the records of the app with the IDs that the
// clients have sent. s.mu must be held.
func (s *soak) reconcileLog(known map[string]bool, lose func(format string, args ...any)) {
	for id, lines := range s.books.Logged {
		seen, again, ok := s.books.Seen[id], 0, 0
		for _, l := range lines {
			if l.Replayed {
				again++
			}
			if l.Reason == "ok" {
				ok++
			}
		}
		switch {
		case !known[id]:
			lose("the request log contains %q, which no client has sent: %+v", id, lines)
		case len(lines) > 1:
			lose("%s: got %d lines in the request log, want 1: %+v", id, len(lines), lines)
		case seen > 1+again:
			lose("%s: the app received the request %d times, logged as %+v", id, seen, lines)
		case seen < ok:
			lose("%s: the app did not receive the request, logged as %+v", id, lines)
		}
	}
	for id := range s.books.Seen {
		if len(s.books.Logged[id]) == 0 {
			lose("%s: the app received the request, but it is not in the request log", id)
		}
	}
}

func (s *soak) note(e ...ledger.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, e...)
}

// longRest waits until the sidecar has closed its idle connections to the app, which takes up
// to 135 seconds.
func (s *soak) longRest() {
	s.t.Helper()
	s.eventuallyWithin("all idle connections to the app are closed", 3*time.Minute, func() error {
		now, err := s.takeSample()
		if err == nil && (now.kept != 0 || now.files != s.base.files) {
			err = fmt.Errorf("got %v, want %v without idle connections", &now, s.base)
		}
		return err
	})
}

// end stops the sidecar with SIGTERM.
func (s *soak) end() {
	s.t.Helper()
	s.autos.stop()
	s.sidecar.signal(syscall.SIGTERM)
	select {
	case <-s.sidecar.done:
	case <-time.After(ledger.Patience):
		s.writeState()
		s.t.Fatal("the sidecar is still running after SIGTERM")
	}
	if code := s.sidecar.cmd.ProcessState.ExitCode(); code != 0 {
		s.t.Errorf("got exit code %d, want 0", code)
	}
}

// writeState writes the state of the sidecar to files for the analysis of a failure.
func (s *soak) writeState() {
	dir, err := os.MkdirTemp("", "queue-proxy-soak-")
	if err != nil {
		s.t.Error(err)
		return
	}
	for name, path := range map[string]string{
		"goroutines.txt": "/debug/pprof/goroutine?debug=2", "heap.pprof": "/debug/pprof/heap", "status.json": "/status.json",
	} {
		body, err := s.get(s.port.status, path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600)
		}
		if err != nil {
			s.t.Error(err)
		}
	}
	s.t.Logf("state of the sidecar: %s", dir)
}

// get sends a request to an internal port of the sidecar.
func (s *soak) get(port int, path string, fields ...[2]string) (string, error) {
	r, err := http.NewRequest(http.MethodGet, "http://"+local(port)+path, nil)
	if err != nil {
		return "", err
	}
	for _, f := range fields {
		r.Header.Set(f[0], f[1])
	}
	a, err := s.scraper.Do(r)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: got %s", path, a.Status)
	}
	return string(body), err
}

// eventually waits until ask returns nil. The test fails after ledger.Patience.
func (s *soak) eventually(what string, ask func() error) {
	s.t.Helper()
	s.eventuallyWithin(what, ledger.Patience, ask)
}

func (s *soak) eventuallyWithin(what string, limit time.Duration, ask func() error) {
	s.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.t.Errorf("%s: timeout after %v: %v", what, limit, err)
			return
		}
	}
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// client returns a client that uses the plain port or, if secure is true, the TLS port.
func (s *soak) client(name string, secure bool, rng *rand.Rand) *ledger.Client {
	v := &ledger.Client{Name: name, Requests: ledger.Usual(), Rand: rng}
	address := local(s.port.serving)
	if secure {
		address, v.TLS = local(s.port.tls), &tls.Config{InsecureSkipVerify: true}
	}
	v.Dial = func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}
	return v
}

// summary describes the requests so far in one line.
func (s *soak) summary() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := 0
	for _, n := range s.verdicts {
		sent += n
	}
	return fmt.Sprintf("%d sent, application %d, sidecar %d, broken %d, lost %d; %v", sent,
		s.verdicts[ledger.FromApp], s.verdicts[ledger.FromSidecar], s.verdicts[ledger.Broken], s.verdicts[ledger.Lost], sorted(s.faults))
}

func sorted(m map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, m[name]))
	}
	return strings.Join(parts, ", ")
}
