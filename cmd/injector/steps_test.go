package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A Service by number, whose pods run without a sidecar until they have rolled.
const numbered = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: web:1
        ports:
        - containerPort: 5678
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports:
  - port: 80
    targetPort: 5678
`

// Applied at once, a Service that says the sidecar's number loses the pods that run without
// one. So it stays in the first step, and finds the app of old and new pods.
func TestTheFirstStepLeavesAServiceThatWouldLoseOldPods(t *testing.T) {
	first, report, code := injector(t, "inject", numbered)
	if code != done || !strings.Contains(first, "image: queue-proxy:dev") || !strings.Contains(first, "targetPort: 5678") {
		t.Fatalf("got exit code %d and\n%s\nwant the pods injected and the Service as it was", code, first)
	}
	harness.Contains(t, report, "Service web: skipped (second-step): targetPort 5678 still bypasses the sidecar", "the report")
	second, report, code := injector(t, "inject", first, "--step=services")
	if code != done || !strings.Contains(second, "targetPort: 8012") || !strings.Contains(report, "Deployment web: skipped (already-injected)") {
		t.Errorf("got exit code %d,\n%s\nand\n%s\nwant the Service rewritten, and the pods left", code, report, second)
	}
	if at, again, _ := injector(t, "inject", numbered, "--step=services"); !strings.Contains(at, "targetPort: 8012") || !strings.Contains(at, "image: queue-proxy:dev") {
		t.Errorf("got\n%s\n%s\nwant both steps of the original at once", at, again)
	}
	back, _, _ := injector(t, "uninject", second)
	harness.Equal(t, back, numbered, "(to be what it was)")
}

// By a name that the app's port has, a Service finds old and new pods: it follows at once.
func TestAServiceByNameFollowsInTheFirstStep(t *testing.T) {
	in := strings.Replace(numbered, "- containerPort: 5678", "- {containerPort: 5678, name: web}", 1)
	if out, report, _ := injector(t, "inject", in); !strings.Contains(out, "targetPort: web") {
		t.Errorf("got\n%s\n%s\nwant the Service by the port's name", out, report)
	}
}

func TestTheSecondStepKnowsThePortsOfASidecarThatIsThere(t *testing.T) {
	first, _, _ := injector(t, "inject", numbered, "--serving-port=9999", "--port=5678")
	if second, report, _ := injector(t, "inject", first, "--step=services"); !strings.Contains(second, "targetPort: 9999") {
		t.Errorf("got\n%s\n%s\nwant the Service to say 9999", second, report)
	}
}

func TestStatusSaysWhenTheSecondStepMayCome(t *testing.T) {
	old := "apiVersion: v1\nkind: Pod\nmetadata: {name: web-old, labels: {app: web}}\nspec: {containers: [{name: web, image: \"web:1\", ports: [{containerPort: 5678}]}]}\n"
	fresh, _, _ := injector(t, "inject", strings.Replace(old, "web-old", "web-new", 1))
	state := func(ready string) string {
		return fmt.Sprintf("status: {phase: Running, conditions: [{type: Ready, status: %q}]}\n", ready)
	}
	_, service, _ := strings.Cut(numbered, "---\n")
	for _, c := range []struct{ fact, in, want string }{
		{"an old pod is there", old + state("True") + "---\n" + fresh + state("True") + "---\n" + service, "Service web: wait: 1 of 2 pods have the sidecar and are ready\n"},
		{"a new one is not ready", fresh + state("False") + "---\n" + service, "Service web: wait: 0 of 1 pods have the sidecar and are ready\n"},
		{"all have rolled", fresh + state("True") + "---\n" + service, "Service web: all 1 pods have the sidecar and are ready; continue with --step=services\n"},
		{"an old one has ended", old + "status: {phase: Succeeded}\n---\n" + fresh + state("True") + "---\n" + service, "Service web: all 1 pods have the sidecar and are ready; continue with --step=services\n"},
		{"it is done", fresh + state("True") + "---\n" + strings.Replace(service, "5678", "8012", 1), "Service web: 1 of 1 pods have the sidecar; the Service needs no change\n"},
		{"nothing is injected", old + "---\n" + service, "no Service selects a pod with a sidecar\n"},
	} {
		out, _, code := injector(t, "status", c.in)
		want := done
		if strings.Contains(c.want, "wait") || strings.Contains(c.want, "no Service") {
			want = differs
		}
		if out != c.want || code != want {
			t.Errorf("%s: got exit code %d and %q, want %d and %q", c.fact, code, out, want, c.want)
		}
	}
}

// The first container of the pod has the name of the app's port as well, and a Service would resolve the name to it.
func TestSecondStepKeepsContainerOfSharedPortName(t *testing.T) {
	in := read(t, golden+"/shared-port-name/in.yaml")
	first, _, _ := injector(t, "inject", in)
	for _, text := range []string{in, first} {
		if out, report, _ := injector(t, "inject", text, "--step=services"); !strings.Contains(out, "targetPort: 8012") {
			t.Errorf("got\n%s\n%s\nwant the Service to use the number of the sidecar", out, report)
		}
	}
}

// Both steps change the same document.
func TestUninjectRestoresListAfterBothSteps(t *testing.T) {
	workload, service, _ := strings.Cut(numbered, "---\n")
	in := "apiVersion: v1\nkind: List\nitems:\n"
	for _, object := range []string{workload, service} {
		in += "- " + strings.ReplaceAll(strings.TrimSpace(object), "\n", "\n  ") + "\n"
	}
	for _, text := range []string{in, strings.TrimSpace(in)} {
		first, _, _ := injector(t, "inject", text)
		second, report, _ := injector(t, "inject", first, "--step=services")
		if !strings.Contains(second, "targetPort: 8012") {
			t.Fatalf("got\n%s\n%s\nwant the Service rewritten", second, report)
		}
		back, _, _ := injector(t, "uninject", second)
		harness.Equal(t, back, text, "(the original text)")
	}
}
