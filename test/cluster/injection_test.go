//go:build cluster

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// These tests change the whole cluster, so they do not run in parallel. They run before the
// parallel tests.

// injector runs the injector command with a manifest as its input.
func injector(t *testing.T, manifest string, args ...string) string {
	t.Helper()
	out, err := run([]byte(manifest), append([]string{"../../bin/injector"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReadmeCommandsInjectAndUninject(t *testing.T) {
	s := newSpace(t, "readme", restricted)
	file := t.TempDir() + "/app.yaml"
	if err := os.WriteFile(file, []byte(app{name: "shop", replicas: 2}.manifest()), 0o644); err != nil {
		t.Fatal(err)
	}
	// The clients start after the injection, because rollouts without a sidecar lose
	// requests.
	s.kubectl("apply", "-f", file)
	s.ready("app=shop", 2)
	shell := func(line string) string {
		t.Helper()
		line = strings.NewReplacer("bin/injector", "../../bin/injector", "deploy/example/before.yaml", file, "app.yaml", file, "kubectl", "kubectl -n "+s.name).Replace(line)
		c := exec.Command("bash", "-o", "pipefail", "-c", line)
		var output bytes.Buffer
		c.Stderr = &output
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", line, err, output.String())
		}
		return string(out)
	}
	readme := commands(t, "../../README.md", "bin/injector explain", "bin/injector inject", "kubectl exec")
	if output := shell(readme[0]); !strings.Contains(output, "queue-proxy") {
		t.Errorf("%s: got %q, want a list of changes", readme[0], output)
	}
	shell(strings.Replace(readme[1], "inject -f", "inject --settings REQUEST_LOG=true -f", 1))
	s.awaitRollout("shop")
	pod := s.ready("app=shop", 2)[0]
	s.hasSidecar(pod)
	if output := shell(strings.Replace(readme[2], "POD", pod.name(), 1)); !strings.Contains(output, "ready") {
		t.Errorf("%s: got %q, want ready", readme[2], output)
	}

	c := newClients(s, s.service("shop"))
	c.addClient("kept", false, nil)
	c.addClient("fresh", true, nil)
	time.Sleep(time.Second)
	s.kubectl("rollout", "restart", "deployment/shop")
	s.awaitRollout("shop")
	time.Sleep(time.Second)
	c.allServed("rollout of a Deployment injected by the command")

	shell(readme[1][:strings.Index(readme[1], "|")] + "| bin/injector uninject -f - | kubectl apply -f -")
	s.awaitRollout("shop")
	for _, p := range s.ready("app=shop", 2) {
		if p.spec(sidecarName) != nil {
			t.Errorf("%s contains a sidecar after uninject", p.name())
		}
	}
}

// If a Service with a numeric target port switches to the sidecar immediately, it loses the
// pods without a sidecar. With the two steps in the README, no request is lost during the rollout
// or the change to the Service. The application waits before it exits, so that its pods without a
// sidecar lose no requests either.
func TestREADMEStepsLoseNoRequests(t *testing.T) {
	s := newSpace(t, "steps", restricted)
	original := strings.NewReplacer("name: http, containerPort", "containerPort", "port: http}", "port: 8080}", "targetPort: http", "targetPort: 8080").Replace(
		app{name: "shop", replicas: 2, more: `lifecycle: {preStop: {sleep: {seconds: 5}}}`}.manifest())
	s.apply(original)
	s.ready("app=shop", 2)
	// These clients count their requests. The log of the sidecar is not sufficient, because
	// requests can bypass the sidecar.
	address := s.service("shop")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group sync.WaitGroup
	var served atomic.Int64
	failed := make(chan string, 100)
	for range 3 {
		group.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				if status, body := ask("GET", "http://"+address+"/slow?ms=30"); status == http.StatusOK {
					served.Add(1)
				} else if len(failed) < cap(failed) {
					failed <- fmt.Sprintf("%s: %d %s", time.Now().Format(time.TimeOnly), status, body)
				}
			}
		})
	}

	guide := commands(t, "../../docs/injection.md", "kubectl get pods,services", "bin/injector inject --step=services")
	first := injector(t, original, "inject", "--image="+sidecarImage)
	s.apply(first)
	s.awaitRollout("shop")
	if output, err := run([]byte(s.kubectl("get", "pods,services", "-o", "json")), "../../bin/injector", "status"); err != nil {
		t.Errorf("%s: got %q and %v, want exit code 0 of injector status before the second step", guide[0], output, err)
	}
	second := injector(t, original, "inject", "--step=services", "--image="+sidecarImage)
	if !strings.Contains(first, "targetPort: 8080") || !strings.Contains(second, "targetPort: 8012") {
		t.Errorf("%s: got\n%s\nand\n%s\nwant the Service to send requests to the sidecar only after the second step", guide[1], first, second)
	}
	s.apply(second)
	time.Sleep(3 * time.Second)
	for _, pod := range s.ready("app=shop", 2) {
		s.hasSidecar(pod)
	}
	stop()
	group.Wait()
	close(failed)
	for output := range failed {
		t.Error(output)
	}
	t.Logf("served %d requests in two steps", served.Load())
	if served.Load() < 100 {
		t.Errorf("served %d requests, want at least 100", served.Load())
	}
}

// commands returns the first line of a document with each prefix, without comments.
func commands(t *testing.T, file string, beginnings ...string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
next:
	for _, b := range beginnings {
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, b) {
				line, _, _ = strings.Cut(line, "  #")
				found = append(found, strings.TrimSpace(line))
				continue next
			}
		}
		t.Fatalf("%s: no command with prefix %q found", file, b)
	}
	return found
}

// awaitRollout waits until the rollout is complete and all old pods are deleted.
func (s *space) awaitRollout(deployment string) {
	s.t.Helper()
	s.kubectl("rollout", "status", "deployment/"+deployment, "--timeout=120s")
	eventually(s.t, "the old pods of "+deployment+" are deleted", func() error {
		all, err := it.api.list("/api/v1/namespaces/" + s.name + "/pods?labelSelector=app%3D" + deployment)
		for _, p := range all {
			if p.ending() {
				return fmt.Errorf("%s is terminating", p.name())
			}
		}
		return err
	})
}

func TestExampleManifestsAreValid(t *testing.T) {
	for _, file := range []string{"before.yaml", "after.yaml"} {
		kubectl(t, "apply", "--dry-run=server", "--validate=strict", "-f", "../../deploy/example/"+file)
	}
}

func TestAdmissionPolicyInjectsOneSidecar(t *testing.T) {
	policy := injector(t, "", "policy", "--image="+sidecarImage, "--concurrency=4")
	apply(t, policy)
	t.Cleanup(func() { _, _ = run([]byte(policy), "kubectl", "delete", "--wait", "-f", "-") })
	for _, stage := range []string{"alone", "beside"} {
		if stage == "beside" {
			webhook(t)
		}
		s := newSpace(t, "policy-"+stage, restricted, wanted)
		// The policy takes effect after a short time. The pod has no annotations, because the policy
		// excludes pods with annotations.
		eventually(t, "the policy takes effect", func() error {
			out, err := run([]byte(app{name: "try"}.pod()), "kubectl", "-n", s.name, "apply", "--dry-run=server", "-o", "json", "-f", "-")
			if err == nil && !strings.Contains(out, sidecarName) {
				err = fmt.Errorf("found a pod without a sidecar")
			}
			return err
		})
		a := app{name: "web", replicas: 1}
		address := s.run(a)
		pod := s.ready("app=web", 1)[0]
		s.hasSidecar(pod)
		n := 0
		for _, c := range append(pod.each("spec", "containers"), pod.each("spec", "initContainers")...) {
			if c.text("name") == sidecarName {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s: got %d sidecars, want 1", stage, n)
		}
		if status, _ := ask("GET", "http://"+address+"/echo"); status != 200 {
			t.Errorf("%s: got status %d, want 200", stage, status)
		}
	}
}

func TestWebhookInjectsIntoRestrictedNamespace(t *testing.T) {
	webhook(t)
	s := newSpace(t, "shop", restricted)
	s.apply(app{name: "web", replicas: 2, annotations: logged()}.manifest())
	s.ready("app=web", 2)
	// The commands are the same as in deploy/README.md.
	for _, line := range commands(t, "../../deploy/README.md", "kubectl label namespace shop queue-proxy.dev/inject=true", "kubectl rollout restart deployment -n shop") {
		kubectl(t, strings.Fields(line)[1:]...)
	}
	s.awaitRollout("web")
	for _, p := range s.ready("app=web", 2) {
		s.hasSidecar(p)
		if image := p.spec(sidecarName).text("image"); !strings.Contains(image, "@sha256:") {
			t.Errorf("got image %s, want a digest", image)
		}
	}
	kubectl(t, "label", "namespace", "shop", "queue-proxy.dev/inject-")
	s.kubectl("rollout", "restart", "deployment/web")
	s.awaitRollout("web")
	for _, p := range s.ready("app=web", 2) {
		if p.spec(sidecarName) != nil {
			t.Errorf("%s contains a sidecar, but the namespace has no label", p.name())
		}
	}
}

// dryRuns creates pods with dryRun=All in a namespace until stop is called.
type dryRuns struct {
	pod     []byte // JSON of the pod
	url     string
	created int
	images  map[string]int // number of pods by image of the sidecar; the key is empty for pods without a sidecar
	refused []string       // errors and responses other than 201
}

func newDryRuns(t *testing.T, s *space) *dryRuns {
	t.Helper()
	pod, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "try"},
		"spec": map[string]any{
			"securityContext": map[string]any{"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": map[string]any{"type": "RuntimeDefault"}},
			"containers": []any{map[string]any{"name": "app", "image": appImage, "ports": []any{map[string]any{"containerPort": 8080}},
				"securityContext": map[string]any{"allowPrivilegeEscalation": false, "capabilities": map[string]any{"drop": []string{"ALL"}}}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &dryRuns{pod: pod, url: apiServer + "/api/v1/namespaces/" + s.name + "/pods?dryRun=All", images: map[string]int{}}
}

// create creates one pod.
func (d *dryRuns) create() {
	r, err := it.api.client.Post(d.url, "application/json", bytes.NewReader(d.pod))
	if err != nil {
		d.refused = append(d.refused, err.Error())
		return
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(r.Body)
	var pod object
	if err := json.Unmarshal(body, &pod); err != nil || r.StatusCode != http.StatusCreated {
		d.refused = append(d.refused, string(body))
		return
	}
	d.created++
	d.images[pod.spec(sidecarName).text("image")]++
}

// start creates pods at an interval of 50 ms. The returned function stops it.
func (d *dryRuns) start() (stop func()) {
	end := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(50 * time.Millisecond):
				d.create()
			}
		}
	})
	return func() {
		close(end)
		group.Wait()
	}
}

func TestOverlayHAInjectsDuringInjectorRollOut(t *testing.T) {
	webhook(t)
	kubectl(t, "apply", "-k", overlay(t, "ha"))
	kubectl(t, "-n", "queue-proxy", "rollout", "status", "deployment/queue-proxy-injector", "--timeout=120s")
	pods := newDryRuns(t, newSpace(t, "ha", restricted, wanted))
	stop := pods.start()
	kubectl(t, "-n", "queue-proxy", "rollout", "restart", "deployment/queue-proxy-injector")
	kubectl(t, "-n", "queue-proxy", "rollout", "status", "deployment/queue-proxy-injector", "--timeout=120s")
	(&space{t: t, name: "queue-proxy"}).awaitRollout("queue-proxy-injector")
	stop()
	t.Logf("created %d pods during the rollout of the injector, refused %d", pods.created, len(pods.refused))
	if pods.created == 0 || pods.images[""] > 0 || len(pods.refused) > 0 {
		t.Errorf("got images %v and refusals %v, want pods with a sidecar and no refusals", pods.images, pods.refused)
	}
}

func TestInjectorUpgradeChangesImageOfNewPods(t *testing.T) {
	webhook(t)
	s := newSpace(t, "upgrade", restricted, wanted)
	pods := newDryRuns(t, s)
	stop := pods.start()
	const newImage = "registry.example/queue-proxy:2"
	t.Cleanup(func() {
		kubectl(t, "apply", "-k", overlay(t, "self-managed"))
		(&space{t: t, name: "queue-proxy"}).awaitRollout("queue-proxy-injector")
	})
	kubectl(t, "-n", "queue-proxy", "set", "env", "deployment/queue-proxy-injector", "INJECTOR_IMAGE="+newImage)
	for _, line := range commands(t, "../../deploy/README.md", "kubectl rollout status -n queue-proxy deployment/queue-proxy-injector", "kubectl get pods -n queue-proxy -l") {
		if out, err := exec.Command("bash", "-c", line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	stop()
	if pods.created == 0 || pods.images[""] > 0 || len(pods.refused) > 0 {
		t.Errorf("during the upgrade: got images %v and refusals %v, want pods with a sidecar and no refusals", pods.images, pods.refused)
	}
	after := newDryRuns(t, s)
	for range 100 {
		after.create()
	}
	if after.images[newImage] != 100 {
		t.Errorf("after the wait: got images %v and refusals %v, want 100 pods with %s", after.images, after.refused, newImage)
	}
}

func TestNodeRestartLosesNoRequest(t *testing.T) {
	webhook(t)
	s := newSpace(t, "restart", restricted, wanted)
	address := s.run(app{name: "web", replicas: 2, annotations: logged()})
	c := newClients(s, address)
	c.addClient("kept", false, nil)
	c.addClient("post", true, func(v *ledger.Client) { v.Requests = []ledger.Request{ledger.Post("/sink", 1000)} })
	time.Sleep(2 * time.Second)
	if err := it.restartNode(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all sidecars have restarted", func() error {
		pods, err := s.pods("app=web")
		for _, p := range pods {
			if n := p.container(sidecarName).number("restartCount"); n == 0 {
				return fmt.Errorf("%s was not restarted", p.name())
			}
		}
		return err
	})
	for _, p := range s.ready("app=web", 2) {
		s.hasSidecar(p)
	}
	eventually(t, "the Service responds again", func() error {
		if status, body := ask("GET", "http://"+address+"/bytes/1"); status != 200 {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	time.Sleep(2 * time.Second)
	row := c.reconcile("node is killed and restarted", ledger.Exceptions{Log: true, End: true})
	if row.count[ledger.FromApp] == 0 || row.count[ledger.Broken] == 0 {
		t.Errorf("got %v, want responses from the app, and broken requests because of the restart", row.count)
	}
}
