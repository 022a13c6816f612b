package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// scraped returns a line break and the metrics, so that each line has a preceding line
// break.
func scraped(m *Metrics) string {
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return "\n" + w.Body.String()
}

// wantMetrics checks that the metrics contain lines.
func wantMetrics(t *testing.T, m *Metrics, lines ...string) {
	t.Helper()
	got := scraped(m)
	for _, want := range lines {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("got\n%s\nwant line %s", got, want)
		}
	}
}

func TestMetricsCountReviews(t *testing.T) {
	v := newReviewer(nil)
	v.Metrics.AddCertificate(func() time.Time { return time.Unix(1_800_000_000, 0) })
	s := serve(t, v)
	review(t, s, []byte(goodPod), nil)
	review(t, s, []byte(`{"spec":{"hostNetwork":true,"containers":[{"name":"a"}]}}`), nil)
	review(t, s, []byte(`{"metadata":{"annotations":{"queue-proxy.dev/concurency":"1"}},"spec":{"containers":[{"name":"a"}]}}`), nil)
	wantMetrics(t, v.Metrics,
		`queue_proxy_injector_reviews_total{reason="",verdict="injected"} 1`,
		`queue_proxy_injector_reviews_total{reason="host-network",verdict="skipped"} 1`,
		`queue_proxy_injector_reviews_total{reason="bad-option",verdict="refused"} 1`,
		`queue_proxy_injector_reviews_total{reason="no-port",verdict="skipped"} 0`,
		`queue_proxy_injector_review_failures_total{reason="internal"} 0`,
		`queue_proxy_injector_review_duration_seconds_count 3`,
		`queue_proxy_injector_certificate_expiry_timestamp_seconds 1.8e+09`,
	)
}

func TestHTTPErrorsHaveReasonAndStatus(t *testing.T) {
	long := []byte(`{"a":"` + strings.Repeat("x", smallBytes) + `"}`)
	post := func(body string) *http.Request { return asked(strings.NewReader(body)) }
	declared := post("{}")
	declared.ContentLength = maxReviewBytes + 1
	for _, c := range []struct {
		reason  string
		status  int
		request *http.Request
		before  func(*Reviewer)
	}{
		{badMethod, 405, httptest.NewRequest("GET", reviewPath, nil), nil},
		{badType, 415, httptest.NewRequest("POST", reviewPath, strings.NewReader("{}")), nil},
		{tooLong, 413, declared, nil},
		{cutOff, 400, asked(iotest.ErrReader(errors.New("reset"))), nil},
		{invalidReview, 400, post("{"), nil},
		{busyBodies, 503, post(string(long)), func(v *Reviewer) { acquireAll(t, v.texts, memoryOfTexts) }},
		{busyReviews, 503, post(string(question([]byte(goodPod), nil))), func(v *Reviewer) { acquireAll(t, v.short, memoryOfShort) }},
		{outOfTime, 503, post(string(question([]byte(goodPod), nil))), func(*Reviewer) {}},
	} {
		v := newReviewer(nil)
		if c.before != nil {
			c.before(v)
		}
		w := httptest.NewRecorder()
		// Cancel the request, so that the test does not wait for reserved memory.
		ctx, cancel := context.WithCancel(t.Context())
		if c.before != nil {
			cancel()
		}
		v.ServeHTTP(w, c.request.WithContext(ctx))
		cancel()
		harness.Equal(t, w.Code, c.status, c.reason, "status", w.Body)
		wantMetrics(t, v.Metrics, fmt.Sprintf("queue_proxy_injector_review_failures_total{reason=%q} 1", c.reason), "queue_proxy_injector_review_duration_seconds_count 0")
	}
}

func TestPanicInReviewIsCounted(t *testing.T) {
	m := NewMetrics("", "")
	s := &Server{Metrics: m, Log: zap.NewNop()}
	w := httptest.NewRecorder()
	s.recoverPanics(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("no") })).ServeHTTP(w, httptest.NewRequest("POST", reviewPath, nil))
	harness.Equal(t, w.Code, http.StatusInternalServerError, "status")
	wantMetrics(t, m, `queue_proxy_injector_review_failures_total{reason="internal"} 1`)
}

// An API server that does not trust the certificate aborts the handshake.
func TestFailedHandshakeIsCounted(t *testing.T) {
	_, certificate := authorityOf(t, "injector.test", time.Now())
	core, log := observer.New(zap.InfoLevel)
	s := newServer(certificate, nil, zap.New(core))
	address := listen(t, s)
	for range 3 {
		if c, err := tls.Dial("tcp", address, &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "injector.test"}); err == nil {
			c.Close()
			t.Error("got a handshake with an untrusted authority")
		}
	}
	harness.Until(t, "three handshakes that failed are counted", func() bool {
		return strings.Contains(scraped(s.Metrics), "\nqueue_proxy_injector_tls_handshake_failures_total 3\n")
	})
	lines := log.FilterMessage("TLS handshakes failed").All()
	if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0].ContextMap()["error"]), "bad certificate") {
		t.Errorf("got lines %v, want one line about the rejected certificate", lines)
	}
}

// The lists of label values must contain all reasons of package inject.
func TestReviewMetricsContainAllReasons(t *testing.T) {
	for _, reason := range append(append([]string{}, skipReasons...), refusalReasons...) {
		if inject.ReasonText(reason) == "" {
			t.Errorf("got reason %s, want a reason of package inject", reason)
		}
	}
	m := NewMetrics("", "")
	m.review(inject.Outcome{Verdict: inject.Refused, Reason: "never-seen"}, 0)
	wantMetrics(t, m, `queue_proxy_injector_reviews_total{reason="other",verdict="refused"} 1`)
}

func TestMetricsCountCABundleUpdates(t *testing.T) {
	f, kube := newFakeKube(t)
	m := NewMetrics("", "")
	now := time.Unix(1_800_000_000, 0)
	s := newSelf(kube, func() time.Time { return now })
	s.Metrics = m.AddAuthority()
	const success, patches, failures = "queue_proxy_injector_ca_bundle_last_success_timestamp_seconds", "queue_proxy_injector_ca_bundle_patches_total", "queue_proxy_injector_ca_bundle_failures_total"

	f.down = true
	if err := s.sync(t.Context()); err == nil {
		t.Fatal("got no error for an unavailable API server")
	}
	if strings.Contains(scraped(m), success) {
		t.Errorf("got %s before the first success, want none", success)
	}
	wantMetrics(t, m, patches+" 0", failures+" 1")

	f.down = false
	for range 2 { // the second sync changes nothing
		harness.NoError(t, s.sync(t.Context()))
	}
	wantMetrics(t, m, success+" 1.8e+09", patches+" 1", failures+" 1")

	now = now.Add(time.Minute)
	f.configuration.Webhooks[1].ClientConfig.CABundle = nil // simulate a user who applies the manifest again
	harness.NoError(t, s.sync(t.Context()))
	wantMetrics(t, m, success+" 1.80000006e+09", patches+" 2", failures+" 1")
}

func TestMetricNamesAndHelpTexts(t *testing.T) {
	m := NewMetrics("v1", "abc")
	m.AddCertificate(time.Now)
	m.AddAuthority().countSync(time.Now(), nil)
	problems, err := testutil.GatherAndLint(m.registry)
	harness.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: got problem %q, want none", p.Metric, p.Text)
	}
}

var update = flag.Bool("update", false, "rewrite the table of the injector's metrics in docs/metrics.md")

func TestGuideContainsEveryInjectorMetric(t *testing.T) {
	m := NewMetrics("v1", "abc")
	m.AddCertificate(time.Now)
	m.AddAuthority().countSync(time.Now(), nil)
	families, err := m.registry.Gather()
	harness.NoError(t, err)
	var table strings.Builder
	table.WriteString("\n| metric | labels | meaning |\n|---|---|---|\n")
	for _, kind := range []dto.MetricType{dto.MetricType_COUNTER, dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE} {
		name := kind.String()
		fmt.Fprintf(&table, "| **%ss** | | |\n", name[:1]+strings.ToLower(name[1:]))
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), prefix) || f.GetType() != kind {
				continue // skip the metrics of client_golang and metrics of other types
			}
			labels := ""
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels += ", `" + l.GetName() + "`"
			}
			meaning, _, _ := strings.Cut(strings.TrimSuffix(f.GetHelp(), "."), ". ")
			fmt.Fprintf(&table, "| `%s` |%s | %s |\n", f.GetName(), strings.TrimPrefix(labels, ","), meaning)
		}
	}
	harness.Document(t, "../../../docs/metrics.md", "injector", table.String()+"\n", *update)
}
