package metrics

import (
	"math"
	"regexp"
	rtmetrics "runtime/metrics"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// runtimeNumber returns a function that reads a metric of package runtime/metrics and subtracts the metrics
// in less. name is the name of the metric. The function returns false if this Go release does not have the
// metric, or if the value is math.MaxInt64, which means no limit.
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
		return v, v < math.MaxInt64 // the comparison is false for NaN
	}
}

// numberOf returns the value of a sample, or NaN if this Go release does not have the metric.
func numberOf(s rtmetrics.Sample) float64 {
	switch s.Value.Kind() {
	case rtmetrics.KindUint64:
		return float64(s.Value.Uint64())
	case rtmetrics.KindFloat64:
		return s.Value.Float64()
	}
	return math.NaN()
}

// Metrics of package runtime/metrics that are exported with several names.
const (
	runtimeMaxProcs  = "/sched/gomaxprocs:threads"
	runtimeMemory    = "/memory/classes/total:bytes"
	runtimeReleased  = "/memory/classes/heap/released:bytes"
	runtimeStacks    = "/memory/classes/heap/stacks:bytes"
	runtimeLimit     = "/gc/gomemlimit:bytes"
	runtimeAllocated = "/gc/heap/allocs:bytes"
)

// addProcess adds the process and Go collectors of client_golang. It also adds metrics of the Go runtime that
// the Go collector does not export, or exports only together with 30 other metrics.
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
	r.gauge("queue_proxy_go_memory_limit_bytes", "GOMEMLIMIT, by default 80% of the container's memory limit. Absent if there is no limit.", sometimes(runtimeNumber(runtimeLimit)))
	r.gauge("queue_proxy_go_heap_bytes", "Memory of heap objects, including unreachable objects.",
		sometimes(runtimeNumber("/memory/classes/heap/objects:bytes")))
	r.counter("queue_proxy_go_allocated_bytes_total", "Total memory that was allocated for objects.", sometimes(runtimeNumber(runtimeAllocated)))
	r.counter("queue_proxy_go_gc_cpu_seconds_total", "CPU time of completed garbage collections.",
		sometimes(runtimeNumber("/cpu/classes/gc/total:cpu-seconds")))
}
