// Package v118 runs the checks with Knative 1.18, the last release with OpenCensus.
package v118

import (
	"context"
	"net/http"
	"os"
	"testing"

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
		Name: "v1.18",
		NewActivator: func(ctx context.Context, throttler activator.Throttler, transport http.RoundTripper, log *zap.SugaredLogger, tls bool) http.Handler {
			return activator.New(ctx, throttler, transport, false, log, tls)
		},
		NewScraper: func(m *v1alpha1.Metric, revision string, pods resources.PodAccessor, log *zap.SugaredLogger) metrics.StatsScraper {
			return metrics.NewStatsScraper(m, revision, pods, false, netcfg.MeshCompatibilityModeDisabled, log)
		},
		NewDecider: func(namespace, revision string, client metrics.MetricClient, pods resources.EndpointsCounter, spec *scaling.DeciderSpec) scaling.UniScaler {
			return scaling.New(context.Background(), namespace, revision, client, pods, spec)
		},
	})
}
