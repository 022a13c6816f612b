//go:build cluster

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// modes lists the two ways to add the sidecar to a pod.
var modes = []string{"sidecar", "native"}

func TestRollOutLosesNoRequest(t *testing.T) {
	webhook(t)
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t, "roll-"+mode, restricted, wanted)
			c := newClients(s, s.run(app{name: "web", replicas: 2, annotations: logged("mode=" + mode)}))
			c.addClients()
			for range 2 {
				time.Sleep(2 * time.Second)
				s.kubectl("rollout", "restart", "deployment/web")
				s.awaitRollout("web")
			}
			time.Sleep(time.Second)
			c.allServed("two rollouts, " + mode)
		})
	}
}

func TestDeletedOrEvictedPodCompletesRequests(t *testing.T) {
	webhook(t)
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t, "delete-"+mode, restricted, wanted)
			c := newClients(s, s.run(app{name: "web", replicas: 2, annotations: logged("mode=" + mode)}))
			c.addClients()
			for _, how := range []string{"delete", "evict"} {
				pod := s.ready("app=web", 2)[0]
				long := make(chan string, 1)
				go func() {
					status, body := ask("GET", "http://"+pod.text("status", "podIP")+":8012/slow?ms=12000")
					long <- fmt.Sprintf("%d %s", status, body)
				}()
				time.Sleep(time.Second) // wait until the pod has accepted the request
				if how == "delete" {
					s.kubectl("delete", "pod", pod.name(), "--wait=false")
				} else {
					s.evict(pod.name())
				}
				if got := <-long; got != "200 slow\n" {
					t.Errorf("%s: got %q for the request of 12 s, want a complete response", how, got)
				}
				s.awaitDeleted(pod.name())
			}
			s.ready("app=web", 2)
			c.allServed("one pod is deleted, another is evicted, " + mode)
		})
	}
}

// evict evicts a pod like `kubectl drain`.
func (s *space) evict(pod string) {
	s.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, s.name)
	r, err := it.api.client.Post(apiServer+"/api/v1/namespaces/"+s.name+"/pods/"+pod+"/eviction", "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusCreated {
		s.t.Fatalf("eviction of %s: got %s, want 201", pod, r.Status)
	}
}

// awaitDeleted waits until a pod no longer exists.
func (s *space) awaitDeleted(pod string) {
	s.t.Helper()
	eventually(s.t, "pod "+pod+" is deleted", func() error {
		o, err := s.one("pods", pod)
		switch {
		case errors.Is(err, errNotFound):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("got phase %s", o.text("status", "phase"))
	})
}

func TestPreStopHookKeepsAppDuringDrain(t *testing.T) {
	t.Parallel()
	webhook(t)
	for _, mode := range modes {
		s := newSpace(t, "prestop-"+mode, restricted, wanted)
		a := app{name: "web", annotations: logged("mode="+mode, "drain-quiet-period=4s")}
		s.apply(a.pod())
		pod := s.ready("app=web", 1)[0]
		address := "http://" + pod.text("status", "podIP") + ":8012/echo"
		s.kubectl("delete", "pod", "web", "--wait=false")
		deleted := time.Now()
		// One request per second keeps the drain active, and the application must respond to
		// all requests.
		for time.Since(deleted) < 8*time.Second {
			if status, body := ask("GET", address); status != 200 {
				t.Errorf("%s, %v after the deletion: got %d %q, want 200", mode, time.Since(deleted), status, body)
				break
			}
			time.Sleep(time.Second)
		}
		last := s.lastSeen("web")
		app, sidecar := last.container("app").at("state", "terminated"), last.container(sidecarName).at("state", "terminated")
		a1, ok1 := app.(map[string]any)
		a2, ok2 := sidecar.(map[string]any)
		if !ok1 || !ok2 {
			t.Fatalf("%s: got states %v and %v, want two terminated containers", mode, app, sidecar)
		}
		if code := object(a1).number("exitCode"); code != 0 {
			t.Errorf("%s: app: got exit code %d, want 0", mode, code)
		}
		if code := object(a2).number("exitCode"); code != 0 {
			t.Errorf("%s: sidecar: got exit code %d, want 0", mode, code)
		}
		if mode == "native" && object(a2).text("finishedAt") < object(a1).text("finishedAt") {
			t.Errorf("native: the sidecar terminated at %s, want after the app at %s", object(a2).text("finishedAt"), object(a1).text("finishedAt"))
		}
	}
}

// lastSeen waits until a pod is deleted and returns its last state.
func (s *space) lastSeen(pod string) (last object) {
	s.t.Helper()
	eventually(s.t, "pod "+pod+" is deleted", func() error {
		o, err := s.one("pods", pod)
		if errors.Is(err, errNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		last = o
		return fmt.Errorf("got phase %s", o.text("status", "phase"))
	})
	return last
}

func TestKubeletProbesSucceedWithSidecar(t *testing.T) {
	webhook(t)
	for kind, probe := range map[string]string{
		"http": "httpGet: {path: /ready, port: http}",
		"tcp":  "tcpSocket: {port: http}",
		"grpc": "grpc: {port: 8080}",
		"exec": `exec: {command: ["/app", "-h"]}`,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t, "probes-"+kind, restricted, wanted)
			a := app{name: "web", annotations: logged(), probe: "{" + probe + ", periodSeconds: 1}",
				more: "startupProbe: {" + probe + ", periodSeconds: 1, failureThreshold: 30}, livenessProbe: {" + probe + ", periodSeconds: 1, failureThreshold: 5}"}
			s.apply(a.pod())
			pod := s.ready("app=web", 1)[0]
			s.hasSidecar(pod)
			app := pod.spec("app")
			if moved := app.at("readinessProbe") == nil; moved != (kind != "exec") {
				t.Errorf("got readiness probe %v of the app, want only exec probes, because the sidecar runs the other probes", app.at("readinessProbe"))
			}
			for _, stays := range []string{"startupProbe", "livenessProbe"} {
				if app.at(stays) == nil {
					t.Errorf("the app has no %s, want the original probe", stays)
				}
			}
			time.Sleep(8 * time.Second) // wait longer than the time after which the liveness probe restarts the container
			pod = s.ready("app=web", 1)[0]
			for _, c := range pod.containers() {
				if n := c.number("restartCount"); n != 0 {
					t.Errorf("got %d restarts of %s, want 0", n, c.text("name"))
				}
			}
			if kind == "http" || kind == "grpc" {
				s.checkReadinessChanges(pod)
			}
		})
	}
}

// checkReadinessChanges fails the test unless the readiness of a pod and the output of
// `queue-proxy why` match the state of the application. The liveness probe uses the same path,
// so the test must make the application ready again before the liveness probe fails too often.
func (s *space) checkReadinessChanges(pod object) {
	s.t.Helper()
	// Send the request directly to the application, because a Service sends no requests to a
	// pod that is not ready.
	app := "http://" + pod.text("status", "podIP") + ":8080/ready?status="
	isReady := func() bool {
		o, err := s.one("pods", pod.name())
		return err == nil && o.condition("Ready")
	}
	if code, output := s.execute(pod.name(), "why"); code != 0 {
		s.t.Errorf("why of a ready pod: got exit code %d and %q, want 0", code, output)
	}
	ask("POST", app+"503")
	if code, output := s.execute(pod.name(), "why"); code != 1 || !strings.Contains(output, "not ready") {
		s.t.Errorf("why of a pod that is not ready: got exit code %d and %q, want 1", code, output)
	}
	within(s.t, patience, "the pod becomes unready", func() error {
		if isReady() {
			return fmt.Errorf("the pod is ready")
		}
		return nil
	})
	ask("POST", app+"200")
	within(s.t, patience, "the pod is ready again", func() error {
		if !isReady() {
			return fmt.Errorf("the pod is not ready")
		}
		return nil
	})
	eventually(s.t, "why reports a ready pod", func() error {
		if code, output := s.execute(pod.name(), "why"); code != 0 {
			return fmt.Errorf("%d %s", code, output)
		}
		return nil
	})
}

func TestConcurrencyAndQueueDepthApplyToEachPod(t *testing.T) {
	t.Parallel()
	webhook(t)
	for _, mode := range modes {
		s := newSpace(t, "limit-"+mode, restricted, wanted)
		s.run(app{name: "web", replicas: 2, annotations: logged("mode="+mode, "concurrency=2", "queue-depth=3")})
		for _, pod := range s.ready("app=web", 2) {
			ip := pod.text("status", "podIP")
			ask("DELETE", "http://"+ip+":8080/max")
			got := atOnce(t, 9, "http://"+ip+":8012/slow?ms=1500")
			if got[200] != 5 || got[503] != 4 {
				t.Errorf("%s: got %v for 9 concurrent requests, want 5 x 200 and 4 x 503", mode, got)
			}
			_, text := ask("GET", "http://"+ip+":8080/max")
			var ledger struct{ Max int }
			if err := json.Unmarshal([]byte(text), &ledger); err != nil || ledger.Max != 2 {
				t.Errorf("%s: got request counts %s in the app, want at most 2 concurrent requests", mode, text)
			}
		}
	}
}

func TestKilledContainerLosesNoRequest(t *testing.T) {
	webhook(t)
	for _, victim := range []string{"app", sidecarName} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t, "kill-"+victim, restricted, wanted)
			address := s.run(app{name: "web", replicas: 2, annotations: logged()})
			c := newClients(s, address)
			c.addClient("kept", false, nil)
			c.addClient("fresh", true, nil)
			c.addClient("grpc", false, speakGRPC)
			for range 2 {
				time.Sleep(time.Second)
				pod := s.ready("app=web", 2)[0]
				before := pod.container(victim).number("restartCount")
				s.kill(pod, victim)
				eventually(t, victim+" has restarted", func() error {
					o, err := s.one("pods", pod.name())
					if err != nil {
						return err
					}
					if n := o.container(victim).number("restartCount"); n <= before {
						return fmt.Errorf("got restart count %d", n)
					}
					return nil
				})
				s.ready("app=web", 2)
			}
			time.Sleep(time.Second)
			name := map[string]string{"app": "SIGKILL of the application, twice", sidecarName: "SIGKILL of the sidecar, twice"}[victim]
			row := c.reconcile(name, ledger.Exceptions{Log: victim == sidecarName, End: victim == sidecarName})
			if row.count[ledger.FromApp] == 0 {
				t.Error("got no responses from the app")
			}
		})
	}
}

// kill sends SIGKILL to the first process of a container.
func (s *space) kill(pod object, container string) {
	s.t.Helper()
	id := strings.TrimPrefix(pod.container(container).text("containerID"), "containerd://")
	out, err := exec.Command("ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id).CombinedOutput()
	if err != nil {
		s.t.Fatalf("kill %s of %s: %v: %s", container, pod.name(), err, out)
	}
}

func TestMemoryLimitOfSidecarLosesNoRequests(t *testing.T) {
	t.Parallel()
	webhook(t)
	s := newSpace(t, "oom", restricted, wanted)
	annotations := logged("memory-limit=64Mi", "memory-request=32Mi")
	annotations["queue-proxy.dev/settings"] = "REQUEST_LOG=true\nMAX_HEADER_BYTES=1048576\n"
	address := s.run(app{name: "web", replicas: 2, annotations: annotations})
	c := newClients(s, address)
	c.addClient("kept", false, nil)
	c.addClient("fresh", true, nil)
	time.Sleep(time.Second)
	pod := s.ready("app=web", 2)[0]
	flood(t, pod.text("status", "podIP")+":8012", func() bool {
		o, err := s.one("pods", pod.name())
		if err != nil {
			t.Fatal(err)
		}
		c := o.container(sidecarName)
		return c.text("lastState", "terminated", "reason") == "OOMKilled" || c.text("state", "terminated", "reason") == "OOMKilled"
	})
	s.ready("app=web", 2)
	time.Sleep(2 * time.Second)
	c.reconcile("sidecar is killed for lack of memory", ledger.Exceptions{Log: true, End: true})
}

func TestJobWithNativeSidecarCompletes(t *testing.T) {
	t.Parallel()
	webhook(t)
	s := newSpace(t, "job", restricted, wanted)
	pod := app{name: "once", annotations: logged("mode=native"), args: []string{"-h"}, podMore: "restartPolicy: Never", probe: "none"}
	s.apply("apiVersion: batch/v1\nkind: Job\nmetadata: {name: once}\nspec:\n  backoffLimit: 0\n  template: " + pod.podSpec() + "\n")
	eventually(t, "the job is complete", func() error {
		o, err := s.one("batch/v1/jobs", "once")
		if err != nil {
			return err
		}
		if !o.condition("Complete") {
			return fmt.Errorf("got status %v", o.at("status"))
		}
		return nil
	})
	pods, err := s.pods("job-name=once")
	if err != nil || len(pods) != 1 || pods[0].spec(sidecarName) == nil {
		t.Fatalf("got pods %v, %v, want one pod with a sidecar", pods, err)
	}
	if code := object(pods[0].container(sidecarName).at("state", "terminated").(map[string]any)).number("exitCode"); code != 0 {
		t.Errorf("sidecar: got exit code %d, want 0", code)
	}
}

func TestQuotaAndLimitRangeAdmitPodWithSidecar(t *testing.T) {
	t.Parallel()
	webhook(t)
	s := newSpace(t, "quota", restricted, wanted)
	s.apply(`apiVersion: v1
kind: ResourceQuota
metadata: {name: quota}
spec: {hard: {requests.cpu: 500m, requests.memory: 512Mi, limits.cpu: "2", limits.memory: 1Gi, pods: "4"}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: limits}
spec:
  limits:
  - type: Container
    default: {cpu: 400m, memory: 128Mi}
    defaultRequest: {cpu: 50m, memory: 64Mi}
    max: {cpu: "1", memory: 256Mi}
`)
	address := s.run(app{name: "web", replicas: 2, annotations: logged()})
	for _, pod := range s.ready("app=web", 2) {
		s.hasSidecar(pod)
		if got := pod.spec(sidecarName).text("resources", "limits", "memory"); got != "128Mi" {
			t.Errorf("got sidecar memory limit %q, want 128Mi from the LimitRange", got)
		}
		if got := pod.spec(sidecarName).text("resources", "requests", "memory"); got != "32Mi" {
			t.Errorf("got sidecar memory request %q, want 32Mi from the injector", got)
		}
	}
	if status, body := ask("GET", "http://"+address+"/echo"); status != 200 {
		t.Errorf("got %d %q, want 200", status, body)
	}
}

// injectedWithPair returns the injected app and its Service for HTTPS. The certificate of the
// sidecar is in the Secret pair.
func injectedWithPair(t *testing.T) (objects []string) {
	t.Helper()
	// The injector has no option for volumes, so the volume is added to its output.
	made := injector(t, app{name: "web", replicas: 2, annotations: logged()}.manifest(), "inject", "-f", "-", "--image="+sidecarImage, "-o", "json")
	for d := json.NewDecoder(strings.NewReader(made)); d.More(); {
		var o object
		if err := d.Decode(&o); err != nil {
			t.Fatal(err)
		}
		if o.text("kind") == "Deployment" {
			spec := o.at("spec", "template", "spec").(map[string]any)
			spec["volumes"] = []any{map[string]any{"name": "pair", "secret": map[string]any{"secretName": "pair"}}}
			for _, c := range object(spec).each("containers") {
				if c.text("name") == sidecarName {
					c["volumeMounts"] = []any{map[string]any{"name": "pair", "mountPath": "/var/lib/knative/certs", "readOnly": true}}
				}
			}
		} else {
			spec := o.at("spec").(map[string]any)
			spec["ports"] = []any{map[string]any{"name": "http", "port": 80, "targetPort": "http"}, map[string]any{"name": "https", "port": 443, "targetPort": 8112}}
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, string(text))
	}
	return objects
}

func TestRollOutWithTLSLosesNoRequest(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "tls", restricted)
	dir := t.TempDir()
	if err := ledger.WritePair(dir); err != nil {
		t.Fatal(err)
	}
	s.kubectl("create", "secret", "tls", "pair", "--cert="+dir+"/tls.crt", "--key="+dir+"/tls.key")
	for _, o := range injectedWithPair(t) {
		s.apply(o)
	}
	s.ready("app=web", 2)
	address := strings.TrimSuffix(s.service("web"), ":80") + ":443"
	eventually(t, "the Service serves TLS", func() error {
		if status, body := askOver(overTLS(), "GET", "https://"+address+"/echo"); status != 200 {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	c := newClients(s, address)
	secure := func(v *ledger.Client) { v.TLS = overTLS().TLSClientConfig }
	c.addClient("kept", false, func(v *ledger.Client) {
		secure(v)
		v.Requests = []ledger.Request{ledger.Get("/bytes/3000", 3000), ledger.Post("/sink", 1000)}
	})
	c.addClient("fresh", true, func(v *ledger.Client) { secure(v); v.Requests = []ledger.Request{ledger.Get("/bytes/3000", 3000)} })
	time.Sleep(time.Second)
	s.kubectl("rollout", "restart", "deployment/web")
	s.awaitRollout("web")
	time.Sleep(time.Second)
	c.allServed("rollout with TLS")
}
