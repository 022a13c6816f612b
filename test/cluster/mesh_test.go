//go:build cluster && clusterfull

package cluster

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// The names of Linkerd's parts in a pod, and the images that replace the original images.
const (
	linkerdProxy = "linkerd-proxy"
	linkerdInit  = "linkerd-init"
	proxyImage   = "dev.local/linkerd-proxy"
	initImage    = "dev.local/linkerd-init"
)

// linkerdFolder is the directory that contains the files of Linkerd's injector.
const linkerdFolder = "/var/run/linkerd"

// injectorAddress is the address of Linkerd's injector on the node.
const injectorAddress = nodeAddress + ":8453"

// A meshOrder is an order in which the API server calls both injectors. It depends on the name
// of Linkerd's configuration, because the other configuration always has the name
// queue-proxy-injector.
type meshOrder struct {
	name, configuration string
	reinvocation        string
}

var meshOrders = []meshOrder{
	{"first", "linkerd-proxy-injector-webhook-config", "Never"}, // this name is the original name of Linkerd's configuration
	{"again", "linkerd-proxy-injector-webhook-again", "IfNeeded"},
	{"last", "zz-linkerd-proxy-injector", "Never"},
}

func TestFullRollOutWithLinkerdLosesNoRequest(t *testing.T) {
	webhook(t)
	startLinkerd(t)
	for _, order := range meshOrders {
		for _, mode := range modes {
			t.Run(order.name+" "+mode, func(t *testing.T) {
				t.Parallel()
				s := newSpace(t, "mesh-"+order.name+"-"+mode, wanted)
				s.kubectl("annotate", "namespace", s.name, "linkerd.io/inject=enabled")
				s.linkerdWebhook(order)
				a := app{name: "web", replicas: 2, annotations: meshed(mode)}
				s.wholePod(s.admitted(a.pod()), order, mode)
				c := newClients(s, s.run(a))
				c.addClients()
				for range 2 {
					time.Sleep(2 * time.Second)
					s.kubectl("rollout", "restart", "deployment/web")
					s.awaitRollout("web")
				}
				time.Sleep(time.Second)
				c.allServed("two rollouts with Linkerd's injector " + order.name + ", " + mode)
				for _, pod := range s.ready("app=web", 2) {
					s.hasSidecar(pod)
					s.checkMeshTraffic(pod)
				}
			})
		}
	}
}

// meshed returns the annotations that docs/gitops.md requires, and those of logged.
func meshed(mode string) map[string]string {
	all := logged("mode=" + mode)
	all["config.linkerd.io/skip-inbound-ports"] = "8022,9090,9091"
	all["config.alpha.linkerd.io/proxy-wait-before-exit-seconds"] = "30"
	return all
}

// startLinkerd starts Linkerd's injector on the node with the values of Linkerd's chart, except
// for the images.
func startLinkerd(t *testing.T) {
	t.Helper()
	bin, err := programs("linkerd")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := moduleField("linkerd", "github.com/linkerd/linkerd2", "Dir")
	if err != nil {
		t.Fatal(err)
	}
	importLinkerd(t, bin)
	authority, err := newAuthority(t.TempDir(), "linkerd")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.sign("", "linkerd-proxy-injector", []string{nodeAddress})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"config/values":                      linkerdValues(t, dir+"/charts/linkerd-control-plane/values.yaml"),
		"identity/trust-roots/ca-bundle.crt": authority.pem,
		"tls/ca.crt":                         authority.pem, // authority for the configuration of the webhook
		"tls/tls.crt":                        cert,
		"tls/tls.key":                        key,
	} {
		file := filepath.Join(linkerdFolder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const admin = nodeAddress + ":9995"
	it.define("linkerd-injector", "env", "LINKERD_CHARTS="+dir+"/charts", bin+"/injector", "-addr="+injectorAddress, "-metrics-addr="+admin,
		"-kubeconfig="+it.state+"/pki/admin.kubeconfig")
	if err := it.start("linkerd-injector"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { it.stop("linkerd-injector") })
	if err := it.until("the injector of Linkerd is ready", func() error {
		if status, body := ask("GET", "http://"+admin+"/ready"); status != 200 {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	}, "linkerd-injector"); err != nil {
		t.Fatal(err)
	}
}

// linkerdValues returns chart values that select the images on the node. The iptables program of
// the node creates the rules, and it must run as root.
func linkerdValues(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	values["imagePullPolicy"] = "Never"
	for key, image := range map[string]string{"proxy": proxyImage, "proxyInit": initImage} {
		part, ok := values[key].(map[string]any)
		if !ok {
			t.Fatalf("%s: map %q not found", file, key)
		}
		part["image"] = map[string]any{"name": image, "version": "dev"}
		if key == "proxyInit" {
			part["iptablesMode"], part["runAsRoot"] = "nft", true
		}
	}
	text, err = yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// importLinkerd imports the image that replaces the proxy. It also imports Linkerd's program
// that creates the rules, together with the node's iptables program.
func importLinkerd(t *testing.T, bin string) {
	t.Helper()
	proxy, err := os.ReadFile(bin + "/proxy")
	if err != nil {
		t.Fatal(err)
	}
	if err := it.importFiles(proxyImage+":dev", "/proxy", map[string][]byte{"proxy": proxy, "usr/lib/linkerd/linkerd-await": proxy, "bin/sleep": proxy}); err != nil {
		t.Fatal(err)
	}
	files, err := iptablesFiles()
	if err != nil {
		t.Fatal(err)
	}
	if files["proxy-init"], err = os.ReadFile(bin + "/linkerd2-proxy-init"); err != nil {
		t.Fatal(err)
	}
	if err := it.importFiles(initImage+":dev", "/proxy-init", files); err != nil {
		t.Fatal(err)
	}
}

// iptablesFiles returns the iptables program of the machine, its libraries and its extensions
// by their paths.
func iptablesFiles() (map[string][]byte, error) {
	program, err := filepath.EvalSymlinks("/usr/sbin/xtables-nft-multi")
	if err != nil {
		return nil, err
	}
	linked, err := run(nil, "ldd", program)
	if err != nil {
		return nil, err
	}
	var needed []string
	for _, word := range strings.Fields(linked) {
		if strings.HasPrefix(word, "/") {
			needed = append(needed, word)
		}
	}
	for _, name := range []string{"REDIRECT", "NAT", "comment", "multiport", "owner", "standard", "tcp"} {
		found, err := filepath.Glob("/usr/lib/*/xtables/libxt_" + name + ".so")
		if err != nil {
			return nil, err
		}
		needed = append(needed, found...)
	}
	files := map[string][]byte{}
	for _, name := range needed {
		if files[strings.TrimPrefix(name, "/")], err = os.ReadFile(name); err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(program)
	files["iptables-nft"], files["iptables-nft-save"] = text, text
	return files, err
}

// linkerdWebhook registers Linkerd's injector for the pods of this namespace and waits until it
// is called.
func (s *space) linkerdWebhook(order meshOrder) {
	s.t.Helper()
	authority, err := os.ReadFile(linkerdFolder + "/tls/ca.crt")
	if err != nil {
		s.t.Fatal(err)
	}
	name := order.configuration + "-" + s.name
	apply(s.t, fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: %s}
webhooks:
- name: linkerd-proxy-injector.linkerd.io
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
  clientConfig: {url: "https://%s/", caBundle: %s}
  failurePolicy: Fail
  reinvocationPolicy: %s
  admissionReviewVersions: [v1, v1beta1]
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods, services]}]
  sideEffects: None
`, name, s.name, injectorAddress, base64.StdEncoding.EncodeToString(authority), order.reinvocation))
	s.t.Cleanup(func() { _, _ = run(nil, "kubectl", "delete", "mutatingwebhookconfiguration", name) })
	eventually(s.t, "both injectors are called", func() error {
		pod, err := s.tryPod(app{name: "try"}.pod())
		if err == nil && (pod.spec(linkerdProxy) == nil || pod.spec(sidecarName) == nil) {
			err = fmt.Errorf("got containers %v", containerNames(pod))
		}
		return err
	})
}

// tryPod returns a pod after admission.
func (s *space) tryPod(manifest string) (object, error) {
	out, err := run([]byte(manifest), "kubectl", "-n", s.name, "create", "--dry-run=server", "-o", "json", "-f", "-")
	if err != nil {
		return nil, err
	}
	var pod object
	return pod, json.Unmarshal([]byte(out), &pod)
}

func (s *space) admitted(manifest string) object {
	s.t.Helper()
	pod, err := s.tryPod(manifest)
	if err != nil {
		s.t.Fatal(err)
	}
	return pod
}

// containerNames returns the names of a pod's containers, starting with the init containers.
func containerNames(pod object) []string {
	var all []string
	for _, c := range append(pod.each("spec", "initContainers"), pod.each("spec", "containers")...) {
		all = append(all, c.text("name"))
	}
	return all
}

// wholePod fails the test unless the pod is as described in docs/gitops.md.
func (s *space) wholePod(pod object, order meshOrder, mode string) {
	s.t.Helper()
	want := map[string][]string{
		"first sidecar": {linkerdInit, linkerdProxy, "app", sidecarName}, "first native": {linkerdInit, sidecarName, linkerdProxy, "app"},
		"last sidecar": {linkerdInit, linkerdProxy, "app", sidecarName}, "last native": {sidecarName, linkerdInit, linkerdProxy, "app"},
	}
	want["again sidecar"], want["again native"] = want["first sidecar"], want["first native"]
	if got := containerNames(pod); !slices.Equal(got, want[order.name+" "+mode]) {
		s.t.Fatalf("got containers %v, want %v", got, want[order.name+" "+mode])
	}
	proxy, ours, web := pod.spec(linkerdProxy), pod.spec(sidecarName), pod.spec("app")
	for _, probe := range []string{"readinessProbe", "livenessProbe"} {
		if n := proxy.number(probe, "httpGet", "port"); n != 4191 {
			s.t.Errorf("got %s of %s on port %d, want port 4191 of Linkerd", probe, linkerdProxy, n)
		}
	}
	if hook := fmt.Sprint(proxy.at("lifecycle", "preStop", "exec", "command")); hook != "[/bin/sleep 30]" {
		s.t.Errorf("got preStop hook %s of %s, want the hook of Linkerd", hook, linkerdProxy)
	}
	if web.at("readinessProbe") != nil || web.number("lifecycle", "preStop", "httpGet", "port") != 8022 {
		s.t.Errorf("got container %v, want no readiness probe and a preStop hook", web)
	}
	for _, e := range ours.each("env") {
		if e.text("name") == "SERVING_READINESS_PROBE" && (!strings.Contains(e.text("value"), "8080") || strings.Contains(e.text("value"), "4191")) {
			s.t.Errorf("got probe %s, want only the probe of the app", e.text("value"))
		}
	}
	if got, want := ours.at("startupProbe") != nil, mode == "native" && order.name == "last"; got != want {
		s.t.Errorf("%s has a startup probe: got %v, want %v", sidecarName, got, want)
	}
	s.wholePorts(pod, order.name == "last" && mode == "sidecar")
	s.checkReinjection(pod)
}

// wholePorts fails the test unless the ports are named and excluded as documented. Linkerd
// lists the ports of the containers that exist when its injector is called.
func (s *space) wholePorts(pod object, lists bool) {
	s.t.Helper()
	ports := map[string]int{}
	for _, name := range []string{"app", sidecarName} {
		for _, p := range pod.spec(name).each("ports") {
			ports[name+" "+p.text("name")] = p.number("containerPort")
		}
	}
	if want := map[string]int{"app user-port": 8080, "queue-proxy http": 8012, "queue-proxy http-autometric": 9090, "queue-proxy http-usermetric": 9091}; !reflect.DeepEqual(ports, want) {
		s.t.Errorf("got ports %v, want %v", ports, want)
	}
	listed := ""
	for _, e := range pod.spec(linkerdProxy).each("env") {
		if e.text("name") == "LINKERD2_PROXY_INBOUND_PORTS" {
			listed = e.text("value")
		}
	}
	if got := strings.Contains(listed, "8012"); got != lists || !strings.Contains(listed, "8080") {
		s.t.Errorf("got ports %q for %s, want 8080, and 8012: %v", listed, linkerdProxy, lists)
	}
	const ignored = "--inbound-ports-to-ignore 4190,4191,8022,9090,9091 "
	args := fmt.Sprint(pod.spec(linkerdInit).at("args"))
	if !strings.Contains(args, ignored) {
		s.t.Errorf("got rules %s, want %s", args, ignored)
	}
}

// checkReinjection fails the test if an injector or the injector command changes a pod that
// already has both sidecars.
func (s *space) checkReinjection(pod object) {
	s.t.Helper()
	delete(pod, "status")
	if m, ok := pod["metadata"].(map[string]any); ok {
		for _, key := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"} {
			delete(m, key)
		}
	}
	text, err := json.Marshal(pod)
	if err != nil {
		s.t.Fatal(err)
	}
	var again object
	if err := json.Unmarshal([]byte(injector(s.t, string(text), "inject", "--image="+sidecarImage)), &again); err != nil {
		s.t.Fatal(err)
	}
	for who, got := range map[string]object{"the command line": again, "the API server": s.admitted(string(text))} {
		if !reflect.DeepEqual(got.at("spec"), pod.at("spec")) {
			s.t.Errorf("%s: got %v for a pod with both sidecars, want no change: %v", who, got.at("spec"), pod.at("spec"))
		}
	}
}

// checkMeshTraffic fails the test unless the requests and probes of a pod passed through the
// proxy, and connections to excluded ports did not.
func (s *space) checkMeshTraffic(pod object) {
	s.t.Helper()
	status, text := ask("GET", "http://"+pod.text("status", "podIP")+":4191/forwarded")
	var forwarded map[string]int
	if err := json.Unmarshal([]byte(text), &forwarded); err != nil {
		s.t.Fatalf("got %d %q from the proxy, want the metric for forwarded connections", status, text)
	}
	if forwarded["8012"] == 0 || len(forwarded) != 1 {
		s.t.Errorf("%s: got forwarded connections %v, want connections to 8012 only", pod.name(), forwarded)
	}
}
