package metrics

import (
	"fmt"
	"maps"
	"runtime/debug"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func attributesOf(all []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range all {
		m[a.Key] = a.Value.GetStringValue()
	}
	return m
}

// The OpenTelemetry conventions define the kinds of the metrics. Knative pushes the same metrics.
func TestPushedMetricsHaveOTelKinds(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 40)) // go.memory.limit is absent without a limit
	const gauge, counter, upDown, histogram = "gauge", "counter", "up-down counter", "histogram"
	all, _ := pushed(t, filled(t, "knative-head"), PushOptions{})
	got := map[string]string{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		var points []*metricspb.NumberDataPoint
		switch data := m.Data.(type) {
		case *metricspb.Metric_Gauge:
			got[m.Name], points = gauge, data.Gauge.DataPoints
		case *metricspb.Metric_Sum:
			got[m.Name], points = upDown, data.Sum.DataPoints
			if data.Sum.IsMonotonic {
				got[m.Name] = counter
			}
			harness.Equal(t, data.Sum.AggregationTemporality, metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE, m.Name)
		case *metricspb.Metric_Histogram:
			got[m.Name] = histogram
		}
		for _, p := range points {
			if _, ok := p.Value.(*metricspb.NumberDataPoint_AsInt); !ok {
				t.Errorf("%s: got %v, want an integer", m.Name, p.Value)
			}
		}
	}
	want := map[string]string{
		"http.server.request.duration": histogram, "http.server.request.body.size": histogram, "http.server.response.body.size": histogram,
		"http.client.request.duration": histogram, "http.client.request.body.size": histogram, "kn.serving.invocation.duration": histogram,
		"kn.serving.queue.depth": gauge,
		"go.memory.used":         upDown, "go.memory.limit": upDown, "go.memory.gc.goal": upDown, "go.goroutine.count": upDown,
		"go.processor.limit": upDown, "go.config.gogc": upDown, "go.memory.allocated": counter, "go.memory.allocations": counter,
	}
	harness.Equal(t, got, want)
}

func TestPushedPointsHaveOTelAttributes(t *testing.T) {
	m := newMetrics(t, options("knative-head"))
	o := observed("GET", 1, 1, 200, observation.OK)
	m.Observe(&o)
	all, _ := pushed(t, m, PushOptions{})
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != "http.server.request.duration" {
			continue
		}
		got := attributesOf(m.GetHistogram().DataPoints[0].Attributes)
		want := map[string]string{
			"http.request.method": "GET", "http.response.status_code": "200", "kn.route.tag": "kn:disabled",
			"network.protocol.name": "http", "network.protocol.version": "1.1", "url.scheme": "http",
		}
		if !maps.Equal(got, want) || m.Unit != "s" {
			t.Errorf("got %v in %s, want %v in s", got, m.Unit, want)
		}
		return
	}
	t.Error("got no http.server.request.duration, want one")
}

// In contrast to the buckets of OpenTelemetry, the buckets of Prometheus are cumulative.
func TestPushedBucketsAreNotCumulative(t *testing.T) {
	bucket := func(below uint64, bound float64) *dto.Bucket {
		return &dto.Bucket{CumulativeCount: &below, UpperBound: &bound}
	}
	h := &dto.Histogram{SampleCount: proto.Uint64(4), SampleSum: proto.Float64(1.5), Bucket: []*dto.Bucket{bucket(3, 0.1), bucket(3, 1)}}
	started := time.Unix(1, 0)
	data := metricsData(&export.Resource{}, []*dto.MetricFamily{{
		Name: proto.String("http_server_request_duration_seconds"), Metric: []*dto.Metric{{Histogram: h}},
	}}, started, started.Add(time.Second))
	p := data.ResourceMetrics[0].ScopeMetrics[0].Metrics[0].GetHistogram().DataPoints[0]
	harness.Equal(t, fmt.Sprint(p.Count, p.GetSum(), p.ExplicitBounds, p.BucketCounts), "4 1.5 [0.1 1] [3 0 1]")
	if p.StartTimeUnixNano != 1e9 || p.TimeUnixNano != 2e9 {
		t.Errorf("got times %d and %d, want 1 s and 2 s", p.StartTimeUnixNano, p.TimeUnixNano)
	}
}

func TestKnativeHeadMetricsHaveOTelNames(t *testing.T) {
	for _, f := range shownBy(t, "knative-head") {
		if !f.ours || f.name == "target_info" {
			continue
		}
		if _, ok := otelNames[f.name]; !ok {
			t.Errorf("%s: got no OpenTelemetry name, want one", f.name)
		}
		for _, l := range f.labels {
			if otelLabels[l] == "" && l != "otel_scope_name" && l != "otel_scope_version" {
				t.Errorf("%s: got no OpenTelemetry name for the label %s, want one", f.name, l)
			}
		}
	}
}
