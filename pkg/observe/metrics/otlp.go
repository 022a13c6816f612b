package metrics

import (
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// An instrument is the type of a metric in OpenTelemetry.
type instrument uint8

// Values of instrument. The Prometheus equivalent of otelUpDownCounter is a gauge.
const (
	otelGauge instrument = iota
	otelCounter
	otelUpDownCounter
	otelHistogram
)

// otelNames contains the names, units and instruments of OpenTelemetry. The names go.* are from the semantic
// conventions for Go runtime metrics. All values except histograms are integers.
var otelNames = map[string]struct {
	name, unit string
	kind       instrument
}{
	"http_server_request_duration_seconds":   {"http.server.request.duration", "s", otelHistogram},
	"http_server_request_body_size_bytes":    {"http.server.request.body.size", "By", otelHistogram},
	"http_server_response_body_size_bytes":   {"http.server.response.body.size", "By", otelHistogram},
	"http_client_request_duration_seconds":   {"http.client.request.duration", "s", otelHistogram},
	"http_client_request_body_size_bytes":    {"http.client.request.body.size", "By", otelHistogram},
	"kn_queueproxy_app_duration_seconds":     {"kn.queueproxy.app.duration", "s", otelHistogram},
	"kn_queueproxy_depth":                    {"kn.queueproxy.depth", "{request}", otelGauge},
	"kn_serving_invocation_duration_seconds": {"kn.serving.invocation.duration", "s", otelHistogram},
	"kn_serving_queue_depth":                 {"kn.serving.queue.depth", "{request}", otelGauge},
	"go_memory_used_bytes":                   {"go.memory.used", "By", otelUpDownCounter},
	"go_memory_limit_bytes":                  {"go.memory.limit", "By", otelUpDownCounter},
	"go_memory_allocated_bytes_total":        {"go.memory.allocated", "By", otelCounter},
	"go_memory_allocations_total":            {"go.memory.allocations", "{allocation}", otelCounter},
	"go_memory_gc_goal_bytes":                {"go.memory.gc.goal", "By", otelUpDownCounter},
	"go_goroutine_count":                     {"go.goroutine.count", "{goroutine}", otelUpDownCounter},
	"go_processor_limit":                     {"go.processor.limit", "{thread}", otelUpDownCounter},
	"go_config_gogc_percent":                 {"go.config.gogc", "%", otelUpDownCounter},
}

// otelLabels contains the OpenTelemetry names of labels. It does not contain labels of the scope, which are
// not attributes of a point.
var otelLabels = map[string]string{
	"http_request_method":       "http.request.method",
	"http_response_status_code": "http.response.status_code",
	"url_scheme":                "url.scheme",
	"network_protocol_name":     "network.protocol.name",
	"network_protocol_version":  "network.protocol.version",
	"server_address":            "server.address",
	"server_port":               "server.port",
	"error_type":                "error.type",
	"kn_route_tag":              "kn.route.tag",
	"go_memory_type":            "go.memory.type",
}

// metricsData converts gathered metrics to OTLP. Metrics that are not in otelNames are omitted. The result is a
// MetricsData, because the Go package of ExportMetricsServiceRequest, which has the same fields, depends on
// grpc.
func metricsData(r *export.Resource, gathered []*dto.MetricFamily, start, now time.Time) *metricspb.MetricsData {
	scope := &metricspb.ScopeMetrics{Scope: r.Scope()}
	t := translation{uint64(start.UnixNano()), uint64(now.UnixNano())}
	for _, f := range gathered {
		if known, ok := otelNames[f.GetName()]; ok {
			m := &metricspb.Metric{Name: known.name, Unit: known.unit, Description: f.GetHelp()}
			t.setData(m, known.kind, f.GetMetric())
			scope.Metrics = append(scope.Metrics, m)
		}
	}
	return &metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource: r.OTLP(), ScopeMetrics: []*metricspb.ScopeMetrics{scope},
	}}}
}

// A translation contains the start and the end time of all points, in nanoseconds since 1970.
type translation struct{ start, now uint64 }

// setData sets the points of m from the series of a gathered metric.
func (t translation) setData(m *metricspb.Metric, kind instrument, series []*dto.Metric) {
	const cumulative = metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	switch kind {
	case otelGauge:
		m.Data = &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: t.numbers(series)}}
	case otelCounter, otelUpDownCounter:
		m.Data = &metricspb.Metric_Sum{Sum: &metricspb.Sum{
			DataPoints: t.numbers(series), AggregationTemporality: cumulative, IsMonotonic: kind == otelCounter,
		}}
	case otelHistogram:
		m.Data = &metricspb.Metric_Histogram{Histogram: &metricspb.Histogram{
			DataPoints: t.histograms(series), AggregationTemporality: cumulative,
		}}
	}
}

// numbers returns the points of a counter or a gauge. The values are integers, as in the instruments that
// OpenTelemetry defines for these names.
func (t translation) numbers(series []*dto.Metric) (points []*metricspb.NumberDataPoint) {
	for _, s := range series {
		value := s.GetGauge().GetValue() + s.GetCounter().GetValue() // only one of them is set
		points = append(points, &metricspb.NumberDataPoint{
			StartTimeUnixNano: t.start, TimeUnixNano: t.now, Attributes: pointAttributes(s),
			Value: &metricspb.NumberDataPoint_AsInt{AsInt: int64(value)},
		})
	}
	return points
}

// histograms returns the points of a histogram. Prometheus buckets are cumulative, but OpenTelemetry buckets
// are not.
func (t translation) histograms(series []*dto.Metric) (points []*metricspb.HistogramDataPoint) {
	for _, s := range series {
		h := s.GetHistogram()
		p := &metricspb.HistogramDataPoint{
			StartTimeUnixNano: t.start, TimeUnixNano: t.now, Attributes: pointAttributes(s),
			Count: h.GetSampleCount(), Sum: h.SampleSum,
		}
		var below uint64
		for _, b := range h.GetBucket() {
			if !math.IsInf(b.GetUpperBound(), 1) {
				p.ExplicitBounds = append(p.ExplicitBounds, b.GetUpperBound())
				p.BucketCounts = append(p.BucketCounts, b.GetCumulativeCount()-below)
				below = b.GetCumulativeCount()
			}
		}
		p.BucketCounts = append(p.BucketCounts, p.Count-below)
		points = append(points, p)
	}
	return points
}

// pointAttributes returns the labels of a series with their OpenTelemetry names.
func pointAttributes(s *dto.Metric) (all []*commonpb.KeyValue) {
	for _, l := range s.GetLabel() {
		if name := otelLabels[l.GetName()]; name != "" {
			all = append(all, export.StringAttribute(name, l.GetValue()))
		}
	}
	return all
}
