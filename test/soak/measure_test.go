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

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// A sample contains the resource usage of the sidecar at one rest. Sizes are in bytes.
type sample struct {
	at                  time.Duration // time since the start of the run
	rss, pss, anonymous float64       // memory of the process
	heap                float64       // live objects after a garbage collection
	goroutines          int
	files               int // open files without idle connections to the app
	kept                int // idle connections to the app, including connections that the app has closed
	threads             int
}

func (a *sample) String() string {
	return fmt.Sprintf("%d goroutines, %d files and %d kept connections, %d threads, RSS %.2f MB, anonymous %.2f MB, heap %.3f MB",
		a.goroutines, a.files, a.kept, a.threads, a.rss/1e6, a.anonymous/1e6, a.heap/1e6)
}

// takeSample takes a sample.
func (s *soak) takeSample() (a sample, err error) {
	s.looking.Lock() // exclude concurrent scrapes, which would create garbage
	defer s.looking.Unlock()
	a.at = time.Since(s.begun)
	heap, err := s.get(s.port.status, "/debug/pprof/heap?debug=1&gc=1") // the parameter gc=1 of the profiler runs a garbage collection first
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
			err = fmt.Errorf("no match for %s", pattern)
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

// files returns the number of open files of the sidecar and separately the number of idle
// connections to the app. A connection that the app has reset is not in the kernel's list any
// more. It is counted as idle, because the app was killed.
func (s *soak) files(dir string) (others, kept int, err error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	elsewhere := map[string]bool{} // inodes of sockets that are not connected to the app
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
			continue // the file was closed after the directory was read
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

// atRest waits until the resources of the sidecar are stable and have the same values as at the
// first rest. The first rest includes resources that are created only once.
func (s *soak) atRest() (now sample) {
	s.t.Helper()
	since, looks := time.Now(), 0
	s.eventuallyWithin("the sidecar has the resources of the first rest", 4*ledger.Patience, func() error {
		next, err := s.takeSample()
		if err != nil {
			return err
		}
		if looks == 0 || next.goroutines != now.goroutines || next.files != now.files {
			since, looks = time.Now(), 0
		} else { // keep the minimum of several measurements, which contains the least garbage
			next.heap, next.anonymous = min(next.heap, now.heap), min(next.anonymous, now.anonymous)
			next.rss, next.pss = min(next.rss, now.rss), min(next.pss, now.pss)
		}
		now = next
		looks++
		if b := s.base; b != nil && (now.goroutines != b.goroutines || now.files != b.files || now.kept > concurrency+2) {
			return fmt.Errorf("got %v, want %v and at most %d idle connections", &now, b, concurrency+2)
		}
		if looks < 10 || time.Since(since) < 2*time.Second { // continue, because the Go runtime returns memory to the kernel after some time
			return fmt.Errorf("got %v, want stable values", &now)
		}
		return nil
	})
	if s.base == nil {
		base := now
		s.base = &base
	}
	return now
}

// A slope is the change in a value per day by least squares, with the bounds of its 95 %
// confidence interval.
type slope struct{ low, mid, high float64 }

// slopeOf returns the slope of y over at. It requires at least three points.
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
	// Student's t for 97.5 % from the quantile of the normal distribution (Cornish and Fisher).
	// It is 4 % too low for 3 degrees of freedom and 0.25 % too low for 8.
	const z = 1.959964
	student := z + (z*z*z+z)/(4*free) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*free*free)
	wide := student * math.Sqrt(rest/free/tt)
	return slope{b - wide, b, b + wide}
}

// The expected values are calculated by hand, with Student's t for 8 degrees of freedom from a
// table: 2.306.
func TestSlopeOfKnownPoints(t *testing.T) {
	var at []time.Duration
	var y []float64
	for i := range 10 {
		at = append(at, time.Duration(i)*24*time.Hour)
		y = append(y, 3*float64(i)+float64(i%2))
	}
	got := slopeOf(at, y)
	// Calculated by hand: sxx 82.5, sxy 250, residuals 2.4242, s 0.5505, standard error
	// 0.0606.
	if math.Abs(got.mid-3.0303) > 1e-3 || math.Abs(got.high-got.mid-2.306*0.06061) > 2e-3 {
		t.Errorf("got %+v, want 3.0303 with bounds of 0.1398", got)
	}
	if got := slopeOf(at, make([]float64, 10)); got != (slope{}) {
		t.Errorf("got %+v for constant values, want 0", got)
	}
}

// The following limits are the maximum growth of memory in bytes per day. In a long run,
// they are compared with the upper bound of the slope. n rests in a time T determine the
// slope with an accuracy of t s sqrt(12/n) / T, where s is the standard deviation of
// single measurements from the line and t is Student's t. With the measured s of 0.26 MB
// and 0.5 MB, 24 rests in the last 25 of 30 minutes give 22 and 42 MB per day. If the
// true slope is 0, the upper bound is therefore below these limits.
const (
	heapADay    = 50e6
	processADay = 100e6

	// Maximum growth in bytes over a run of any length. A short run is only compared with
	// these coarse limits.
	heapGrowth    = 2e6
	processGrowth = 10e6
	moreThreads   = 4 // maximum number of additional threads since the first rest; the Go runtime does not end idle threads
)

// report prints the tables and fails if the memory grows. After a long run without failures, it
// writes the tables to results.txt.
func (s *soak) report() {
	s.t.Helper()
	if s.base == nil || len(s.samples) < leastOf {
		return
	}
	warm := s.samples[len(s.samples)/5:] // omit the first fifth, in which pools and tables are filled
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
			s.t.Errorf("%s: got a slope of up to %.1f MB per day, want at most %.0f", row.name, grown.high/1e6, row.aDay/1e6)
		}
		if more := y[len(y)-1] - y[0]; more > row.growth {
			s.t.Errorf("%s: got an increase of %.1f MB, want at most %.1f", row.name, more/1e6, row.growth/1e6)
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
		harness.NoError(s.t, harness.WriteSection("results.txt", "soak", b.String()))
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
