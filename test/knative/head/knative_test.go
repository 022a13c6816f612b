// Package head runs the checks with the newest release of Knative.
package head

import (
	"context"
	"net/http"
	"os"
	"testing"

	"go.opentelemetry.io/contrib/instrumentation/runtime"
	"go.opentelemetry.io/otel/attribute"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	netcfg "knative.dev/networking/pkg/config"
	activator "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/scaling"
	"knative.dev/serving/pkg/resources"

	"github.com/queue-proxy/queue-proxy/test/knative"
)

func TestMain(m *testing.M) { os.Exit(knative.Main(m)) }

func TestKnative(t *testing.T) {
	knative.Run(t, &knative.Release{
		Name: "head",
		NewActivator: func(ctx context.Context, throttler activator.Throttler, transport http.RoundTripper, log *zap.SugaredLogger, tls bool) http.Handler {
			return activator.New(ctx, throttler, transport, false, log, tls, tracenoop.NewTracerProvider(), metricnoop.NewMeterProvider())
		},
		NewScraper: func(m *v1alpha1.Metric, revision string, pods resources.PodAccessor, log *zap.SugaredLogger) metrics.StatsScraper {
			return metrics.NewStatsScraper(m, revision, pods, false, netcfg.MeshCompatibilityModeDisabled, log, metricnoop.NewMeterProvider())
		},
		NewDecider: func(namespace, revision string, client metrics.MetricClient, pods resources.EndpointsCounter, spec *scaling.DeciderSpec) scaling.UniScaler {
			return scaling.New(attribute.Set{}, metricnoop.NewMeterProvider(), namespace, revision, client, pods, spec)
		},
		OTLP:             true,
		ClosesWebSockets: true,
		RuntimeMetrics:   runtimeMetrics,
	})
}

// runtimeMetrics collects the metrics of the instrumentation that Knative's queue-proxy starts.
func runtimeMetrics(t *testing.T) map[string]knative.Instrument {
	t.Helper()
	reader := metric.NewManualReader()
	if err := runtime.Start(runtime.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))); err != nil {
		t.Fatal(err)
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	forms := map[string]knative.Instrument{}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				forms[m.Name] = knative.Instrument{Kind: "sum", Monotonic: d.IsMonotonic}
			case metricdata.Gauge[int64]:
				forms[m.Name] = knative.Instrument{Kind: "gauge"}
			default:
				t.Errorf("%s: got %T, want a known type", m.Name, d)
			}
		}
	}
	return forms
}
