package knative

import (
	"context"
	"net/http"
	"testing"

	"go.uber.org/zap"
	activator "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/scaling"
	"knative.dev/serving/pkg/resources"
)

// A Release contains the differences between Knative releases.
type Release struct {
	Name string // name of its directory, here and below services

	NewActivator func(context.Context, activator.Throttler, http.RoundTripper, *zap.SugaredLogger, bool) http.Handler
	NewScraper   func(*v1alpha1.Metric, string, resources.PodAccessor, *zap.SugaredLogger) metrics.StatsScraper
	NewDecider   func(namespace, revision string, client metrics.MetricClient, pods resources.EndpointsCounter, spec *scaling.DeciderSpec) scaling.UniScaler

	// OTLP is true if the queue-proxy of the release supports OpenTelemetry. In this case, the
	// checks include metrics and spans.
	OTLP bool
	// ClosesWebSockets is true if the wsserver of the release closes WebSockets with a Close
	// frame on SIGTERM. Earlier releases only exit.
	ClosesWebSockets bool
	// RuntimeMetrics returns the Go runtime metrics of the release by name. It is called only
	// if OTLP is true.
	RuntimeMetrics func(*testing.T) map[string]Instrument
}

// An Instrument is the type of a metric.
type Instrument struct {
	Kind      string // sum, gauge or histogram
	Monotonic bool   // only for sums
}

// A check tests one property of a release.
type check struct {
	fact  string
	holds func(*testing.T, *Release)
}

// Run runs all checks one after the other, because the ports of Knative are fixed.
func Run(t *testing.T, r *Release) {
	all := []check{
		{"GeneratedEnvironmentStartsSidecar", generatedEnvironmentStartsSidecar},
		{"ActivatorForwardsRequestWhenReady", activatorForwardsRequestWhenReady},
		{"ActivatorSkipsDrainingPod", activatorSkipsDrainingPod},
		{"AutoscalerScalesByConcurrency", autoscalerScalesByConcurrency},
		{"AutoscalerCountsProxiedRequestsOnce", autoscalerCountsProxiedRequestsOnce},
		{"AutoscalerReceivesRequestsPerSecond", autoscalerReceivesRequestsPerSecond},
		{"IngressProberReportsRouteReady", ingressProberReportsRouteReady},
		{"WebSocketReceivesCloseOfApp", webSocketReceivesCloseOfApp},
		{"EventStreamEndsWithLastEvent", eventStreamEndsWithLastEvent},
		{"DrainWaitsForRequest", drainWaitsForRequest},
		{"OnlyIdleTimeoutEndsWebSocket", onlyIdleTimeoutEndsWebSocket},
		{"TimeoutSecondsFollowsRelease", timeoutSecondsFollowsRelease},
		{"GRPCCallsAndStreamsSucceed", grpcCallsAndStreamsSucceed},
		{"FullQueueReturnsUnavailable", fullQueueReturnsUnavailable},
		{"GRPCClientRetriesFullQueue", grpcClientRetriesFullQueue},
		{"RequestLogHasSizeOfSidecarResponses", requestLogHasSizeOfSidecarResponses},
		{"MetricsPortFollowsConfigMap", metricsPortFollowsConfigMap},
		{"RouteTagBecomesLabel", routeTagBecomesLabel},
	}
	if r.OTLP {
		all = append(all, []check{
			{"MetricsHaveSizeOfSidecarResponses", metricsHaveSizeOfSidecarResponses},
			{"ServerSpanHasRouteTag", serverSpanHasRouteTag},
			{"RuntimeMetricsHaveKnativeTypes", runtimeMetricsHaveKnativeTypes},
		}...)
	}
	for _, c := range all {
		t.Run(c.fact, func(t *testing.T) { c.holds(t, r) })
	}
}
