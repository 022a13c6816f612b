package webhook

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// Bounds of events: they are a courtesy, and must not become a load.
const (
	waitingEvents = 100              // more are dropped, and counted
	quietTime     = 10 * time.Minute // an owner hears the same once in so long
	mostOwners    = 1000             // that are remembered
	longestPost   = 5 * time.Second
	longestEvent  = 900 // bytes of what came of it; Kubernetes takes messages of 1024
)

// Events writes an event about each workload whose pods are not injected, for those who
// ask kubectl why. It may be used concurrently; Run writes.
type Events struct {
	kube    *Kube
	log     *zap.Logger
	metrics *Metrics
	now     func() time.Time
	waiting chan *corev1.Event

	mu   sync.Mutex
	told map[string]time.Time // an owner and a reason: when
}

// NewEvents makes Events. Nothing is written before Run.
func NewEvents(kube *Kube, log *zap.Logger, m *Metrics) *Events {
	return &Events{kube: kube, log: log, metrics: m, now: time.Now, waiting: make(chan *corev1.Event, waitingEvents), told: map[string]time.Time{}}
}

// Run writes events until ctx is done; it returns nil.
func (e *Events) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-e.waiting:
			post, cancel := context.WithTimeout(ctx, longestPost)
			err := e.kube.Do(post, "POST", "/api/v1/namespaces/"+event.Namespace+"/events", "application/json", event, nil)
			cancel()
			if err != nil {
				e.metrics.event("failed")
				e.log.Warn("an event was not written", zap.String("namespace", event.Namespace), zap.Error(err))
				continue
			}
			e.metrics.event("written")
		}
	}
}

// about notes an event about the owner of a pod, which has no name yet. A pod without an
// owner was made by somebody who sees the answer.
func (e *Events) about(namespace string, pod any, out inject.Outcome) {
	owner := ownerOf(pod)
	if owner == nil || len(validation.IsDNS1123Label(namespace)) > 0 || len(owner.Name) > longestName || len(owner.UID) > longestName {
		return // nobody's, or of no API server's making: it would be kept, and become part of a path
	}
	now := e.now()
	key := string(owner.UID) + " " + out.Reason
	if !e.isNews(key, now) {
		return
	}
	kind, reason := corev1.EventTypeNormal, "QueueProxySkipped"
	if out.Verdict == inject.Refused {
		kind, reason = corev1.EventTypeWarning, "QueueProxyRefused"
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: owner.Name + ".", Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Namespace: namespace},
		Reason:         reason,
		Message:        "its pods get no queue-proxy (" + out.Reason + "): " + brief(out.Text, longestEvent),
		Type:           kind,
		Source:         corev1.EventSource{Component: "queue-proxy-injector"},
		FirstTimestamp: metav1.NewTime(now),
		LastTimestamp:  metav1.NewTime(now),
		Count:          1,
	}
	select {
	case e.waiting <- event:
	default:
		e.metrics.event("dropped")
	}
}

// isNews reports whether an owner has not heard the same for a while.
func (e *Events) isNews(key string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at, told := e.told[key]; told && now.Sub(at) < quietTime {
		return false
	}
	if len(e.told) >= mostOwners {
		clear(e.told)
	}
	e.told[key] = now
	return true
}

// ownerOf is what made a pod, nil for nobody.
func ownerOf(pod any) *metav1.OwnerReference {
	m, _ := pod.(map[string]any)
	metadata := new(metav1.ObjectMeta)
	text, err := encode(m["metadata"])
	if err != nil || kjson.UnmarshalCaseSensitivePreserveInts(text, metadata) != nil {
		return nil
	}
	return metav1.GetControllerOfNoCopy(metadata)
}
