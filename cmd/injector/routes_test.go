package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// decoded is the part of an object in a file that routes reads.
type decoded struct {
	service corev1.Service         // set if the object is a Service
	pod     corev1.PodTemplateSpec // set if the object has a pod template
	isPod   bool
	name    string
}

// objectsOf decodes the Services and workloads of a file.
func objectsOf(t *testing.T, text string) []decoded {
	t.Helper()
	lines, err := manifest.Parse("", []byte(text)).JSON()
	if err != nil {
		return nil
	}
	var all []decoded
	d := json.NewDecoder(bytes.NewReader(lines))
	var visit func(raw json.RawMessage)
	visit = func(raw json.RawMessage) {
		object, err := inject.Decode(raw)
		harness.NoError(t, err)
		var head struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
			Items    []json.RawMessage
		}
		_ = json.Unmarshal(raw, &head)
		for _, item := range head.Items {
			visit(item)
		}
		one := decoded{name: head.Kind + " " + head.Metadata.Name}
		path, ok := inject.Template(object)
		switch {
		case head.Kind == "Service":
			_ = json.Unmarshal(raw, &one.service)
		case ok:
			one.isPod = true
			for _, key := range path {
				m, _ := object.(map[string]any)
				object = m[key]
			}
			template, err := json.Marshal(object)
			harness.NoError(t, err)
			_ = json.Unmarshal(template, &one.pod)
			one.pod.Namespace = head.Metadata.Namespace
		}
		all = append(all, one)
	}
	for {
		var raw json.RawMessage
		if err := d.Decode(&raw); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, lines)
		}
		visit(raw)
	}
}

// routes returns, for each TCP port of each Service, the container that it reaches directly or
// through the container's sidecar. If no container declares the port, the value is "undeclared"
// and the number. Unknown names are omitted.
func routes(t *testing.T, text string) map[string]string {
	t.Helper()
	all := map[string]string{}
	objects := objectsOf(t, text)
	for _, s := range objects {
		for i, p := range s.service.Spec.Ports {
			for _, w := range objects {
				selector := s.service.Spec.Selector
				if !w.isPod || len(selector) == 0 || p.Protocol != "" && p.Protocol != corev1.ProtocolTCP || !labels.SelectorFromSet(selector).Matches(labels.Set(w.pod.Labels)) {
					continue
				}
				target := p.TargetPort
				if target == (intstr.IntOrString{}) {
					target = intstr.FromInt32(p.Port)
				}
				if to := reached(w.pod.Spec, target); to != "" {
					all[fmt.Sprintf("%s port %d to %s", s.name, i, w.name)] = to
				}
			}
		}
	}
	return all
}

// reached returns the container of a targetPort. As in Kubernetes, a name is resolved to the first
// container with the name.
func reached(pod corev1.PodSpec, target intstr.IntOrString) string {
	containers := pod.Containers
	for _, c := range pod.InitContainers {
		if c.RestartPolicy != nil {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, p := range c.Ports {
			isTCP := p.Protocol == "" || p.Protocol == corev1.ProtocolTCP
			if !isTCP || target.Type == intstr.String && p.Name != target.StrVal || target.Type == intstr.Int && p.ContainerPort != target.IntVal {
				continue
			}
			if c.Name != "queue-proxy" {
				return c.Name
			}
			user, serving := "8080", "8012"
			for _, v := range c.Env {
				switch v.Name {
				case "USER_PORT":
					user = v.Value
				case "QUEUE_SERVING_PORT":
					serving = v.Value
				}
			}
			if fmt.Sprint(p.ContainerPort) != serving {
				return c.Name + " " + p.Name
			}
			return reached(corev1.PodSpec{Containers: pod.Containers}, intstr.Parse(user))
		}
	}
	if target.Type == intstr.String {
		return ""
	}
	return "undeclared " + target.String()
}

// wantStable injects a file twice in each step and restores it. It reports an error if the second
// injection changes the file, if a port of a Service reaches a different container than before,
// or if a byte is not restored.
func wantStable(t *testing.T, name, text string, args ...string) (changed bool) {
	t.Helper()
	first, report, code := injector(t, "inject", text, append([]string{"--on-refusal=skip"}, args...)...)
	if code == failed {
		return false
	}
	direct, _, _ := injector(t, "inject", text, append([]string{"--on-refusal=skip", "--step=services"}, args...)...)
	if first == text && direct == text {
		return false
	}
	second, _, _ := injector(t, "inject", first, append([]string{"--on-refusal=skip", "--step=services"}, args...)...)
	before := routes(t, text)
	for step, out := range map[string]string{"workloads": first, "services after workloads": second, "services": direct} {
		step := []string{"--step=" + strings.Fields(step)[0]}
		if again, _, _ := injector(t, "inject", out, append(append(step, "--on-refusal=skip"), args...)...); again != out {
			t.Errorf("%s: %v: the second injection changes the file:\n%s\n%s", name, step, report, unified(name, []byte(out), []byte(again)))
		}
		after := routes(t, out)
		for port, container := range before {
			// Before the injection, a Service can use the default ports of the sidecar.
			if got := after[port]; got != container && container != "undeclared 8012" && container != "undeclared 8112" {
				t.Errorf("%s: %v: %s: got container %q after the injection, want %q", name, step, port, got, container)
			}
		}
		if back, _, _ := injector(t, "uninject", out, "--on-refusal=skip"); out != text && back != text {
			t.Errorf("%s: %v: uninject does not restore the file:\n%s", name, step, unified(name, []byte(text), []byte(back)))
		}
	}
	return first != text
}

func TestInjectionIsStableForCorpusAndPairs(t *testing.T) {
	changed := 0
	for _, s := range shapes(t) {
		if wantStable(t, s.file, s.text) {
			changed++
		}
	}
	for _, p := range pairs(t) {
		if filepath.Ext(p.in) == ".yaml" && wantStable(t, p.name, p.given, p.args...) {
			changed++
		}
	}
	if want := 80; changed < want {
		t.Errorf("got %d changed files, want at least %d", changed, want)
	}
}

// randomFile returns a manifest with a workload and Services whose ports often share names and numbers.
func randomFile(seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 2))
	one := func(all ...string) string { return all[r.IntN(len(all))] }
	number := func() string { return one("80", "8080", "8081", "8012", "9090", "9091", "18012", "7000", "8443") }
	name := func() string {
		return one("http", "http", "grpc", "web", "api", "metrics", "user-port", "queue-port", "http-usermetric", "https")
	}
	var b strings.Builder
	b.WriteString("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  template:\n    metadata:\n      labels: {app: web}\n")
	if r.IntN(3) == 0 {
		b.WriteString("      annotations: {queue-proxy.dev/" + one("container: c0", "container: c1", "port: '8080'", "mode: native", "sure: high") + "}\n")
	}
	b.WriteString("    spec:\n      containers:\n")
	for c := range 1 + r.IntN(3) {
		fmt.Fprintf(&b, "      - name: %s%d\n        image: %s\n", one("c", "c", "auth-"), c, one("web", "web", "redis", "shop/shop-operator"))
		names := map[string]bool{}
		for i := range r.IntN(4) {
			if i == 0 {
				b.WriteString("        ports:\n")
			}
			fmt.Fprintf(&b, "        - containerPort: %d\n", 7000+100*c+i+r.IntN(2)*1080)
			if n := name(); r.IntN(4) > 0 && !names[n] {
				names[n] = true
				fmt.Fprintf(&b, "          name: %s\n", n)
			}
			if r.IntN(8) == 0 {
				b.WriteString("          protocol: UDP\n")
			}
		}
		if r.IntN(2) == 0 {
			fmt.Fprintf(&b, "        readinessProbe: {httpGet: {path: %s, port: %s}}\n", one("/", "/healthz"), number())
		}
	}
	for i := range r.IntN(3) {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec:\n  selector: {app: web}\n  ports:\n", i)
		for range 1 + r.IntN(3) {
			target := one(name(), number(), fmt.Sprint(7000+r.IntN(3)*100), "8080")
			fmt.Fprintf(&b, "  - {port: %s, targetPort: %s, protocol: %s}\n", number(), target, one("TCP", "TCP", "TCP", "UDP"))
		}
	}
	return strings.TrimSuffix(b.String(), one("", "\n"))
}

func TestInjectionIsStableForRandomFiles(t *testing.T) {
	const files = 300
	changed := 0
	for seed := range uint64(files) {
		text := randomFile(seed)
		if wantStable(t, fmt.Sprint("seed ", seed), text) {
			changed++
		}
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, text)
		}
	}
	if want := files / 4; changed < want {
		t.Errorf("got %d changed files, want at least %d", changed, want)
	}
}

func FuzzStable(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { wantStable(t, fmt.Sprint("seed ", seed), randomFile(seed)) })
}
