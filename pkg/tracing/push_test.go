package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// eachKind is a metric of each kind.
func eachKind() []Metric {
	return []Metric{
		{Name: "g", Unit: "{request}", Help: "a gauge", Kind: Gauge, Points: []Point{{Value: 0}}},
		{Name: "c", Kind: Counter, Points: []Point{
			{Value: 7, Labels: map[string]string{"class": "2xx", "bad": "\xff"}}, {Value: 1, Labels: map[string]string{"class": "5xx"}},
		}},
		{Name: "u", Kind: UpDownCounter, Points: []Point{{Value: -3}}},
		{Name: "h", Unit: "s", Kind: Histogram, Points: []Point{{Value: 1.5, Bounds: []float64{0.1, 1}, Counts: []uint64{3, 0, 1}}}},
	}
}

func TestMetricsArriveOverHTTP(t *testing.T) {
	var got metricspb.MetricsData // field for field an ExportMetricsServiceRequest
	var path string
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		body, _ := io.ReadAll(r.Body)
		if err := proto.Unmarshal(body, &got); err != nil {
			t.Errorf("got %v, want it to decode", err)
		}
	}))
	defer s.Close()
	p, err := NewMetricsPush(PushOptions{Exporter: OTLP, Endpoint: s.URL, Resource: identity(), Collect: eachKind})
	if err != nil {
		t.Fatalf("NewMetricsPush: got %v, want no error", err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	if path != "/v1/metrics" {
		t.Errorf("path: got %s, want /v1/metrics", path)
	}
	if r := attributesOf(got.ResourceMetrics[0].Resource.Attributes); r["service.name"] != "svc" {
		t.Errorf("resource: got %v, want service.name svc", r)
	}
	m := got.ResourceMetrics[0].ScopeMetrics[0].Metrics
	if len(m) != 4 {
		t.Fatalf("metrics: got %v, want 4", m)
	}
	gauge, counter, upDown, histogram := m[0].GetGauge().GetDataPoints(), m[1].GetSum(), m[2].GetSum(), m[3].GetHistogram()
	if len(gauge) != 1 || gauge[0].GetAsInt() != 0 || gauge[0].Value == nil || m[0].Unit != "{request}" || m[0].Description != "a gauge" {
		t.Errorf("the gauge: got %v, want 0 {request}", m[0])
	}
	points := counter.GetDataPoints()
	if !counter.GetIsMonotonic() || counter.GetAggregationTemporality() != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE ||
		len(points) != 2 || points[0].GetAsInt() != 7 || attributesOf(points[0].Attributes)["bad"] != "\ufffd" || attributesOf(points[1].Attributes)["class"] != "5xx" {
		t.Errorf("the counter: got %v", m[1])
	}
	if p := points[0]; p.StartTimeUnixNano == 0 || p.TimeUnixNano < p.StartTimeUnixNano {
		t.Errorf("times: got %d to %d, want a start and an end", p.StartTimeUnixNano, p.TimeUnixNano)
	}
	if p := upDown.GetDataPoints(); upDown.GetIsMonotonic() || len(p) != 1 || p[0].GetAsInt() != -3 {
		t.Errorf("the up-down counter: got %v, want -3, not monotonic", m[2])
	}
	d := histogram.GetDataPoints()
	if len(d) != 1 || d[0].Count != 4 || d[0].GetSum() != 1.5 || fmt.Sprint(d[0].ExplicitBounds, d[0].BucketCounts) != "[0.1 1] [3 0 1]" {
		t.Errorf("the histogram: got %v, want 4 in [3 0 1]", m[3])
	}
}

func TestMetricsArePushedEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pushes atomic.Int32
		var reports []error
		p := startPush(PushOptions{
			Exporter: OTLP, Interval: 10 * time.Second, Collect: eachKind, Report: func(err error) { reports = append(reports, err) },
		}, func(context.Context, []byte) (int, error) {
			if pushes.Add(1) > 3 {
				return 0, errors.New("no route")
			}
			return 0, nil
		}, func() {})
		time.Sleep(35 * time.Second) // the bubble's clock
		synctest.Wait()
		if got := pushes.Load(); got != 3 {
			t.Errorf("pushes in 35s: got %d, want 3", got)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if len(reports) != 1 {
			t.Errorf("reports: got %v, want 1 for two failures", reports)
		}
		if err := p.Close(t.Context()); err == nil {
			t.Error("Close: got no error, want that of the last push")
		}
		if got := pushes.Load(); got != 6 {
			t.Errorf("pushes: got %d, want 6, one at the end", got)
		}
		_ = p.Close(t.Context()) // again, at once
	})
}

func TestClosingAPushEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPush(PushOptions{Interval: time.Second, Collect: eachKind}, func(ctx context.Context, _ []byte) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}, func() {})
		time.Sleep(1500 * time.Millisecond) // a push is stuck
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: got %v, want the deadline", err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("Close: got %v, want 2s", took)
		}
	})
}

func TestNoPushIsNil(t *testing.T) {
	p, err := NewMetricsPush(PushOptions{Exporter: None})
	if p != nil || err != nil || p.Close(t.Context()) != nil {
		t.Errorf("got %v, %v, want nil, nil", p, err)
	}
	for _, o := range []PushOptions{{Exporter: Zipkin, Endpoint: "http://z"}, {Exporter: OTLP}} {
		if _, err := NewMetricsPush(o); err == nil {
			t.Errorf("%+v: got no error, want one", o)
		}
	}
}

func TestSettingsBecomePushOptions(t *testing.T) {
	for _, c := range []struct {
		name   string
		config ExporterConfig
		want   string
		warns  string
	}{
		{"nothing", ExporterConfig{}, "none  0s", ""},
		{"head, prometheus", ExporterConfig{Protocol: "prometheus", Endpoint: ":9091", DefaultInterval: 5 * time.Second, Collector: Collector{Endpoint: "http://c"}}, "none  0s", ""},
		{"head, none", ExporterConfig{Protocol: "none", DefaultInterval: 5 * time.Second}, "none  0s", ""},
		{"head, gRPC", ExporterConfig{Protocol: "grpc", Endpoint: "http://c:4317", DefaultInterval: 5 * time.Second}, "grpc http://c:4317 5s", ""},
		{"head, HTTP", ExporterConfig{Protocol: "http/protobuf", Endpoint: "http://c/x", DefaultInterval: 5 * time.Second, Interval: time.Second}, "http/protobuf http://c/x 1s", ""},
		{"head, an interval that is too short", ExporterConfig{Protocol: "grpc", Endpoint: "http://c:4317", DefaultInterval: 5 * time.Second, Interval: time.Millisecond}, "grpc http://c:4317 1s", "1ms"},
		{"head, address", ExporterConfig{Protocol: "grpc", Endpoint: "10.0.0.1:4317", DefaultInterval: 5 * time.Second}, "grpc 10.0.0.1:4317 5s", "taken for http://10.0.0.1:4317"},
		{"head, no endpoint", ExporterConfig{Protocol: "grpc", DefaultInterval: 5 * time.Second}, "none  5s", "no endpoint"},
		{"head, bad protocol", ExporterConfig{Protocol: "bogus", DefaultInterval: 5 * time.Second}, "none  0s", "bogus"},
		{"OTEL, for metrics", ExporterConfig{Collector: Collector{Endpoint: "http://c", BaseEndpoint: "http://d", Protocol: "http/json"}}, "http/protobuf http://c/ 0s", "JSON"},
		{"OTEL, for all signals", ExporterConfig{Collector: Collector{BaseEndpoint: "http://d"}}, "none  0s", ""},
		{"head and OTEL", ExporterConfig{Protocol: "http/protobuf", DefaultInterval: 5 * time.Second, Collector: Collector{BaseEndpoint: "http://d/o"}}, "http/protobuf http://d/o/v1/metrics 5s", ""},
		{"OTEL, disabled", ExporterConfig{Protocol: "grpc", Endpoint: "http://c", DefaultInterval: 5 * time.Second, Disabled: true}, "none  0s", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, warnings := c.config.PushOptions()
			if got := fmt.Sprintf("%s %s %v", o.Exporter, o.Endpoint, o.Interval); got != c.want {
				t.Errorf("options: got %q, want %q", got, c.want)
			}
			if all := strings.Join(warnings, "|"); (c.warns == "") != (all == "") || !strings.Contains(all, c.warns) {
				t.Errorf("warnings: got %q, want %q", all, c.warns)
			}
		})
	}
}
