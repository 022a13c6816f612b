package webhook

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// onHost is a pod with an owner. The pod is skipped because it uses the host network.
var onHost = strings.Replace(goodPod, `"spec":{`, `"spec":{"hostNetwork":true,`, 1)

// An eventful is a Reviewer that creates events in a fake API server. Its clock does not advance.
type eventful struct {
	*Reviewer
	kube *fakeKube
	now  time.Time
}

func newEventful(t *testing.T) *eventful {
	t.Helper()
	f, kube := newFakeKube(t)
	e := &eventful{Reviewer: newReviewer(nil), kube: f, now: time.Now()}
	e.Events = NewEvents(kube, "queue-proxy", zap.NewNop(), e.Metrics)
	e.Events.now, e.Events.filled = func() time.Time { return e.now }, e.now
	return e
}

// ask sends a review of a pod. changes contains pairs of an old and a new string, which
// are replaced in the pod.
func (e *eventful) ask(t *testing.T, namespace string, changes ...string) {
	t.Helper()
	pod := strings.NewReplacer(changes...).Replace(onHost)
	asked, err := parse(question([]byte(pod), func(q *admissionv1.AdmissionRequest) { q.Namespace = namespace }))
	harness.NoError(t, err)
	if _, _, err := e.answer(t.Context(), asked.Request, 1); err != nil {
		t.Fatal(err)
	}
}

// written creates the queued events and returns all events.
func (e *eventful) written(t *testing.T) []corev1.Event {
	t.Helper()
	for len(e.Events.waiting) > 0 {
		e.Events.write(t.Context(), <-e.Events.waiting)
	}
	return e.kube.events
}

// A client can forge the namespace, the owner and all other strings of a review.
func TestForgedNamespacesCreateNoEvents(t *testing.T) {
	e := newEventful(t)
	e.kube.namespaces["kube-system"] = map[string]string{"queue-proxy.dev/inject": "true"} // API servers do not send reviews for this namespace
	e.kube.namespaces["queue-proxy"] = map[string]string{"queue-proxy.dev/inject": "true"} // namespace of the injector
	e.kube.namespaces["bank"] = map[string]string{}
	e.kube.namespaces["closed"] = map[string]string{"queue-proxy.dev/inject": "false"}
	for _, namespace := range []string{"kube-system", "queue-proxy", "bank", "closed", "gone", "shop/pods/x/eviction?", "../../apis", "a b", "", strings.Repeat("x", 1000)} {
		e.now = e.now.Add(time.Minute)
		e.ask(t, namespace, `"uid":"1234"`, fmt.Sprintf(`"uid":"%x"`, len(namespace)))
	}
	if all := e.written(t); len(all) > 0 {
		t.Errorf("got %d events, the first in %s, want none", len(all), all[0].Namespace)
	}
	e.now = e.now.Add(time.Hour)
	if e.ask(t, "shop"); len(e.written(t)) != 1 {
		t.Errorf("got %d events for a namespace with the label, want 1", len(e.kube.events))
	}
}

func TestForgedOwnersCreateNoEvents(t *testing.T) {
	e := newEventful(t)
	long := strings.Repeat("x", 1000)
	for _, change := range [][2]string{
		{`"uid":"1234"`, `"uid":"` + long + `"`}, {`"uid":"1234"`, `"uid":"a\nb"`}, {`"uid":"1234"`, `"uid":""`},
		{`"name":"web-1"`, `"name":"` + long + `"`}, {`"name":"web-1"`, `"name":"Call 0900-1234 now"`}, {`"name":"web-1"`, `"name":""`},
		{`"kind":"ReplicaSet"`, `"kind":"Your password is wrong"`}, {`"kind":"ReplicaSet"`, `"kind":""`}, {`"kind":"ReplicaSet"`, `"kind":"` + long + `"`},
		{`"apiVersion":"apps/v1"`, `"apiVersion":"http://evil.example/v1"`}, {`"apiVersion":"apps/v1"`, `"apiVersion":"a/b/c"`}, {`"apiVersion":"apps/v1"`, `"apiVersion":"` + long + `/v1"`},
	} {
		e.now = e.now.Add(time.Minute)
		if e.ask(t, "shop", change[0], change[1]); len(e.Events.waiting) > 0 || len(e.Events.sent) > 0 {
			t.Fatalf("%.60s: got %d events and %d stored owners, want none", change[1], len(e.Events.waiting), len(e.Events.sent))
		}
	}
}

// Users trust the sender of an event. Therefore, an event only contains the name of the pod's
// owner and a reason from a fixed list.
func TestEventsContainNoTextOfPod(t *testing.T) {
	const evil = "call-0900-1234"
	e := newEventful(t)
	for i, pod := range []string{
		`{"metadata":{"annotations":{"queue-proxy.dev/EVIL":"1"}OWNER},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}`,
		`{"metadata":{"annotations":{"queue-proxy.dev/mode":"EVIL"}OWNER},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}`,
		`{"metadata":{"annotations":{"queue-proxy.dev/container":"EVIL"}OWNER},"spec":{"containers":[{"name":"EVIL"},{"name":"b"}]}}`,
		`{"metadata":{"labels":{"queue-proxy.dev/EVIL":"1"}OWNER},"spec":{"containers":[{"name":"EVIL"}]}}`,
		`{"metadata":{"x":1OWNER},"spec":{"containers":[{"name":"EVIL"}]}}`,
		`{"metadata":{"x":1OWNER},"spec":{"restartPolicy":"EVIL","containers":[{"name":"a"}]}}`,
		`{"metadata":{"x":1OWNER},"spec":{"containers":[{"name":"a","ports":"EVIL"}]}}`,
		`{"metadata":{"x":1OWNER},"spec":{"containers":[{"name":"a","ports":[{"containerPort":1,"name":"EVIL"},{"containerPort":2}]}]}}`,
	} {
		owner := fmt.Sprintf(`,"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-1","uid":"%d","controller":true}]`, i)
		asked, err := parse(question([]byte(strings.NewReplacer("EVIL", evil, "OWNER", owner).Replace(pod)), nil))
		harness.NoError(t, err)
		e.now = e.now.Add(time.Minute)
		out, _, _ := e.answer(t.Context(), asked.Request, 1)
		all := e.written(t)
		if len(all) != i+1 {
			t.Fatalf("%s: got %d events, want one per pod (%s)", pod, len(all), out.Reason)
		}
		text, _ := json.Marshal(all[i])
		if strings.Contains(string(text), evil) || !strings.Contains(all[i].Message, "("+out.Reason+"): "+inject.ReasonText(out.Reason)) {
			t.Errorf("got event %s, want the text of %s without text of the pod", text, out.Reason)
		}
	}
}

// The number of events is limited, regardless of how many reviews and owners there are.
func TestEventRateIsLimited(t *testing.T) {
	e := newEventful(t)
	many := func() int {
		before := len(e.kube.events)
		for i := range 100 {
			e.ask(t, "shop", `"uid":"1234"`, fmt.Sprintf(`"uid":"%d-%d"`, i, e.now.UnixNano()))
		}
		return len(e.written(t)) - before
	}
	for _, c := range []struct {
		later time.Duration
		want  int
	}{{0, eventBurst}, {0, 0}, {eventInterval, 1}, {3*eventInterval + eventInterval/2, 3}, {eventInterval / 2, 1}, {time.Hour, eventBurst}} {
		e.now = e.now.Add(c.later)
		harness.Equal(t, many(), c.want, c.later, "later", "events for 100 reviews")
	}
}

func TestSkippedPodCreatesEventForOwner(t *testing.T) {
	e := newEventful(t)
	f := e.kube
	ended := make(chan struct{})
	ctx := t.Context()
	go func() { defer close(ended); _ = e.Events.Run(ctx) }()
	t.Cleanup(func() { <-ended })
	s := serve(t, e.Reviewer)

	review(t, s, []byte(onHost), func(q *admissionv1.AdmissionRequest) { q.DryRun = new(true) })
	review(t, s, []byte(goodPod), nil)
	review(t, s, []byte(strings.Replace(onHost, "generateName", "name", 1)), nil)
	review(t, s, []byte(onHost), nil) // a duplicate
	e.now = e.now.Add(eventRepeatInterval)
	review(t, s, []byte(onHost), nil)

	harness.Until(t, "second event", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.events) >= 2
	})
	harness.Equal(t, len(f.events), 2, "events")
	got := f.events[0]
	if got.InvolvedObject.Kind != "ReplicaSet" || got.InvolvedObject.Name != "web-1" || got.Namespace != "shop" || got.Reason != "QueueProxySkipped" || !strings.Contains(got.Message, "host-network") {
		t.Errorf("got %+v, want an event for the ReplicaSet with the reason", got)
	}
}

func TestLowConfidenceCreatesEvent(t *testing.T) {
	for name, want := range map[string]int{"http": 0, "frontend": 1} {
		e := newEventful(t)
		e.kube.namespaces["shop"] = map[string]string{"queue-proxy.dev/inject": "true"}
		for range 3 { // pods of one ReplicaSet
			e.ask(t, "shop", `"hostNetwork":true,`, "", `"name":"http"`, `"name":"`+name+`"`)
		}
		all := e.written(t)
		if len(all) != want {
			t.Fatalf("port %q: got %d events, want %d", name, len(all), want)
		}
		for _, event := range all {
			harness.Equal(t, event.Reason+" "+event.Type, "QueueProxyInjected Normal")
			harness.Equal(t, event.Message, lowConfidence)
		}
	}
}
