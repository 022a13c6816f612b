package metrics

import (
	"bytes"
	"math"
	"os"
	rtmetrics "runtime/metrics"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// The process and the Go runtime are read here rather than by client_golang's own
// collectors: those would be two thirds of the cost of a scrape, and their names
// (go_..., process_...) belong to the user container where its metrics stand beside
// ours.

// ticksPerSecond is the unit of times in /proc, on every system that Go runs on
// (proc(5), sysconf(_SC_CLK_TCK)).
const ticksPerSecond = 100

// A process is what /proc/self/stat says about ours.
type process struct {
	cpu               float64 // seconds
	threads           float64
	virtual, resident float64 // bytes
}

// readProcess parses /proc/self/stat; false: it cannot be read.
func readProcess(stat []byte, err error) (p process, ok bool) {
	// The name in parentheses may hold anything; the numbers stand behind its end.
	_, rest, found := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	fields := strings.Fields(string(rest))
	const user, system, threads, virtual, resident = 11, 12, 17, 20, 21 // fields 14, 15, 20, 23, 24 of proc(5)
	if err != nil || !found || len(fields) <= resident {
		return p, false
	}
	at := func(i int) float64 {
		n, wrong := strconv.ParseUint(fields[i], 10, 64)
		if wrong != nil {
			err = wrong
		}
		return float64(n)
	}
	p = process{
		cpu:      (at(user) + at(system)) / ticksPerSecond,
		threads:  at(threads),
		virtual:  at(virtual),
		resident: at(resident) * float64(os.Getpagesize()),
	}
	return p, err == nil
}

// openFiles is how many files are open.
func openFiles() (float64, bool) {
	const dir = "/proc/self/fd"
	// Since Linux 6.2 the size is the answer; before, the names must be counted.
	if info, err := os.Stat(dir); err != nil {
		return 0, false
	} else if info.Size() > 0 {
		return float64(info.Size()), true
	}
	d, err := os.Open(dir)
	if err != nil {
		return 0, false
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return float64(len(names) - 1), err == nil // d itself is one of them
}

// maxFiles is how many files may be open, from the text of /proc/self/limits.
func maxFiles(limits []byte, err error) (float64, bool) {
	for line := range strings.Lines(string(limits)) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok && err == nil {
			if fields := strings.Fields(rest); len(fields) > 0 {
				n, wrong := strconv.ParseUint(fields[0], 10, 64)
				return float64(n), wrong == nil
			}
		}
	}
	return 0, false
}

// showProcess adds the families.
func showProcess(fs *families, start time.Time) {
	var p process
	var known bool
	fs.look(func() { p, known = readProcess(os.ReadFile("/proc/self/stat")) })
	fs.add(Default, Counter, ProcessCPUSecondsTotal, "CPU time that the sidecar has used.").
		read(func() (float64, bool) { return p.cpu, known })
	fs.add(Default, Gauge, ProcessResidentMemoryBytes, "Memory of the sidecar that is in RAM.").
		read(func() (float64, bool) { return p.resident, known })
	fs.add(Default, Gauge, ProcessVirtualMemoryBytes, "Memory that the sidecar has mapped.").
		read(func() (float64, bool) { return p.virtual, known })
	fs.add(Default, Gauge, ProcessThreads, "Threads of the operating system.").
		read(func() (float64, bool) { return p.threads, known })
	fs.add(Default, Gauge, ProcessOpenFDs, "Files and sockets that are open.").read(openFiles)
	most, limited := maxFiles(os.ReadFile("/proc/self/limits"))
	fs.add(Default, Gauge, ProcessMaxFDs, "How many may be open.").
		read(func() (float64, bool) { return most, limited })
	fs.add(Default, Gauge, ProcessStartTimeSeconds, "When the process started, in seconds since 1970.").
		always(func() float64 { return float64(start.UnixMilli()) / 1000 })
	showRuntime(fs)
}

// A reading is a number of the Go runtime: one of package runtime/metrics, less
// others. One that this Go does not have is absent, and so is math.MaxInt64, which
// stands for no limit.
type reading struct {
	family *family
	labels []*dto.LabelPair
	name   string
	less   []string
}

// showReadings shows all of them from one look at the runtime. Several may be series
// of one family.
func showReadings(fs *families, all []reading) {
	var samples []rtmetrics.Sample
	for _, r := range all {
		samples = append(samples, rtmetrics.Sample{Name: r.name})
		for _, name := range r.less {
			samples = append(samples, rtmetrics.Sample{Name: name})
		}
	}
	fs.look(func() { rtmetrics.Read(samples) })

	series := map[*family][]func(add func(*dto.Metric)){}
	rest := samples
	for _, r := range all {
		own := rest[:1+len(r.less)]
		rest = rest[len(own):]
		series[r.family] = append(series[r.family], func(add func(*dto.Metric)) {
			v := value(own[0])
			for _, less := range own[1:] {
				v -= value(less)
			}
			if v < math.MaxInt64 { // which not a number isn't, either
				add(r.family.sample(r.labels, v))
			}
		})
	}
	for f, each := range series {
		f.series = func(add func(*dto.Metric)) {
			for _, one := range each {
				one(add)
			}
		}
	}
}

// value is that of a sample, and not a number if this Go has no such metric.
func value(s rtmetrics.Sample) float64 {
	switch s.Value.Kind() {
	case rtmetrics.KindUint64:
		return float64(s.Value.Uint64())
	case rtmetrics.KindFloat64:
		return s.Value.Float64()
	}
	return math.NaN()
}

// showRuntime adds the families.
func showRuntime(fs *families) {
	showReadings(fs, []reading{
		{family: fs.add(Default, Gauge, GoGoroutines, "Goroutines."),
			name: "/sched/goroutines:goroutines"},
		{family: fs.add(Default, Gauge, GoMaxProcs, "Threads that may run Go code at once (GOMAXPROCS)."),
			name: "/sched/gomaxprocs:threads"},
		{family: fs.add(Default, Gauge, GoMemoryBytes, "Memory that the Go runtime holds: what GOMEMLIMIT limits."),
			name: "/memory/classes/total:bytes", less: []string{"/memory/classes/heap/released:bytes"}},
		{family: fs.add(Default, Gauge, GoMemoryLimitBytes, "GOMEMLIMIT, or four fifths of the container's memory; absent without either."),
			name: "/gc/gomemlimit:bytes"},
		{family: fs.add(Default, Gauge, GoHeapBytes, "Memory of objects, those included that the garbage collector has not freed yet."),
			name: "/memory/classes/heap/objects:bytes"},
		{family: fs.add(Default, Counter, GoAllocatedBytesTotal, "Memory that was allocated for objects."),
			name: "/gc/heap/allocs:bytes"},
		{family: fs.add(Default, Counter, GoGCCyclesTotal, "Runs of the garbage collector."),
			name: "/gc/cycles/total:gc-cycles"},
		{family: fs.add(Default, Counter, GoGCCPUSecondsTotal, "CPU time that the garbage collector has used, as of the end of its last run."),
			name: "/cpu/classes/gc/total:cpu-seconds"},
	})
}
