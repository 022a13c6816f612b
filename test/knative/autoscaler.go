package knative

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/apis/serving"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/scaling"
	"knative.dev/serving/pkg/reconciler/serverlessservice/resources/names"
	"knative.dev/serving/pkg/resources"
)

// An autoscaler scrapes one pod every second and computes the desired number of pods.
type autoscaler struct {
	key       types.NamespacedName
	collector *metrics.MetricCollector
	decider   scaling.UniScaler
	log       *zap.SugaredLogger
}

// startAutoscaler starts an autoscaler. target is the desired number of concurrent requests per
// pod.
func startAutoscaler(p *pod, r *Release, target float64) *autoscaler {
	p.t.Helper()
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	hourAgo := metav1.NewTime(time.Now().Add(-time.Hour))
	if err := pods.Add(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.value("SERVING_POD"), Namespace: p.Namespace, Labels: map[string]string{serving.RevisionLabelKey: p.Name}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: podIP, StartTime: &hourAgo,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}); err != nil {
		p.t.Fatal(err)
	}
	accessor := resources.NewPodAccessor(corev1listers.NewPodLister(pods), p.Namespace, p.Name)
	a := &autoscaler{key: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, log: zap.NewNop().Sugar()}
	a.collector = metrics.NewMetricCollector(func(m *v1alpha1.Metric, log *zap.SugaredLogger) (metrics.StatsScraper, error) {
		return r.NewScraper(m, p.Name, accessor, log), nil
	}, a.log)
	if err := a.collector.CreateOrUpdate(&v1alpha1.Metric{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		Spec:       v1alpha1.MetricSpec{StableWindow: time.Minute, PanicWindow: 6 * time.Second, ScrapeTarget: names.PrivateService(p.Name)},
	}); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { a.collector.Delete(p.Namespace, p.Name) })
	a.decider = r.NewDecider(p.Namespace, p.Name, a.collector, accessor, &scaling.DeciderSpec{
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, ScalingMetric: "concurrency",
		TargetValue: target, TotalValue: target, TargetBurstCapacity: 200, PanicThreshold: 2,
		StableWindow: time.Minute, Reachable: true,
	})
	return a
}

// scale returns the current decision of the autoscaler.
func (a *autoscaler) scale() scaling.ScaleResult { return a.decider.Scale(a.log, time.Now()) }

// hold sends n requests and waits until the app holds them. The test must call release, which
// completes the requests and waits for their responses.
func hold(p *pod, a *app, n int, ask func() error) (release func()) {
	p.t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if err := ask(); err != nil {
				p.t.Errorf("held request: %v", err)
			}
		})
	}
	poll(p.t, "the app has received all requests", func() error {
		if got := a.holding.Load(); got != int64(n) {
			return fmt.Errorf("got %d, want %d", got, n)
		}
		return nil
	})
	return func() {
		a.release()
		all.Wait()
	}
}

// Ten concurrent requests with a target of two result in five pods.
func autoscalerScalesByConcurrency(t *testing.T, r *Release) {
	p := newPod(t, "plain")
	p.start()
	app := startApp(p)
	release := hold(p, app, 10, func() error {
		_, _, err := p.ask(p.client, p.url("/hold"))
		return err
	})
	defer release()
	poll(t, "the statistics cover a second with ten requests", func() error {
		s, err := p.stat()
		if err == nil && s.AverageConcurrentRequests != 10 {
			err = fmt.Errorf("got %v concurrent requests, want 10", s.AverageConcurrentRequests)
		}
		return err
	})
	a := startAutoscaler(p, r, 2)
	poll(t, "the autoscaler wants five pods", func() error {
		got := a.scale()
		stable, panicking, err := a.collector.StableAndPanicConcurrency(a.key, time.Now())
		if err == nil && (!got.ScaleValid || got.DesiredPodCount != 5 || stable != 10 || panicking != 10) {
			err = fmt.Errorf("got %+v for concurrencies %v and %v, want 5 pods for concurrencies 10 and 10", got, stable, panicking)
		}
		return err
	})
}

// The activator reports the requests that it forwards. The autoscaler subtracts them from the
// statistics of the sidecar, so that each request is counted once.
func autoscalerCountsProxiedRequestsOnce(t *testing.T, r *Release) {
	p := newPod(t, "plain")
	p.start()
	app := startApp(p)
	through := startActivator(p, r, nil)
	through.endpoints(true)
	release := hold(p, app, 4, func() error {
		_, _, err := through.ask(p.client, "/hold")
		return err
	})
	defer release()
	poll(t, "the statistics cover a second with four requests", func() error {
		s, err := p.stat()
		if err == nil && (s.AverageConcurrentRequests != 4 || s.AverageProxiedConcurrentRequests != 4) {
			err = fmt.Errorf("got %v, want 4 concurrent proxied requests", s.String())
		}
		return err
	})
	a := startAutoscaler(p, r, 2)
	poll(t, "the autoscaler has scraped the sidecar", func() error {
		stable, _, err := a.collector.StableAndPanicConcurrency(a.key, time.Now())
		if err == nil && stable != 0 {
			t.Fatalf("got %v concurrent requests that are not proxied, want 0", stable)
		}
		return err
	})
}

// The autoscaler receives the number of requests per second.
func autoscalerReceivesRequestsPerSecond(t *testing.T, r *Release) {
	p := newPod(t, "plain")
	p.start()
	startApp(p)
	a := startAutoscaler(p, r, 2)
	poll(t, "the autoscaler receives requests per second", func() error {
		if answer, _ := p.get(p.url("/")); answer.StatusCode != http.StatusOK {
			t.Fatalf("got %s, want 200", answer.Status)
		}
		stable, panicking, err := a.collector.StableAndPanicRPS(a.key, time.Now())
		if err == nil && (stable == 0 || panicking == 0) {
			err = fmt.Errorf("got %v and %v requests per second, want more than 0", stable, panicking)
		}
		return err
	})
}
