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

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// These tests need prometheus and promtool on the PATH, and fail without them:
// deploy/monitoring/check installs both and runs them.

func TestPrometheusHasNothingToSayOfOurNames(t *testing.T) {
	o := options("default")
	o.Merge.Port = 1
	m := newMetrics(t, o)
	observeEveryKind(m)
	checkNames(t, scrape(t, m.Handler(), text))
}

// checkNames asks promtool for its opinion of an exposition.
func checkNames(t *testing.T, exposition string) {
	t.Helper()
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(exposition)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("got %v and\n%s\nwant no complaint", err, out)
	}
}

// The program as a pod has it, with nothing set but its ports: Prometheus takes both
// of them, in whatever format it asks for.
func TestPrometheusScrapesBothPortsOfTheSidecar(t *testing.T) {
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

// build builds one of our programs.
func build(t *testing.T, name string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/"+name).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// start starts a program until the end of the test. If that fails, what it said is logged.
func start(t *testing.T, p *exec.Cmd) {
	t.Helper()
	var said bytes.Buffer
	p.Stdout = &said
	if p.Stderr == nil {
		p.Stderr = &said
	}
	harness.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if t.Failed() {
			t.Logf("%s said\n%s", p.Path, &said)
		}
	})
}

// startSidecar builds the program and starts it in front of a user container. It
// returns where it serves requests, statistics and metrics, once it is ready.
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
			t.Fatalf("the sidecar is not ready: %v, %v", answer, err)
		}
	}
}

// freeAddress returns an address of this host that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

// Every query of the dashboard is one that Prometheus can parse.
func TestPrometheusReadsTheDashboard(t *testing.T) {
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
		t.Errorf("got %v and\n%s\nwant no complaint", err, out)
	}
}

func TestPrometheusScrapesEveryFormatAndEveryMerge(t *testing.T) {
	const appText = "# TYPE jobs_total counter\njobs_total{kind=\"a b\"} 5\n# TYPE queue_proxy_ready counter\nqueue_proxy_ready 9\n"
	const appOpen = "# TYPE jobs counter\njobs_total{kind=\"a b\"} 5 # {trace_id=\"x\"} 1\n# TYPE build info\nbuild_info{v=\"1\"} 1\n# EOF\n"
	merging := func(app http.HandlerFunc) *Metrics {
		m := merged(t, app)
		observeEveryKind(m)
		return m
	}
	text := merging(says(textType, appText))
	open := merging(says(openMetricsType, appOpen))
	garbage := merging(says(textType, "x 1\ny\n"))
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

// inTextOnly hides from h that its scraper likes OpenMetrics.
func inTextOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Accept", text)
		h.ServeHTTP(w, r)
	})
}

// startPrometheus scrapes the handlers every second, each as a job of its own, and
// returns where it can be asked.
func startPrometheus(t *testing.T, jobs map[string]http.Handler) string {
	t.Helper()
	targets := map[string]string{}
	for name, h := range jobs {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		targets[name] = server.Listener.Addr().String()
	}
	return startPrometheusOn(t, targets)
}

// startPrometheusOn does so with addresses.
func startPrometheusOn(t *testing.T, targets map[string]string) string {
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
	start(t, exec.Command("prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address))
	return "http://" + address
}

// eventually asks until the answer is one series of that value; "?" is any.
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
	t.Errorf("%s: got %v and %v, want %s", expr, got, err, want)
}

// query returns the values of the series that an expression has.
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
