package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// sampled returns the observation of a request with an exported trace that ended at the given time after
// zero and spent 0.4 ms in the user container.
func sampled(id string, end time.Duration) observation.Observation {
	o := observed("GET", 1, 1, 200, observation.OK)
	o.TraceID, o.Sampled = id, true
	o.End = zero.Add(end)
	o.Slot = o.End.Add(-400 * time.Microsecond)
	return o
}

func TestAppDurationExemplarsAreTraceIDs(t *testing.T) {
	const openMetrics = "application/openmetrics-text;version=1.0.0"
	m := newMetrics(t, options("default"))
	for _, o := range []observation.Observation{
		sampled("first", time.Second), sampled("second", 1999*time.Millisecond), sampled("third", 2*time.Second),
	} {
		m.Observe(&o)
	}
	slow := sampled("slow", 2*time.Second)
	slow.Slot = slow.End.Add(-3 * time.Second)
	m.Observe(&slow)
	unsampled := sampled("unsampled", time.Hour)
	unsampled.Sampled = false
	m.Observe(&unsampled)

	var got []string
	for line := range strings.Lines(scrape(t, m.Handler(), openMetrics)) {
		if series, exemplar, ok := strings.Cut(line, " # "); ok {
			series, _, _ = strings.Cut(series, " ")
			exemplar, _, _ = strings.Cut(exemplar, " ")
			got = append(got, series+" "+exemplar)
		}
	}
	const bucket = `queue_proxy_app_duration_seconds_bucket{code="2xx",le=`
	harness.Equal(t, got, []string{bucket + `"0.0005"} {trace_id="third"}`, bucket + `"5.0"} {trace_id="slow"}`}, "exemplars")
}

// The interval between two exemplars of a bucket limits the allocations.
func TestExemplarsRarelyAllocate(t *testing.T) {
	m := newMetrics(t, options("default"))
	o := sampled("4bf92f3577b34da6a3ce929d0e0e4736", time.Second)
	m.Observe(&o)
	harness.Equal(t, testing.AllocsPerRun(1000, func() { m.Observe(&o) }), 0, "allocations")
}
