package sidecar

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"testing"
	"time"

	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/metrics"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/tracing"
)

func TestTracesDoNotLeadBackToTheSidecar(t *testing.T) {
	for endpoint, on := range map[string]bool{"http://127.0.0.1:8012": false, "http://127.0.0.1:8112": false, "http://127.0.0.1:8080": true} {
		c := config.Default()
		c.OTel.Endpoint.V = endpoint
		s := &sidecar{log: zap.NewNop(), config: c}
		tracer := s.tracer()
		if (tracer != nil) != on {
			t.Errorf("%s: got tracing %v, want %v", endpoint, tracer != nil, on)
		}
		if err := tracer.Close(t.Context()); err != nil {
			t.Errorf("%s: got %v, want no error", endpoint, err)
		}
	}
}

// noFields is a request without header fields.
type noFields struct{ queue.Exchange }

func (noFields) Header(string) string { return "" }

// pushed is what a sidecar that has served a request pushes, by name.
func pushed(t *testing.T) map[string]*metricspb.Metric {
	t.Helper()
	m, err := metrics.New(metrics.Options{Names: metrics.KnativeHead, Gauges: metrics.Gauges{
		Load:  func() (int, int) { return 2, 3 },
		Limit: func() (int, int) { return 2, 20 },
	}})
	if err != nil {
		t.Fatal(err)
	}
	m.Observe(&queue.Observation{
		Exchange: noFields{}, Kind: header.Traffic, Start: time.Now(), Slot: time.Now(), End: time.Now(),
		Result: queue.Result{Status: 200, In: 3, Out: 5, FirstByte: time.Now()},
	})
	s := &sidecar{log: zap.NewNop()}
	s.telemetry.metrics = m
	all := map[string]*metricspb.Metric{}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var got metricspb.MetricsData // field for field an ExportMetricsServiceRequest
		if err := proto.Unmarshal(body, &got); err != nil {
			t.Errorf("got %v, want it to decode", err)
			return
		}
		for _, m := range got.ResourceMetrics[0].ScopeMetrics[0].Metrics {
			all[m.Name] = m
		}
	}))
	defer collector.Close()
	push, err := tracing.NewMetricsPush(tracing.PushOptions{Exporter: tracing.OTLP, Endpoint: collector.URL, Collect: s.collect})
	if err != nil {
		t.Fatal(err)
	}
	if err := push.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return all
}

// The kinds are those of OpenTelemetry's conventions, by which Knative's head pushes
// the same names.
func TestPushedMetricsAreOfTheKindsOfOpenTelemetry(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 40)) // it is pushed where there is one
	const gauge, counter, upDown, histogram = "gauge", "counter", "up-down counter", "histogram"
	got := map[string]string{}
	for name, m := range pushed(t) {
		var points []*metricspb.NumberDataPoint
		switch data := m.Data.(type) {
		case *metricspb.Metric_Gauge:
			got[name], points = gauge, data.Gauge.DataPoints
		case *metricspb.Metric_Sum:
			got[name], points = upDown, data.Sum.DataPoints
			if data.Sum.IsMonotonic {
				got[name] = counter
			}
			if data.Sum.AggregationTemporality != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE {
				t.Errorf("%s: got %v, want cumulative", name, data.Sum.AggregationTemporality)
			}
		case *metricspb.Metric_Histogram:
			got[name] = histogram
		}
		for _, p := range points {
			if _, ok := p.Value.(*metricspb.NumberDataPoint_AsInt); !ok {
				t.Errorf("%s: got %v, want an integer", name, p.Value)
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
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
