package webhook

import (
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// prefix begins the names of the metrics that this package defines. The metrics of the process and
// the Go runtime have their usual names.
const prefix = "queue_proxy_injector_"

// maxScrapes is the maximum number of concurrent scrapes. Other scrapes receive status 503. The
// size of a response is about 15 KB.
const maxScrapes = 8

// The reasons why a request received an HTTP error instead of a review.
const (
	badMethod     = "method"
	badType       = "content-type"
	tooLong       = "too-long"     // the request exceeds maxReviewBytes
	cutOff        = "cut-off"      // the body ended early or exceeded a timeout
	invalidReview = "not-a-review" // the body is not an AdmissionReview
	busyBodies    = "busy-bodies"  // a long body does not fit in memoryOfTexts
	busyReviews   = "busy-reviews" // memoryOfLong or memoryOfShort is exhausted
	busyResponses = "busy-answers" // a long response does not fit in memoryOfTexts
	outOfTime     = "out-of-time"  // the review exceeded reviewTimeout
	internal      = "internal"     // a bug in the injector
)

// failureStatuses maps each reason to an HTTP status.
var failureStatuses = map[string]int{
	badMethod:     http.StatusMethodNotAllowed,
	badType:       http.StatusUnsupportedMediaType,
	tooLong:       http.StatusRequestEntityTooLarge,
	cutOff:        http.StatusBadRequest,
	invalidReview: http.StatusBadRequest,
	busyBodies:    http.StatusServiceUnavailable,
	busyReviews:   http.StatusServiceUnavailable,
	busyResponses: http.StatusServiceUnavailable,
	outOfTime:     http.StatusServiceUnavailable,
	internal:      http.StatusInternalServerError,
}

// The results of events.
const (
	eventWritten   = "written"
	eventFailed    = "failed"
	eventDropped   = "dropped"
	eventNotChosen = "not-chosen" // the namespace does not have the label of the injector
)

// other is the label value for a reason that is not in skipReasons or refusalReasons.
const other = "other"

// skipReasons and refusalReasons are the reasons why reviewed pods are skipped and refused.
var (
	skipReasons = []string{
		inject.OptedOut, inject.AlreadyInjected, inject.HasQueueProxy, inject.Knative, inject.MirrorPod, inject.HostNetwork,
		inject.Windows, inject.Ends, inject.NoPort, inject.NotHTTP, inject.NoPods,
	}
	refusalReasons = []string{
		inject.Unreadable, inject.BadOption, inject.Locked, inject.WhichContainer, inject.WhichPort, inject.PortTaken,
		inject.BadProbe, inject.SpeaksTLS, inject.BadStatus, inject.Unsure, inject.TooLarge,
	}
	eventResults = []string{eventWritten, eventFailed, eventDropped, eventNotChosen}
)

// Metrics counts the actions of the webhook. It is an [http.Handler] for Prometheus, and is safe
// for concurrent use. All label values are constants. Each series exists with the value 0 before
// its first event, so that rate functions include the first event.
type Metrics struct {
	registry   *prometheus.Registry
	handler    http.Handler
	reviews    *prometheus.CounterVec
	failures   *prometheus.CounterVec
	events     *prometheus.CounterVec
	handshakes prometheus.Counter // handshakes that failed after the first byte was received
	duration   prometheus.Histogram
}

// NewMetrics returns Metrics. version and commit are labels of build_info.
func NewMetrics(version, commit string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.reviews = m.counters("reviews_total", "Reviews, by verdict and reason.", "verdict", "reason")
	m.reviews.WithLabelValues(string(inject.Injected), "")
	for verdict, reasons := range map[inject.Verdict][]string{inject.Skipped: skipReasons, inject.Refused: refusalReasons} {
		for _, reason := range reasons {
			m.reviews.WithLabelValues(string(verdict), reason)
		}
	}
	m.failures = m.counters("review_failures_total", "Number of HTTP errors that were returned instead of a review.", "reason")
	for reason := range failureStatuses {
		m.failures.WithLabelValues(reason)
	}
	m.events = m.counters("events_total", "Kubernetes events, by result.", "result")
	for _, result := range eventResults {
		m.events.WithLabelValues(result)
	}
	m.handshakes = m.counters("tls_handshake_failures_total",
		"Number of failed TLS handshakes, often because the API server does not trust the certificate.").WithLabelValues()
	m.duration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: prefix + "review_duration_seconds", Help: "Time from the header section of a review to the response.",
		// A typical review takes a millisecond, and an API server waits up to 5 s.
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5},
	})
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "build_info", Help: "Version information in the labels. The value is 1.",
		ConstLabels: prometheus.Labels{"version": version, "revision": commit, "goversion": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(m.duration, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true, DisableCompression: true, MaxRequestsInFlight: maxScrapes,
	})
	return m
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

// ServeHTTP writes all metrics in the Prometheus format.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }

// AddCertificate adds a metric for the expiry time of the certificate in use. notAfter is called
// for each scrape, and returns the zero time if there is no certificate. AddCertificate must be
// called at most once, before the first scrape.
func (m *Metrics) AddCertificate(notAfter func() time.Time) {
	desc := prometheus.NewDesc(prefix+"certificate_expiry_timestamp_seconds", "Expiry time of the certificate as a Unix timestamp. Absent if there is no certificate.", nil, nil)
	m.registry.MustRegister(prometheus.CollectorFunc(func(series chan<- prometheus.Metric) {
		if at := notAfter(); !at.IsZero() {
			series <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(at.Unix()))
		}
	}))
}

// AuthorityMetrics counts updates to the caBundle fields in the webhook configuration, and
// records the last successful check of these fields.
type AuthorityMetrics struct {
	success           *prometheus.GaugeVec // a vector without labels, because its series must not exist until it is set
	patches, failures prometheus.Counter
}

// AddAuthority adds metrics for a webhook that publishes its own authority. It must be called at
// most once.
func (m *Metrics) AddAuthority() *AuthorityMetrics {
	a := &AuthorityMetrics{
		success: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "ca_bundle_last_success_timestamp_seconds",
			Help: "Unix time of the last successful check of the caBundles. Absent before that check.",
		}, nil),
		patches:  m.counters("ca_bundle_patches_total", "Number of caBundle updates that added the certificate authority.").WithLabelValues(),
		failures: m.counters("ca_bundle_failures_total", "Number of failed checks of the Secret and the webhook configuration. The current certificate remains in use.").WithLabelValues(),
	}
	m.registry.MustRegister(a.success)
	return a
}

// countSync counts a sync of the Secret and the configuration with its result.
func (a *AuthorityMetrics) countSync(at time.Time, err error) {
	if err != nil {
		a.failures.Inc()
		return
	}
	a.success.WithLabelValues().Set(float64(at.Unix()))
}

// review counts a completed review.
func (m *Metrics) review(out inject.Outcome, took time.Duration) {
	reason := out.Reason
	switch {
	case out.Verdict == inject.Injected:
		reason = ""
	case out.Verdict == inject.Skipped && !slices.Contains(skipReasons, reason), out.Verdict == inject.Refused && !slices.Contains(refusalReasons, reason):
		reason = other
	}
	m.reviews.WithLabelValues(string(out.Verdict), reason).Inc()
	m.duration.Observe(took.Seconds())
}

// failed counts a request that received an HTTP error. reason is a key of failureStatuses.
func (m *Metrics) failed(reason string) { m.failures.WithLabelValues(reason).Inc() }

// event counts an event. result is one of eventResults.
func (m *Metrics) event(result string) { m.events.WithLabelValues(result).Inc() }
