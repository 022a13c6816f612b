package metrics

import (
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// zero is the start time of the requests in these tests.
var zero = time.Unix(1_800_000_000, 0)

// exchange provides the header fields that the metrics use.
type exchange struct {
	transport.Exchange
	request *http.Request
}

func (x exchange) Header(name string) string { return x.request.Header.Get(name) }

// observed returns the observation of a request that got a slot after 2 ms. Its response began after 12 ms
// and ended after 42 ms.
func observed(method string, major, minor, status int, reason observation.Reason) observation.Observation {
	return observation.Observation{
		Exchange: exchange{request: &http.Request{Header: http.Header{}}},
		Line:     transport.Line{Method: method, Major: major, Minor: minor},
		Start:    zero,
		Slot:     zero.Add(2 * time.Millisecond),
		End:      zero.Add(42 * time.Millisecond),
		Phase:    observation.Streaming,
		Reason:   reason,
		Result: transport.Result{
			Status: status, Begun: true, In: 20, Out: 3000,
			FirstByte: zero.Add(12 * time.Millisecond),
		},
	}
}

// options returns the Options of a sidecar with all gauges and with limits of 2 running and 20 queued requests.
func options(names string) Options {
	return Options{
		Names: names, Version: "v1.2.3", Commit: "abcdef", Start: zero,
		Namespace: "ns", Service: "svc", Configuration: "cfg", Revision: "rev", Pod: "pod-0", UserPort: 8080,
		NotReadyReasons: []string{"pending", "refused", "draining"},
		Gauges: Gauges{
			Load:         func() (int, int) { return 2, 3 },
			OldestWaiter: func() time.Time { return time.Now().Add(-time.Minute) },
			Limit:        func() (int, int) { return 2, 20 },
			Adaptive: func() (observation.LimitState, bool) {
				return observation.LimitState{Limit: 2, Base: 2, Reason: observation.LimitSteady, Settled: 4}, true
			},
			Ready:           func() (ready, probed bool, reason string) { return false, true, "refused" },
			AppHangs:        func() bool { return true },
			Draining:        func() bool { return true },
			Memory:          func() (used, limit int64) { return 1 << 20, 24 << 20 },
			CertValidity:    func() (time.Time, time.Time) { return zero.Add(time.Minute), zero.Add(time.Hour) },
			LogLinesDropped: func() uint64 { return 7 },
			SpansDropped:    func() uint64 { return 8 },
			Connections: func() (clients, app bound.Pool) {
				clients = bound.Pool{Open: 5, Limit: 6, Waiting: 1, Accepted: 9, Evicted: 8, Refused: 7, Waited: 1.5}
				return clients, bound.Pool{Open: 3, Limit: 4, Waiting: 2}
			},
		},
	}
}

func newMetrics(t testing.TB, o Options) *Metrics {
	t.Helper()
	m, err := New(o)
	harness.NoError(t, err)
	return m
}

// filled returns a Metrics with fast and slow requests that have 4 classes of status codes and 2 protocols.
func filled(t testing.TB, names string) *Metrics {
	t.Helper()
	m := newMetrics(t, options(names))
	m.Listening(zero.Add(time.Millisecond))
	for _, ready := range []bool{true, false} {
		m.Answered(time.Now(), ready)
		m.ReadinessChanged(ready)
	}
	for _, status := range []int{200, 302, 404, 503} {
		for major := 1; major <= 2; major++ {
			for _, ms := range []int{0, 3, 30, 300, 3000, 30000} {
				slow := time.Duration(ms) * time.Millisecond
				o := observed(http.MethodGet, major, 1, status, observation.OK)
				o.Slot = o.Slot.Add(slow)
				o.FirstByte = o.Slot.Add(slow)
				o.End = o.FirstByte.Add(slow)
				m.Observe(&o)
			}
		}
	}
	o := observed(http.MethodGet, 1, 1, 502, observation.AppUnreachable)
	o.FirstByte = time.Time{}
	m.Observe(&o)
	return m
}

// scrape returns the response of h to a scrape.
func scrape(t testing.TB, h http.Handler, accept string) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("got %d %q, want 200", w.Code, w.Body)
	}
	return w.Body.String()
}

// samples returns the values of the samples in a scrape that begin with one of the prefixes, by series.
func samples(text string, prefixes ...string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			i := strings.LastIndexByte(line, ' ')
			found[line[:i]] = line[i+1:]
		}
	}
	return found
}

// wantSamples reports missing, wrong and unexpected samples.
func wantSamples(t *testing.T, got, want map[string]string) {
	t.Helper()
	for series, value := range want {
		if !sameNumber(got[series], value) {
			t.Errorf("%s: got %q, want %q", series, got[series], value)
		}
	}
	for series, value := range got {
		if _, ok := want[series]; !ok {
			t.Errorf("%s: got %q, want no series", series, value)
		}
	}
}

// sameNumber reports whether two values are equal except for rounding errors.
func sameNumber(got, want string) bool {
	g, err := strconv.ParseFloat(got, 64)
	w, err2 := strconv.ParseFloat(want, 64)
	return got == want || err == nil && err2 == nil && math.Abs(g-w) < 1e-12*math.Abs(w)
}

// withoutBuckets removes the buckets of histograms.
func withoutBuckets(samples map[string]string) map[string]string {
	maps.DeleteFunc(samples, func(series, _ string) bool { return strings.Contains(series, "_bucket{") })
	return samples
}

// gathered returns the metric family with the name.
func gathered(t *testing.T, m *Metrics, name string) *dto.MetricFamily {
	t.Helper()
	all, err := m.gatherer.Gather()
	harness.NoError(t, err)
	for _, f := range all {
		if f.GetName() == name {
			return f
		}
	}
	t.Fatalf("got no %s, want one", name)
	return nil
}
