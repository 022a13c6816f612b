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

// An autoscaler scrapes one pod every second and decides how many there should be.
type autoscaler struct {
	key       types.NamespacedName
	collector *metrics.MetricCollector
	decider   scaling.UniScaler
	log       *zap.SugaredLogger
}

// startAutoscaler starts it for a target of so many requests at once in a pod.
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

// scale returns what the autoscaler would do now.
func (a *autoscaler) scale() scaling.ScaleResult { return a.decider.Scale(a.log, time.Now()) }

// hold sends requests that the app holds, and returns when it does. The test must call
// what it returns, which lets them go and waits for their answers.
func hold(p *pod, a *app, n int, ask func() error) (release func()) {
	p.t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if err := ask(); err != nil {
				p.t.Errorf("a held request: %v", err)
			}
		})
	}
	poll(p.t, "the app holds all requests", func() error {
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

// Ten requests at once and a target of two are five pods.
func theAutoscalerWantsAPodForEveryTwoOfTenRequests(t *testing.T, r *Release) {
	p := newPod(t, "plain")
	p.start()
	app := startApp(p)
	release := hold(p, app, 10, func() error {
		_, _, err := p.ask(p.client, p.url("/hold"))
		return err
	})
	defer release()
	poll(t, "the statistics cover a second in which all ten are there", func() error {
		s, err := p.stat()
		if err == nil && s.AverageConcurrentRequests != 10 {
			err = fmt.Errorf("got %v", s.AverageConcurrentRequests)
		}
		return err
	})
	a := startAutoscaler(p, r, 2)
	poll(t, "the autoscaler decides", func() error {
		got := a.scale()
		stable, panicking, err := a.collector.StableAndPanicConcurrency(a.key, time.Now())
		if err == nil && (!got.ScaleValid || got.DesiredPodCount != 5 || stable != 10 || panicking != 10) {
			err = fmt.Errorf("got %+v of %v and %v at once, want 5 pods of 10 and 10", got, stable, panicking)
		}
		return err
	})
}

// The activator counts the requests that it holds and sends; what the sidecar counts of
// them is taken off, so that they count once.
func theAutoscalerCountsTheActivatorsRequestsOnce(t *testing.T, r *Release) {
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
	poll(t, "the statistics cover a second in which all four are there", func() error {
		s, err := p.stat()
		if err == nil && (s.AverageConcurrentRequests != 4 || s.AverageProxiedConcurrentRequests != 4) {
			err = fmt.Errorf("got %v, want 4 at once and all of them the activator's", s.String())
		}
		return err
	})
	a := startAutoscaler(p, r, 2)
	poll(t, "the autoscaler has scraped", func() error {
		stable, _, err := a.collector.StableAndPanicConcurrency(a.key, time.Now())
		if err == nil && stable != 0 {
			t.Fatalf("got %v requests at once beside the activator's, want 0", stable)
		}
		return err
	})
}

// With nothing to do the autoscaler wants no pod, and requests per second are seen.
func theAutoscalerSeesRequestsPerSecond(t *testing.T, r *Release) {
	p := newPod(t, "plain")
	p.start()
	startApp(p)
	a := startAutoscaler(p, r, 2)
	poll(t, "the autoscaler sees requests per second", func() error {
		if answer, _ := p.get(p.url("/")); answer.StatusCode != http.StatusOK {
			t.Fatalf("got %s, want 200", answer.Status)
		}
		stable, panicking, err := a.collector.StableAndPanicRPS(a.key, time.Now())
		if err == nil && (stable == 0 || panicking == 0) {
			err = fmt.Errorf("got %v and %v", stable, panicking)
		}
		return err
	})
}
