package webhook

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// Metrics counts what a webhook does. It is an [http.Handler] that writes them as text
// of Prometheus 0.0.4, and may be used concurrently. No label holds anything that came
// from outside. The zero value is good.
type Metrics struct {
	// Expiry, if not nil, is when the certificate in use ends; the zero time is none.
	Expiry func() time.Time

	mu       sync.Mutex
	reviews  map[string]int // by verdict and reason
	failures map[int]int    // by status
	events   map[string]int // by what became of them
	slow     [len(bounds) + 1]int
	seconds  float64
}

// bounds of the buckets of the review's duration, in seconds. A review takes well under
// a millisecond; an API server waits up to 5 s.
var bounds = [...]float64{0.001, 0.01, 0.1, 1, 5}

func (m *Metrics) review(out inject.Outcome, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	count(&m.reviews, fmt.Sprintf(`{verdict="%s",reason="%s"}`, out.Verdict, out.Reason))
	m.seconds += took.Seconds()
	i := 0
	for i < len(bounds) && took.Seconds() > bounds[i] {
		i++
	}
	m.slow[i]++
}

func (m *Metrics) failure(status int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	count(&m.failures, status)
}

func (m *Metrics) event(result string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	count(&m.events, result)
}

func count[K comparable](of *map[K]int, key K) {
	if *of == nil {
		*of = map[K]int{}
	}
	(*of)[key]++
}

// ServeHTTP writes all metrics.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	head := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }

	m.mu.Lock()
	head("injector_reviews_total", "counter", "Reviews that were answered, by what became of the object.")
	for _, labels := range slices.Sorted(maps.Keys(m.reviews)) {
		fmt.Fprintf(&b, "injector_reviews_total%s %d\n", labels, m.reviews[labels])
	}
	head("injector_review_failures_total", "counter", "Requests that were no review, by the status of the answer.")
	for _, status := range slices.Sorted(maps.Keys(m.failures)) {
		fmt.Fprintf(&b, "injector_review_failures_total{status=\"%d\"} %d\n", status, m.failures[status])
	}
	head("injector_events_total", "counter", "Events about pods that were not injected, by what became of the event.")
	for _, result := range slices.Sorted(maps.Keys(m.events)) {
		fmt.Fprintf(&b, "injector_events_total{result=\"%s\"} %d\n", result, m.events[result])
	}
	head("injector_review_duration_seconds", "histogram", "How long reviews took.")
	sum := 0
	for i, bound := range bounds {
		sum += m.slow[i]
		fmt.Fprintf(&b, "injector_review_duration_seconds_bucket{le=\"%g\"} %d\n", bound, sum)
	}
	sum += m.slow[len(bounds)]
	fmt.Fprintf(&b, "injector_review_duration_seconds_bucket{le=\"+Inf\"} %d\ninjector_review_duration_seconds_sum %g\ninjector_review_duration_seconds_count %d\n", sum, m.seconds, sum)
	m.mu.Unlock()

	if m.Expiry != nil {
		if at := m.Expiry(); !at.IsZero() {
			head("injector_certificate_expiry_timestamp_seconds", "gauge", "When the certificate in use ends.")
			fmt.Fprintf(&b, "injector_certificate_expiry_timestamp_seconds %d\n", at.Unix())
		}
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(b.String()))
}
