package metrics

import (
	"cmp"
	"runtime"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// memStatsInterval is the minimum time between two calls to runtime.ReadMemStats, which stops the world.
// Knative calls this function every 30 s.
const memStatsInterval = 5 * time.Second

// knative118 contains the metrics of Knative's queue-proxy up to version 1.18.
type knative118 struct {
	requests *tagTable[series118] // all requests, by route tag and status
	app      *table[series118]    // requests that got a slot, by status
}

// series118 contains the two series for requests with the same labels.
type series118 struct {
	count counter
	took  histogram
}

// observe counts a request and records its duration in whole milliseconds.
func (s *series118) observe(took time.Duration) {
	s.count.Inc()
	s.took.Observe(float64(max(0, took.Milliseconds())))
}

func newKnative118(r *registry, o *Options, tags *routeTags) *knative118 {
	who := r.with("namespace_name", o.Namespace, "service_name", cmp.Or(o.Service, "unknown"), "configuration_name", o.Configuration,
		"revision_name", o.Revision, "pod_name", o.Pod, "container_name", "queue-proxy")
	codes := make(dimension, len(statuses))
	for i, code := range statuses {
		codes[i] = []string{code, code[:1] + "xx"}
	}
	milliseconds := []float64{5, 10, 20, 40, 60, 80, 100, 150, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 900,
		1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000}
	series := func(count, countHelp, took, tookHelp string, labels ...string) func([]string) *series118 {
		counts, latencies := who.counters(count, countHelp, labels...), who.histograms(took, tookHelp, milliseconds, labels...)
		return func(values []string) *series118 {
			return &series118{counter{counts.WithLabelValues(values...)}, histogram{latencies.WithLabelValues(values...)}}
		}
	}
	who.gauge("revision_queue_depth", "Number of running and queued requests. Absent if there is no concurrency limit.", sometimes(o.Gauges.depth))
	addMemStats(r)
	return &knative118{
		requests: &tagTable[series118]{
			tags: tags, words: [...]string{"DISABLED", "DEFAULT", "UNDEFINED", "TAGGED"},
			child: series("revision_request_count", "Number of completed requests.",
				"revision_request_latencies", "Duration of requests in whole milliseconds.", "route_tag", "response_code", "response_code_class"),
			dims: []dimension{codes},
		},
		app: newTable(series("revision_app_request_count", "Number of completed requests that got a slot.",
			"revision_app_request_latencies", "Time from acquiring a slot to the end of the request, in whole milliseconds.", "response_code", "response_code_class"), codes),
	}
}

func (k *knative118) observe(o *observation.Observation, tag int) {
	code := status(o.Status)
	k.requests.at(tag, code).observe(o.End.Sub(o.Start))
	if !o.Slot.IsZero() {
		k.app.at(code).observe(o.End.Sub(o.Slot))
	}
}

// memStats contains the fields of runtime.MemStats that Knative exports, with the suffixes of the metric names.
var memStats = []struct {
	name, help string
	value      func(*runtime.MemStats) float64
}{
	{"alloc", "Bytes of allocated objects.", func(s *runtime.MemStats) float64 { return float64(s.Alloc) }},
	{"total_alloc", "Total number of bytes allocated for objects.", func(s *runtime.MemStats) float64 { return float64(s.TotalAlloc) }},
	{"sys", "Bytes from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.Sys) }},
	{"lookups", "Number of pointer lookups.", func(s *runtime.MemStats) float64 { return float64(s.Lookups) }},
	{"mallocs", "Total number of allocated objects.", func(s *runtime.MemStats) float64 { return float64(s.Mallocs) }},
	{"frees", "Total number of freed objects.", func(s *runtime.MemStats) float64 { return float64(s.Frees) }},
	{"heap_alloc", "Bytes of objects in the heap.", func(s *runtime.MemStats) float64 { return float64(s.HeapAlloc) }},
	{"heap_sys", "Bytes of the heap from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.HeapSys) }},
	{"heap_idle", "Number of unused bytes in the heap.", func(s *runtime.MemStats) float64 { return float64(s.HeapIdle) }},
	{"heap_in_use", "Number of used bytes in the heap.", func(s *runtime.MemStats) float64 { return float64(s.HeapInuse) }},
	{"heap_released", "Bytes of the heap that were returned to the operating system.", func(s *runtime.MemStats) float64 { return float64(s.HeapReleased) }},
	{"heap_objects", "Number of objects in the heap.", func(s *runtime.MemStats) float64 { return float64(s.HeapObjects) }},
	{"stack_in_use", "Bytes of stacks in use.", func(s *runtime.MemStats) float64 { return float64(s.StackInuse) }},
	{"stack_sys", "Bytes of stacks from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.StackSys) }},
	{"mspan_in_use", "Bytes of mspans in use.", func(s *runtime.MemStats) float64 { return float64(s.MSpanInuse) }},
	{"mspan_sys", "Bytes of mspans from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.MSpanSys) }},
	{"mcache_in_use", "Bytes of mcaches in use.", func(s *runtime.MemStats) float64 { return float64(s.MCacheInuse) }},
	{"mcache_sys", "Bytes of mcaches from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.MCacheSys) }},
	{"bucket_hash_sys", "Bytes of the tables of the profiler.", func(s *runtime.MemStats) float64 { return float64(s.BuckHashSys) }},
	{"gc_sys", "Bytes of the garbage collector.", func(s *runtime.MemStats) float64 { return float64(s.GCSys) }},
	{"other_sys", "Bytes of the rest of the runtime.", func(s *runtime.MemStats) float64 { return float64(s.OtherSys) }},
	{"next_gc", "Target size of the heap for the next garbage collection in bytes.", func(s *runtime.MemStats) float64 { return float64(s.NextGC) }},
	{"last_gc", "Time of the last garbage collection in nanoseconds since the Unix epoch.", func(s *runtime.MemStats) float64 { return float64(s.LastGC) }},
	{"total_gc_pause_ns", "Total pause of garbage collections in nanoseconds.", func(s *runtime.MemStats) float64 { return float64(s.PauseTotalNs) }},
	{"num_gc", "Number of garbage collections.", func(s *runtime.MemStats) float64 { return float64(s.NumGC) }},
	{"num_forced_gc", "Number of garbage collections that the program requested.", func(s *runtime.MemStats) float64 { return float64(s.NumForcedGC) }},
	{"gc_cpu_fraction", "Fraction of the CPU time since the start that the garbage collector used.", func(s *runtime.MemStats) float64 { return s.GCCPUFraction }},
}

// addMemStats adds the metrics of memStats to r.
func addMemStats(r *registry) {
	var mu sync.Mutex
	var stats runtime.MemStats
	var taken time.Time
	for _, m := range memStats {
		r.gauge("revision_go_"+m.name, m.help, always(func() float64 {
			mu.Lock()
			defer mu.Unlock()
			if now := time.Now(); now.Sub(taken) >= memStatsInterval {
				runtime.ReadMemStats(&stats)
				taken = now
			}
			return m.value(&stats)
		}))
	}
}
