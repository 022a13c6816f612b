package metrics

import (
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func BenchmarkObserve(b *testing.B) {
	for _, names := range []string{"default", "knative-1.18", "knative-head", "all"} {
		b.Run(names, func(b *testing.B) {
			m := filled(b, names)
			o := observed(http.MethodGet, 1, 1, 200, observation.OK)
			b.ReportAllocs()
			for b.Loop() {
				m.Observe(&o)
			}
		})
	}
}

func BenchmarkObserveParallel(b *testing.B) {
	m := filled(b, "default")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		o := observed(http.MethodGet, 1, 1, 200, observation.OK)
		for pb.Next() {
			m.Observe(&o)
		}
	})
}

// BenchmarkScrape scrapes metrics with 4 classes of status codes, 2 protocols and values in all histograms.
// cpu-us/op is the CPU time of the process for one scrape, including the garbage collector.
func BenchmarkScrape(b *testing.B) {
	for _, names := range []string{"default", "knative-1.18", "knative-head", "all"} {
		for _, accept := range []string{"text/plain", "application/openmetrics-text"} {
			b.Run(names+"/"+accept, func(b *testing.B) {
				h := filled(b, names).Handler()
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.Header.Set("Accept", accept)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				b.ReportAllocs()
				b.SetBytes(int64(w.Body.Len()))
				before := cpuTime(b)
				for b.Loop() {
					w.Body.Reset()
					h.ServeHTTP(w, r)
				}
				b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
			})
		}
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	harness.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
