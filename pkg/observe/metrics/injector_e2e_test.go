//go:build e2e

package metrics

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// An injector is a process of the command "injector serve".
type injector struct {
	reviews, metrics string // addresses for admission reviews and metrics
	client           *http.Client
}

// startInjector builds and starts the injector with a certificate that is valid for 1 h.
func startInjector(t *testing.T) injector {
	t.Helper()
	dir := t.TempDir()
	roots := harness.WriteCertificate(t, dir, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	p := exec.Command(build(t, "injector"), "serve", "--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--cert-dir="+dir, "--linger=10ms", "--image=queue-proxy:dev")
	log, err := p.StderrPipe()
	harness.NoError(t, err)
	start(t, p)
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var line struct{ Message, Reviews, Metrics string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "listening" {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return injector{line.Reviews, line.Metrics, &http.Client{Timeout: harness.Patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}}
		}
	}
	t.Fatal("got no line with the message listening, want one")
	return injector{}
}

// post sends body as an admission review.
func (i injector) post(t *testing.T, body string) {
	t.Helper()
	r, err := i.client.Post("https://"+i.reviews+"/inject", "application/json", strings.NewReader(body))
	harness.NoError(t, err)
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
}

func (i injector) review(t *testing.T, pod string) {
	t.Helper()
	i.post(t, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","resource":{"version":"v1","resource":"pods"},"object":`+pod+`}}`)
}

// load sends reviews that lead to all verdicts, an invalid review, and a TLS handshake that fails.
func (i injector) load(t *testing.T) {
	t.Helper()
	for range 3 {
		i.review(t, `{"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}`)
	}
	i.review(t, `{"spec":{"hostNetwork":true,"containers":[{"name":"web"}]}}`)
	i.review(t, `{"metadata":{"annotations":{"queue-proxy.dev/concurency":"1"}},"spec":{"containers":[{"name":"web"}]}}`)
	i.post(t, "{")
	if c, err := tls.Dial("tcp", i.reviews, &tls.Config{RootCAs: x509.NewCertPool()}); err == nil {
		c.Close()
		t.Fatal("got a handshake with an untrusted certificate, want an error")
	}
}

func TestPrometheusScrapesInjector(t *testing.T) {
	i := startInjector(t)
	api := startPrometheusOn(t, map[string]string{"injector": i.metrics})
	i.load(t)
	for query, want := range map[string]string{
		`queue_proxy_injector_reviews_total{verdict="injected"}`:                              "3",
		`queue_proxy_injector_reviews_total{verdict="skipped",reason="host-network"}`:         "1",
		`queue_proxy_injector_reviews_total{verdict="refused",reason="bad-option"}`:           "1",
		`sum(queue_proxy_injector_reviews_total)`:                                             "5",
		`queue_proxy_injector_review_failures_total{reason="not-a-review"}`:                   "1",
		`sum(queue_proxy_injector_review_failures_total)`:                                     "1",
		`queue_proxy_injector_tls_handshake_failures_total`:                                   "1",
		`queue_proxy_injector_review_duration_seconds_count`:                                  "5",
		`queue_proxy_injector_review_duration_seconds_bucket{le="5.0"}`:                       "5",
		`queue_proxy_injector_build_info`:                                                     "1",
		`process_resident_memory_bytes{job="injector"}`:                                       "?",
		`go_goroutines{job="injector"}`:                                                       "?",
		`queue_proxy_injector_certificate_expiry_timestamp_seconds - time() < 3600 > 0`:       "?",
		`count(queue_proxy_injector_certificate_expiry_timestamp_seconds-time() < 7 * 86400)`: "1",
	} {
		eventually(t, api, query, want)
	}
	r, err := http.Get("http://" + i.metrics + "/metrics")
	harness.NoError(t, err)
	defer r.Body.Close()
	exposition, err := io.ReadAll(r.Body)
	harness.NoError(t, err)
	checkNames(t, string(exposition))
}

// Each panel must contain data for a working sidecar and a working injector, except for panels about failures
// and about features that are disabled here.
func TestPrometheusEvaluatesDashboard(t *testing.T) {
	empty := map[string]bool{
		"Failures by reason": true, "Reasons for not ready": true, "Readiness changes": true, "Dropped telemetry": true, "Failed scrapes": true,
		"Liveness and startup probes": true,
		"Queued requests":             true, "Running requests": true, "Memory": true, "Concurrency limit": true, "State of adaptive limits": true, // no data without limits
		"Certificate expiry": true, "caBundle updates": true, "Last caBundle check": true, // no data without TLS and without --self-managed
		"Events": true, "Closed by bounds": true, "gRPC responses by status": true,
	}
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(app.Close)
	requests, _, sidecar := startSidecar(t, app.Listener.Addr().(*net.TCPAddr).Port)
	i := startInjector(t)
	api := startPrometheusOn(t, map[string]string{"sidecar": sidecar, "injector": i.metrics})
	eventually(t, api, `count(up == 1)`, "2")
	for n := 1; n <= 2; n++ { // the first request creates the series, and the second increases it
		r, err := http.Get("http://" + requests)
		harness.NoError(t, err)
		r.Body.Close()
		eventually(t, api, `sum(queue_proxy_requests_total)`, fmt.Sprint(n))
	}
	i.load(t)
	eventually(t, api, `sum(rate(queue_proxy_requests_total[1m])) > 0`, "?")
	eventually(t, api, `sum(rate(queue_proxy_injector_reviews_total[1m])) > 0`, "?")
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			// Without Kubernetes, the series have no labels for the pod and the namespace.
			expr := strings.NewReplacer("$__rate_interval", "1m", "$namespace", ".*", "$pod", ".*").Replace(target.Expr)
			series, err := query(api, expr)
			t.Logf("%s: %s: %d series", p.Title, expr, len(series))
			if err != nil || len(series) == 0 && !empty[p.Title] {
				t.Errorf("%s: %s: got %d series, error %v, want series", p.Title, expr, len(series), err)
			}
		}
	}
}

// The query in the KEDA example must select one workload and ignore pods that are no longer scraped.
func TestPrometheusKEDAQuerySelectsWorkload(t *testing.T) {
	const name = "../../../deploy/autoscaling/keda-prometheus/scaledobject.yaml"
	_, query, ok := strings.Cut(contents(t, name), "query: ")
	if query, _, _ = strings.Cut(query, "\n"); !ok {
		t.Fatalf("%s: got no query, want one", name)
	}
	quoted, err := json.Marshal(query)
	harness.NoError(t, err)
	test := fmt.Sprintf(`evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'queue_average_concurrent_requests_60s{namespace="shop",app="model",pod="model-6d4cf56db6-x2x5z"}', values: '2x10 stale'}
      - {series: 'queue_average_concurrent_requests_60s{namespace="shop",app="model",pod="model-6d4cf56db6-7kqwv"}', values: '4x10 4x20'}
      - {series: 'queue_average_concurrent_requests_60s{namespace="shop",app="model-canary",pod="model-canary-5f5b6c-9h2xk"}', values: '90x30'}
      - {series: 'queue_average_concurrent_requests_60s{namespace="other",app="model",pod="model-6d4cf56db6-zzzzz"}', values: '90x30'}
    promql_expr_test:
      - {expr: %[1]s, eval_time: 5m, exp_samples: [{value: 3}]}
      - {expr: %[1]s, eval_time: 15m, exp_samples: [{value: 4}]}
      - {expr: %[1]s, eval_time: 2h, exp_samples: []}
`, quoted)
	file := filepath.Join(t.TempDir(), "test.yaml")
	harness.NoError(t, os.WriteFile(file, []byte(test), 0o600))
	if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("got error %v and output\n%s\nwant no output", err, out)
	}
}
