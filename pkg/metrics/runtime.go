package metrics

import (
	"math"
	"regexp"
	rtmetrics "runtime/metrics"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// runtimeNumber reads a number of package runtime/metrics, less others. One that this Go
// does not have is absent, and so is math.MaxInt64, which stands for no limit.
func runtimeNumber(name string, less ...string) func() (float64, bool) {
	return func() (float64, bool) {
		samples := []rtmetrics.Sample{{Name: name}}
		for _, name := range less {
			samples = append(samples, rtmetrics.Sample{Name: name})
		}
		rtmetrics.Read(samples)
		v := numberOf(samples[0])
		for _, s := range samples[1:] {
			v -= numberOf(s)
		}
		return v, v < math.MaxInt64 // which not a number isn't, either
	}
}

// numberOf is the value of a sample, and not a number if this Go has no such metric.
func numberOf(s rtmetrics.Sample) float64 {
	switch s.Value.Kind() {
	case rtmetrics.KindUint64:
		return float64(s.Value.Uint64())
	case rtmetrics.KindFloat64:
		return s.Value.Float64()
	}
	return math.NaN()
}

// Metrics of package runtime/metrics that are shown under several names.
const (
	runtimeMaxProcs  = "/sched/gomaxprocs:threads"
	runtimeMemory    = "/memory/classes/total:bytes"
	runtimeReleased  = "/memory/classes/heap/released:bytes"
	runtimeStacks    = "/memory/classes/heap/stacks:bytes"
	runtimeLimit     = "/gc/gomemlimit:bytes"
	runtimeAllocated = "/gc/heap/allocs:bytes"
)

// addProcess adds client_golang's collectors of the process and of the Go runtime, and
// what the latter does not tell, or not without thirty more metrics.
func addProcess(r *registry) {
	prometheus.WrapRegistererWithPrefix(prefix, r).MustRegister(
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(
			collectors.WithGoCollectorMemStatsMetricsDisabled(),
			collectors.WithoutGoCollectorRuntimeMetrics(regexp.MustCompile("")),
		),
	)
	r.gauge("queue_proxy_go_max_procs", "Maximum number of threads that run Go code (GOMAXPROCS).", sometimes(runtimeNumber(runtimeMaxProcs)))
	r.gauge("queue_proxy_go_memory_bytes", "Memory of the Go runtime, which GOMEMLIMIT limits.", sometimes(runtimeNumber(runtimeMemory, runtimeReleased)))
	r.gauge("queue_proxy_go_memory_limit_bytes", "GOMEMLIMIT, or four fifths of the memory of the container; absent without both.", sometimes(runtimeNumber(runtimeLimit)))
	r.gauge("queue_proxy_go_heap_bytes", "Memory of objects, including those that are not freed yet.",
		sometimes(runtimeNumber("/memory/classes/heap/objects:bytes")))
	r.counter("queue_proxy_go_allocated_bytes_total", "Total memory that was allocated for objects.", sometimes(runtimeNumber(runtimeAllocated)))
	r.counter("queue_proxy_go_gc_cpu_seconds_total", "CPU time of the garbage collector until the end of its last run.",
		sometimes(runtimeNumber("/cpu/classes/gc/total:cpu-seconds")))
}
