package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// numbered contains a workload, and a Service whose target port is a number. The pods
// have no sidecar until the rollout is complete.
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

// A Service whose target port is the number of the sidecar's port does not reach pods without a sidecar.
// Therefore, the first step keeps the number of the application's port, which reaches all pods.
func TestFirstStepKeepsServiceByNumber(t *testing.T) {
	first, report, code := injector(t, "inject", numbered)
	if code != done || !strings.Contains(first, "image: queue-proxy:dev") || !strings.Contains(first, "targetPort: 5678") {
		t.Fatalf("got exit code %d and\n%s\nwant injected pods and an unchanged Service", code, first)
	}
	harness.Contains(t, report, "Service web: skipped (second-step): targetPort 5678 still bypasses the sidecar", "the report")
	second, report, code := injector(t, "inject", first, "--step=services")
	if code != done || !strings.Contains(second, "targetPort: 8012") || !strings.Contains(report, "Deployment web: skipped (already-injected)") {
		t.Errorf("got exit code %d,\n%s\nand\n%s\nwant a changed Service and unchanged pods", code, report, second)
	}
	if at, again, _ := injector(t, "inject", numbered, "--step=services"); !strings.Contains(at, "targetPort: 8012") || !strings.Contains(at, "image: queue-proxy:dev") {
		t.Errorf("got\n%s\n%s\nwant both objects changed", at, again)
	}
	back, _, _ := injector(t, "uninject", second)
	harness.Equal(t, back, numbered, "(the original input)")
}

// A Service with a port name reaches old and new pods, so it is rewritten in the first step.
func TestFirstStepRewritesServiceByName(t *testing.T) {
	in := strings.Replace(numbered, "- containerPort: 5678", "- {containerPort: 5678, name: web}", 1)
	if out, report, _ := injector(t, "inject", in); !strings.Contains(out, "targetPort: web") {
		t.Errorf("got\n%s\n%s\nwant targetPort web", out, report)
	}
}

func TestSecondStepUsesPortsOfInjectedPods(t *testing.T) {
	first, _, _ := injector(t, "inject", numbered, "--serving-port=9999", "--port=5678")
	if second, report, _ := injector(t, "inject", first, "--step=services"); !strings.Contains(second, "targetPort: 9999") {
		t.Errorf("got\n%s\n%s\nwant targetPort 9999", second, report)
	}
}

func TestStatusReportsRolloutProgress(t *testing.T) {
	old := "apiVersion: v1\nkind: Pod\nmetadata: {name: web-old, labels: {app: web}}\nspec: {containers: [{name: web, image: \"web:1\", ports: [{containerPort: 5678}]}]}\n"
	fresh, _, _ := injector(t, "inject", strings.Replace(old, "web-old", "web-new", 1))
	state := func(ready string) string {
		return fmt.Sprintf("status: {phase: Running, conditions: [{type: Ready, status: %q}]}\n", ready)
	}
	_, service, _ := strings.Cut(numbered, "---\n")
	for _, c := range []struct{ fact, in, want string }{
		{"a pod without the sidecar", old + state("True") + "---\n" + fresh + state("True") + "---\n" + service, "Service web: wait: 1 of 2 pods have the sidecar and are ready\n"},
		{"a pod that is not ready", fresh + state("False") + "---\n" + service, "Service web: wait: 0 of 1 pods have the sidecar and are ready\n"},
		{"rollout complete", fresh + state("True") + "---\n" + service, "Service web: all 1 pods have the sidecar and are ready; continue with --step=services\n"},
		{"a terminated pod without the sidecar", old + "status: {phase: Succeeded}\n---\n" + fresh + state("True") + "---\n" + service, "Service web: all 1 pods have the sidecar and are ready; continue with --step=services\n"},
		{"Service already rewritten", fresh + state("True") + "---\n" + strings.Replace(service, "5678", "8012", 1), "Service web: 1 of 1 pods have the sidecar; the Service needs no change\n"},
		{"no injected pod", old + "---\n" + service, "no Service selects a pod with a sidecar\n"},
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

func TestStatusWritesJSON(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: web}}\nspec: {containers: [{name: web, ports: [{containerPort: 5678}]}]}\n"
	injected, _, _ := injector(t, "inject", pod)
	_, service, _ := strings.Cut(numbered, "---\n")
	out, _, code := injector(t, "status", injected+"---\n"+service, "-o", "json")
	harness.Equal(t, code, differs, "exit code")
	harness.Contains(t, out, `"service": "web",
    "wait": true,
    "text": "wait: 0 of 1 pods have the sidecar and are ready"`)
}

func TestStatusOfManifestsPrintsHint(t *testing.T) {
	out, report, _ := injector(t, "status", numbered, "-o", "json")
	harness.Equal(t, out, "[]\n")
	harness.Contains(t, report, "kubectl get pods,services -o json | injector status")
}

func TestStatusWithoutSidecarsPrintsNoHint(t *testing.T) {
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","labels":{"app":"web"}},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}`
	const service = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"selector":{"app":"web"},"ports":[{"port":80}]}}`
	for in, want := range map[string]string{
		`{"apiVersion":"v1","kind":"List","items":[` + pod + "," + service + `]}`: "",
		`{"apiVersion":"v1","kind":"List","items":[]}`:                            "0 objects\n",
		pod: "", service: "", "": "0 objects\n",
	} {
		out, report, code := injector(t, "status", in)
		harness.Equal(t, report, want, in)
		harness.Equal(t, out, "no Service selects a pod with a sidecar\n", in)
		harness.Equal(t, code, differs, in, "exit code")
	}
}

func TestStatusReportsInvalidDocuments(t *testing.T) {
	for _, in := range []string{"\xff\xfea\x00", "kind: Pod\nmetadata:\n\tname: web\n", "kind: Pod\nmetadata: {name: \xff}\n"} {
		_, want, _ := injector(t, "inject", in)
		out, report, code := injector(t, "status", in)
		harness.Equal(t, out, "", in)
		harness.Equal(t, report, want, in)
		harness.Equal(t, strings.Contains(report, "--on-refusal"), false, "status has no flag --on-refusal")
		harness.Equal(t, code, failed, in, "exit code")
	}
}

func TestMissingImageIsTheOnlyMessage(t *testing.T) {
	var report strings.Builder
	code := run([]string{"inject"}, nil, strings.NewReader(goodPod+"\n---\n"+goodPod), io.Discard, &report)
	harness.Equal(t, code, failed, "exit code")
	if strings.Contains(report.String(), "injected") || !strings.Contains(report.String(), "the image is required") {
		t.Errorf("got %q, want only the error for the image", report.String())
	}
}

func TestHelpDoesNotPrintDefaultOfRequiredImage(t *testing.T) {
	for command, want := range map[string]string{"inject": "(required unless --output=diff)", "serve": "(required)"} {
		out, _, _ := injector(t, command, "", "--help")
		harness.Contains(t, out, want)
		if strings.Contains(out, "(default queue-proxy:dev)") {
			t.Errorf("%s: got a default for the image in\n%s", command, out)
		}
	}
}

func TestEmptyInputIsReported(t *testing.T) {
	for _, command := range []string{"inject", "uninject", "explain"} {
		_, report, code := injector(t, command, "# nothing\n")
		harness.Equal(t, report, "0 objects\n", command)
		harness.Equal(t, code, done, command, "exit code")
	}
}

func TestInputFromTerminalIsAnnounced(t *testing.T) {
	for name, want := range map[string]string{"/dev/ptmx": "reading standard input\n", os.DevNull: ""} {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		harness.NoError(t, err)
		defer f.Close()
		var report bytes.Buffer
		c := &command{stdin: f, stderr: &report}
		c.announceTerminal([]string{"-"})
		harness.Equal(t, report.String(), want, name)
	}
}

// The name of the sidecar's port is also the name of a port of the first container. A
// Service would resolve the name to the port of the first container.
func TestSecondStepKeepsContainerOfSharedPortName(t *testing.T) {
	in := read(t, golden+"/shared-port-name/in.yaml")
	first, _, _ := injector(t, "inject", in)
	for _, text := range []string{in, first} {
		if out, report, _ := injector(t, "inject", text, "--step=services"); !strings.Contains(out, "targetPort: 8012") {
			t.Errorf("got\n%s\n%s\nwant the port number of the sidecar in the Service", out, report)
		}
	}
}

// The document is a List, and both steps change it.
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
			t.Fatalf("got\n%s\n%s\nwant a changed Service", second, report)
		}
		back, _, _ := injector(t, "uninject", second)
		harness.Equal(t, back, text, "(the original input)")
	}
}
