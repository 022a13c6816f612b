package admission

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	policies "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
)

const service = "queue-proxy-injector.queue-proxy.svc"

// built caches the output of kustomize by overlay.
var built = map[string][]byte{}

// configuration returns the webhook configuration in deploy/ with the defaults of the API
// server and with the CA bundle that the injector or cert-manager publishes.
func configuration(t *testing.T, overlay string, authority []byte) *admissionregv1.MutatingWebhookConfiguration {
	t.Helper()
	if built[overlay] == nil {
		cmd := exec.Command(filepath.Join(root, "hack/kustomize"), "build", filepath.Join(root, "deploy/overlays", overlay))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		text, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		built[overlay] = text
	}
	for _, o := range objects(t, built[overlay]) {
		if c, ok := o.(*admissionregv1.MutatingWebhookConfiguration); ok {
			for i := range c.Webhooks {
				equivalent := admissionregv1.Equivalent
				c.Webhooks[i].MatchPolicy = &equivalent
				c.Webhooks[i].ClientConfig.CABundle = authority
			}
			return c
		}
	}
	t.Fatalf("overlay %s: no MutatingWebhookConfiguration found", overlay)
	return nil
}

// A webhook is a process that runs `injector serve`.
type webhook struct {
	reviews, metrics string // addresses of the webhook and of the metrics
	authority        []byte // certificate of the authority in PEM
	stop             func() error
}

// ResolveEndpoint returns the address of the Service, like the resolver of an API server.
func (w *webhook) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if name+"."+namespace+".svc" != service || port != 443 {
		return nil, fmt.Errorf("service %s/%s:%d: not found", namespace, name, port)
	}
	return &url.URL{Scheme: "https", Host: w.reviews}, nil
}

// asked returns the number of completed reviews.
func (w *webhook) asked(t *testing.T) int {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second}
	r, err := client.Get("http://" + w.metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	n := -1
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		if count, ok := strings.CutPrefix(lines.Text(), "queue_proxy_injector_review_duration_seconds_count "); ok {
			_, _ = fmt.Sscan(count, &n)
		}
	}
	if n < 0 {
		t.Fatal("no metric with the number of reviews found")
	}
	return n
}

// start starts the webhook of the injector with a certificate for its Service.
func start(t *testing.T, args ...string) *webhook {
	t.Helper()
	dir := t.TempDir()
	w := &webhook{authority: writeCertificate(t, dir)}
	cmd := exec.Command(program, append([]string{"serve", "--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--cert-dir=" + dir, "--linger=10ms", "--image=queue-proxy:dev"}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for w.reviews == "" && lines.Scan() {
		var line struct{ Message, Reviews, Metrics string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "listening" {
			w.reviews, w.metrics = line.Reviews, line.Metrics
		}
	}
	if w.reviews == "" {
		t.Fatalf("no log line with message \"listening\": %v", cmd.Wait())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, stderr)
		err = cmd.Wait()
	}()
	w.stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // the process may have exited
		<-ended
		return err
	}
	t.Cleanup(func() { _ = w.stop() })
	return w
}

func writeCertificate(t *testing.T, dir string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{service}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{"tls.crt": authority, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return authority
}

// withWebhook returns a cluster with the configuration of the webhook and with other objects.
func withWebhook(t *testing.T, w *webhook, overlay string, others ...runtime.Object) *cluster {
	t.Helper()
	return newCluster(t, append(others, configuration(t, overlay, w.authority)), caller(t, w))
}

// caller returns the plugin that calls webhooks.
func caller(t *testing.T, w *webhook) *mutating.Plugin {
	t.Helper()
	plugin, err := mutating.NewMutatingWebhook(nil)
	if err != nil {
		t.Fatal(err)
	}
	plugin.SetServiceResolver(w)
	return plugin
}

func TestWebhookMatchesInjectorCommand(t *testing.T) {
	clusters := map[string]*cluster{}
	injected, refused := 0, 0
	for _, p := range pairs(t) {
		if _, _, code := injector(t, nil, append([]string{"inject"}, p.args...)...); code != 0 {
			continue // the pair tests invalid options
		}
		key := strings.Join(p.args, " ")
		if clusters[key] == nil {
			clusters[key] = withWebhook(t, start(t, p.args...), "self-managed")
		}
		t.Run(p.name, func(t *testing.T) {
			for _, given := range p.pods {
				for _, pod := range []*corev1.Pod{given, withDefaults(given)} {
					pod.Namespace = "chosen"
					want, report, is := byHand(t, pod, p.args)
					got, err := clusters[key].create("chosen", pod)
					switch {
					case want == nil && pod.Annotations["queue-proxy.dev/status"] != "":
						if err != nil || !same(t, got, pod) { // if the command does not inject the pod, the API server does not call the webhook
							t.Errorf("got %v, want an unchanged pod", err)
						}
					case want == nil:
						refused++
						_, why, _ := strings.Cut(strings.TrimSpace(report), "): ")
						if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), why) {
							t.Errorf("got %v, want a rejection: %s", err, why)
						}
					case err != nil || !same(t, got, want):
						t.Errorf("got %v\n%s\nwant\n%s", err, indented(t, got), indented(t, want))
					case is:
						injected++
					}
				}
			}
		})
	}
	if injected < 2*40 || refused < 2*5 {
		t.Errorf("got %d injected and %d rejected pods, want at least 80 and 10, each with and without defaults", injected, refused)
	}
}

func TestWebhookIsCalledOnceForSelectedPods(t *testing.T) {
	w := start(t)
	for _, overlay := range []string{"self-managed", "ha", "cert-manager"} {
		c := withWebhook(t, w, overlay)
		for _, is := range chosen() {
			before := w.asked(t)
			made, err := c.create(is.namespace, plainPod(is.label))
			if err != nil {
				t.Fatal(err)
			}
			times := 0
			if is.want {
				times = 1
			}
			if got := w.asked(t) - before; got != times || sidecars(made) != times {
				t.Errorf("%s: namespace %s, label %q: got %d reviews and %d sidecars, want %d", overlay, is.namespace, is.label, got, sidecars(made), times)
			}
			// The webhook must not change a pod that is already injected, or a pod of Knative.
			before = w.asked(t)
			again, err := c.create(is.namespace, made)
			if err != nil || !same(t, again, made) || is.want && w.asked(t) != before {
				t.Errorf("%s: namespace %s, label %q: got %d reviews of an injected pod and %v, want none", overlay, is.namespace, is.label, w.asked(t)-before, err)
			}
		}
		before := w.asked(t)
		knative := plainPod("")
		knative.Labels = map[string]string{"serving.knative.dev/revision": "hello-00001"}
		if made, err := c.create("chosen", knative); err != nil || sidecars(made) != 0 || w.asked(t) != before {
			t.Errorf("%s: got %d reviews of a Knative pod and %v, want none", overlay, w.asked(t)-before, err)
		}
	}
}

func TestUnavailableWebhookFollowsFailurePolicy(t *testing.T) {
	w := start(t)
	ignore, fail := withWebhook(t, w, "self-managed"), withWebhook(t, w, "ha")
	if err := w.stop(); err != nil {
		t.Fatalf("stop the webhook: %v", err)
	}
	if made, err := ignore.create("chosen", plainPod("")); err != nil || sidecars(made) != 0 {
		t.Errorf("self-managed: got %d sidecars and %v, want an unchanged pod", sidecars(made), err)
	}
	if _, err := fail.create("chosen", plainPod("")); err == nil || !strings.Contains(err.Error(), "namespace.queue-proxy.dev") {
		t.Errorf("ha: got %v, want an error", err)
	}
	for _, namespace := range []string{"plain", "closed", "kube-system", "queue-proxy"} {
		if _, err := fail.create(namespace, plainPod("")); err != nil {
			t.Errorf("ha: namespace %s: got %v, want no error because injection is not enabled", namespace, err)
		}
	}
}

func TestWebhookWithWrongCertificateIsRejected(t *testing.T) {
	w := start(t)
	w.authority = writeCertificate(t, t.TempDir())
	if _, err := withWebhook(t, w, "ha").create("chosen", plainPod("")); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v, want a certificate error", err)
	}
}

func TestWebhookReturnsWarningsAndAuditAnnotations(t *testing.T) {
	pod := plainPod("")
	pod.Annotations = map[string]string{"prometheus.io/scrape": "true"}
	w := start(t)
	_, h, err := withWebhook(t, w, "self-managed").createHeard("chosen", pod)
	if err != nil || len(h.warnings) != 1 || !strings.Contains(h.warnings[0], "prometheus.io") {
		t.Errorf("got warnings %q and %v, want a warning about prometheus.io", h.warnings, err)
	}
	if got := h.audit["namespace.queue-proxy.dev/verdict"]; got != "injected" {
		t.Errorf("got audit annotations %q, want verdict injected", h.audit)
	}

	pod.Annotations = map[string]string{"queue-proxy.dev/concurency": "1"}
	_, h, err = withWebhook(t, w, "self-managed").createHeard("chosen", pod)
	if err == nil || !strings.Contains(err.Error(), `did you mean "queue-proxy.dev/concurrency"?`) || h.audit["namespace.queue-proxy.dev/reason"] != "bad-option" {
		t.Errorf("got %v and audit annotations %q, want a rejection with the nearest valid key, and reason bad-option", err, h.audit)
	}
	lenient := withWebhook(t, start(t, "--on-refusal=allow"), "self-managed")
	made, h, err := lenient.createHeard("chosen", pod)
	if err != nil || sidecars(made) != 0 || len(h.warnings) != 1 {
		t.Errorf("got %v and warnings %q, want no error and one warning", err, h.warnings)
	}
}

// standIn returns the configuration of another webhook, which patches the pod only when it is
// called for the first time.
func standIn(t *testing.T, name, patch string) *admissionregv1.MutatingWebhookConfiguration {
	t.Helper()
	times := 0
	other := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		kind := admissionv1.PatchTypeJSONPatch
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if times++; times == 1 {
			review.Response.Patch, review.Response.PatchType = []byte(patch), &kind
		}
		_ = json.NewEncoder(rw).Encode(review)
	}))
	t.Cleanup(other.Close)
	c := configuration(t, "self-managed", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw}))
	c.Name, c.Webhooks = name, c.Webhooks[:1]
	c.Webhooks[0].Name, c.Webhooks[0].MatchConditions = "another.example.com", nil
	c.Webhooks[0].ClientConfig.Service, c.Webhooks[0].ClientConfig.URL = nil, &other.URL
	fail := admissionregv1.Fail
	c.Webhooks[0].FailurePolicy = &fail
	return c
}

// The API server calls webhooks in the order of the names of their configurations. The webhooks of
// service meshes are called first, so the pod already contains their proxy when the injector is
// called (docs/gitops.md).
func TestInjectionKeepsMeshProxy(t *testing.T) {
	w := start(t)
	const probe = `"readinessProbe":{"httpGet":{"path":"/ready","port":4191}}`
	for name, patch := range map[string]string{
		"linkerd-proxy-injector-webhook-config": `[{"op":"add","path":"/spec/containers/0","value":{"name":"linkerd-proxy","image":"proxy:1","ports":[{"name":"linkerd-proxy","containerPort":4143},{"name":"linkerd-admin","containerPort":4191}],` + probe + `}}]`,
		"istio-sidecar-injector":                `[{"op":"add","path":"/spec/containers/-","value":{"name":"istio-proxy","image":"proxy:1","ports":[{"name":"http-envoy-prom","containerPort":15090}],` + probe + `}}]`,
	} {
		before := w.asked(t)
		made, err := withWebhook(t, w, "self-managed", standIn(t, name, patch)).create("chosen", plainPod(""))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := w.asked(t) - before; got != 1 || sidecars(made) != 1 {
			t.Errorf("%s: got %d reviews and %d sidecars, want 1 and 1", name, got, sidecars(made))
		}
		for _, c := range made.Spec.Containers {
			isProxy := strings.HasSuffix(c.Name, "-proxy") && c.Name != "queue-proxy"
			if isProxy && (c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet.Port.IntVal != 4191 || c.Lifecycle != nil) {
				t.Errorf("%s: got %+v, want the unchanged container of the mesh", name, c)
			}
		}
	}
}

// If another webhook changes the pod after the injector, the API server calls the
// injector again (reinvocationPolicy IfNeeded). The injector must not change a pod that
// it has already injected.
func TestLaterWebhookDoesNotBreakInjection(t *testing.T) {
	w := start(t)
	for _, c := range []struct {
		fact    string
		patch   string
		pod     *corev1.Pod
		reviews int
	}{
		{"additional container", `[{"op":"add","path":"/spec/containers/-","value":{"name":"mesh","image":"mesh:1","ports":[{"containerPort":15090}]}}]`, plainPod(""), 1},
		{"missing port", `[{"op":"add","path":"/spec/containers/0/ports","value":[{"name":"http","containerPort":8080}]}]`, &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}}, 2},
	} {
		after := standIn(t, "zz-another", c.patch)
		before := w.asked(t)
		made, err := withWebhook(t, w, "self-managed", after).create("chosen", c.pod)
		if err != nil {
			t.Fatalf("%s: %v", c.fact, err)
		}
		if got := w.asked(t) - before; got != c.reviews || sidecars(made) != 1 {
			t.Errorf("%s: got %d reviews and %d sidecars, want %d and 1", c.fact, got, sidecars(made), c.reviews)
		}
	}
}

// If both the policy and the webhook are installed, only the one that the API server runs
// first injects the sidecar.
func TestPolicyAndWebhookTogetherInjectOnce(t *testing.T) {
	w := start(t)
	text, report, code := injector(t, nil, "policy")
	if code != 0 {
		t.Fatal(report)
	}
	evaluator, err := policies.NewPlugin(nil)
	if err != nil {
		t.Fatal(err)
	}
	// An API server runs policies before webhooks.
	c := newCluster(t, append(objects(t, text), configuration(t, "self-managed", w.authority)), evaluator, caller(t, w))
	pod := plainPod("")
	pod.Namespace = "chosen"
	want, _, _ := byHand(t, pod, nil)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		before := w.asked(t)
		made, err := c.create("chosen", pod)
		if err == nil && !same(t, made, want) {
			t.Fatalf("got\n%s\nwant\n%s", indented(t, made), indented(t, want))
		}
		if err == nil && w.asked(t) == before {
			return // the policy has injected the sidecar and the webhook was not called
		}
		if time.Now().After(end) {
			t.Fatalf("got %v and a review, want an injection by the policy", err)
		}
	}
}

func TestWebhookRejectsTLS11(t *testing.T) {
	w := start(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.authority)
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", w.reviews, &tls.Config{RootCAs: roots, ServerName: service, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}) // the test uses an old TLS version on purpose
	if err == nil {
		c.Close()
		t.Error("connected with TLS 1.1, want an error")
	}
}
