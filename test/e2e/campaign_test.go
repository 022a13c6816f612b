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

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

var (
	seed = flag.Uint64("seed", 1, "of what the clients send, and when")
	only = flag.String("fault", "", "run the faults whose name matches this pattern, and write no table")
)

// usualClients is how many clients there are where a fault says nothing else.
const usualClients = 8

// A fault is a row of docs/reliability.md: what goes wrong while clients come.
type fault struct {
	name string // as a fact
	what string // how it is done
	must string // what must be among what happened, or the fault was none: a pattern on "verdict word"

	flags         []string         // of the injector
	app           []string         // arguments of the sample app
	clients       int              // 0: the usual number
	others        int              // requests at once beside theirs, at most
	requests      []ledger.Request // nil: the usual
	clientSuffers bool             // a client, or the wire to it, is at fault
	logSuffers    bool             // so is the log, or its writer
	tinyLog       bool             // it is on a file system of 128 KB
	orphan        bool             // podman cannot say how the sidecar ended
	closes        bool             // the sidecar ends: connections may, and the app is not asked again
	code          int              // exit code of the sidecar

	// All of these may be nil.
	spec    func(*stage, *corev1.Pod)    // what else the pod needs
	prepare func(*stage)                 // before the sidecar is asked whether it is ready
	change  func(*stage, *ledger.Client) // what is special about a client
	strike  func(*stage)                 // while the clients come
	heal    func(*stage)                 // afterwards
}

// A stage is where a fault is played.
type stage struct {
	*pod
	f       *fault
	rng     *rand.Rand
	address string          // where clients connect to
	certs   string          // a directory of certificates, if there is one
	ctx     context.Context // ends with the visits

	mu      sync.Mutex // protects entries
	entries []ledger.Entry
	clients sync.WaitGroup
}

// come starts clients that stay until the stage ends.
func (s *stage) come(n int, requests []ledger.Request) {
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

// to returns how to connect to an address in the pod.
func (s *stage) to(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return s.dial(ctx, address) }
}

func (s *stage) note(e ...ledger.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, e...)
}

// length is how long clients come to each fault.
const length = 4 * time.Second

// Each fault is played on a pod of its own, and no request may be lost in any. The
// table goes into docs/reliability.md.
func TestFaults(t *testing.T) {
	t.Parallel() // with the example, which mostly waits
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
				t.Logf("sent %d, by the app %s, by us %s, broken %s, lost %s", row.sent(), row.cell(ledger.ByApp), row.cell(ledger.ByUs), row.cell(ledger.Broken), row.cell(ledger.Lost))
			}
		})
	}
	if *only == "" && !t.Failed() {
		writeTable(t, rows)
	}
}

// settings are those of every sidecar in the campaign: the request log is the
// proxy's ledger.
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
		grace := int64(30) // Kubernetes' default
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
		log = makeLogTiny
	}
	s.pod = play(t, spec, log)
	if f.prepare != nil {
		f.prepare(s)
	}
	s.becomesReady()
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
	s.come(n, requests)
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
		t.Errorf("got\n%swant %q among it: the fault was none", y.all(), f.must)
	}
	return y
}

// end holds the sidecar to what is left of a fault: files that are open, at most so many,
// and its exit code.
func (f *fault) end(t *testing.T, s *stage, most int) {
	t.Helper()
	if !f.closes {
		s.servesAgain()
		// Connections to the app are kept: one for each request at once, and now and then
		// one more, where a client was faster than we at the end of an exchange. A leak
		// would be one for each of a thousand requests.
		eventually(t, fmt.Sprintf("the sidecar has at most %d files open", most), func() bool { return s.files(sidecarName) <= most })
		if f.orphan {
			s.signal(sidecarName, syscall.SIGTERM)
			s.isGone(sidecarName, patience)
		} else if codes := s.terminate(); codes[sidecarName] != f.code {
			t.Errorf("got exit code %d of the sidecar, want %d", codes[sidecarName], f.code)
		}
	} else if code := s.ended(sidecarName, patience); code != f.code {
		t.Errorf("got exit code %d of the sidecar, want %d", code, f.code)
	}
}

// servesAgain fails unless the app answers again once the fault is over, ten times
// in a row.
func (s *stage) servesAgain() {
	s.t.Helper()
	v := s.client("after")
	defer v.Leave()
	row := 0
	eventually(s.t, "the app answers ten requests in a row", func() bool {
		if v.Ask(v.Next()).Verdict == ledger.ByApp {
			row++
		} else {
			row = 0
		}
		return row == 10
	})
	s.note(v.Entries...)
}

// files returns how many file descriptors a container's process has open.
func (p *pod) files(name string) int {
	dir, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pids[name]))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(dir)
}

// all returns what happened, a line for each verdict and word.
func (y *tally) all() string {
	var b strings.Builder
	for v, words := range y.words {
		for word, n := range words {
			fmt.Fprintf(&b, "%s %s (%d)\n", ledger.Verdict(v), word, n)
		}
	}
	return b.String()
}

const (
	tableBegin = "<!-- table -->\n"
	tableEnd   = "<!-- /table -->\n"
	page       = "../../docs/reliability.md"
)

func writeTable(t *testing.T, rows []*tally) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s: got no place for a table between %q and %q", page, tableBegin, tableEnd)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nSeed %d. Of each fault: requests sent, answered by the app, by us with a reason, broken and noticed, lost.\n\n", *seed)
	b.WriteString("| fault | how | sent | by the app | by us | broken | lost |\n|---|---|---|---|---|---|---|\n")
	total := &tally{}
	for _, y := range rows {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s |\n", y.name, y.what, y.sent(), y.cell(ledger.ByApp), y.cell(ledger.ByUs), y.cell(ledger.Broken), y.cell(ledger.Lost))
		for v, n := range y.count {
			total.count[v] += n
		}
	}
	fmt.Fprintf(&b, "| **all** | | %d | %d | %d | %d | **%d** |\n\n", total.sent(), total.count[ledger.ByApp], total.count[ledger.ByUs], total.count[ledger.Broken], total.count[ledger.Lost])
	if err := os.WriteFile(page, []byte(before+tableBegin+b.String()+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d faults, %d requests, %d lost; the table is in docs/reliability.md", len(rows), total.sent(), total.count[ledger.Lost])
}

// bare connects to the pod and sends a text; what becomes of it is the fault's.
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
