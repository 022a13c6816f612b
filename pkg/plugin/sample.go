package plugin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// A Sample contains the metrics of a sidecar at a point in time. A nil pointer means that the metric is missing.
type Sample struct {
	At time.Time

	Ready    *bool // nil if there are no metrics, or if Unprobed is true
	Unprobed bool  // there are metrics, but no readiness probe has run
	Draining bool
	Reason   string // reason why the pod is not ready, or ""

	Running, Waiting *float64
	Limit            *float64 // maximum number of running requests; 0 means no limit
	QueueLimit       *float64 // maximum number of queued requests

	Rate *float64 // requests per second, if the sidecar computes this value

	// The following values except Start are totals since the start of the process. Start is
	// in seconds since 1970.
	Start    float64
	Requests *float64            // completed requests
	Failures map[string]float64  // failed requests by reason
	Buckets  map[float64]float64 // cumulative histogram of durations: number of requests by upper bound in seconds
}

// A family is a metric that the plugin reads. It belongs to the metric set "default" or is the equivalent Knative
// metric.
type family struct {
	name string
	add  func(*Sample, *dto.Metric)
}

// millisecond is the unit of the histogram in Knative 1.18, expressed in seconds.
const millisecond = 1e-3

// families returns the metrics that are in the metric set "default".
func families() []family {
	return []family{
		{"queue_proxy_ready", func(s *Sample, m *dto.Metric) { ready := m.GetGauge().GetValue() == 1; s.Ready = &ready }},
		{"queue_proxy_draining", func(s *Sample, m *dto.Metric) { s.Draining = m.GetGauge().GetValue() == 1 }},
		{"queue_proxy_not_ready_reason", func(s *Sample, m *dto.Metric) { s.Reason = label(m, "reason") }},
		{"queue_proxy_running_requests", func(s *Sample, m *dto.Metric) { s.Running = gauge(m) }},
		{"queue_proxy_waiting_requests", func(s *Sample, m *dto.Metric) { s.Waiting = gauge(m) }},
		{"queue_proxy_concurrency_limit", func(s *Sample, m *dto.Metric) { s.Limit = gauge(m) }},
		{"queue_proxy_queue_limit", func(s *Sample, m *dto.Metric) { s.QueueLimit = gauge(m) }},
		{"queue_proxy_process_start_time_seconds", func(s *Sample, m *dto.Metric) { s.Start = m.GetGauge().GetValue() }},
		{"queue_proxy_request_failures_total", func(s *Sample, m *dto.Metric) { s.Failures[label(m, "reason")] += m.GetCounter().GetValue() }},
		{"queue_proxy_request_duration_seconds", func(s *Sample, m *dto.Metric) { s.durations(m, 1) }},
	}
}

// knatives returns the Knative metrics that are equivalent to the result of families.
// They are used for sidecars without the metric set "default".
func knatives() []family {
	return []family{
		{"http_server_request_duration_seconds", func(s *Sample, m *dto.Metric) { s.durations(m, 1) }},
		{"revision_request_latencies", func(s *Sample, m *dto.Metric) { s.durations(m, millisecond) }},
	}
}

// ErrNoMetrics is returned if a response does not contain metrics of a sidecar.
var ErrNoMetrics = errors.New("the response does not contain metrics of a queue-proxy")

// ReadMetrics parses metrics in the Prometheus text format. If the input is truncated, ReadMetrics parses all
// complete lines, because the metrics of the sidecar precede the metrics of the application. It returns
// [ErrNoMetrics] if there are no metrics of a sidecar.
func ReadMetrics(r io.Reader, at time.Time) (Sample, error) {
	s := Sample{At: at, Failures: map[string]float64{}, Buckets: map[float64]float64{}}
	all := append(families(), knatives()...)
	page, err := only(r, all)
	if err != nil {
		return s, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return s, fmt.Errorf("parse metrics: %w", err)
	}
	if len(parsed) == 0 {
		return s, ErrNoMetrics
	}
	ours := parsed["queue_proxy_running_requests"] != nil // queue_proxy_ready is absent before the first probe
	switch {
	case ours:
		all = families()          // with METRICS_NAMES=all, the page contains three histograms of the same requests; use one of them
		s.Requests = new(float64) // the histogram is absent before the first request
		s.Unprobed = parsed["queue_proxy_ready"] == nil
	case parsed["http_server_request_duration_seconds"] != nil:
		delete(parsed, "revision_request_latencies")
	}
	for _, f := range all {
		for _, m := range parsed[f.name].GetMetric() {
			f.add(&s, m)
		}
	}
	return s, nil
}

// only returns the lines that belong to the given families. The input may also contain metrics of the application.
// Errors in these metrics are ignored.
func only(r io.Reader, all []family) (io.Reader, error) {
	var page bytes.Buffer
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return &page, nil // ignore an incomplete last line
		}
		if err != nil {
			return nil, err
		}
		of := strings.TrimPrefix(line, "# TYPE ")
		if strings.HasPrefix(of, "#") {
			continue
		}
		name := of[:len(of)-len(strings.TrimLeft(of, "abcdefghijklmnopqrstuvwxyz0123456789_"))]
		if slices.ContainsFunc(all, func(f family) bool {
			return name == f.name || slices.Contains([]string{"_bucket", "_sum", "_count"}, strings.TrimPrefix(name, f.name))
		}) {
			page.WriteString(line)
		}
	}
}

// durations adds a histogram of request durations. Upgraded connections are only counted, because their duration is
// not the duration of a request.
func (s *Sample) durations(m *dto.Metric, unit float64) {
	h := m.GetHistogram()
	total := float64(h.GetSampleCount())
	if s.Requests != nil {
		total += *s.Requests
	}
	s.Requests = &total
	for _, name := range []string{"code", "response_code_class", "http_response_status_code"} {
		if strings.HasPrefix(label(m, name), "1") {
			return
		}
	}
	for _, b := range h.GetBucket() {
		s.Buckets[b.GetUpperBound()*unit] += float64(b.GetCumulativeCount())
	}
	if len(h.GetBucket()) > 0 && !math.IsInf(h.GetBucket()[len(h.GetBucket())-1].GetUpperBound(), 1) {
		s.Buckets[math.Inf(1)] += float64(h.GetSampleCount())
	}
}

// gauge returns the value of a gauge, or nil if the metric has another type.
func gauge(m *dto.Metric) *float64 {
	if g := m.GetGauge(); g != nil {
		return g.Value
	}
	return nil
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// ReadStats parses the JSON statistics for the autoscaler. It is used for sidecars without metrics. The statistics
// do not distinguish running and queued requests.
func ReadStats(r io.Reader, at time.Time) (Sample, error) {
	var stats struct {
		Rate    *float64 `json:"queue_requests_per_second_6s"`
		Running *float64 `json:"queue_average_concurrent_requests"`
	}
	if err := json.NewDecoder(r).Decode(&stats); err != nil {
		return Sample{}, fmt.Errorf("parse statistics: %w", err)
	}
	if stats.Rate == nil || stats.Running == nil {
		return Sample{}, errors.New("the response does not contain statistics")
	}
	return Sample{At: at, Rate: stats.Rate, Running: stats.Running}, nil
}
