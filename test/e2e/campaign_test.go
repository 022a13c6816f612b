//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/ledger"
)

var (
	seed = flag.Uint64("seed", 1, "seed of the random numbers of the clients")
	only = flag.String("fault", "", "run the faults whose name matches this regular expression, and do not write the table")
)

// usualClients is the number of clients if a fault does not set it.
const usualClients = 8

// A fault is a row of the table in results.txt.
type fault struct {
	name string
	what string // method of the fault
	must string // pattern that a line "VERDICT WORD" must match, to verify that the fault had an effect

	flags         []string         // flags of the injector
	app           []string         // arguments of the sample application
	clients       int              // number of clients; 0 means usualClients
	others        int              // maximum number of requests in progress that are not from the clients
	requests      []ledger.Request // requests of the clients; nil means ledger.Usual
	clientSuffers bool             // a client or its network can cause broken requests
	logSuffers    bool             // log lines can be missing
	tinyLog       bool             // the log is on a file system of 128 KB
	orphan        bool             // podman cannot report the exit code of the sidecar
	closes        bool             // the sidecar exits during the fault, so it may close connections that carry no request
	code          int              // expected exit code of the sidecar

	// The following functions can be nil.
	spec    func(*stage, *corev1.Pod)    // changes the pod
	prepare func(*stage)                 // runs before the sidecar is ready
	change  func(*stage, *ledger.Client) // changes a client
	strike  func(*stage)                 // runs during the requests
	heal    func(*stage)                 // runs after the requests
}

// A stage is one run of a fault.
type stage struct {
	*pod
	f       *fault
	rng     *rand.Rand
	address string          // address of the sidecar
	certs   string          // directory of the certificates, or empty
	ctx     context.Context // canceled when the clients stop

	mu      sync.Mutex // protects entries
	entries []ledger.Entry
	clients sync.WaitGroup
}

// startClients starts clients that send requests until the stage ends.
func (s *stage) startClients(n int, requests []ledger.Request) {
	for i := range n {
		v := s.client(fmt.Sprintf("v%d", i))
		v.Requests = requests
		s.clients.Go(func() {
			v.Run(s.ctx)
			s.note(v.Entries...)
		})
	}
}

func (s *stage) client(name string) *ledger.Client {
	v := &ledger.Client{Name: name, Dial: s.to(s.address), Requests: ledger.Usual(), Rand: rand.New(rand.NewPCG(s.rng.Uint64(), 0))}
	if s.f.change != nil {
		s.f.change(s, v)
	}
	return v
}

// to returns a function that connects to an address in the pod.
func (s *stage) to(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return s.dial(ctx, address) }
}

func (s *stage) note(e ...ledger.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, e...)
}

// length is the time for which the clients send requests during each fault.
const length = 4 * time.Second

// Each fault runs in a separate pod. No request may be lost. The test writes results.txt, and the totals of all
// faults to docs/reliability.md.
func TestFaults(t *testing.T) {
	t.Parallel() // run in parallel with the example, which needs little CPU time
	pattern, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile("pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d", *seed)
	var rows []*tally
	for i := range faults {
		f := &faults[i]
		if !pattern.MatchString(f.name) {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			if row := f.play(t, manifest); row != nil {
				rows = append(rows, row)
				t.Logf("sent %d, application %s, sidecar %s, broken %s, lost %s", row.sent(), row.cell(ledger.FromApp), row.cell(ledger.FromSidecar), row.cell(ledger.Broken), row.cell(ledger.Lost))
			}
		})
	}
	if *only == "" && !t.Failed() {
		writeResults(t, rows)
	}
}

// settings contains the settings of every sidecar. The request log is compared with the
// records of the clients and the application.
const settings = "REQUEST_LOG=true\n"

func (f *fault) play(t *testing.T, manifest []byte) *tally {
	flags := []string{"--image", sidecarImage, "--memory-limit", "64Mi", "--cpu-limit", "500m", "--drain-quiet-period", "500ms"}
	more := settings
	for _, flag := range f.flags {
		if name, ok := strings.CutPrefix(flag, "set:"); ok {
			more += name + "\n"
		} else {
			flags = append(flags, flag)
		}
	}
	spec := podOf(t, inject(t, manifest, append(flags, "--settings", more)...))
	if spec.Spec.TerminationGracePeriodSeconds == nil {
		grace := int64(30) // default of Kubernetes
		spec.Spec.TerminationGracePeriodSeconds = &grace
	}
	app := &spec.Spec.Containers[0]
	app.Args = append(app.Args, append([]string{"-ledger"}, f.app...)...)
	s := &stage{pod: &pod{t: t}, f: f, rng: rand.New(rand.NewPCG(*seed, 0)), address: "127.0.0.1:8012"}
	if f.spec != nil {
		f.spec(s, spec)
	}
	var log func(*pod)
	if f.tinyLog {
		log = limitLogSize
	}
	s.pod = play(t, spec, log)
	if f.prepare != nil {
		f.prepare(s)
	}
	s.awaitReady()
	before := s.files(sidecarName)

	ctx, end := context.WithTimeout(t.Context(), length)
	defer end()
	s.ctx = ctx
	n, requests := f.clients, f.requests
	if n == 0 {
		n = usualClients
	}
	if requests == nil {
		requests = ledger.Usual()
	}
	s.startClients(n, requests)
	n += f.others
	if f.strike != nil {
		f.strike(s)
	}
	<-ctx.Done()
	if f.heal != nil {
		f.heal(s)
	}
	s.clients.Wait()

	f.end(t, s, before+2*n+10)
	y := join(t, f, s.pod, s.entries)
	if must := regexp.MustCompile(f.must); !must.MatchString(y.all()) {
		t.Errorf("got\n%s\nwant a match of %q, because the fault must have an effect", y.all(), f.must)
	}
	return y
}

// end checks the exit code of the sidecar, and that it has at most the given number of open
// files after a fault.
func (f *fault) end(t *testing.T, s *stage, most int) {
	t.Helper()
	if !f.closes {
		s.awaitResponses()
		// The sidecar opens one connection to the application for each concurrent request, and
		// a few additional connections if a client sends the next request early. A leak would
		// leave about one connection for each request.
		eventually(t, fmt.Sprintf("the sidecar has at most %d open files", most), func() bool { return s.files(sidecarName) <= most })
		if f.orphan {
			s.signal(sidecarName, syscall.SIGTERM)
			s.isGone(sidecarName, patience)
		} else if codes := s.terminate(); codes[sidecarName] != f.code {
			t.Errorf("sidecar: got exit code %d, want %d", codes[sidecarName], f.code)
		}
	} else if code := s.ended(sidecarName, patience); code != f.code {
		t.Errorf("sidecar: got exit code %d, want %d", code, f.code)
	}
}

// awaitResponses waits until the application responds to ten successive requests.
func (s *stage) awaitResponses() {
	s.t.Helper()
	v := s.client("after")
	defer v.Leave()
	row := 0
	eventually(s.t, "the application responds to ten successive requests", func() bool {
		if v.Ask(v.Next()).Verdict == ledger.FromApp {
			row++
		} else {
			row = 0
		}
		return row == 10
	})
	s.note(v.Entries...)
}

// files returns the number of file descriptors that a container's process has open.
func (p *pod) files(name string) int {
	dir, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pids[name]))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(dir)
}

// all returns one line for each verdict and word, with the number of requests.
func (y *tally) all() string {
	var b strings.Builder
	for v, words := range y.words {
		for word, n := range words {
			fmt.Fprintf(&b, "%s %s (%d)\n", ledger.Verdict(v), word, n)
		}
	}
	return b.String()
}

// writeResults writes the table of all faults to results.txt, and the totals to the
// document.
func writeResults(t *testing.T, rows []*tally) {
	t.Helper()
	const columns = "sent | application | sidecar | broken | lost |\n"
	var b strings.Builder
	fmt.Fprintf(&b, "The results of `make e2e`, in a Markdown table. Seed %d.\n\n| fault | method | %s|---|---|---|---|---|---|---|\n", *seed, columns)
	total := &tally{}
	for _, y := range rows {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s |\n", y.name, y.what, y.sent(), y.cell(ledger.FromApp), y.cell(ledger.FromSidecar), y.cell(ledger.Broken), y.cell(ledger.Lost))
		for v, n := range y.count {
			total.count[v] += n
		}
	}
	sum := fmt.Sprintf(" | %d | %d | %d | %d | **%d** |\n", total.sent(), total.count[ledger.FromApp], total.count[ledger.FromSidecar], total.count[ledger.Broken], total.count[ledger.Lost])
	b.WriteString("| **all** |" + sum)
	harness.NoError(t, os.WriteFile("results.txt", []byte(b.String()), 0o644))
	summary := fmt.Sprintf("\n| faults | %s|---|---|---|---|---|---|\n| %d%s\n", columns, len(rows), sum)
	harness.NoError(t, harness.WriteSection("../../docs/reliability.md", "faults", summary))
	t.Logf("%d faults, %d requests, %d lost; the table is in test/e2e/results.txt", len(rows), total.sent(), total.count[ledger.Lost])
}

// bare connects to the pod and sends text. The caller closes the connection.
func (s *stage) bare(text string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := s.dial(ctx, s.address)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte(text)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
