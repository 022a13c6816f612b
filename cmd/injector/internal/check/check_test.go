package check

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A fakeServer is an API server with lists of objects.
type fakeServer struct {
	version string
	objects map[string][]map[string]any // objects by the path of the list for all namespaces
	raw     map[string]string           // responses that are not built from objects, by path
	denied  string                      // resource for which the user has no permission
	pages   int                         // number of list requests
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if text, is := f.raw[r.URL.Path]; is {
		fmt.Fprint(w, text)
		return
	}
	switch r.URL.Path {
	case "/version":
		fmt.Fprintf(w, `{"major":"1","minor":%q,"gitVersion":"v1.%s.0"}`, f.version, f.version)
	case "/apis/admissionregistration.k8s.io/v1":
		fmt.Fprint(w, `{"resources":[{"name":"mutatingwebhookconfigurations"},{"name":"mutatingadmissionpolicies"}]}`)
	case "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, `{"status":{"allowed":%v}}`, f.denied == "" || !bytes.Contains(body, []byte(`"resource":"`+f.denied+`"`)))
	default:
		f.list(w, r)
	}
}

// list returns a page with one object, or status 404.
func (f *fakeServer) list(w http.ResponseWriter, r *http.Request) {
	path, namespace := r.URL.Path, ""
	if rest, is := strings.CutPrefix(path, "/api/v1/namespaces/"); is {
		var resource string
		namespace, resource, _ = strings.Cut(rest, "/")
		path = "/api/v1/" + resource
	}
	all, exists := f.objects[path]
	if !exists {
		http.Error(w, "not found: "+path, http.StatusNotFound)
		return
	}
	f.pages++
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	all = slices.DeleteFunc(slices.Clone(all), func(o map[string]any) bool {
		metadata := o["metadata"].(map[string]any)
		name, byName := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		set, _ := metadata["labels"].(map[string]string)
		return namespace != "" && metadata["namespace"] != namespace || byName && metadata["name"] != name || !selector.Matches(labels.Set(set))
	})
	at, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	page := map[string]any{"items": all[min(at, len(all)):min(at+1, len(all))]}
	if at+1 < len(all) {
		page["metadata"] = map[string]any{"continue": strconv.Itoa(at + 1)}
	}
	_ = json.NewEncoder(w).Encode(page)
}

// A client is an API that sends requests over HTTP.
type client string

func (c client) Get(ctx context.Context, path string) ([]byte, error) {
	return c.do(ctx, http.MethodGet, path, nil)
}

func (c client) Create(ctx context.Context, path string, object []byte) ([]byte, error) {
	return c.do(ctx, http.MethodPost, path, object)
}

func (c client) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, string(c)+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	res, err := new(http.Client).Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	return text, err
}

// object returns an object with a name. pairs contains the keys and values of labels.
func object(namespace, name string, spec map[string]any, pairs ...string) map[string]any {
	set := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		set[pairs[i]] = pairs[i+1]
	}
	metadata := map[string]any{"name": name, "labels": set}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	return map[string]any{"metadata": metadata, "spec": spec}
}

// ready sets the condition Ready of a pod.
func ready(pod map[string]any) map[string]any {
	pod["status"] = map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
	return pod
}

// webPod returns a pod that can be injected.
func webPod(name string) map[string]any {
	port := map[string]any{"name": "http", "containerPort": 8080}
	pod := object("shop", name, map[string]any{"containers": []any{map[string]any{"name": "web", "ports": []any{port}}}}, "app", "web", "pod-template-hash", "5d8f")
	pod["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"kind": "ReplicaSet", "name": "web-5d8f", "controller": true}}
	return ready(pod)
}

// injectedPod returns webPod after an injection.
func injectedPod(name, image string) map[string]any {
	pod := webPod(name)
	pod["metadata"].(map[string]any)["annotations"] = map[string]any{"queue-proxy.dev/status": `{"format":1,"undo":[]}`}
	pod["spec"] = map[string]any{"containers": []any{
		map[string]any{"name": "web", "ports": []any{map[string]any{"name": "user-port", "containerPort": 8080}}},
		map[string]any{"name": "queue-proxy", "image": image, "ports": []any{map[string]any{"name": "http", "containerPort": 8012}}},
	}}
	return pod
}

// service returns a Service for webPod.
func service(target any) map[string]any {
	return object("shop", "web", map[string]any{"selector": map[string]any{"app": "web"}, "ports": []any{map[string]any{"port": 80, "targetPort": target}}})
}

var now = time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)

// certificate returns a self-signed certificate for host, in PEM form.
func certificate(t *testing.T, host string, until time.Time) []byte {
	t.Helper()
	c, err := harness.NewCertificate(func(c *x509.Certificate) {
		c.DNSNames, c.NotBefore, c.NotAfter = []string{host}, now.Add(-time.Hour), until
	})
	harness.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}

// newServer returns a server with a complete installation and one injected pod.
func newServer(t *testing.T) *fakeServer {
	t.Helper()
	cert := certificate(t, "queue-proxy-injector.queue-proxy.svc", now.Add(90*24*time.Hour))
	f := &fakeServer{version: "36", raw: map[string]string{
		"/api/v1/namespaces/queue-proxy/pods/injector-1:8080/proxy/metrics": "# HELP\nqueue_proxy_injector_build_info{commit=\"c\",goversion=\"go1.26.8\",version=\"v1\"} 1\n",
	}, objects: map[string][]map[string]any{
		"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies":       {},
		"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings": {},
		"/api/v1/namespaces": {object("", "shop", nil, label, "true"), object("", "queue-proxy", nil), object("", "default", nil)},
		"/api/v1/pods": {
			ready(object("queue-proxy", "injector-1", map[string]any{"containers": []any{map[string]any{"name": "injector", "env": []any{map[string]any{"name": "INJECTOR_IMAGE", "value": "queue-proxy:1"}}}}}, "app", "injector")),
			injectedPod("web-5d8f-a", "queue-proxy:1"),
		},
		"/api/v1/services": {service("http"), object("queue-proxy", "queue-proxy-injector", map[string]any{"selector": map[string]any{"app": "injector"}})},
	}}
	f.setCertificate(cert, cert)
	return f
}

// setCertificate sets the CA bundle of the webhook and the certificate in the Secret.
func (f *fakeServer) setCertificate(bundle, cert []byte) {
	configuration := object("", "queue-proxy-injector", nil)
	configuration["webhooks"] = []any{map[string]any{"name": "namespace.queue-proxy.dev", "failurePolicy": "Ignore", "clientConfig": map[string]any{
		"caBundle": bundle, "service": map[string]any{"namespace": "queue-proxy", "name": "queue-proxy-injector"},
	}}}
	f.objects["/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"] = []map[string]any{configuration}
	secret, _ := json.Marshal(map[string]any{"data": map[string]any{"tls.crt": cert}})
	f.raw["/api/v1/namespaces/queue-proxy/secrets/queue-proxy-injector-certificate"] = string(secret)
}

// problems returns the failed checks of a server as lines of text.
func (f *fakeServer) problems(t *testing.T, options Options) []string {
	t.Helper()
	server := httptest.NewServer(f)
	defer server.Close()
	options.Configuration, options.Secret, options.Now = "queue-proxy-injector", "queue-proxy-injector-certificate", now
	options.Version = "v1"
	report, err := Run(t.Context(), client(server.URL), options)
	harness.NoError(t, err)
	var all []string
	succeeds := true
	for _, c := range report.Categories {
		for _, one := range c.Checks {
			succeeds = succeeds && one.Result != Error
			for _, problem := range one.Problems {
				all = append(all, fmt.Sprintf("%s: %s", one.Result, problem))
			}
		}
	}
	harness.Equal(t, report.Success, succeeds, "success")
	return all
}

func TestCompleteInstallationHasNoProblems(t *testing.T) {
	f := newServer(t)
	harness.Equal(t, strings.Join(f.problems(t, Options{}), "\n"), "")
	if f.pages < 10 {
		t.Errorf("got %d pages, want at least 10, because each page has one object", f.pages)
	}
}

// A problem is a change to a complete installation, and the lines that Run then reports.
type problem struct {
	change func(f *fakeServer)
	want   string
}

func testProblems(t *testing.T, cases map[string]problem) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newServer(t)
			c.change(f)
			got, _, _ := strings.Cut(strings.Join(f.problems(t, Options{}), "\n"), " (possibly because of ") // remove the details that package x509 adds
			harness.Equal(t, got, c.want)
		})
	}
}

func TestProblemsOfInjectorAreReported(t *testing.T) {
	testProblems(t, map[string]problem{
		"old version of Kubernetes":  {func(f *fakeServer) { f.version = "27+" }, "error: the version is v1.27+.0; the webhook requires 1.28, and the policy requires 1.36"},
		"missing permission":         {func(f *fakeServer) { f.denied = "services" }, "error: no permission to list services in all namespaces"},
		"no permission for Secrets":  {func(f *fakeServer) { f.denied = "secrets" }, "warning: cannot check the certificate: no permission to get Secret queue-proxy/queue-proxy-injector-certificate"},
		"no permission for webhooks": {func(f *fakeServer) { f.denied = "mutatingwebhookconfigurations" }, "error: no permission to list mutatingwebhookconfigurations"},
		"not installed": {func(f *fakeServer) {
			f.objects["/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"] = []map[string]any{}
		},
			"error: MutatingWebhookConfiguration queue-proxy-injector and MutatingAdmissionPolicy queue-proxy-injector do not exist, so pods are not injected when they are created"},
		"policy without a binding": {func(f *fakeServer) {
			f.objects["/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"] = []map[string]any{object("", "queue-proxy-injector", nil)}
		}, "error: no MutatingAdmissionPolicyBinding refers to the policy queue-proxy-injector"},
		"no Service":       {func(f *fakeServer) { f.objects["/api/v1/services"] = f.objects["/api/v1/services"][:1] }, "error: Service queue-proxy/queue-proxy-injector does not exist"},
		"pod is not ready": {func(f *fakeServer) { delete(f.objects["/api/v1/pods"][0], "status") }, "error: Pod queue-proxy/injector-1 is not ready\nerror: no pod is ready, so pods start without a sidecar (failurePolicy Ignore)"},
		"no CA bundle":     {func(f *fakeServer) { f.setCertificate(nil, nil) }, "error: webhook namespace.queue-proxy.dev has no caBundle"},
		"no Secret": {func(f *fakeServer) {
			delete(f.raw, "/api/v1/namespaces/queue-proxy/secrets/queue-proxy-injector-certificate")
		}, "error: read Secret queue-proxy/queue-proxy-injector-certificate: not found: /api/v1/secrets/queue-proxy-injector-certificate"},
		"untrusted certificate": {func(f *fakeServer) {
			f.setCertificate(certificate(t, "other", now.Add(time.Hour)), certificate(t, "queue-proxy-injector.queue-proxy.svc", now.Add(time.Hour)))
		}, "error: Secret queue-proxy/queue-proxy-injector-certificate: webhook namespace.queue-proxy.dev: x509: certificate signed by unknown authority"},
		"certificate for another host": {func(f *fakeServer) {
			cert := certificate(t, "other", now.Add(90*24*time.Hour))
			f.setCertificate(cert, cert)
		}, "error: Secret queue-proxy/queue-proxy-injector-certificate: webhook namespace.queue-proxy.dev: x509: certificate is valid for other, not queue-proxy-injector.queue-proxy.svc"},
		"certificate expires": {func(f *fakeServer) {
			cert := certificate(t, "queue-proxy-injector.queue-proxy.svc", now.Add(time.Hour))
			f.setCertificate(cert, cert)
		}, "warning: the certificate expires at 2026-11-26T01:00:00Z"},
	})
}

// addWebhook adds a webhook to the configuration.
func (f *fakeServer) addWebhook(clientConfig map[string]any) {
	configuration := f.objects["/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"][0]
	configuration["webhooks"] = append(configuration["webhooks"].([]any), map[string]any{"name": "pod.queue-proxy.dev", "clientConfig": clientConfig})
}

// The API server uses a separate CA bundle for each webhook.
func TestCertificateIsVerifiedForEachWebhook(t *testing.T) {
	f := newServer(t)
	f.addWebhook(map[string]any{
		"caBundle": certificate(t, "other", now.Add(90*24*time.Hour)),
		"service":  map[string]any{"namespace": "queue-proxy", "name": "queue-proxy-injector"},
	})
	harness.Contains(t, strings.Join(f.problems(t, Options{}), "\n"),
		"error: Secret queue-proxy/queue-proxy-injector-certificate: webhook pod.queue-proxy.dev: x509: certificate signed by unknown authority")
}

// The certificate in the Secret is not the certificate of these webhooks.
func TestWebhooksOfOtherServersAreNotChecked(t *testing.T) {
	other := certificate(t, "other", now.Add(90*24*time.Hour))
	for name, clientConfig := range map[string]map[string]any{
		"URL":                   {"caBundle": other, "url": "https://example.com"},
		"URL without CA bundle": {"url": "https://example.com"},
		"other Service":         {"caBundle": other, "service": map[string]any{"namespace": "queue-proxy", "name": "other"}},
		"other namespace":       {"caBundle": other, "service": map[string]any{"namespace": "other", "name": "queue-proxy-injector"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newServer(t)
			f.addWebhook(clientConfig)
			harness.Equal(t, strings.Join(f.problems(t, Options{}), "\n"), "")
		})
	}
}

func TestVersionCheckRequiresReadyInjector(t *testing.T) {
	f := newServer(t)
	delete(f.objects["/api/v1/pods"][0], "status")
	server := httptest.NewServer(f)
	defer server.Close()
	report, err := Run(t.Context(), client(server.URL), Options{Configuration: "queue-proxy-injector", Version: "v1", Now: now})
	harness.NoError(t, err)
	for _, c := range report.Categories {
		for _, one := range c.Checks {
			if one.Description == "the injector has the same version as this program" {
				t.Errorf("got result %q, want no version check", one.Result)
			}
		}
	}
}

func TestProblemsOfWorkloadsAreReported(t *testing.T) {
	testProblems(t, map[string]problem{
		"no selected namespace": {func(f *fakeServer) { f.objects["/api/v1/namespaces"] = nil }, "warning: no namespace is selected for the injection"},
		"invalid label": {func(f *fakeServer) {
			f.objects["/api/v1/namespaces"] = append(f.objects["/api/v1/namespaces"], object("", "blog", nil, label, "enabled"), object("", "kube-system", nil, label, "true"))
		}, "warning: the label of namespace blog has the value \"enabled\", which has no effect; want true or false\n" +
			"warning: the label of namespace kube-system has no effect because the webhook excludes the namespace"},
		"pods without a sidecar": {func(f *fakeServer) {
			f.objects["/api/v1/pods"] = append(f.objects["/api/v1/pods"], webPod("web-5d8f-b"), webPod("web-5d8f-c"))
		},
			"error: Deployment shop/web: 2 pods without a sidecar"},
		"refused pod": {func(f *fakeServer) {
			f.objects["/api/v1/pods"] = append(f.objects["/api/v1/pods"], ready(object("shop", "db", map[string]any{"containers": []any{map[string]any{"name": "db"}}}, "queue-proxy.dev/mode", "fast")))
		}, "warning: Pod shop/db: bad-option: unknown label \"queue-proxy.dev/mode\": did you mean \"queue-proxy.dev/inject\"?"},
		"Service bypasses the sidecar": {func(f *fakeServer) { f.objects["/api/v1/services"][0] = service(8080) },
			"warning: Service shop/web: requests bypass the sidecar; run injector inject (targetPort changes from application port 8080 to http (port 8012 of the sidecar))"},
		"different images": {func(f *fakeServer) {
			f.objects["/api/v1/pods"] = append(f.objects["/api/v1/pods"], injectedPod("web-5d8f-b", "queue-proxy:0"))
		},
			"warning: 1 sidecar with image queue-proxy:0\nwarning: 1 sidecar with image queue-proxy:1\nwarning: the injector adds sidecars with image queue-proxy:1"},
		"different version": {func(f *fakeServer) {
			f.raw["/api/v1/namespaces/queue-proxy/pods/injector-1:8080/proxy/metrics"] = "queue_proxy_injector_build_info{version=\"v0\"} 1\n"
		}, "warning: Pod queue-proxy/injector-1 has version v0, but this program has version v1"},
	})
}

func TestPodsThatAreNotSelectedAreIgnored(t *testing.T) {
	f := newServer(t)
	other, disabled, completed := webPod("other"), webPod("disabled"), webPod("completed")
	other["metadata"].(map[string]any)["namespace"] = "default"
	disabled["metadata"].(map[string]any)["labels"] = map[string]string{label: "false"}
	completed["status"] = map[string]any{"phase": "Succeeded"}
	f.objects["/api/v1/pods"] = append(f.objects["/api/v1/pods"], other, disabled, completed)
	harness.Equal(t, strings.Join(f.problems(t, Options{Everywhere: true}), "\n"), "")
}

func TestNamespaceSelectsPods(t *testing.T) {
	f := newServer(t)
	f.objects["/api/v1/pods"] = append(f.objects["/api/v1/pods"], webPod("web-5d8f-b"))
	harness.Equal(t, strings.Join(f.problems(t, Options{Namespace: "default"}), "\n"), "")
	harness.Equal(t, strings.Join(f.problems(t, Options{Namespace: "shop"}), "\n"), "error: Deployment shop/web: 1 pod without a sidecar")
}

func TestSelectedPodInOtherNamespaceNeedsSidecar(t *testing.T) {
	f := newServer(t)
	pod := webPod("web")
	pod["metadata"].(map[string]any)["namespace"] = "default"
	pod["metadata"].(map[string]any)["labels"].(map[string]string)[label] = "true"
	f.objects["/api/v1/pods"] = append(f.objects["/api/v1/pods"], pod)
	harness.Equal(t, strings.Join(f.problems(t, Options{}), "\n"), "error: Deployment default/web: 1 pod without a sidecar")
}

func TestUnreachableServerReturnsError(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	if report, err := Run(t.Context(), client(server.URL), Options{}); err == nil || report != nil {
		t.Errorf("got %v, %v, want an error", report, err)
	}
}

func TestMissingNamespaceIsReported(t *testing.T) {
	f := newServer(t)
	harness.Equal(t, strings.Join(f.problems(t, Options{Namespace: "nope"}), "\n"), "error: namespace nope does not exist")
	harness.Equal(t, strings.Join(f.problems(t, Options{Namespace: "shop"}), "\n"), "")
}
