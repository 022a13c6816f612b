package plugin

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// page contains the metrics of a sidecar that ReadMetrics parses.
const page = `# HELP queue_proxy_ready 1 when a readiness probe is answered with success.
# TYPE queue_proxy_ready gauge
queue_proxy_ready 0
# TYPE queue_proxy_not_ready_reason gauge
queue_proxy_not_ready_reason{reason="refused"} 1
# TYPE queue_proxy_draining gauge
queue_proxy_draining 0
# TYPE queue_proxy_running_requests gauge
queue_proxy_running_requests 2
# TYPE queue_proxy_waiting_requests gauge
queue_proxy_waiting_requests 5
# TYPE queue_proxy_concurrency_limit gauge
queue_proxy_concurrency_limit 2
# TYPE queue_proxy_queue_limit gauge
queue_proxy_queue_limit 20
# TYPE queue_proxy_process_start_time_seconds gauge
queue_proxy_process_start_time_seconds 1.7e+09
# TYPE queue_proxy_request_failures_total counter
queue_proxy_request_failures_total{reason="queue-full"} 3
queue_proxy_request_failures_total{reason="app-reset"} 0
# TYPE queue_proxy_request_duration_seconds histogram
queue_proxy_request_duration_seconds_bucket{code="2xx",protocol="http/1.1",le="0.1"} 6
queue_proxy_request_duration_seconds_bucket{code="2xx",protocol="http/1.1",le="1"} 8
queue_proxy_request_duration_seconds_bucket{code="2xx",protocol="http/1.1",le="+Inf"} 8
queue_proxy_request_duration_seconds_sum{code="2xx",protocol="http/1.1"} 2
queue_proxy_request_duration_seconds_count{code="2xx",protocol="http/1.1"} 8
queue_proxy_request_duration_seconds_bucket{code="1xx",protocol="http/1.1",le="0.1"} 0
queue_proxy_request_duration_seconds_bucket{code="1xx",protocol="http/1.1",le="1"} 0
queue_proxy_request_duration_seconds_bucket{code="1xx",protocol="http/1.1",le="+Inf"} 1
queue_proxy_request_duration_seconds_sum{code="1xx",protocol="http/1.1"} 3000
queue_proxy_request_duration_seconds_count{code="1xx",protocol="http/1.1"} 1
`

func read(t *testing.T, text string) Sample {
	t.Helper()
	s, err := ReadMetrics(strings.NewReader(text), time.Unix(0, 0))
	harness.NoError(t, err)
	return s
}

func TestReadMetrics(t *testing.T) {
	s := read(t, page)
	got := fmt.Sprintln(*s.Ready, s.Draining, s.Reason, *s.Running, *s.Waiting, *s.Limit, *s.QueueLimit, s.Start, *s.Requests, s.Failures, s.Buckets[0.1], s.Buckets[1], s.Buckets[math.Inf(1)])
	const want = "false false refused 2 5 2 20 1.7e+09 9 map[app-reset:0 queue-full:3] 6 8 8\n"
	harness.Equal(t, got, want)
}

// The app's metrics follow the sidecar's metrics. They can be invalid or truncated.
func TestReadMetricsIgnoresMetricsOfApp(t *testing.T) {
	for name, rest := range map[string]string{
		"garbage":        "!!! {\n\x00\n",
		"truncated line": "queue_proxy_waiting_requests 7",
		"similar names":  "queue_proxy_readyish 1\nqueue_proxy_ready_total{ 1\n",
	} {
		if got := read(t, page+rest); *got.Waiting != 5 || *got.Requests != 9 {
			t.Errorf("%s: got %+v, want the values of the sidecar", name, got)
		}
	}
}

func TestReadMetricsOfIdleSidecarWithoutProbe(t *testing.T) {
	s := read(t, "# TYPE queue_proxy_running_requests gauge\nqueue_proxy_running_requests 0\n")
	if s.Requests == nil || *s.Requests != 0 {
		t.Errorf("got %v requests, want 0", s.Requests)
	}
	if s.Ready != nil || !s.Unprobed {
		t.Errorf("got ready %v, unprobed %v, want nil and true", s.Ready, s.Unprobed)
	}
}

func TestReadMetricsOfKnative(t *testing.T) {
	const head = "# TYPE http_server_request_duration_seconds histogram\n" +
		`http_server_request_duration_seconds_bucket{http_response_status_code="200",le="0.5"} 4` + "\n" +
		`http_server_request_duration_seconds_bucket{http_response_status_code="200",le="+Inf"} 5` + "\n" +
		`http_server_request_duration_seconds_count{http_response_status_code="200"} 5` + "\n"
	const old = "# TYPE revision_request_latencies histogram\n" +
		`revision_request_latencies_bucket{response_code_class="2xx",le="500"} 4` + "\n" +
		`revision_request_latencies_bucket{response_code_class="2xx",le="+Inf"} 5` + "\n" +
		`revision_request_latencies_count{response_code_class="2xx"} 5` + "\n"
	for name, text := range map[string]string{"head": head, "1.18": old, "both": head + old} {
		if s := read(t, text); *s.Requests != 5 || s.Buckets[0.5] != 4 || s.Ready != nil {
			t.Errorf("%s: got %v requests, buckets %v, want 5 requests and 4 within 0.5 s", name, *s.Requests, s.Buckets)
		}
	}
	if s := read(t, page+head+old); *s.Requests != 9 {
		t.Errorf("got %v requests, want 9", *s.Requests)
	}
}

func TestReadMetricsWithoutSidecarReturnsErrNoMetrics(t *testing.T) {
	for _, text := range []string{"", "up 1\n", "<html>\n"} {
		if _, err := ReadMetrics(strings.NewReader(text), time.Time{}); !errors.Is(err, ErrNoMetrics) {
			t.Errorf("%q: got %v, want %v", text, err, ErrNoMetrics)
		}
	}
	if _, err := ReadMetrics(strings.NewReader("queue_proxy_ready yes\n"), time.Time{}); err == nil || errors.Is(err, ErrNoMetrics) {
		t.Errorf("got %v, want a parse error", err)
	}
}

func TestReadStats(t *testing.T) {
	s, err := ReadStats(strings.NewReader(`{"queue_average_concurrent_requests":1.6,"queue_requests_per_second_6s":2.5}`), time.Time{})
	if err != nil || *s.Running != 1.6 || *s.Rate != 2.5 {
		t.Errorf("got %+v, error %v, want 1.6 running and 2.5 per second", s, err)
	}
	for _, text := range []string{"", "{}", "\x0a\x03web"} {
		if _, err := ReadStats(strings.NewReader(text), time.Time{}); err == nil {
			t.Errorf("%q: got no error", text)
		}
	}
}

// FuzzMetricsPageToTable verifies that any response from a pod results in valid JSON and in cells without
// control characters.
func FuzzMetricsPageToTable(f *testing.F) {
	f.Add(page)
	f.Add(strings.ReplaceAll(page, "refused", "\\u001b[2J"))
	f.Add(strings.ReplaceAll(page, " 8\n", " NaN\n"))
	f.Fuzz(func(t *testing.T, text string) {
		w := Watch{Window: time.Minute}
		one := Sidecar{Namespace: "n", Pod: "p"}
		w.List([]Sidecar{one})
		for i := range 2 {
			s, err := ReadMetrics(strings.NewReader(text), time.Unix(int64(i), 0))
			w.Add(one, s, err)
		}
		rows := w.Rows()
		harness.Equal(t, WriteJSON(io.Discard, rows, time.Unix(2, 0)), nil)
		for _, cells := range Table(Layout{Namespaces: true}.Columns(), rows, time.Unix(2, 0)) {
			if strings.ContainsAny(strings.Join(cells, ""), "\x1b\r\n\t") {
				t.Errorf("got cells %q, want no control characters", cells)
			}
		}
	})
}
