package metrics

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

const text = "text/plain;version=0.0.4"

// observeEveryKind observes requests that succeed, fail, are replayed, are rejected because the queue is full, or
// are upgraded.
func observeEveryKind(m *Metrics) {
	ok := observed("GET", 1, 1, 200, observation.OK)
	m.Observe(&ok)
	m.Observe(&ok)

	replayed := observed("POST", 2, 0, 201, observation.OK)
	replayed.Replayed = true
	m.Observe(&replayed)

	full := observed("POST", 1, 1, 503, observation.QueueFull)
	full.Slot, full.FirstByte, full.Begun = time.Time{}, time.Time{}, false
	full.End = zero.Add(time.Millisecond)
	m.Observe(&full)

	gone := observed("BREW", 1, 0, 499, observation.ClientGone)
	gone.FirstByte, gone.Begun = time.Time{}, false
	m.Observe(&gone)

	cut := observed("GET", 1, 1, 200, observation.AppReset)
	m.Observe(&cut)

	upgraded := observed("GET", 1, 1, 101, observation.OK)
	upgraded.Upgraded, upgraded.End = true, zero.Add(time.Hour)
	m.Observe(&upgraded)
}

func TestRequestsAreCountedWithLabels(t *testing.T) {
	m := newMetrics(t, options("default"))
	observeEveryKind(m)
	got := scrape(t, m.Handler(), text)
	counted := samples(got, "queue_proxy_requests_total{")
	maps.DeleteFunc(counted, func(_, value string) bool { return value == "0" }) // see TestFirstRequestCreatesAllStatusClasses
	wantSamples(t, counted, map[string]string{
		`queue_proxy_requests_total{code="2xx",method="get",protocol="http/1.1",reason="ok"}`:            "2",
		`queue_proxy_requests_total{code="2xx",method="post",protocol="http/2",reason="ok"}`:             "1",
		`queue_proxy_requests_total{code="5xx",method="post",protocol="http/1.1",reason="queue-full"}`:   "1",
		`queue_proxy_requests_total{code="4xx",method="other",protocol="http/1.0",reason="client-gone"}`: "1",
		`queue_proxy_requests_total{code="2xx",method="get",protocol="http/1.1",reason="app-reset"}`:     "1",
		`queue_proxy_requests_total{code="1xx",method="get",protocol="http/1.1",reason="ok"}`:            "1",
	})
	wantSamples(t, samples(got, "queue_proxy_request_failures_total{", "queue_proxy_replays_total ", "queue_proxy_kubelet_probes_total{"), map[string]string{
		"queue_proxy_replays_total":                                           "1",
		`queue_proxy_request_failures_total{reason="queue-full"}`:             "1",
		`queue_proxy_request_failures_total{reason="client-slow"}`:            "0",
		`queue_proxy_request_failures_total{reason="client-gone"}`:            "1",
		`queue_proxy_request_failures_total{reason="app-reset"}`:              "1",
		`queue_proxy_request_failures_total{reason="queue-timeout"}`:          "0",
		`queue_proxy_request_failures_total{reason="overload"}`:               "0",
		`queue_proxy_request_failures_total{reason="not-ready"}`:              "0",
		`queue_proxy_request_failures_total{reason="draining"}`:               "0",
		`queue_proxy_request_failures_total{reason="request-timeout"}`:        "0",
		`queue_proxy_request_failures_total{reason="response-start-timeout"}`: "0",
		`queue_proxy_request_failures_total{reason="idle-timeout"}`:           "0",
		`queue_proxy_request_failures_total{reason="app-unreachable"}`:        "0",
		`queue_proxy_request_failures_total{reason="local"}`:                  "0",
		`queue_proxy_request_failures_total{reason="app-garbage"}`:            "0",
		`queue_proxy_request_failures_total{reason="bad-request"}`:            "0",
		`queue_proxy_request_failures_total{reason="other"}`:                  "0",
	})
}

func TestDurationIsSplitIntoQueueAndApp(t *testing.T) {
	m := newMetrics(t, options("default"))
	observeEveryKind(m)
	got := scrape(t, m.Handler(), text)
	wantSamples(t, withoutBuckets(samples(got, "queue_proxy_request_duration_seconds", "queue_proxy_queue_wait_seconds", "queue_proxy_app_duration_seconds")), map[string]string{
		`queue_proxy_request_duration_seconds_count{code="1xx",protocol="http/1.1"}`: "1",
		`queue_proxy_request_duration_seconds_sum{code="1xx",protocol="http/1.1"}`:   "3600",
		`queue_proxy_request_duration_seconds_count{code="2xx",protocol="http/1.1"}`: "3",
		`queue_proxy_request_duration_seconds_sum{code="2xx",protocol="http/1.1"}`:   "0.126",
		`queue_proxy_request_duration_seconds_count{code="2xx",protocol="http/2"}`:   "1",
		`queue_proxy_request_duration_seconds_sum{code="2xx",protocol="http/2"}`:     "0.042",
		`queue_proxy_request_duration_seconds_count{code="4xx",protocol="http/1.0"}`: "1",
		`queue_proxy_request_duration_seconds_sum{code="4xx",protocol="http/1.0"}`:   "0.042",
		`queue_proxy_request_duration_seconds_count{code="5xx",protocol="http/1.1"}`: "1",
		`queue_proxy_request_duration_seconds_sum{code="5xx",protocol="http/1.1"}`:   "0.001",

		`queue_proxy_queue_wait_seconds_count`: "7",
		`queue_proxy_queue_wait_seconds_sum`:   "0.013", // 6 requests got a slot after 2 ms, and 1 request was rejected after 1 ms

		`queue_proxy_app_duration_seconds_count{code="1xx"}`: "1",
		`queue_proxy_app_duration_seconds_sum{code="1xx"}`:   "3599.998",
		`queue_proxy_app_duration_seconds_count{code="2xx"}`: "4",
		`queue_proxy_app_duration_seconds_sum{code="2xx"}`:   "0.16",
		`queue_proxy_app_duration_seconds_count{code="4xx"}`: "1",
		`queue_proxy_app_duration_seconds_sum{code="4xx"}`:   "0.04",
	})
}

func TestBucketIncludesUpperBound(t *testing.T) {
	m := newMetrics(t, options("default"))
	for _, took := range []time.Duration{-time.Second, 0, 999 * time.Microsecond, time.Millisecond, 1001 * time.Microsecond, time.Hour} {
		o := observed("GET", 1, 1, 200, observation.OK)
		o.Slot, o.End = o.Start, o.Start.Add(took)
		m.Observe(&o)
	}
	wantSamples(t, samples(scrape(t, m.Handler(), text),
		`queue_proxy_app_duration_seconds_bucket{code="2xx",le="0.001"}`, `queue_proxy_app_duration_seconds_bucket{code="2xx",le="0.0025"}`,
		`queue_proxy_app_duration_seconds_bucket{code="2xx",le="300"}`, `queue_proxy_app_duration_seconds_bucket{code="2xx",le="+Inf"}`,
	), map[string]string{
		`queue_proxy_app_duration_seconds_bucket{code="2xx",le="0.001"}`:  "4", // a negative duration is counted as 0
		`queue_proxy_app_duration_seconds_bucket{code="2xx",le="0.0025"}`: "5",
		`queue_proxy_app_duration_seconds_bucket{code="2xx",le="300"}`:    "5",
		`queue_proxy_app_duration_seconds_bucket{code="2xx",le="+Inf"}`:   "6",
	})
}

func TestConnectionMetrics(t *testing.T) {
	o := options("default")
	shown := []string{
		"queue_proxy_client_connections", "queue_proxy_client_connections_limit", "queue_proxy_client_connections_waiting",
		"queue_proxy_app_connections", "queue_proxy_app_connections_limit", "queue_proxy_app_connections_waiting",
	}
	want := map[string]string{shown[0]: "5", shown[1]: "6", shown[2]: "1", shown[3]: "3", shown[4]: "4", shown[5]: "2"}
	const total = `queue_proxy_client_connections_total{result="%s"}`
	totals := func(accepted, evicted, refused, wait string) map[string]string {
		return map[string]string{
			fmt.Sprintf(total, "accepted"): accepted, fmt.Sprintf(total, "evicted"): evicted, fmt.Sprintf(total, "refused"): refused,
			"queue_proxy_client_connections_wait_seconds_total": wait,
		}
	}
	maps.Copy(want, totals("9", "8", "7", "1.5"))
	wantSamples(t, samples(scrape(t, newMetrics(t, o).Handler(), text), shown...), want)

	o.Gauges.Connections = func() (clients, app bound.Pool) { return bound.Pool{Open: 5}, bound.Pool{Open: 3} }
	want = map[string]string{shown[0]: "5", shown[2]: "0", shown[3]: "3", shown[5]: "0"}
	maps.Copy(want, totals("0", "0", "0", "0"))
	wantSamples(t, samples(scrape(t, newMetrics(t, o).Handler(), text), shown...), want)
}

func TestStateIsReadDuringScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options("default")
		o.Start = time.Now()
		since := time.Now()
		running, ready, probed, reason := 2, false, true, "refused"
		o.Gauges.Load = func() (int, int) { return running, 3 }
		o.Gauges.OldestWaiter = func() time.Time { return since }
		o.Gauges.Ready = func() (bool, bool, string) { return ready, probed, reason }
		o.Gauges.CertValidity = func() (time.Time, time.Time) { return time.Unix(1_800_000_000, 0), time.Unix(1_900_000_000, 0) }
		m := newMetrics(t, o)
		shown := []string{
			"queue_proxy_running_requests", "queue_proxy_waiting_requests", "queue_proxy_oldest_waiter_age_seconds", "queue_proxy_app_hangs", "queue_proxy_concurrency_limit", "queue_proxy_queue_limit", "queue_proxy_advised_concurrency_limit",
			"queue_proxy_ready", "queue_proxy_not_ready_reason", "queue_proxy_draining", "queue_proxy_tls_certificate_expiry_timestamp_seconds", "queue_proxy_tls_certificate_not_before_timestamp_seconds", "queue_proxy_log_lines_dropped_total", "queue_proxy_spans_dropped_total", "queue_proxy_build_info",
		}
		time.Sleep(1500 * time.Millisecond)
		want := map[string]string{
			"queue_proxy_running_requests": "2", "queue_proxy_waiting_requests": "3", "queue_proxy_oldest_waiter_age_seconds": "1.5", "queue_proxy_app_hangs": "1", "queue_proxy_concurrency_limit": "2", "queue_proxy_queue_limit": "20",
			`queue_proxy_concurrency_limit_reason{reason="steady"}`: "1", `queue_proxy_advised_concurrency_limit`: "4",
			"queue_proxy_ready": "0", `queue_proxy_not_ready_reason{reason="refused"}`: "1", "queue_proxy_draining": "1", "queue_proxy_tls_certificate_expiry_timestamp_seconds": "1.9e+09",
			"queue_proxy_tls_certificate_not_before_timestamp_seconds": "1.8e+09",
			"queue_proxy_log_lines_dropped_total":                      "7", "queue_proxy_spans_dropped_total": "8",
			`queue_proxy_build_info{goversion="` + runtime.Version() + `",revision="abcdef",version="v1.2.3"}`: "1",
		}
		wantSamples(t, samples(scrape(t, m.Handler(), text), shown...), want)

		running, since, ready = 1, time.Time{}, true
		want["queue_proxy_running_requests"], want["queue_proxy_oldest_waiter_age_seconds"], want["queue_proxy_ready"] = "1", "0", "1"
		delete(want, `queue_proxy_not_ready_reason{reason="refused"}`)
		wantSamples(t, samples(scrape(t, m.Handler(), text), shown...), want)

		ready, reason = false, "unknown"
		want["queue_proxy_ready"], want[`queue_proxy_not_ready_reason{reason="other"}`] = "0", "1"
		wantSamples(t, samples(scrape(t, m.Handler(), text), shown...), want)

		probed = false
		delete(want, "queue_proxy_ready")
		delete(want, `queue_proxy_not_ready_reason{reason="other"}`)
		wantSamples(t, samples(scrape(t, m.Handler(), text), shown...), want)
	})
}

func TestBoundsMetricContainsAllNames(t *testing.T) {
	o := options("default")
	o.Gauges.Bounds = bound.NewRecorder()
	m := newMetrics(t, o)
	want := map[string]string{}
	for name := range bound.NumNames {
		want[`queue_proxy_bounds_total{bound="`+name.String()+`"}`] = "0"
	}
	wantSamples(t, samples(scrape(t, m.Handler(), text), "queue_proxy_bounds_total"), want)

	o.Gauges.Bounds.Hit(bound.ControlFrames, "10.0.0.1:1234")
	want[`queue_proxy_bounds_total{bound="h2-control-frames"}`] = "1"
	wantSamples(t, samples(scrape(t, m.Handler(), text), "queue_proxy_bounds_total"), want)
}

func TestClientErrorsMetricContainsAllErrors(t *testing.T) {
	o := options("default")
	o.Gauges.Bounds = bound.NewRecorder()
	m := newMetrics(t, o)
	o.Gauges.Bounds.Fail(bound.TLSFailed, "10.0.0.1:1234", errors.New("a"))
	want := map[string]string{}
	for name, count := range map[bound.Name]string{
		bound.MalformedRequest: "0", bound.HTTP2Error: "0", bound.TLSNoCertificate: "0", bound.TLSBadCertificate: "0",
		bound.TLSRejected: "0", bound.TLSFailed: "1", bound.TLSRecord: "0",
	} {
		want[`queue_proxy_client_errors_total{error="`+name.String()+`"}`] = count
	}
	wantSamples(t, samples(scrape(t, m.Handler(), text), "queue_proxy_client_errors_total"), want)
}

func TestMetricsOfDisabledFeaturesAreAbsent(t *testing.T) {
	o := options("all")
	o.Gauges.LogLinesDropped, o.Gauges.SpansDropped = nil, nil
	o.Gauges.Limit = func() (int, int) { return 0, 0 }
	o.Gauges.Adaptive = func() (observation.LimitState, bool) { return observation.LimitState{}, false }
	o.Gauges.CertValidity = func() (_, _ time.Time) { return }
	got := scrape(t, newMetrics(t, o).Handler(), text)
	wantSamples(t, samples(got, "queue_proxy_concurrency_limit", "queue_proxy_advised_concurrency_limit", "queue_proxy_queue_limit", "queue_proxy_tls_certificate_expiry_timestamp_seconds", "queue_proxy_tls_certificate_not_before_timestamp_seconds",
		"queue_proxy_log_lines_dropped_total", "queue_proxy_spans_dropped_total", "queue_proxy_app_scrape_errors_total", "revision_queue_depth", "kn_serving_queue_depth"),
		map[string]string{"queue_proxy_concurrency_limit": "0"})
}

func TestStartupRecordsFirstEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options("default")
		o.Start = time.Now()
		m := newMetrics(t, o)
		wantSamples(t, samples(scrape(t, m.Handler(), text), "queue_proxy_startup_seconds"), nil)
		step := func() { time.Sleep(250 * time.Millisecond) }

		step()
		m.Listening(time.Now())
		step()
		asked := time.Now()
		step()
		m.Answered(asked, false)
		step()
		m.Answered(time.Now(), true)
		step()
		first := observed("GET", 1, 1, 200, observation.OK)
		first.Start, first.End = time.Now(), time.Now()
		step()
		second := first
		second.Start, second.End = time.Now(), time.Now()
		m.Observe(&second) // requests can end in a different order
		m.Observe(&first)

		want := map[string]string{
			`queue_proxy_startup_seconds{event="listening"}`:     "0.25",
			`queue_proxy_startup_seconds{event="first_probe"}`:   "0.5",
			`queue_proxy_startup_seconds{event="first_ready"}`:   "1",
			`queue_proxy_startup_seconds{event="first_request"}`: "1.25",
		}
		wantSamples(t, samples(scrape(t, m.Handler(), text), "queue_proxy_startup_seconds"), want)

		step()
		m.Listening(time.Now())
		m.Answered(time.Now(), true)
		m.ReadinessChanged(true)
		m.Observe(&second)
		wantSamples(t, samples(scrape(t, m.Handler(), text), "queue_proxy_startup_seconds"), want)
	})
}

func TestFlapsCountLossOfReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(t, options("default"))
		for _, ready := range []bool{true, false, true, false, true} {
			m.ReadinessChanged(ready)
		}
		asked := time.Now()
		time.Sleep(30 * time.Millisecond)
		m.Answered(asked, false)
		m.Answered(asked, false)
		m.Answered(time.Now(), true)
		wantSamples(t, withoutBuckets(samples(scrape(t, m.Handler(), text), "queue_proxy_readiness_flaps_total", "queue_proxy_readiness_answer_seconds")), map[string]string{
			"queue_proxy_readiness_flaps_total":                       "2",
			`queue_proxy_readiness_answer_seconds_count{ready="no"}`:  "2",
			`queue_proxy_readiness_answer_seconds_sum{ready="no"}`:    "0.06",
			`queue_proxy_readiness_answer_seconds_count{ready="yes"}`: "1",
			`queue_proxy_readiness_answer_seconds_sum{ready="yes"}`:   "0",
		})
	})
}

// isProcessMetric reports whether a series is about the process or the Go runtime, or depends on the time.
func isProcessMetric(series string) bool {
	for _, prefix := range []string{"queue_proxy_process_", "queue_proxy_go_", "process_", "go_", "revision_go_", "promhttp_", "queue_proxy_oldest_waiter_age_seconds"} {
		if strings.HasPrefix(series, prefix) {
			return true
		}
	}
	return false
}

// requestLines returns the samples of m that requests can change.
func requestLines(t *testing.T, m *Metrics) string {
	var lines strings.Builder
	for line := range strings.Lines(scrape(t, m.Handler(), text)) {
		if !isProcessMetric(line) && !strings.HasPrefix(line, "#") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

func TestExcludedRequestsAreNotCounted(t *testing.T) {
	m := newMetrics(t, options("all"))
	before := requestLines(t, m)
	o := observed("GET", 1, 1, 502, observation.AppUnreachable)
	o.Excluded, o.Replayed = true, true
	m.Observe(&o)
	harness.Equal(t, requestLines(t, m), before)
	o.Excluded = false
	m.Observe(&o)
	if got := requestLines(t, m); got == before {
		t.Error("got no change after a request that is not excluded, want one")
	}
}

func TestProbesAreNotCountedAsRequests(t *testing.T) {
	m := newMetrics(t, options("all"))
	before := requestLines(t, m)
	for _, kind := range []observation.Kind{observation.QueueProbe, observation.NetworkProbe, observation.UnknownProbe} {
		o := observed("GET", 1, 1, 200, observation.OK)
		o.Kind = kind
		m.Observe(&o)
	}
	harness.Equal(t, requestLines(t, m), before)

	o := observed("GET", 1, 1, 503, observation.OK)
	o.Kind = observation.KubeletRequest
	m.Observe(&o)
	line := `queue_proxy_kubelet_probes_total{code="5xx",reason="ok"} 1` + "\n"
	harness.Equal(t, strings.Replace(requestLines(t, m), line, "", 1), before, "without", line)
}

func TestKnative118NamesLabelsAndUnits(t *testing.T) {
	m := newMetrics(t, options("knative-1.18"))
	observeEveryKind(m)
	got := scrape(t, m.Handler(), text)
	const who = `configuration_name="cfg",container_name="queue-proxy",namespace_name="ns",pod_name="pod-0",`
	label := func(code string) string {
		return who + `response_code="` + code + `",response_code_class="` + code[:1] + `xx",revision_name="rev",`
	}
	const request, app = `route_tag="DISABLED",service_name="svc"}`, `service_name="svc"}`
	want := map[string]string{
		`revision_queue_depth{` + who + `revision_name="rev",service_name="svc"}`: "5",
	}
	for code, n := range map[string][4]string{
		"101": {"1", "3.6e+06", "1", "3.599998e+06"},
		"200": {"3", "126", "3", "120"},
		"201": {"1", "42", "1", "40"},
		"499": {"1", "42", "1", "40"},
		"503": {"1", "1"},
	} {
		want["revision_request_count{"+label(code)+request] = n[0]
		want["revision_request_latencies_count{"+label(code)+request] = n[0]
		want["revision_request_latencies_sum{"+label(code)+request] = n[1]
		if n[2] != "" {
			want["revision_app_request_count{"+label(code)+app] = n[2]
			want["revision_app_request_latencies_count{"+label(code)+app] = n[2]
			want["revision_app_request_latencies_sum{"+label(code)+app] = n[3]
		}
	}
	wantSamples(t, withoutBuckets(samples(got, "revision_request", "revision_app", "revision_queue")), want)

	var bounds []string
	for series := range samples(got, "revision_app_request_latencies_bucket{"+label("201")+`service_name="svc"`) {
		bounds = append(bounds, series)
	}
	harness.Equal(t, len(bounds), 27, "buckets")
	harness.Equal(t, len(samples(got, "revision_go_")), 27, "metrics of the Go runtime")
	wantSamples(t, samples(got, "queue_proxy_", "http_", "go_", "process_"), nil)
}

func TestKnative118UsesUnknownWithoutService(t *testing.T) {
	o := options("knative-1.18")
	o.Service = ""
	got := scrape(t, newMetrics(t, o).Handler(), text)
	harness.Contains(t, got, `service_name="unknown"`)
}

func TestKnative118NamesAreUnchangedForOpenMetrics(t *testing.T) {
	m := newMetrics(t, options("knative-1.18"))
	observeEveryKind(m)
	got := scrape(t, m.Handler(), "application/openmetrics-text;version=1.0.0,*/*;q=0.1")
	if strings.Contains(got, "revision_request_count_total") || !strings.Contains(got, "revision_request_count{") {
		t.Error("got another name of revision_request_count, want the name in Knative")
	}
}

func TestKnativeHeadNamesLabelsAndUnits(t *testing.T) {
	m := newMetrics(t, options("knative-head"))
	o := observed("PUT", 2, 0, 200, observation.OK)
	o.TLS = true
	x := exchange{request: &http.Request{Header: http.Header{}}}
	x.request.Header.Set("Knative-Serving-Default-Route", "true")
	o.Exchange = x
	m.Observe(&o)
	o = observed("TRACE", 1, 1, 502, observation.AppUnreachable)
	o.FirstByte = time.Time{}
	m.Observe(&o)

	got := scrape(t, m.Handler(), text)
	const scope = `,network_protocol_name="http",network_protocol_version="`
	const otel = `",otel_scope_name="go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp",otel_scope_version="0.69.0"`
	put := `{http_request_method="PUT",http_response_status_code="200",kn_route_tag="kn:default"` + scope + `2` + otel + `,url_scheme="https"}`
	trace := `{http_request_method="_OTHER",http_response_status_code="502",kn_route_tag="kn:disabled"` + scope + `1.1` + otel + `,url_scheme="http"}`
	to := `,network_protocol_name="http` + otel + `,server_address="127.0.0.1",server_port="8080",url_scheme="http"}`
	putApp := `{http_request_method="PUT",http_response_status_code="200",kn_route_tag="kn:default"` + to
	traceApp := `{error_type="app-unreachable",http_request_method="_OTHER",kn_route_tag="kn:disabled"` + to
	want := map[string]string{
		`kn_serving_queue_depth{otel_scope_name="knative.dev/serving/pkg/queue"}`: "5",
		`target_info{container_name="queue-proxy",k8s_namespace_name="ns",k8s_pod_name="pod-0",kn_configuration_name="cfg",kn_revision_name="rev",` +
			`kn_service_name="svc",service_instance_id="pod-0",service_name="svc",service_version="abcdef"}`: "1",
	}
	for _, code := range []string{"200", "502"} {
		series := `{http_response_status_code="` + code + `",otel_scope_name="knative.dev/serving/pkg/queue"}`
		want["kn_serving_invocation_duration_seconds_count"+series] = "1"
		want["kn_serving_invocation_duration_seconds_sum"+series] = "0.04"
	}
	for series, sums := range map[string][3]string{put: {"0.042", "20", "3000"}, trace: {"0.042", "20", "3000"}} {
		for i, name := range []string{"http_server_request_duration_seconds", "http_server_request_body_size_bytes", "http_server_response_body_size_bytes"} {
			want[name+"_count"+series], want[name+"_sum"+series] = "1", sums[i]
		}
	}
	for series, sums := range map[string][2]string{putApp: {"0.01", "20"}, traceApp: {"0.04", "20"}} {
		for i, name := range []string{"http_client_request_duration_seconds", "http_client_request_body_size_bytes"} {
			want[name+"_count"+series], want[name+"_sum"+series] = "1", sums[i]
		}
	}
	wantSamples(t, withoutBuckets(samples(got, "http_", "kn_", "target_info")), want)

	harness.Equal(t, len(samples(got, "http_server_request_duration_seconds_bucket")), 2*15, "buckets of durations")
	harness.Equal(t, len(samples(got, "http_server_request_body_size_bytes_bucket")), 2*16, "buckets of sizes")
	for _, name := range []string{"go_memory_used_bytes{go_memory_type=\"stack\"", "go_goroutine_count{", "go_goroutines ", "process_cpu_seconds_total ", "promhttp_metric_handler_requests_total{"} {
		if len(samples(got, name)) == 0 {
			t.Errorf("%s: got no series, want some", name)
		}
	}
	wantSamples(t, samples(got, "queue_proxy_", "revision_"), nil)
}

func TestUnnamedStatusIsCountedAsFirstOfClass(t *testing.T) {
	for _, c := range []struct {
		status      int
		code, class string
	}{
		{100, "100", "1xx"}, {199, "100", "1xx"}, {200, "200", "2xx"}, {299, "200", "2xx"}, {418, "418", "4xx"}, {499, "499", "4xx"},
		{498, "400", "4xx"}, {520, "500", "5xx"}, {599, "500", "5xx"},
		{-1, "500", "5xx"}, {0, "500", "5xx"}, {99, "500", "5xx"}, {600, "500", "5xx"}, {999, "500", "5xx"},
	} {
		harness.Equal(t, statuses[status(c.status)], c.code, c.status, "code")
		harness.Equal(t, classes[class(c.status)], c.class, c.status, "class")
	}
}

// FuzzLabelsAreClosed verifies that label values are in the closed lists for any request and response, except
// for a limited number of route tags.
func FuzzLabelsAreClosed(f *testing.F) {
	f.Add("GET", 1, 1, 200, uint8(0), "", "", int64(1), int64(1), true)
	f.Add("get", 0, 9, 0, uint8(observation.NumReasons), "blue\xff", "true", int64(-1), int64(1<<62), false)
	f.Add("\"}\n#", 3, 0, 999, uint8(255), "\n", "x", int64(0), int64(0), true)
	m, err := New(options("all"))
	harness.NoError(f, err)
	allowed := map[string]bool{}
	for _, list := range [][]string{classes[:], methods, otelMethods, protocols, otelVersions, reasons, statuses, {
		"http", "https", "127.0.0.1", "8080", "yes", "no", "stack", "other", "refused", "accepted", "evicted",
		"listening", "first_probe", "first_ready", "first_request", string(observation.LimitSteady),
		"queue-proxy", "ns", "svc", "cfg", "rev", "pod-0", "v1.2.3", "abcdef", runtime.Version(),
		scopeHTTP, scopeVersion, scopeKnative, scopeRuntime,
	}} {
		for _, value := range list {
			allowed[value] = true
		}
	}
	for name := range bound.NumEvents {
		allowed[name.String()] = true
	}
	f.Fuzz(func(t *testing.T, method string, major, minor, status int, why uint8, tag, byDefault string, wait, took int64, slot bool) {
		o := observed(method, major, minor, status, observation.Reason(why))
		x := exchange{request: &http.Request{Header: http.Header{"Knative-Serving-Tag": {tag}, "Knative-Serving-Default-Route": {byDefault}}}}
		o.Exchange = x
		o.Slot = zero.Add(time.Duration(wait))
		o.End = o.Slot.Add(time.Duration(took))
		o.FirstByte = time.Time{}
		o.In, o.Out = wait, took
		if !slot {
			o.Slot = time.Time{}
		}
		m.Observe(&o)
		gathered, err := m.gatherer.Gather()
		harness.NoError(t, err)
		tags := map[string]bool{}
		for _, g := range gathered {
			for _, s := range g.GetMetric() {
				for _, l := range s.GetLabel() {
					if l.GetName() == "route_tag" || l.GetName() == "kn_route_tag" {
						tags[l.GetValue()] = true
						continue
					}
					if !allowed[l.GetValue()] && !strings.HasSuffix(l.GetName(), "_class") {
						t.Fatalf("%s: got %s=%q, want a value in the lists", g.GetName(), l.GetName(), l.GetValue())
					}
				}
			}
		}
		if most := 2*firstNamed + maxTags; len(tags) > most {
			t.Fatalf("got %d values of route tags, want at most %d", len(tags), most)
		}
	})
}

func TestSeriesAreUnique(t *testing.T) {
	o := options("all")
	o.Merge.Port = 1
	m := newMetrics(t, o)
	for status := range 1000 {
		for reason := observation.OK; reason <= observation.NumReasons; reason++ {
			obs := observed([]string{"GET", "PUT", "BREW"}[status%3], status%4, status%2, status, reason)
			m.Observe(&obs)
			obs.FirstByte = time.Time{}
			m.Observe(&obs)
		}
	}
	_, err := m.gatherer.Gather() // client_golang returns an error for a duplicate
	harness.NoError(t, err)
}

func TestMetricNamesAndHelpPassLint(t *testing.T) {
	o := options("default")
	o.Merge.Port = 1
	m := newMetrics(t, o)
	observeEveryKind(m)
	problems, err := testutil.GatherAndLint(m.gatherer)
	harness.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: got problem %q, want none", p.Metric, p.Text)
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	for _, names := range []string{"default", "knative-1.18", "knative-1.19", "knative-head", "all"} {
		m := newMetrics(t, options(names))
		o := observed("GET", 1, 1, 200, observation.OK)
		o.Replayed = true
		refused := observed("POST", 2, 0, 503, observation.QueueFull)
		refused.Slot = time.Time{}
		probe := observed("GET", 1, 1, 200, observation.OK)
		probe.Kind = observation.KubeletRequest
		got := testing.AllocsPerRun(1000, func() {
			m.Observe(&o)
			m.Observe(&refused)
			m.Observe(&probe)
			m.Answered(zero, true)
		})
		harness.Equal(t, got, 0, names, "allocations")
	}
}

func TestConcurrentObserveCountsAllRequests(t *testing.T) {
	const writers, each = 8, 500
	m := newMetrics(t, options("all"))
	var all sync.WaitGroup
	for n := range writers {
		all.Go(func() {
			for i := range each {
				o := observed([]string{"GET", "POST"}[i%2], 1, 1, 200+n, observation.OK)
				m.Observe(&o)
				m.Answered(time.Now(), i%2 == 0)
				m.ReadinessChanged(false)
				if i%100 == 0 {
					if _, err := m.gatherer.Gather(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	got := scrape(t, m.Handler(), text)
	wantSamples(t, withoutBuckets(samples(got, `queue_proxy_requests_total{code="2xx"`, "queue_proxy_request_duration_seconds_count", "queue_proxy_queue_wait_seconds_count", "queue_proxy_app_duration_seconds_count", "queue_proxy_readiness_flaps_total")), map[string]string{
		`queue_proxy_requests_total{code="2xx",method="get",protocol="http/1.1",reason="ok"}`:  strconv.Itoa(writers * each / 2),
		`queue_proxy_requests_total{code="2xx",method="post",protocol="http/1.1",reason="ok"}`: strconv.Itoa(writers * each / 2),
		`queue_proxy_request_duration_seconds_count{code="2xx",protocol="http/1.1"}`:           strconv.Itoa(writers * each),
		`queue_proxy_queue_wait_seconds_count`:                                                 strconv.Itoa(writers * each),
		`queue_proxy_app_duration_seconds_count{code="2xx"}`:                                   strconv.Itoa(writers * each),
		"queue_proxy_readiness_flaps_total":                                                    strconv.Itoa(writers * each),
	})
	for series, value := range samples(got, "revision_request_count{") {
		harness.Equal(t, value, strconv.Itoa(each), series)
	}
}

func TestNilMetricsDoesNotAllocate(t *testing.T) {
	var m *Metrics
	o := observed("GET", 1, 1, 200, observation.OK)
	harness.Equal(t, testing.AllocsPerRun(10, func() {
		m.Observe(&o)
		m.Listening(zero)
		m.Answered(zero, true)
		m.ReadinessChanged(false)
	}), 0, "allocations")
}

func TestHandlerNegotiatesFormat(t *testing.T) {
	h := filled(t, "default").Handler()
	for _, c := range []struct{ accept, want string }{
		{"", "text/plain; version=0.0.4"},
		{"*/*", "text/plain; version=0.0.4"},
		{"text/plain;version=0.0.4", "text/plain; version=0.0.4"},
		{"text/html", "text/plain; version=0.0.4"},
		{"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "application/openmetrics-text; version=1.0.0"},
		{"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,text/plain;q=0.1", "application/vnd.google.protobuf"},
	} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept", c.accept)
		r.Header.Set("Accept-Encoding", "gzip")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.accept, got, c.want)
		}
		harness.Equal(t, w.Header().Get("Content-Encoding"), "", c.accept)
		if ended := strings.HasSuffix(w.Body.String(), "# EOF\n"); ended != strings.Contains(c.want, "openmetrics") {
			t.Errorf("%q: got EOF line: %v, want it only in OpenMetrics", c.accept, ended)
		}
	}
}

func TestHandlerServesOnlyMetricsPath(t *testing.T) {
	h := newMetrics(t, options("all")).Handler()
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/metrics", 200}, {"HEAD", "/metrics", 200},
		{"POST", "/metrics", 405}, {"GET", "/", 404}, {"GET", "/metrics/", 404}, {"GET", "/debug/pprof/", 404},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		harness.Equal(t, w.Code, c.want, c.method, c.path)
	}
}

func TestParseNames(t *testing.T) {
	for word, want := range map[string]names{
		"": ourNames, "default": ourNames, "knative-1.18": names118, "knative-1.19": names119, "knative-head": namesHead, "all": allNames, "off": 0,
	} {
		got, err := parseNames(word)
		harness.NoError(t, err, word)
		harness.Equal(t, got, want, word)
	}
	_, err := New(Options{Names: "Default"})
	harness.Equal(t, fmt.Sprint(err), `metrics: invalid value "Default" for the metric names`)
}

func TestPushedMetricsAreKnativeHead(t *testing.T) {
	m := newMetrics(t, Options{Names: "off", Pushed: true})
	if m.head == nil || len(m.head.invocations) != 1 || m.requests != nil || m.v118 != nil {
		t.Error("got other sets of metrics, want only knative-head")
	}
}

// maxIdleSeries is the maximum number of series that a pod without requests exports.
const maxIdleSeries = 150

func TestIdlePodHasFewSeries(t *testing.T) {
	o := options("default")
	o.Gauges.Bounds = bound.NewRecorder()
	got := samples(scrape(t, newMetrics(t, o).Handler(), text), "queue_proxy_")
	if len(got) > maxIdleSeries {
		t.Errorf("got %d series, want at most %d", len(got), maxIdleSeries)
	}
	for _, class := range []string{"2xx", "3xx", "4xx", "5xx"} {
		harness.Equal(t, got[`queue_proxy_requests_total{code="`+class+`",method="get",protocol="http/1.1",reason="ok"}`], "0", class)
	}
}

// If a series does not exist before the first response of a class, the PromQL function increase() ignores this
// response.
func TestFirstRequestCreatesAllStatusClasses(t *testing.T) {
	m := newMetrics(t, options("default"))
	o := observed("POST", 2, 0, 404, observation.OK)
	m.Observe(&o)
	wantSamples(t, samples(scrape(t, m.Handler(), text), `queue_proxy_requests_total{code="1xx",method="post"`, `queue_proxy_requests_total{code="2xx",method="post"`,
		`queue_proxy_requests_total{code="4xx",method="post"`, `queue_proxy_requests_total{code="5xx",method="post"`), map[string]string{
		`queue_proxy_requests_total{code="2xx",method="post",protocol="http/2",reason="ok"}`: "0",
		`queue_proxy_requests_total{code="4xx",method="post",protocol="http/2",reason="ok"}`: "1",
		`queue_proxy_requests_total{code="5xx",method="post",protocol="http/2",reason="ok"}`: "0",
	})
}

func TestGRPCResponsesAreCounted(t *testing.T) {
	m := newMetrics(t, options("default"))
	observe := func(rpc observation.GRPCStatus, reason observation.Reason) {
		o := observed("POST", 2, 0, 200, reason)
		o.RPC = rpc
		m.Observe(&o)
	}
	const name = "queue_proxy_grpc_responses_total"
	observe(0, observation.OK)
	observe(observation.GRPCStatusOf(14), observation.QueueFull) // sent by the sidecar
	harness.Equal(t, len(samples(scrape(t, m.Handler(), text), name)), 0, "series without gRPC responses")
	for code := -1; code < 18; code++ {
		observe(observation.GRPCStatusOf(code), observation.OK)
	}
	observe(observation.GRPCStatusOf(14), observation.OK)
	observe(observation.GRPCMissing, observation.OK)
	got := samples(scrape(t, m.Handler(), text), name)
	harness.Equal(t, len(got), observation.NumGRPCStatuses-1, "series")
	for status, want := range map[string]string{"OK": "1", "UNAVAILABLE": "2", "other": "1", "none": "1"} {
		harness.Equal(t, got[name+`{code="`+status+`"}`], want, status)
	}
}

func TestRecordingGRPCResponseDoesNotAllocate(t *testing.T) {
	m, o := newMetrics(t, options("default")), observed("POST", 2, 0, 200, observation.OK)
	o.RPC = observation.GRPCStatusOf(14)
	m.Observe(&o)
	harness.Equal(t, testing.AllocsPerRun(100, func() { m.Observe(&o) }), 0, "allocations")
}

// With a feature flag, Prometheus uses the created timestamps in the protobuf format.
func TestCountersHaveCreatedTimestamps(t *testing.T) {
	o := options("default")
	o.Gauges.Bounds = bound.NewRecorder()
	m := newMetrics(t, o)
	gathered, err := m.gatherer.Gather()
	harness.NoError(t, err)
	for _, f := range gathered {
		for _, s := range f.GetMetric() {
			if _, ours := m.registry.names[f.GetName()]; ours && s.GetCounter() != nil && s.GetCounter().GetCreatedTimestamp() == nil {
				t.Errorf("%s: got no created timestamp, want one", f.GetName())
			}
		}
	}
}

// Knative 1.19.0 to 1.19.7 and 1.20.0 use other names than later releases for two metrics.
func TestKnativeNamesOfInvocationAndDepth(t *testing.T) {
	previous := []string{"kn_queueproxy_app_duration_seconds_count", "kn_queueproxy_depth"}
	current := []string{"kn_serving_invocation_duration_seconds_count", "kn_serving_queue_depth"}
	for names, want := range map[string][]string{
		"default": nil, "knative-1.18": nil, "knative-1.19": previous, "knative-head": current, "all": slices.Concat(previous, current),
	} {
		m := newMetrics(t, options(names))
		o := observed("GET", 1, 1, 200, observation.OK)
		m.Observe(&o)
		var got []string
		for series, value := range samples(scrape(t, m.Handler(), text), slices.Concat(previous, current)...) {
			name, labels, _ := strings.Cut(series, "{")
			if slices.Contains(previous, name) || slices.Contains(current, name) {
				got = append(got, name)
			}
			scope := `otel_scope_name="knative.dev/serving/pkg/queue"`
			if count := strings.HasSuffix(name, "_count"); !strings.Contains(labels, scope) ||
				count != strings.Contains(labels, `http_response_status_code="200"`) || value != map[bool]string{true: "1", false: "5"}[count] {
				t.Errorf("%s: got %s %s, want 1 request with status 200, and a depth of 5", names, series, value)
			}
		}
		slices.Sort(got)
		harness.Equal(t, fmt.Sprint(got), fmt.Sprint(want), names)
	}
}

func TestPushUsesNamesOfKnative119(t *testing.T) {
	o := options("knative-1.19")
	o.Pushed = true
	m := newMetrics(t, o)
	done := observed("GET", 1, 1, 200, observation.OK)
	m.Observe(&done)
	all, _ := pushed(t, m, PushOptions{})
	got := map[string]string{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if strings.HasPrefix(m.Name, "kn.") {
			got[m.Name] = m.Unit
		}
	}
	harness.Equal(t, got, map[string]string{"kn.queueproxy.app.duration": "s", "kn.queueproxy.depth": "{request}"})
}

func TestInvalidRequestHasNoTimeInQueue(t *testing.T) {
	m := newMetrics(t, options("default"))
	for _, reason := range []observation.Reason{observation.BadRequest, observation.QueueFull} {
		o := observed("GET", 1, 1, reason.Status(), reason)
		o.Slot = time.Time{}
		m.Observe(&o)
	}
	wantSamples(t, samples(scrape(t, m.Handler(), text), "queue_proxy_queue_wait_seconds_count"), map[string]string{"queue_proxy_queue_wait_seconds_count": "1"})
}
