//go:build soak

package soak

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// A sample is what the sidecar holds in one rest. Sizes are in bytes.
type sample struct {
	at                  time.Duration // since the start of the run
	rss, pss, anonymous float64       // of the process
	heap                float64       // objects that are alive after a collection
	goroutines          int
	files               int // without kept connections to the app
	kept                int // of those, also the ones that the app has closed
	threads             int
}

func (a *sample) String() string {
	return fmt.Sprintf("%d goroutines, %d files and %d kept connections, %d threads, RSS %.2f MB, anonymous %.2f MB, heap %.3f MB",
		a.goroutines, a.files, a.kept, a.threads, a.rss/1e6, a.anonymous/1e6, a.heap/1e6)
}

// look takes a sample.
func (s *soak) look() (a sample, err error) {
	s.looking.Lock() // a scrape is garbage of its own
	defer s.looking.Unlock()
	a.at = time.Since(s.begun)
	heap, err := s.get(s.port.status, "/debug/pprof/heap?debug=1&gc=1") // the profiler's gc=1: a collection first
	if err != nil {
		return a, err
	}
	all, err := s.get(s.port.status, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return a, err
	}
	proc := fmt.Sprintf("/proc/%d/", s.sidecar.cmd.Process.Pid)
	rollup, err := os.ReadFile(proc + "smaps_rollup")
	if err != nil {
		return a, err
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return a, err
	}
	number := func(text, pattern string) float64 {
		m := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if m == nil {
			err = fmt.Errorf("got no %s", pattern)
			return 0
		}
		n, _ := strconv.ParseFloat(m[1], 64)
		return n
	}
	a.heap = number(heap, `# HeapAlloc = (\d+)`)
	a.goroutines = int(number(all, `^goroutine profile: total (\d+)`))
	a.rss = 1024 * number(string(rollup), `(?m)^Rss:\s+(\d+) kB`)
	a.pss = 1024 * number(string(rollup), `(?m)^Pss:\s+(\d+) kB`)
	a.anonymous = 1024 * number(string(rollup), `(?m)^Anonymous:\s+(\d+) kB`)
	a.threads = int(number(string(status), `(?m)^Threads:\s+(\d+)`))
	if err != nil {
		return a, err
	}
	a.files, a.kept, err = s.files(proc + "fd")
	return a, err
}

// files counts what files the sidecar has open, and connections to the app apart:
// those that it keeps for the next request. A connection that the app has reset is
// no longer in the kernel's list; as the app has been killed, it is taken for one
// of these.
func (s *soak) files(dir string) (others, kept int, err error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	elsewhere := map[string]bool{} // inodes of sockets that do not lead to the app
	app := fmt.Sprintf(":%04X", s.port.user)
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6", "/proc/net/unix"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			switch {
			case strings.HasSuffix(name, "unix") && len(f) > 6:
				elsewhere[f[6]] = true
			case len(f) > 9 && !strings.HasSuffix(f[2], app):
				elsewhere[f[9]] = true
			}
		}
	}
	for _, one := range list {
		link, err := os.Readlink(dir + "/" + one.Name())
		if err != nil {
			continue // closed meanwhile
		}
		inode, socket := strings.CutPrefix(link, "socket:[")
		if socket && !elsewhere[strings.TrimSuffix(inode, "]")] {
			kept++
		} else {
			others++
		}
	}
	return others, kept, nil
}

// atRest returns what the sidecar holds, once that stands still and is what it held
// in the first rest: what the first turn was the first to need is there by then.
func (s *soak) atRest() (now sample) {
	s.t.Helper()
	since, looks := time.Now(), 0
	s.eventuallyWithin("the sidecar holds what it held in the first rest", 4*ledger.Patience, func() error {
		next, err := s.look()
		if err != nil {
			return err
		}
		if looks == 0 || next.goroutines != now.goroutines || next.files != now.files {
			since, looks = time.Now(), 0
		} else { // of many measures the least has the least garbage in it
			next.heap, next.anonymous = min(next.heap, now.heap), min(next.anonymous, now.anonymous)
			next.rss, next.pss = min(next.rss, now.rss), min(next.pss, now.pss)
		}
		now = next
		looks++
		if b := s.base; b != nil && (now.goroutines != b.goroutines || now.files != b.files || now.kept > concurrency+2) {
			return fmt.Errorf("got %v, want %v and at most %d kept", &now, b, concurrency+2)
		}
		if looks < 10 || time.Since(since) < 2*time.Second { // the runtime gives memory back meanwhile
			return fmt.Errorf("got %v, which may change", &now)
		}
		return nil
	})
	if s.base == nil {
		base := now
		s.base = &base
	}
	return now
}

// A slope is how something changes with time, by least squares, with the bounds
// between which it is with a confidence of 95 %. Its unit is that of y, a day.
type slope struct{ low, mid, high float64 }

// slopeOf needs three points at least.
func slopeOf(at []time.Duration, y []float64) slope {
	n := float64(len(at))
	var mt, my, tt, ty, rest float64
	for i := range at {
		mt += at[i].Hours() / 24 / n
		my += y[i] / n
	}
	for i := range at {
		t := at[i].Hours()/24 - mt
		tt += t * t
		ty += t * (y[i] - my)
	}
	b := ty / tt
	for i := range at {
		e := y[i] - my - b*(at[i].Hours()/24-mt)
		rest += e * e
	}
	free := n - 2
	// Student's t for 97.5 %, from the normal one (Cornish and Fisher); with 3 degrees
	// of freedom it is 4 % too low, with 8 a quarter of one.
	const z = 1.959964
	student := z + (z*z*z+z)/(4*free) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*free*free)
	wide := student * math.Sqrt(rest/free/tt)
	return slope{b - wide, b, b + wide}
}

// Reckoned by hand, with Student's t of 8 degrees of freedom out of a table: 2.306.
func TestTheSlopeOfKnownPoints(t *testing.T) {
	var at []time.Duration
	var y []float64
	for i := range 10 {
		at = append(at, time.Duration(i)*24*time.Hour)
		y = append(y, 3*float64(i)+float64(i%2))
	}
	got := slopeOf(at, y)
	// By hand: sxx 82.5, sxy 250, residuals 2.4242, s 0.5505, error 0.0606.
	if math.Abs(got.mid-3.0303) > 1e-3 || math.Abs(got.high-got.mid-2.306*0.06061) > 2e-3 {
		t.Errorf("got %+v, want 3.0303 and 0.1398 on either side", got)
	}
	if got := slopeOf(at, make([]float64, 10)); got != (slope{}) {
		t.Errorf("got %+v for what does not change, want 0", got)
	}
}

// What memory may grow by in a day, at most, so that a long run passes: the upper
// bound of its slope. n rests in a time T show a slope to within t s sqrt(12/n) / T,
// where s is how far single measures lie from the line and t is Student's: with the
// 0.26 MB and 0.5 MB that were seen, 24 rests in the last 25 of 30 minutes show 22 and
// 42 MB a day. A slope that is really 0 stays below these bounds.
const (
	heapADay    = 50e6
	processADay = 100e6

	// Over all of a run of any length: a crude net, but the only one of a short run.
	heapGrowth    = 2e6
	processGrowth = 10e6
	moreThreads   = 4 // than in the first rest: the runtime keeps what a busy moment needed
)

const (
	page       = "../../docs/reliability.md"
	tableBegin = "<!-- soak -->\n"
	tableEnd   = "<!-- /soak -->\n"
)

// report prints the tables and fails if the memory grows. After a long run without failures, it writes the tables into the
// document.
func (s *soak) report() {
	s.t.Helper()
	if s.base == nil || len(s.samples) < leastOf {
		return
	}
	warm := s.samples[len(s.samples)/5:] // pools and tables are filled in the first fifth
	first, last := warm[0], warm[len(warm)-1]
	var at []time.Duration
	for _, a := range warm {
		at = append(at, a.at)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nSeed %d, %.0f minutes, %d pauses. Requests: %s. Faults: %s. Probes: readiness %d, ingress %d.\n\n",
		*seed, time.Since(s.begun).Minutes(), len(s.samples), s.sent(), sorted(s.faults), s.probes.sent.Load(), s.probes.hashes.Load())
	fmt.Fprintf(&b, "| source | requests |\n|---|---|\n")
	fmt.Fprintf(&b, "| clients, without the requests that were canceled before the sidecar read them | %d |\n", s.all()-s.unread)
	fmt.Fprintf(&b, "| request log: lines; traffic, kubelet probes | %d; %d, %d |\n", s.sums.lines, s.sums.traffic, s.sums.lines-s.sums.traffic)
	fmt.Fprintf(&b, "| metrics, statistics and spans: traffic | %d |\n\n", s.sums.traffic)
	fmt.Fprintf(&b, "| measure | after the warm-up | at the end | slope per day (95 %%) |\n|---|---|---|---|\n")
	for _, row := range []struct {
		name         string
		of           func(*sample) float64
		aDay, growth float64
	}{
		{"live heap", func(a *sample) float64 { return a.heap }, heapADay, heapGrowth},
		{"anonymous memory", func(a *sample) float64 { return a.anonymous }, processADay, processGrowth},
		{"RSS", func(a *sample) float64 { return a.rss }, processADay, processGrowth},
		{"PSS", func(a *sample) float64 { return a.pss }, processADay, processGrowth},
	} {
		var y []float64
		for i := range warm {
			y = append(y, row.of(&warm[i]))
		}
		grown := slopeOf(at, y)
		fmt.Fprintf(&b, "| %s | %.2f MB | %.2f MB | %+.1f MB (%+.1f to %+.1f) |\n", row.name, y[0]/1e6, y[len(y)-1]/1e6, grown.mid/1e6, grown.low/1e6, grown.high/1e6)
		if long() && grown.high > row.aDay {
			s.t.Errorf("%s: got a slope of up to %.1f MB a day, want at most %.0f", row.name, grown.high/1e6, row.aDay/1e6)
		}
		if more := y[len(y)-1] - y[0]; more > row.growth {
			s.t.Errorf("%s: got %.1f MB more at the end, want at most %.1f", row.name, more/1e6, row.growth/1e6)
		}
	}
	fmt.Fprintf(&b, "| goroutines | %d | %d | equal in each pause |\n", first.goroutines, last.goroutines)
	fmt.Fprintf(&b, "| files, without idle connections to the application | %d | %d | equal in each pause |\n", first.files, last.files)
	fmt.Fprintf(&b, "| threads | %d | %d | at most %d more than in the first pause |\n\n", first.threads, last.threads, moreThreads)
	if more := last.threads - s.base.threads; more > moreThreads {
		s.t.Errorf("got %d threads more than in the first pause, want at most %d", more, moreThreads)
	}
	if !long() {
		s.t.Logf("the run is too short for slopes; the heap grew by at most %.0f MB and the process by at most %.0f MB", heapGrowth/1e6, processGrowth/1e6)
	}
	s.t.Log(b.String())
	if !s.t.Failed() && long() {
		s.writePage(b.String())
	}
}

// writePage writes the report into the document.
func (s *soak) writePage(report string) {
	s.t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		s.t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		s.t.Fatalf("%s: got no lines %q and %q", page, tableBegin, tableEnd)
	}
	if err := os.WriteFile(page, []byte(before+tableBegin+report+tableEnd+after), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *soak) all() (n int) {
	for _, v := range s.verdicts {
		n += v
	}
	return n
}

func (s *soak) sent() string {
	return fmt.Sprintf("%d sent, application %d, sidecar %d, broken %d (%d by their clients), **%d lost**", s.all(),
		s.verdicts[ledger.FromApp], s.verdicts[ledger.FromSidecar], s.verdicts[ledger.Broken], s.left, s.verdicts[ledger.Lost])
}
