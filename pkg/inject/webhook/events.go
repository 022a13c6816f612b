package webhook

import (
	"context"
	"encoding/json"
	"regexp"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// Limits for events.
const (
	maxQueuedEvents     = 100              // maximum length of the queue; further events are dropped and counted
	eventBurst          = 10               // number of events without a delay, for the whole cluster
	eventInterval       = time.Second      // minimum interval between events after a burst
	eventRepeatInterval = 10 * time.Minute // minimum time between events for the same owner and reason
	maxOwners           = 1000             // maximum number of entries in sent
	postTimeout         = 5 * time.Second
)

// lowConfidence is the message of the event for pods that are injected with low confidence.
const lowConfidence = "queue-proxy is injected with low confidence in the port, because the webhook cannot read Services and the port name does not indicate HTTP; " +
	"name the port http, or set the annotation " + inject.Prefix + "port"

// chosen is the label of namespaces in which pods are injected.
const chosen = inject.Prefix + "inject"

// Events writes an event for each workload if its pods are not injected, or are injected with low
// confidence. It is safe for concurrent use. Run writes the events.
//
// Every client that can connect to the webhook can send a forged review. Therefore, the number of
// events is limited, and events are only written in namespaces with the label of the injector. An
// event contains the name of the pod's owner and a reason from a fixed list, but no other text of
// the pod.
type Events struct {
	kube    *Kube
	own     string // namespace of the injector
	log     *zap.Logger
	metrics *Metrics
	now     func() time.Time
	waiting chan *corev1.Event

	mu     sync.Mutex
	sent   map[string]time.Time // time of the last event by owner and reason
	tokens int                  // number of events that can be created now
	filled time.Time            // time at which the last token was added
}

// NewEvents returns Events for an injector in the given namespace. Events are created after Run is
// called.
func NewEvents(kube *Kube, namespace string, log *zap.Logger, m *Metrics) *Events {
	return &Events{
		kube: kube, own: namespace, log: log, metrics: m, now: time.Now,
		waiting: make(chan *corev1.Event, maxQueuedEvents), sent: map[string]time.Time{},
		tokens: eventBurst, filled: time.Now(),
	}
}

// Run creates events until ctx is done. It always returns nil.
func (e *Events) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-e.waiting:
			e.write(ctx, event)
		}
	}
}

// write creates an event if the namespace of the event has the label of the injector.
func (e *Events) write(ctx context.Context, event *corev1.Event) {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	path := "/api/v1/namespaces/" + event.Namespace
	var namespace corev1.Namespace
	err := e.kube.do(ctx, "GET", path, "", nil, &namespace)
	if err == nil && namespace.Labels[chosen] != "true" {
		e.metrics.event(eventNotChosen)
		return
	}
	if err == nil {
		err = e.kube.do(ctx, "POST", path+"/events", "application/json", event, nil)
	}
	if err != nil {
		e.metrics.event(eventFailed)
		e.log.Warn("failed to create event", zap.String("namespace", event.Namespace), zap.Error(err))
		return
	}
	e.metrics.event(eventWritten)
}

// enqueue queues an event for a pod that is not injected, or is injected with low confidence. The
// event refers to the owner of the pod, because the pod has no name yet. There is no event for a
// pod without an owner, because the user who creates the pod receives the response.
func (e *Events) enqueue(namespace string, pod any, out inject.Outcome) {
	owner := controllerOf(pod)
	if owner == nil || !isOwner(owner) || len(validation.IsDNS1123Label(namespace)) > 0 {
		return // there is no owner, or a field of the owner or the namespace has invalid syntax and must not be used in a path
	}
	if namespace == e.own || namespace == metav1.NamespaceSystem {
		return // API servers do not send reviews for pods in these namespaces
	}
	now := e.now()
	if !e.allow(string(owner.UID)+" "+out.Reason, now) {
		return
	}
	kind, reason := corev1.EventTypeNormal, "QueueProxySkipped"
	message := "queue-proxy not injected (" + out.Reason + "): " + inject.ReasonText(out.Reason)
	switch out.Verdict {
	case inject.Refused:
		kind, reason = corev1.EventTypeWarning, "QueueProxyRefused"
	case inject.Injected:
		reason, message = "QueueProxyInjected", lowConfidence
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: owner.Name + ".", Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Namespace: namespace},
		Reason:         reason,
		Message:        message,
		Type:           kind,
		Source:         corev1.EventSource{Component: "queue-proxy-injector"},
		FirstTimestamp: metav1.NewTime(now),
		LastTimestamp:  metav1.NewTime(now),
		Count:          1,
	}
	select {
	case e.waiting <- event:
	default:
		e.metrics.event(eventDropped)
	}
}

// allow reports whether an event with a key can be created now. This requires a token, and the last
// event with this key must be older than eventRepeatInterval.
func (e *Events) allow(key string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at, sent := e.sent[key]; sent && now.Sub(at) < eventRepeatInterval {
		return false
	}
	if n := now.Sub(e.filled) / eventInterval; n > 0 {
		e.tokens = int(min(eventBurst, time.Duration(e.tokens)+n))
		e.filled = now.Add(-(now.Sub(e.filled) % eventInterval))
	}
	if e.tokens == 0 {
		e.metrics.event(eventDropped)
		return false
	}
	e.tokens--
	if len(e.sent) >= maxOwners {
		clear(e.sent)
	}
	e.sent[key] = now
	return true
}

// Patterns for the kind and the UID of an owner.
var (
	kinds = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)
	uids  = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
)

// isOwner reports whether the fields of an owner have the syntax that an API server requires.
func isOwner(o *metav1.OwnerReference) bool {
	api, _ := schema.ParseGroupVersion(o.APIVersion) // the result is empty after an error, and is then rejected below
	return kinds.MatchString(o.Kind) && uids.MatchString(string(o.UID)) && len(validation.IsDNS1123Subdomain(o.Name)) == 0 &&
		api.String() == o.APIVersion && len(validation.IsDNS1035Label(api.Version)) == 0 &&
		(api.Group == "" || len(validation.IsDNS1123Subdomain(api.Group)) == 0)
}

// controllerOf returns the controller of a pod, or nil if there is none.
func controllerOf(pod any) *metav1.OwnerReference {
	metadata := new(metav1.ObjectMeta)
	text, err := json.Marshal(inject.At(pod, "metadata"))
	if err != nil || kjson.UnmarshalCaseSensitivePreserveInts(text, metadata) != nil {
		return nil
	}
	return metav1.GetControllerOfNoCopy(metadata)
}
