//go:build cluster

package cluster

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const sidecarName = "queue-proxy"

// wanted is the label of a namespace or a pod that enables injection. restricted is the label
// of a namespace that enforces the restricted pod security standard.
const (
	wanted     = "queue-proxy.dev/inject=true"
	restricted = "pod-security.kubernetes.io/enforce=restricted"
)

// logged returns annotations that enable the request log of the sidecar, and more annotations
// ("key=value").
func logged(more ...string) map[string]string {
	all := map[string]string{"queue-proxy.dev/settings": "REQUEST_LOG=true\n"}
	for _, m := range more {
		key, value, _ := strings.Cut(m, "=")
		all["queue-proxy.dev/"+key] = value
	}
	return all
}

// An app is a workload with the sample app.
type app struct {
	name        string
	replicas    int
	annotations map[string]string
	port        string   // name of the port; "http" if empty
	args        []string // arguments in addition to -ledger
	probe       string   // YAML of the readiness probe in braces; /ready if empty, no probe if "none"
	more        string   // YAML for the container without braces
	podMore     string   // YAML for the pod spec without braces
}

// template returns the metadata and the spec of the pods in YAML.
func (a app) template() (metadata, spec string) {
	port, probe := a.port, a.probe
	if port == "" {
		port = "http"
	}
	if probe == "" {
		probe = `{httpGet: {path: /ready, port: ` + port + `}, periodSeconds: 1}`
	}
	if probe != "none" {
		probe = ", readinessProbe: " + probe
	} else {
		probe = ""
	}
	var annotations []string
	for _, key := range slices.Sorted(maps.Keys(a.annotations)) {
		annotations = append(annotations, fmt.Sprintf("%q: %q", key, a.annotations[key]))
	}
	args := `"-ledger"`
	for _, arg := range a.args {
		args += fmt.Sprintf(", %q", arg)
	}
	if a.more != "" {
		a.more = ", " + a.more
	}
	if a.podMore != "" {
		a.podMore = ", " + a.podMore
	}
	return fmt.Sprintf(`labels: {app: %s}, annotations: {%s}`, a.name, strings.Join(annotations, ", ")), fmt.Sprintf(`
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}, containers: [{name: app, image: "%s", args: [%s],
  ports: [{name: %s, containerPort: 8080}], resources: {requests: {cpu: 10m, memory: 16Mi}},
  securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}%s%s}]%s`,
		appImage, args, port, probe, a.more, a.podMore)
}

// manifest returns a Deployment and a Service that refers to the port by name.
func (a app) manifest() string {
	port := a.port
	if port == "" {
		port = "http"
	}
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template: %[3]s
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  selector: {app: %[1]s}
  ports: [{name: http, port: 80, targetPort: %[4]s}]
`, a.name, a.replicas, a.podSpec(), port)
}

// podSpec returns the pod template.
func (a app) podSpec() string {
	metadata, spec := a.template()
	return "{metadata: {" + metadata + "}, spec: {" + spec + "}}"
}

// pod returns a Pod without a Deployment.
func (a app) pod() string {
	metadata, spec := a.template()
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + a.name + ", " + metadata + "}\nspec: {" + spec + "}\n"
}

// run applies the app, waits until its Service responds, and returns the address of the
// Service.
func (s *space) run(a app) string {
	s.t.Helper()
	s.apply(a.manifest())
	s.ready("app="+a.name, a.replicas)
	return s.service(a.name)
}

// service waits until a Service responds, and returns its address.
func (s *space) service(name string) string {
	s.t.Helper()
	o, err := s.one("services", name)
	if err != nil {
		s.t.Fatal(err)
	}
	address := o.text("spec", "clusterIP") + ":80"
	eventually(s.t, "service "+s.name+"/"+name+" responds", func() error {
		if status, body := ask("GET", "http://"+address+"/bytes/1"); status != 200 {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	return address
}

// hasSidecar fails the test unless the sidecar of a pod is running.
func (s *space) hasSidecar(pod object) {
	s.t.Helper()
	c := pod.container(sidecarName)
	if c == nil || c.at("state", "running") == nil {
		s.t.Errorf("pod %s: got containers %v, want a running queue-proxy", pod.name(), pod.containers())
	}
}

var webhookOnce struct {
	sync.Once
	err error
}

// webhook installs the injector with the commands of deploy/README.md, once for all tests.
func webhook(t *testing.T) {
	t.Helper()
	webhookOnce.Do(func() {
		if _, err := run(nil, "kubectl", "apply", "-k", overlay(t, "self-managed")); err != nil {
			webhookOnce.err = err
			return
		}
		_, webhookOnce.err = run(nil, "kubectl", "-n", "queue-proxy", "rollout", "status", "deployment/queue-proxy-injector", "--timeout=120s")
	})
	if webhookOnce.err != nil {
		t.Fatal(webhookOnce.err)
	}
	// The API server may receive the CA bundle a short time after the rollout.
	eventually(t, "the CA bundle of the webhook is published", func() error {
		var o object
		if err := it.api.get("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/queue-proxy-injector", &o); err != nil {
			return err
		}
		for _, w := range o.each("webhooks") {
			if w.text("clientConfig", "caBundle") == "" {
				return fmt.Errorf("%s: no CA bundle", w.text("name"))
			}
		}
		return nil
	})
}

// overlay returns a directory of deploy/overlays in a copy of deploy, in which the images are
// set by digest as deploy/README.md describes.
func overlay(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("cp", "-r", "../../deploy", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const zeros = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for name, image := range map[string]string{"queue-proxy-injector": injectorImage, "queue-proxy": sidecarImage} {
		at, digest, _ := strings.Cut(byDigest(t, image), "@")
		edit(t, dir+"/deploy/images/kustomization.yaml", "ghcr.io/queue-proxy/"+name+"\n    digest: "+zeros, at+"\n    digest: "+digest)
	}
	return filepath.Join(dir, "deploy/overlays", name)
}

func edit(t *testing.T, file, old, new string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("%s: %q not found", file, old)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), old, new)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// byDigest returns the name of an image by digest and adds this name to containerd.
func byDigest(t *testing.T, ref string) string {
	t.Helper()
	out, err := run(nil, "ctr", "-n", "k8s.io", "images", "ls", "name=="+ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(out) {
		if strings.HasPrefix(word, "sha256:") {
			full := ref[:strings.LastIndex(ref, ":")] + "@" + word
			if _, err := run(nil, "ctr", "-n", "k8s.io", "images", "tag", "--force", ref, full); err != nil {
				t.Fatal(err)
			}
			return full
		}
	}
	t.Fatalf("image %s: no digest found in\n%s", ref, out)
	return ""
}

// execute runs a command of the sidecar in a pod and returns its exit code and its output.
func (s *space) execute(pod string, args ...string) (int, string) {
	out, code, err := runFor(patience, nil, append([]string{"kubectl", "-n", s.name, "exec", pod, "-c", sidecarName, "--", "/ko-app/queue"}, args...)...)
	if err != nil {
		out += err.Error()
	}
	return code, out
}
