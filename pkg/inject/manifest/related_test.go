package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// pairsOf returns a file with n Deployments and n Services. In the texts, %[1]d is the
// number of the pair.
func pairsOf(n int, namespace, labels string) string {
	const pair = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: w%[1]d, namespace: %[2]q}
spec:
  template:
    metadata: {labels: {%[3]s}}
    spec:
      containers:
        - name: web
          ports:
            - containerPort: 8080
---
apiVersion: v1
kind: Service
metadata: {name: w%[1]d, namespace: %[2]q}
spec:
  selector: {%[3]s}
  ports:
    - port: 80
      targetPort: 8080
`
	var text strings.Builder
	for i := range n {
		number := func(s string) string { return strings.ReplaceAll(s, "#", fmt.Sprint(i)) }
		fmt.Fprintf(&text, pair, i, number(namespace), number(labels))
	}
	return text.String()
}

// For each Service, the number of pods that are compared with it must not grow with the
// number of objects. The same applies to the Services of a pod.
func TestIndexReturnsFewObjects(t *testing.T) {
	const n = 200
	for name, c := range map[string]struct{ namespace, labels string }{
		"separate labels":                 {"shop", "app: w#"},
		"one label in all selectors":      {"shop", "app.kubernetes.io/instance: shop, app.kubernetes.io/name: w#"},
		"the same labels in n namespaces": {"shop-#", "app: web"},
		"no namespace":                    {"", "instance: shop, app: w#"},
	} {
		files := []*File{Parse("f.yaml", []byte(pairsOf(n, c.namespace, c.labels)))}
		results := list(files, (*document).listFacts)
		f := findRelated(results)
		all := make([]inject.Pods, n)
		for i, r := range f.owners {
			all[i] = inject.Pods{Namespace: r.Namespace, Labels: r.facts.labels}
			places := map[int]bool{}
			for key, value := range r.facts.labels {
				for _, place := range f.bySelector.near(r.Namespace, [2]string{key, value}) {
					places[place] = true
				}
			}
			if !places[i] || len(places) > 1 {
				t.Errorf("%s: got %d Services for pods %d, want 1", name, len(places), i)
			}
		}
		pods := newPodIndex(all)
		for i, s := range f.services {
			if got := pods.byLabel.possible(s.namespace, s.selector); len(got) != 1 || got[0] != i {
				t.Errorf("%s: got pods %v for Service %d, want 1", name, got, i)
			}
		}
	}
}

// If many Services select the same pods, the result is the same as with a few Services.
func TestEqualPodsAndServicesAreExaminedOnce(t *testing.T) {
	const n = 100
	files := []*File{Parse("f.yaml", []byte(pairsOf(n, "shop", "app: web")))}
	results := list(files, (*document).listFacts)
	f := findRelated(results)
	all := make([]inject.Pods, n)
	for i, ports := range f.ports() {
		if len(ports) != 3 {
			t.Errorf("got %d ports of Services for pods %d, want 3", len(ports), i)
		}
		all[i] = inject.Pods{Namespace: "shop", Labels: f.owners[i].facts.labels}
	}
	if got := len(newPodIndex(all).distinct); got != 1 {
		t.Errorf("got %d distinct pods, want 1", got)
	}
	for _, r := range Inject(files, nil, inject.Services) {
		if r.Verdict != inject.Injected && r.Verdict != inject.Rewritten || len(r.Warnings) > 1 {
			t.Errorf("%s: got %s %s with warnings %q, want injected or rewritten", r.Object(), r.Verdict, r.Text, r.Warnings)
		}
	}
}

// An object without a namespace can be applied to any namespace, so it can relate to the
// objects of each namespace.
func TestServiceWithoutNamespaceSelectsPodsOfEachNamespace(t *testing.T) {
	for _, c := range []struct {
		pods, service string
		want          bool
	}{
		{"shop", "shop", true},
		{"shop", "", true},
		{"", "shop", true},
		{"", "", true},
		{"shop", "other", false},
	} {
		text := strings.Replace(pairsOf(1, c.pods, "app: web"), fmt.Sprintf("kind: Service\nmetadata: {name: w0, namespace: %q}", c.pods),
			fmt.Sprintf("kind: Service\nmetadata: {name: w0, namespace: %q}", c.service), 1)
		results := Inject([]*File{Parse("f.yaml", []byte(text))}, nil, inject.Services)
		harness.Equal(t, results[1].Verdict == inject.Rewritten, c.want, c.pods, c.service, results[1].Text)
	}
}
