package metrics

import (
	"runtime"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// memoryEvery is how often the numbers of the Go runtime are taken for Knative's
// names at most: that stops the world, and Knative takes them every 30 s.
const memoryEvery = 5 * time.Second

// knative118 has the names that dashboards for Knative up to 1.18 know.
type knative118 struct {
	requests *tagVector[histogram] // by route tag and status
	app      *vector[histogram]    // by status
}

func newKnative118(fs *families, o *Options, tags *routeTags) *knative118 {
	service := o.Service
	if service == "" {
		service = "unknown"
	}
	who := pairs("namespace_name", o.Namespace, "service_name", service, "configuration_name", o.Configuration,
		"revision_name", o.Revision, "pod_name", o.Pod, "container_name", "queue-proxy")
	common := []string{"namespace_name", "service_name", "configuration_name", "revision_name", "pod_name", "container_name"}
	codes := make(dimension, len(statuses))
	for i, code := range statuses {
		codes[i] = pairs("response_code", code, "response_code_class", code[:1]+"xx")
	}
	milliseconds := newBuckets(1, 5, 10, 20, 40, 60, 80, 100, 150, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 900,
		1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
	newSeries := func(labels []*dto.LabelPair) *histogram {
		h := newHistogram(milliseconds, labels)
		return &h
	}
	k := &knative118{
		requests: &tagVector[histogram]{
			tags: tags, label: "route_tag", words: [...]string{"DISABLED", "DEFAULT", "UNDEFINED", "TAGGED"},
			construct: newSeries, fixed: who, dims: []dimension{codes},
		},
		app: newVector(newSeries, who, codes),
	}

	all := slices.Concat(common, []string{"response_code", "response_code_class", "route_tag"})
	showCounts(fs.add(Knative118, Counter, "revision_request_count", "Requests that have ended.", all...), k.requests.each)
	show(fs.add(Knative118, Histogram, "revision_request_latencies", "How long they took, in whole milliseconds.", all...), k.requests.each, same)
	all = all[:len(all)-1]
	showCounts(fs.add(Knative118, Counter, "revision_app_request_count", "Requests that got a slot and have ended.", all...), k.app.each)
	show(fs.add(Knative118, Histogram, "revision_app_request_latencies", "How long they took from the slot on, in whole milliseconds.", all...), k.app.each, same)
	if load, limit := o.Gauges.Load, o.Gauges.Limit; load != nil && limit != nil {
		f := fs.add(Knative118, Gauge, "revision_queue_depth", "Requests that run or wait now; absent without a limit on concurrency.", common...)
		f.series = func(add func(*dto.Metric)) {
			if most, _ := limit(); most > 0 {
				running, waiting := load()
				add(f.sample(who, float64(running+waiting)))
			}
		}
	}
	showMemStats(fs)
	return k
}

// showCounts makes f the family of how many values each histogram has.
func showCounts(f *family, each func(func(*histogram))) {
	f.series = func(add func(*dto.Metric)) {
		each(func(h *histogram) { add(f.sample(h.labels, float64(h.count()))) })
	}
}

func (k *knative118) observe(o *queue.Observation, tag int) {
	code := status(o.Status)
	k.requests.at(tag, code).observe(o.End.Sub(o.Start).Milliseconds())
	if !o.Slot.IsZero() {
		k.app.at(code).observe(o.End.Sub(o.Slot).Milliseconds())
	}
}

// memStats are the numbers of the Go runtime, by the names that Knative gave them.
var memStats = []struct {
	name, help string
	value      func(*runtime.MemStats) float64
}{
	{"alloc", "Bytes of objects.", func(s *runtime.MemStats) float64 { return float64(s.Alloc) }},
	{"total_alloc", "Bytes that were allocated for objects, all in all.", func(s *runtime.MemStats) float64 { return float64(s.TotalAlloc) }},
	{"sys", "Bytes from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.Sys) }},
	{"lookups", "Lookups of pointers.", func(s *runtime.MemStats) float64 { return float64(s.Lookups) }},
	{"mallocs", "Objects that were allocated, all in all.", func(s *runtime.MemStats) float64 { return float64(s.Mallocs) }},
	{"frees", "Objects that were freed, all in all.", func(s *runtime.MemStats) float64 { return float64(s.Frees) }},
	{"heap_alloc", "Bytes of objects in the heap.", func(s *runtime.MemStats) float64 { return float64(s.HeapAlloc) }},
	{"heap_sys", "Bytes of the heap from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.HeapSys) }},
	{"heap_idle", "Bytes of the heap that are not in use.", func(s *runtime.MemStats) float64 { return float64(s.HeapIdle) }},
	{"heap_in_use", "Bytes of the heap that are in use.", func(s *runtime.MemStats) float64 { return float64(s.HeapInuse) }},
	{"heap_released", "Bytes of the heap that were given back.", func(s *runtime.MemStats) float64 { return float64(s.HeapReleased) }},
	{"heap_objects", "Objects in the heap.", func(s *runtime.MemStats) float64 { return float64(s.HeapObjects) }},
	{"stack_in_use", "Bytes of stacks in use.", func(s *runtime.MemStats) float64 { return float64(s.StackInuse) }},
	{"stack_sys", "Bytes of stacks from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.StackSys) }},
	{"mspan_in_use", "Bytes of mspans in use.", func(s *runtime.MemStats) float64 { return float64(s.MSpanInuse) }},
	{"mspan_sys", "Bytes of mspans from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.MSpanSys) }},
	{"mcache_in_use", "Bytes of mcaches in use.", func(s *runtime.MemStats) float64 { return float64(s.MCacheInuse) }},
	{"mcache_sys", "Bytes of mcaches from the operating system.", func(s *runtime.MemStats) float64 { return float64(s.MCacheSys) }},
	{"bucket_hash_sys", "Bytes of the profiler's tables.", func(s *runtime.MemStats) float64 { return float64(s.BuckHashSys) }},
	{"gc_sys", "Bytes of the garbage collector.", func(s *runtime.MemStats) float64 { return float64(s.GCSys) }},
	{"other_sys", "Bytes of the rest of the runtime.", func(s *runtime.MemStats) float64 { return float64(s.OtherSys) }},
	{"next_gc", "Bytes of the heap at which the garbage collector runs next.", func(s *runtime.MemStats) float64 { return float64(s.NextGC) }},
	{"last_gc", "When it ended last, in nanoseconds since 1970.", func(s *runtime.MemStats) float64 { return float64(s.LastGC) }},
	{"total_gc_pause_ns", "Nanoseconds for which it has stopped the world, all in all.", func(s *runtime.MemStats) float64 { return float64(s.PauseTotalNs) }},
	{"num_gc", "Runs of the garbage collector.", func(s *runtime.MemStats) float64 { return float64(s.NumGC) }},
	{"num_forced_gc", "Those that the program asked for.", func(s *runtime.MemStats) float64 { return float64(s.NumForcedGC) }},
	{"gc_cpu_fraction", "Its share of the CPU time since the start.", func(s *runtime.MemStats) float64 { return s.GCCPUFraction }},
}

// showMemStats adds the families.
func showMemStats(fs *families) {
	var stats runtime.MemStats
	var taken time.Time
	fs.look(func() {
		if now := time.Now(); now.Sub(taken) >= memoryEvery {
			runtime.ReadMemStats(&stats)
			taken = now
		}
	})
	for _, m := range memStats {
		fs.add(Knative118, Gauge, "revision_go_"+m.name, m.help).always(func() float64 { return m.value(&stats) })
	}
}
