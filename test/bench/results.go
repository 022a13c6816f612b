//go:build linux

package main

import (
	"debug/buildinfo"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Results are the contents of results.json.
type Results struct {
	Time     time.Time                   `json:"time"`
	Machine  Machine                     `json:"machine"`
	Settings Settings                    `json:"settings"`
	Cells    map[string]map[string]*Cell `json:"cells"` // cells by measure and peer
}

// A Cell contains one value for each round of a measure and a peer.
type Cell struct {
	Values []float64 `json:"values,omitempty"`
	Note   string    `json:"note,omitempty"`
	Failed []string  `json:"failed,omitempty"` // errors of failed rounds
}

// A Machine describes the machine and the programs of a run.
type Machine struct {
	CPU      string            `json:"cpu"`
	CPUs     int               `json:"cpus"`
	MemoryGB float64           `json:"memoryGB"`
	Kernel   string            `json:"kernel"`
	System   string            `json:"system"`
	Load     string            `json:"load"` // load average of the last minute
	Go       string            `json:"go"`
	Commit   string            `json:"commit"`
	Versions map[string]string `json:"versions"` // versions of the other programs
}

func (r *Results) cell(measure, peer string) *Cell {
	if r.Cells[measure] == nil {
		r.Cells[measure] = map[string]*Cell{}
	}
	if r.Cells[measure][peer] == nil {
		r.Cells[measure][peer] = &Cell{}
	}
	return r.Cells[measure][peer]
}

func (r *Results) add(measure, peer string, v float64) {
	c := r.cell(measure, peer)
	c.Values = append(c.Values, v)
}

func (r *Results) note(measure, peer, note string) { r.cell(measure, peer).Note = note }

func (r *Results) fail(measure, peer, what string) {
	c := r.cell(measure, peer)
	c.Failed = append(c.Failed, what)
}

// failures returns all errors.
func (r *Results) failures() []string {
	var all []string
	for measure, cells := range r.Cells {
		for peer, c := range cells {
			for _, what := range c.Failed {
				all = append(all, measure+", "+peer+": "+what)
			}
		}
	}
	slices.Sort(all)
	return all
}

// firstFailure returns an error with the number of failed measurements and the first failure, or nil if
// no measurement failed.
func (r *Results) firstFailure() error {
	failures := r.failures()
	if len(failures) == 0 {
		return nil
	}
	return fmt.Errorf("%d measurements failed; first error: %s", len(failures), failures[0])
}

// median returns the median of a measure. ok is false if there are no values.
func (r *Results) median(measure, peer string) (v float64, ok bool) {
	c := r.Cells[measure][peer]
	if c == nil || len(c.Values) == 0 {
		return 0, false
	}
	return median(c.Values), true
}

// ratio returns the median of one peer divided by the median of another peer. ok is false if a
// median is missing or if the second one is not positive, for example if noise exceeds an added
// latency.
func (r *Results) ratio(measure, peer, against string) (v float64, ok bool) {
	a, ok1 := r.median(measure, peer)
	b, ok2 := r.median(measure, against)
	if !ok1 || !ok2 || b <= 0 {
		return 0, false
	}
	return a / b, true
}

// median returns the median of values, which must not be empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// medianInterval returns a confidence interval for the median of the distribution, with a
// confidence of at least 95 % for any distribution (the interval of the sign test). Both limits are
// elements of values. ok is false if there are fewer than six values.
func medianInterval(values []float64) (low, high float64, ok bool) {
	n := len(values)
	// each is the probability of each sequence of n coin tosses. The loop computes the
	// probability that at most k of n coins show heads, for k = 0, 1, ...
	each := math.Pow(0.5, float64(n))
	below := 0 // the limits are the below-th smallest and the below-th largest value
	for chance := each; chance <= 0.025; below++ {
		each *= float64(n-below) / float64(below+1)
		chance += each
	}
	if below == 0 {
		return 0, 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[below-1], sorted[n-below], true
}

// percentile returns the smallest value that is greater than or equal to at least p % of the values
// (nearest rank). It sorts values, which must not be empty.
func percentile(values []time.Duration, p float64) time.Duration {
	slices.Sort(values)
	rank := int(p/100*float64(len(values)) + 0.999999)
	return values[min(max(rank, 1), len(values))-1]
}

// describeMachine returns the description of the machine that a reader needs to interpret
// absolute numbers.
func describeMachine(bin string) (Machine, error) {
	m := Machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Versions: map[string]string{}}
	m.CPU = find("/proc/cpuinfo", `(?m)^model name\s*: (.*)$`)
	if _, err := fmt.Sscan(find("/proc/meminfo", `(?m)^MemTotal:\s*(\d+) kB$`), &m.MemoryGB); err != nil {
		return m, fmt.Errorf("/proc/meminfo: %w", err)
	}
	m.MemoryGB /= 1e6
	m.Kernel = find("/proc/sys/kernel/osrelease", `^(\S+)`)
	m.System = find("/etc/os-release", `(?m)^PRETTY_NAME="(.*)"$`)
	m.Load = find("/proc/loadavg", `^(\S+)`)
	if out, err := exec.Command("git", "describe", "--tags", "--always", "--dirty").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
	}
	if info, err := buildinfo.ReadFile(filepath.Join(bin, "knative")); err == nil {
		m.Versions["knative"] = info.Main.Version
	}
	for name, flag := range map[string]string{"haproxy": "-v", "nginx": "-v", "wrk": "-v", "h2load": "--version"} {
		path, err := commandPath(name)
		if err != nil {
			return m, err
		}
		out, _ := exec.Command(path, flag).CombinedOutput() // ignore the error, because wrk -v exits with 1
		version := regexp.MustCompile(`\d+\.\d+(\.\d+)?`).FindString(string(out))
		if version == "" {
			return m, fmt.Errorf("%s %s: no version found in %q", filepath.Base(path), flag, out)
		}
		m.Versions[name] = version
	}
	return m, nil
}

// find returns the first group of a pattern in a file, or "" if the pattern is not found.
func find(name, pattern string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	if m := regexp.MustCompile(pattern).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}
