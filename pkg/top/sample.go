package top

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

// A Sample is what a sidecar has said of itself at one time. A nil pointer is a number that
// it did not say.
type Sample struct {
	At time.Time

	Ready    *bool
	Draining bool
	Reason   string // why it is not ready; "" when it is

	Running, Waiting *float64
	Limit            *float64 // of running requests; 0 is any number
	QueueLimit       *float64 // of waiting requests

	Rate *float64 // requests a second, where the sidecar itself works them out

	// These count from the start of the process, which is at Start (seconds since 1970).
	Start    float64
	Requests *float64            // that have ended
	Failures map[string]float64  // of them, by reason
	Buckets  map[float64]float64 // of their durations: how many took at most so many seconds
}

// A family is a metric that is read: ours, or one of the same meaning under the names of
// Knative's releases.
type family struct {
	name string
	add  func(*Sample, *dto.Metric)
}

// Milliseconds are the unit of the histogram of Knative 1.18.
const millisecond = 1e-3

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

// knatives are the same under Knative's names, for sidecars that have no others.
func knatives() []family {
	return []family{
		{"http_server_request_duration_seconds", func(s *Sample, m *dto.Metric) { s.durations(m, 1) }},
		{"revision_request_latencies", func(s *Sample, m *dto.Metric) { s.durations(m, millisecond) }},
	}
}

// ErrNoMetrics is the error of a page that has none of the metrics that are read here.
var ErrNoMetrics = errors.New("no metrics of a queue-proxy")

// ReadMetrics reads a page of Prometheus text. Of a page that is cut somewhere what stands
// before the cut is read: a sidecar's own metrics stand before those of its app. The error is
// [ErrNoMetrics] where the page has none.
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
		return s, fmt.Errorf("metrics cannot be read: %w", err)
	}
	if len(parsed) == 0 {
		return s, ErrNoMetrics
	}
	if parsed["queue_proxy_ready"] != nil {
		all = families() // with METRICS_NAMES=all each request is there thrice
	} else if parsed["http_server_request_duration_seconds"] != nil {
		delete(parsed, "revision_request_latencies")
	}
	if parsed["queue_proxy_ready"] != nil {
		s.Requests = new(float64) // there is no histogram before the first request
	}
	for _, f := range all {
		for _, m := range parsed[f.name].GetMetric() {
			f.add(&s, m)
		}
	}
	return s, nil
}

// only returns the lines of a page that are about some families. An app's own metrics may
// stand behind ours: what is wrong in them is nothing to us.
func only(r io.Reader, all []family) (io.Reader, error) {
	var page bytes.Buffer
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return &page, nil // a line without an end was cut
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

// durations adds a histogram of requests. A connection that was upgraded is not a request
// that took long, so it only counts.
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

// gauge is the value of a gauge, nil if a page says that it is something else.
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

// ReadStats reads the statistics for the autoscaler, as JSON: what there is of a sidecar
// that serves no metrics. They do not tell running requests from waiting ones.
func ReadStats(r io.Reader, at time.Time) (Sample, error) {
	var said struct {
		Rate    *float64 `json:"queue_requests_per_second_6s"`
		Running *float64 `json:"queue_average_concurrent_requests"`
	}
	if err := json.NewDecoder(r).Decode(&said); err != nil {
		return Sample{}, fmt.Errorf("statistics cannot be read: %w", err)
	}
	if said.Rate == nil || said.Running == nil {
		return Sample{}, errors.New("no statistics of this queue-proxy")
	}
	return Sample{At: at, Rate: said.Rate, Running: said.Running}, nil
}
