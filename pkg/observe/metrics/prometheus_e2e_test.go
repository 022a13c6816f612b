//go:build e2e

package metrics

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// These tests require prometheus and promtool in PATH. deploy/monitoring/check installs both and runs the
// tests.

func TestPrometheusAcceptsMetricNames(t *testing.T) {
	o := options("default")
	o.Merge.Port = 1
	m := newMetrics(t, o)
	observeEveryKind(m)
	checkNames(t, scrape(t, m.Handler(), text))
}

// checkNames reports problems that promtool finds in an exposition.
func checkNames(t *testing.T, exposition string) {
	t.Helper()
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(exposition)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("got error %v and output\n%s\nwant no output", err, out)
	}
}

// The sidecar runs with its default settings, as in a pod, except for the ports.
func TestPrometheusScrapesBothPortsOfSidecar(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(app.Close)
	port, statistics, ours := startSidecar(t, app.Listener.Addr().(*net.TCPAddr).Port)
	api := startPrometheusOn(t, map[string]string{"statistics": statistics, "metrics": ours})
	for range 7 {
		answer, err := http.Get("http://" + port)
		harness.NoError(t, err)
		answer.Body.Close()
	}
	for query, want := range map[string]string{
		`count(up == 1)`: "2",
		`queue_average_concurrent_requests{job="statistics"}`:       "?",
		`queue_requests_per_second{job="statistics"}`:               "?",
		`sum(queue_proxy_requests_total{job="metrics",code="2xx"})`: "7",
		`queue_proxy_ready{job="metrics"}`:                          "1",
		`queue_proxy_build_info{job="metrics"}`:                     "1",
	} {
		eventually(t, api, query, want)
	}
	for _, target := range []string{statistics, ours} {
		answer, err := http.Get("http://" + target + "/metrics?format=prometheus")
		harness.NoError(t, err)
		exposition, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != 200 || len(exposition) == 0 {
			t.Fatalf("%s: got %d, %d bytes, %v, want 200 and metrics", target, answer.StatusCode, len(exposition), err)
		}
		checkNames(t, string(exposition))
	}
}

// build builds a program in cmd and returns its path.
func build(t *testing.T, name string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", program, "../../../cmd/"+name).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// start starts a program and stops it at the end of the test. If the test fails, the output is logged.
func start(t *testing.T, p *exec.Cmd) {
	t.Helper()
	var output bytes.Buffer
	p.Stdout = &output
	if p.Stderr == nil {
		p.Stderr = &output
	}
	harness.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if t.Failed() {
			t.Logf("output of %s:\n%s", p.Path, &output)
		}
	})
}

// startSidecar builds and starts a sidecar for a user container. When the sidecar is ready, it returns the
// addresses for requests, statistics and metrics.
func startSidecar(t *testing.T, userPort int) (requests, statistics, metrics string) {
	t.Helper()
	p := exec.Command(build(t, "queue-proxy"))
	p.Env = append(os.Environ(), fmt.Sprintf("USER_PORT=%d", userPort))
	var at []string
	for _, name := range []string{"QUEUE_SERVING_PORT", "AUTOSCALER_PORT", "METRICS_PORT", "QUEUE_SERVING_TLS_PORT", "ADMIN_PORT", "STATUS_PORT"} {
		address := freeAddress(t)
		_, port, _ := net.SplitHostPort(address)
		p.Env = append(p.Env, name+"="+port)
		at = append(at, address)
	}
	start(t, p)
	probe, err := http.NewRequest(http.MethodGet, "http://"+at[0], nil)
	harness.NoError(t, err)
	probe.Header.Set("K-Network-Probe", "queue")
	for deadline := time.Now().Add(harness.Patience); ; time.Sleep(10 * time.Millisecond) {
		answer, err := http.DefaultClient.Do(probe)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return at[0], at[1], at[2]
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("got response %v and error %v to a readiness probe, want status 200", answer, err)
		}
	}
}

// freeAddress returns an unused address of this host.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

// Prometheus must be able to parse each query of the dashboard.
func TestPrometheusAcceptsDashboardQueries(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	n := 0
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			query := strings.NewReplacer("$__rate_interval", "5m", "$namespace", ".*", "$pod", ".*").Replace(target.Expr)
			quoted, err := json.Marshal(query)
			harness.NoError(t, err)
			fmt.Fprintf(&rules, "  - record: dashboard:%d\n    expr: %s\n", n, quoted)
			n++
		}
	}
	name := filepath.Join(t.TempDir(), "rules.yaml")
	harness.NoError(t, os.WriteFile(name, []byte(rules.String()), 0o644))
	if out, err := exec.Command("promtool", "check", "rules", name).CombinedOutput(); err != nil {
		t.Errorf("got error %v and output\n%s\nwant no output", err, out)
	}
}

func TestPrometheusScrapesAllFormats(t *testing.T) {
	const appText = "# TYPE jobs_total counter\njobs_total{kind=\"a b\"} 5\n# TYPE queue_proxy_ready counter\nqueue_proxy_ready 9\n"
	const appOpen = "# TYPE jobs counter\njobs_total{kind=\"a b\"} 5 # {trace_id=\"x\"} 1\n# TYPE build info\nbuild_info{v=\"1\"} 1\n# EOF\n"
	merging := func(app http.HandlerFunc) *Metrics {
		m := merged(t, app)
		observeEveryKind(m)
		return m
	}
	text := merging(respond(textType, appText))
	open := merging(respond(openMetricsType, appOpen))
	garbage := merging(respond(textType, "x 1\ny\n"))
	jobs := map[string]http.Handler{
		"default": filled(t, "default").Handler(), "knative118": filled(t, "knative-1.18").Handler(), "head": filled(t, "knative-head").Handler(), "all": filled(t, "all").Handler(),
		"mergedText": text.Handler(), "mergedOpen": open.Handler(), "mergedGarbage": garbage.Handler(),
		"mergedOpenInText": inTextOnly(open.Handler()),
	}
	api := startPrometheus(t, jobs)
	for query, want := range map[string]string{
		`count(up == 1)`: fmt.Sprint(len(jobs)),
		`sum(queue_proxy_requests_total{job="default",code="2xx",method="get"})`:                              "12",
		`histogram_quantile(0.5, sum by (le) (queue_proxy_app_duration_seconds_bucket{job="default"})) > 0`:   "?",
		`sum(revision_request_count{job="knative118",response_code="404"})`:                                   "12",
		`sum(http_server_request_duration_seconds_count{job="head",http_response_status_code="404"})`:         "12",
		`target_info{job="head",service_name="svc"}`:                                                          "1",
		`sum(revision_request_count{job="all",response_code="404"}) + sum(kn_serving_queue_depth{job="all"})`: "17",

		`jobs_total{job="mergedText",kind="a b"}`:                                   "5",
		`queue_proxy_ready{job="mergedText"}`:                                       "0",
		`app_queue_proxy_ready{job="mergedText"}`:                                   "9",
		`jobs_total{job="mergedOpen",kind="a b"}`:                                   "5",
		`build_info{job="mergedOpen"}`:                                              "1",
		`jobs_total{job="mergedOpenInText",kind="a b"}`:                             "5",
		`build_info{job="mergedOpenInText"}`:                                        "1",
		`sum(queue_proxy_requests_total{job="mergedGarbage"})`:                      "7",
		`queue_proxy_app_scrape_errors_total{job="mergedGarbage",reason="garbage"}`: "?",
		`sum(queue_proxy_app_scrape_errors_total{job=~"mergedText|mergedOpen"})`:    "0",
	} {
		eventually(t, api, query, want)
	}
}

func TestPrometheusScrapesNativeHistogramsOfApp(t *testing.T) {
	app := prometheus.NewRegistry()
	native := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "job_seconds", NativeHistogramBucketFactor: 1.1})
	app.MustRegister(native)
	for _, v := range []float64{0.001, 0.5, 70} {
		native.Observe(v)
	}
	m := merged(t, promhttp.HandlerFor(app, promhttp.HandlerOpts{}).ServeHTTP)
	observeEveryKind(m)
	api := startPrometheus(t, map[string]http.Handler{"app": m.Handler()}, "--enable-feature=native-histograms")
	for query, want := range map[string]string{
		`histogram_count(job_seconds{job="app"})`:                                  "3",
		`histogram_quantile(1, job_seconds{job="app"}) > 60 < 90`:                  "?",
		`sum(queue_proxy_requests_total{job="app"}) > 0`:                           "?",
		`sum(queue_proxy_app_scrape_errors_total{job="app"})`:                      "0",
		`sum(queue_proxy_app_duration_seconds_bucket{job="app",le="0.0005"}) >= 0`: "?",
	} {
		eventually(t, api, query, want)
	}
}

// inTextOnly returns a handler that requests the text format from h.
func inTextOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Accept", text)
		h.ServeHTTP(w, r)
	})
}

// startPrometheus starts a Prometheus with the given flags that scrapes each handler as a separate job every
// second. It returns the URL of Prometheus.
func startPrometheus(t *testing.T, jobs map[string]http.Handler, flags ...string) string {
	t.Helper()
	targets := map[string]string{}
	for name, h := range jobs {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		targets[name] = server.Listener.Addr().String()
	}
	return startPrometheusOn(t, targets, flags...)
}

// startPrometheusOn is like startPrometheus, but scrapes the addresses in targets.
func startPrometheusOn(t *testing.T, targets map[string]string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	var config strings.Builder
	config.WriteString("global:\n  scrape_interval: 1s\nscrape_configs:\n")
	for name, target := range targets {
		fmt.Fprintf(&config, "- job_name: %s\n  static_configs:\n  - targets: ['%s']\n", name, target)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	harness.NoError(t, os.WriteFile(file, []byte(config.String()), 0o644))
	address := freeAddress(t)
	flags = append(flags, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	start(t, exec.Command("prometheus", flags...))
	return "http://" + address
}

// eventually repeats a query until the result is one series with the value want. "?" means any value.
func eventually(t *testing.T, api, expr, want string) {
	t.Helper()
	const patience, between = harness.Patience, 200 * time.Millisecond
	var got []string
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(between) {
		if got, err = query(api, expr); len(got) == 1 && (got[0] == want || want == "?") {
			return
		}
	}
	t.Errorf("%s: got %v, error %v, want %s", expr, got, err, want)
}

// query returns the value of each series in the result of an expression.
func query(api, expr string) (values []string, err error) {
	a, err := http.Get(api + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(a.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	for _, series := range answer.Data.Result {
		values = append(values, fmt.Sprint(series.Value[1]))
	}
	return values, nil
}
