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

// A Release is what differs between Knative's releases in their APIs, and what only one
// of them has.
type Release struct {
	Name string // of its folder, here and below services

	NewActivator func(context.Context, activator.Throttler, http.RoundTripper, *zap.SugaredLogger, bool) http.Handler
	NewScraper   func(*v1alpha1.Metric, string, resources.PodAccessor, *zap.SugaredLogger) metrics.StatsScraper
	NewDecider   func(namespace, revision string, client metrics.MetricClient, pods resources.EndpointsCounter, spec *scaling.DeciderSpec) scaling.UniScaler

	// OTLP: its queue-proxy has OpenTelemetry, whose metrics and spans are checked too.
	OTLP bool
	// ClosesWebSockets: its wsserver closes them when it gets SIGTERM. An earlier one
	// just ends.
	ClosesWebSockets bool
	// RuntimeMetrics returns the metrics of Go's runtime as the release's own code
	// makes them, by name. It is not asked without OTLP.
	RuntimeMetrics func(*testing.T) map[string]Instrument
}

// An Instrument is the form of a metric.
type Instrument struct {
	Kind      string // sum, gauge or histogram
	Monotonic bool   // of a sum: it only grows
}

// A check holds one fact to a release.
type check struct {
	fact  string
	holds func(*testing.T, *Release)
}

// Run runs all checks, one after the other: the ports are Knative's, so there is one
// sidecar at a time.
func Run(t *testing.T, r *Release) {
	all := []check{
		{"EveryGeneratedEnvironmentServes", everyGeneratedEnvironmentServes},
		{"TheActivatorSendsARequestOnceTheAppIsReady", theActivatorSendsARequestOnceTheAppIsReady},
		{"TheActivatorSendsNothingToADrainingPod", theActivatorSendsNothingToADrainingPod},
		{"TheAutoscalerWantsAPodForEveryTwoOfTenRequests", theAutoscalerWantsAPodForEveryTwoOfTenRequests},
		{"TheAutoscalerCountsTheActivatorsRequestsOnce", theAutoscalerCountsTheActivatorsRequestsOnce},
		{"TheAutoscalerSeesRequestsPerSecond", theAutoscalerSeesRequestsPerSecond},
		{"TheIngressProberFindsTheRouteReady", theIngressProberFindsTheRouteReady},
		{"AWebSocketGetsTheAppsOwnClose", aWebSocketGetsTheAppsOwnClose},
		{"AnEventStreamEndsWithTheAppsLastEvent", anEventStreamEndsWithTheAppsLastEvent},
		{"AnOrdinaryRequestIsWaitedFor", anOrdinaryRequestIsWaitedFor},
		{"AWebSocketObeysTheIdleTimeoutAlone", aWebSocketObeysTheIdleTimeoutAlone},
		{"TimeoutSecondsMeansWhatTheReleaseMeans", timeoutSecondsMeansWhatTheReleaseMeans},
		{"AGRPCAppServesCallsAndStreams", aGRPCAppServesCallsAndStreams},
		{"AFullQueueIsUnavailableWithAPushback", aFullQueueIsUnavailableWithAPushback},
		{"AGRPCClientThatRetriesSucceeds", aGRPCClientThatRetriesSucceeds},
		{"TheRequestLogHasTheSizeOfOurAnswers", theRequestLogHasTheSizeOfOurAnswers},
		{"TheMetricsAreWhereTheConfigMapSays", theMetricsAreWhereTheConfigMapSays},
		{"ARouteTagBecomesTheLabelThatKnativeGivesIt", aRouteTagBecomesTheLabelThatKnativeGivesIt},
	}
	if r.OTLP {
		all = append(all, []check{
			{"TheMetricsHaveTheSizeOfOurAnswers", theMetricsHaveTheSizeOfOurAnswers},
			{"AServerSpanHasTheRouteTag", aServerSpanHasTheRouteTag},
			{"TheRuntimeMetricsHaveKnativesForm", theRuntimeMetricsHaveKnativesForm},
		}...)
	}
	for _, c := range all {
		t.Run(c.fact, func(t *testing.T) { c.holds(t, r) })
	}
}
