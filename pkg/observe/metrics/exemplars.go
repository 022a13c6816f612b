package metrics

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// exemplarInterval is the minimum time between two exemplars in the same bucket. An exemplar takes about
// ten allocations, and Prometheus stores at most one exemplar per bucket for each scrape.
const exemplarInterval = time.Second

// exemplars selects the requests whose trace IDs are recorded as exemplars in a histogram. The histogram has
// the buckets that the function seconds returns. exemplars is safe for concurrent use and does not lock.
type exemplars struct {
	bounds []float64                    // upper bounds of the buckets in seconds
	next   [len(classes)][]atomic.Int64 // earliest time of the next exemplar, by class and bucket, in nanoseconds since 1970
}

func newExemplars() *exemplars {
	e := &exemplars{bounds: seconds()}
	for i := range e.next {
		e.next[i] = make([]atomic.Int64, len(e.bounds)+1)
	}
	return e
}

// observe records a duration of a request with the given class in h. If the trace of the request is
// exported, the trace ID is recorded as an exemplar, at most once per exemplarInterval for each bucket.
func (e *exemplars) observe(h *histogram, class int, took time.Duration, o *observation.Observation) {
	if !o.Sampled || !e.due(class, took, o.End) {
		h.took(took)
		return
	}
	id := strings.Clone(o.TraceID) // the memory of the trace will be reused
	h.Observer.(prometheus.ExemplarObserver).ObserveWithExemplar(max(0, took).Seconds(), prometheus.Labels{"trace_id": id})
}

// due reports whether a request that ended at the time end is recorded as an exemplar. If it returns true, it
// also starts the next interval for the bucket.
func (e *exemplars) due(class int, took time.Duration, end time.Time) bool {
	bucket, _ := slices.BinarySearch(e.bounds, took.Seconds())
	next, now := &e.next[class][bucket], end.UnixNano()
	before := next.Load()
	return now >= before && next.CompareAndSwap(before, now+int64(exemplarInterval))
}
