package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

const deploy = "../../deploy"

// overlays returns the overlays that users apply without changes.
func overlays() []string {
	return []string{"overlays/self-managed", "overlays/ha", "overlays/cert-manager"}
}

// strict decodes a Kubernetes object. Unknown fields are errors.
func strict(t *testing.T, text []byte) runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, autoscalingv2.AddToScheme, admissionregv1.AddToScheme,
	} {
		harness.NoError(t, add(scheme))
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		t.Fatalf("got %v, want no error:\n%s", err, text)
	}
	return object
}

// foreign contains the shapes of custom resources of other projects in deploy, as JSON with all
// fields that are used. Lists have one item, and * matches any key.
var foreign = map[string]string{
	"keda.sh/v1alpha1 ScaledObject": `{"scaleTargetRef": {"name": ""}, "pollingInterval": 0, "minReplicaCount": 0, "maxReplicaCount": 0,
		"fallback": {"failureThreshold": 0, "replicas": 0, "behavior": ""},
		"advanced": {"horizontalPodAutoscalerConfig": {"behavior": {
			"scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "", "policies": [{"type": "", "value": 0, "periodSeconds": 0}]},
			"scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "", "policies": [{"type": "", "value": 0, "periodSeconds": 0}]}}}},
		"triggers": [{"type": "", "metricType": "", "metadata": {"*": ""}}]}`,
	"monitoring.coreos.com/v1 PodMonitor": `{"namespaceSelector": {"any": true}, "podTargetLabels": [""],
		"selector": {"matchLabels": {"*": ""}, "matchExpressions": [{"key": "", "operator": "", "values": [""]}]},
		"podMetricsEndpoints": [{"port": "", "path": "", "interval": ""}]}`,
	"monitoring.coreos.com/v1 PrometheusRule": `{"groups": [{"name": "", "rules": [
		{"alert": "", "expr": "", "for": "", "labels": {"*": ""}, "annotations": {"*": ""}}]}]}`,
	"cert-manager.io/v1 Issuer": `{"selfSigned": {}, "ca": {"secretName": ""}}`,
	"cert-manager.io/v1 Certificate": `{"isCA": true, "commonName": "", "secretName": "", "duration": "", "renewBefore": "",
		"privateKey": {"algorithm": "", "size": 0, "rotationPolicy": ""}, "dnsNames": [""], "issuerRef": {"kind": "", "name": ""}}`,
	"operator.knative.dev/v1beta1 KnativeServing": `{"config": {"*": {"*": ""}}}`,
}

// misfit returns the path of a value that does not match a shape, or "".
func misfit(at string, object, shape any) string {
	switch shape := shape.(type) {
	case map[string]any:
		fields, ok := object.(map[string]any)
		for key, value := range fields {
			below, known := shape[key]
			if !known {
				below = shape["*"]
			}
			if wrong := misfit(at+"."+key, value, below); wrong != "" {
				return wrong
			}
		}
		if ok {
			return ""
		}
	case []any:
		items, ok := object.([]any)
		for _, item := range items {
			if wrong := misfit(at+"[]", item, shape[0]); wrong != "" {
				return wrong
			}
		}
		if ok {
			return ""
		}
	case float64:
		if n, ok := object.(float64); ok && n == math.Trunc(n) {
			return ""
		}
	default:
		if shape != nil && reflect.TypeOf(object) == reflect.TypeOf(shape) {
			return ""
		}
	}
	return at
}

// decode decodes each object of a stream. Unknown fields are errors.
func decode(t *testing.T, name string, text []byte) []runtime.Object {
	t.Helper()
	stream, err := manifest.Parse(name, text).JSON()
	harness.NoError(t, err)
	var objects []runtime.Object
	for d := json.NewDecoder(bytes.NewReader(stream)); d.More(); {
		var raw json.RawMessage
		harness.NoError(t, d.Decode(&raw))
		var is metav1.TypeMeta
		harness.NoError(t, json.Unmarshal(raw, &is))
		if spec := foreign[is.APIVersion+" "+is.Kind]; spec != "" {
			const whole = `{"apiVersion": "", "kind": "", "metadata": {"name": "", "namespace": "", "labels": {"*": ""}}, "spec": %s}`
			object, shape := values(t, string(raw))[0], values(t, fmt.Sprintf(whole, spec))[0]
			harness.Equal(t, misfit("", object, shape), "", name, is.Kind, "a field that does not exist, or of another kind")
			continue
		}
		objects = append(objects, strict(t, raw))
	}
	return objects
}

func TestManifestsHaveNoUnknownFields(t *testing.T) {
	// Skip the files that are not objects: kustomizations, which are built below; values of
	// charts; the chart, which test/chart renders; and files for Prometheus, which
	// deploy/monitoring/check passes to promtool.
	parts := []string{"kustomization.yaml", "base/imagefields.yaml", "deploy/chart/", "hpa-prometheus-adapter/adapter-values.yaml", "monitoring/rules"}
	seen := 0
	err := filepath.WalkDir(deploy, func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".yaml" || slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(filepath.ToSlash(name), p) }) {
			return err
		}
		seen++
		text := read(t, name)
		if strings.HasSuffix(filepath.ToSlash(name), "knative/config-deployment.yaml") {
			text = "apiVersion: v1\nkind: ConfigMap\n" + text // decode the patch as a ConfigMap
		}
		if len(decode(t, name, []byte(text))) == 0 && !strings.Contains(text, "apiVersion: ") {
			t.Errorf("%s: no object found", name)
		}
		return nil
	})
	if err != nil || seen < 24 {
		t.Errorf("got %d files (%v), want at least 24", seen, err)
	}
}

// built is a cache of kustomize output. The key is the name of an overlay. The cache is valid
// for all tests because the tests do not change the files in deploy.
var built = map[string][]byte{}

// build returns the objects of an overlay, like kubectl kustomize.
func build(t *testing.T, overlay string) []runtime.Object {
	t.Helper()
	if built[overlay] == nil {
		built[overlay] = kustomize(t, deploy, overlay)
	}
	return decode(t, overlay, built[overlay])
}

func buildIn(t *testing.T, dir, overlay string) []runtime.Object {
	t.Helper()
	return decode(t, overlay, kustomize(t, dir, overlay))
}

func kustomize(t *testing.T, dir, overlay string) []byte {
	t.Helper()
	cmd := exec.Command("../../hack/kustomize", "build", filepath.Join(dir, overlay))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	harness.NoError(t, err, overlay, stderr.String())
	return text
}

func first[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	for _, o := range objects {
		if found, ok := o.(T); ok {
			return found
		}
	}
	var none T
	t.Fatalf("no %T found", none)
	return none
}

func TestMonitoringOverlayBuilds(t *testing.T) {
	dashboard := first[*corev1.ConfigMap](t, build(t, "monitoring"))
	if !json.Valid([]byte(dashboard.Data["queue-proxy.json"])) {
		t.Error("the dashboard is not JSON")
	}
}

func TestOverlaysHaveValidArguments(t *testing.T) {
	for _, overlay := range overlays() {
		t.Run(overlay, func(t *testing.T) {
			objects := build(t, overlay)
			d := first[*appsv1.Deployment](t, objects)
			hook := first[*admissionregv1.MutatingWebhookConfiguration](t, objects)
			service := first[*corev1.Service](t, objects)
			c := d.Spec.Template.Spec.Containers[0]

			// The arguments of the injector must be valid and refer to existing objects.
			environ := []string{"POD_NAMESPACE=" + d.Namespace}
			for _, v := range c.Env { // replace the digest of zeros, as users do
				if v.ValueFrom == nil {
					environ = append(environ, v.Name+"="+strings.ReplaceAll(v.Value, strings.Repeat("0", 64), strings.Repeat("1", 64)))
				}
			}
			program := &command{environ: environ}
			serve, args, err := program.root().Find(c.Args)
			harness.NoError(t, err)
			harness.NoError(t, serve.ParseFlags(args))
			harness.NoError(t, serve.PreRunE(serve, nil))
			if serve.Name() != "serve" || program.optionsErr != nil {
				t.Fatalf("got arguments %q and error %v, want serve and valid options", c.Args, program.optionsErr)
			}
			value := func(flag string) string { return serve.Flag(flag).Value.String() }
			harness.Equal(t, []string{value("namespace"), value("service"), value("configuration")}, []string{service.Namespace, service.Name, hook.Name}, "namespace, Service and configuration")
			if !strings.Contains(c.Image, "@sha256:") || !strings.Contains(program.options["image"], "@sha256:") {
				t.Errorf("got images %s and %s, want both with a digest", c.Image, program.options["image"])
			}
			if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
				t.Error("the Service does not select the pods")
			}
			if c.SecurityContext.AllowPrivilegeEscalation == nil || *c.SecurityContext.AllowPrivilegeEscalation || c.SecurityContext.Capabilities.Drop[0] != "ALL" ||
				!*d.Spec.Template.Spec.SecurityContext.RunAsNonRoot || d.Spec.Template.Spec.SecurityContext.SeccompProfile.Type != "RuntimeDefault" {
				t.Error("the pods violate the restricted Pod Security Standard")
			}
			wantPolicy := admissionregv1.Ignore
			if overlay == "overlays/ha" {
				wantPolicy = admissionregv1.Fail
				harness.Equal(t, *d.Spec.Replicas, 2, "replicas")
				first[*policyv1.PodDisruptionBudget](t, objects)
			}
			wantEffects := admissionregv1.SideEffectClassNone
			if value("events") == "true" { // the webhook creates no events for dry-run requests, so sideEffects can be NoneOnDryRun
				wantEffects = admissionregv1.SideEffectClassNoneOnDryRun
			}
			for _, w := range hook.Webhooks {
				if *w.FailurePolicy != wantPolicy || *w.SideEffects != wantEffects || *w.ReinvocationPolicy != admissionregv1.IfNeededReinvocationPolicy || *w.TimeoutSeconds != 5 {
					t.Errorf("%s: got %s %s %s %d, want %s %s IfNeeded 5", w.Name, *w.FailurePolicy, *w.SideEffects, *w.ReinvocationPolicy, *w.TimeoutSeconds, wantPolicy, wantEffects)
				}
				if ref := w.ClientConfig.Service; ref.Name != service.Name || ref.Namespace != service.Namespace || *ref.Path != "/inject" {
					t.Errorf("%s: got service %v, want the Service of the injector", w.Name, ref)
				}
			}
			mounts := d.Spec.Template.Spec.AutomountServiceAccountToken
			harness.Equal(t, mounts != nil && *mounts, value("self-managed") == "true" || value("events") == "true", "the token is mounted")
			for _, o := range objects {
				if secret, ok := o.(*corev1.Secret); ok && secret.Name != value("secret") {
					t.Errorf("got Secret %s, want %s", secret.Name, value("secret"))
				}
			}
		})
	}
}

// imagesOf returns the images of all containers and of the sidecar.
func imagesOf(t *testing.T, objects []runtime.Object) []string {
	t.Helper()
	var all []string
	for _, o := range objects {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, regexp.MustCompile(`[\w./-]+@sha256:[0-9a-f]{64}`).FindAllString(string(text), -1)...)
	}
	slices.Sort(all)
	return all
}

// If a user sets the images in one place, all overlays must use them. Otherwise, an overlay would
// use the placeholder images.
func TestImagesAreSetInOnePlace(t *testing.T) {
	ones := "@sha256:" + strings.Repeat("1", 64)
	copied := t.TempDir()
	harness.NoError(t, os.CopyFS(copied, os.DirFS(deploy)))
	file := filepath.Join(copied, "images/kustomization.yaml")
	write(t, file, strings.NewReplacer("ghcr.io/queue-proxy", "set.test", strings.Repeat("0", 64), strings.Repeat("1", 64)).Replace(read(t, file)))
	for _, overlay := range append(overlays(), "overlays/policy") {
		want := []string{"set.test/queue-proxy-injector" + ones, "set.test/queue-proxy" + ones}
		if overlay == "overlays/policy" {
			want = want[1:]
		}
		if got := imagesOf(t, buildIn(t, copied, overlay)); !slices.Equal(got, want) {
			t.Errorf("%s: got images %q, want %q", overlay, got, want)
		}
	}
}

func TestKustomizationSetsBothImages(t *testing.T) {
	copied := t.TempDir()
	harness.NoError(t, os.CopyFS(copied, os.DirFS(deploy)))
	text := "resources: [../overlays/ha]\nimages:\n"
	for _, name := range []string{"queue-proxy", "queue-proxy-injector"} {
		text += "  - name: ghcr.io/queue-proxy/" + name + "\n    newName: mirror.test/" + name + "\n    digest: sha256:" + strings.Repeat("2", 64) + "\n"
	}
	harness.NoError(t, os.Mkdir(filepath.Join(copied, "mine"), 0o755))
	write(t, filepath.Join(copied, "mine/kustomization.yaml"), text)
	twos := "@sha256:" + strings.Repeat("2", 64)
	if got, want := imagesOf(t, buildIn(t, copied, "mine")), []string{"mirror.test/queue-proxy-injector" + twos, "mirror.test/queue-proxy" + twos}; !slices.Equal(got, want) {
		t.Errorf("got images %q, want %q", got, want)
	}
}

func TestPolicyOverlayMatchesOutput(t *testing.T) {
	name := filepath.Join(deploy, "overlays/policy/policy.yaml")
	options := inject.Options{"image": "queue-proxy@sha256:" + strings.Repeat("0", 64)} // the command rejects this placeholder
	out, err := inject.Policy(options)
	harness.NoError(t, err)
	again, err := inject.Policy(options)
	harness.NoError(t, err)
	harness.Equal(t, again, out, "second output")
	if *update {
		write(t, name, out)
	}
	if want := read(t, name); out != want {
		t.Errorf("the file is not up to date; run go test ./cmd/injector -update:\n%s", unified(name, []byte(want), []byte(out)))
	}
	objects := build(t, "overlays/policy")
	policy := first[*admissionregv1.MutatingAdmissionPolicy](t, objects)
	bindings := 0
	for _, o := range objects {
		if b, ok := o.(*admissionregv1.MutatingAdmissionPolicyBinding); ok && b.Spec.PolicyName == policy.Name {
			bindings++
		}
	}
	if bindings != 2 || len(objects) != 3 {
		t.Errorf("got %d objects and %d bindings of the policy, want 3 and 2", len(objects), bindings)
	}
	// Limits of the API server (validation of admissionregistration).
	if n := len(policy.Spec.MatchConditions); n > 64 {
		t.Errorf("got %d conditions, want at most 64", n)
	}
	names := map[string]bool{}
	for _, v := range policy.Spec.Variables {
		if names[v.Name] || v.Expression == "" {
			t.Errorf("got duplicate or empty variable %q", v.Name)
		}
		names[v.Name] = true
	}
}

// A kubelet updates a renewed certificate after about a minute, but the new caBundle is published
// immediately. Therefore, the authority in the caBundle must also have signed the old certificate.
func TestRenewedCertificateKeepsAuthority(t *testing.T) {
	all := map[string]certManager{} // Issuers and Certificates by kind and name
	name := filepath.Join(deploy, "overlays/cert-manager/certificate.yaml")
	stream, err := manifest.Parse(name, []byte(read(t, name))).JSON()
	harness.NoError(t, err)
	for d := json.NewDecoder(bytes.NewReader(stream)); d.More(); {
		var c certManager
		harness.NoError(t, d.Decode(&c))
		all[c.Kind+" "+c.Metadata.Name] = c
	}
	by := all["Issuer "+all["Certificate queue-proxy-injector"].Spec.IssuerRef.Name].Spec.CA
	if by == nil {
		t.Fatal("the certificate has no CA issuer; a self-signed certificate is not trusted after the renewal")
	}
	for _, c := range all {
		if c.Kind != "Certificate" || c.Spec.SecretName != by.SecretName {
			continue
		}
		if !c.Spec.IsCA || c.Spec.PrivateKey.RotationPolicy != "Never" || all["Issuer "+c.Spec.IssuerRef.Name].Spec.SelfSigned == nil {
			t.Errorf("got authority %+v, want a self-signed authority that keeps its key", c.Spec)
		}
		return
	}
	t.Errorf("no authority in Secret %s", by.SecretName)
}

// A certManager contains the fields of an Issuer or a Certificate that the test uses.
type certManager struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		SelfSigned *struct{}
		CA         *struct{ SecretName string }
		IsCA       bool
		SecretName string
		PrivateKey struct{ RotationPolicy string }
		IssuerRef  struct{ Name string }
	}
}

func TestRulesPermitOnlyUsedRequests(t *testing.T) {
	objects := build(t, "overlays/self-managed")
	role, cluster := first[*rbacv1.Role](t, objects), first[*rbacv1.ClusterRole](t, objects)
	got := map[string]string{}
	for _, r := range append(slices.Clone(role.Rules), cluster.Rules...) {
		got[strings.Join(r.Resources, ",")+" "+strings.Join(r.ResourceNames, ",")] = strings.Join(r.Verbs, ",")
	}
	want := map[string]string{
		"secrets queue-proxy-injector-certificate": "get,update",
		"secrets ": "create",
		"mutatingwebhookconfigurations queue-proxy-injector": "get,patch",
		"namespaces ": "get",
		"events ":     "create",
	}
	for rule, verbs := range want {
		harness.Equal(t, got[rule], verbs, rule)
	}
	if len(got) != len(want) {
		t.Errorf("got rules %v, want only %v", got, want)
	}
	for _, o := range build(t, "overlays/cert-manager") {
		switch o.(type) {
		case *rbacv1.Role, *rbacv1.ClusterRole:
			t.Errorf("got a %T, want no permissions", o)
		}
	}
}

func TestNetworkPolicyOpensOnlyWebhookPort(t *testing.T) {
	for _, overlay := range overlays() {
		objects := build(t, overlay)
		d, p := first[*appsv1.Deployment](t, objects), first[*networkingv1.NetworkPolicy](t, objects)
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil || p.Namespace != d.Namespace || !selector.Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("%s: got a policy for %s in %s, %v, want the pods of the injector", overlay, selector, p.Namespace, err)
		}
		ports := map[string]int32{}
		for _, port := range d.Spec.Template.Spec.Containers[0].Ports {
			ports[port.Name] = port.ContainerPort
		}
		open := map[int32]bool{} // ports to which all pods can connect
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				open[port.Port.IntVal] = len(rule.From) == 0
			}
		}
		harness.Equal(t, open, map[int32]bool{ports["https"]: true, ports["metrics"]: false}, overlay, "the ports", "open to all or not")
		// Only an injector that manages certificates or creates events may connect to the API
		// server.
		closed := slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		if mounts := d.Spec.Template.Spec.AutomountServiceAccountToken; closed != (mounts == nil) || len(p.Spec.Egress) > 0 {
			t.Errorf("%s: got egress closed %v, want true for pods without a token", overlay, closed)
		}
	}
}

func TestPodMatchesAtMostOneWebhook(t *testing.T) {
	hook := first[*admissionregv1.MutatingWebhookConfiguration](t, build(t, "overlays/self-managed"))
	matches := func(s *metav1.LabelSelector, set labels.Set) bool {
		selector, err := metav1.LabelSelectorAsSelector(s)
		harness.NoError(t, err)
		return selector.Matches(set)
	}
	const key = "queue-proxy.dev/inject"
	for _, c := range []struct {
		namespace, of, pod string // name of the namespace, and the labels of the namespace and the pod; "" means no label
		want               int
	}{
		{"shop", "", "", 0}, {"shop", "", "true", 1}, {"shop", "", "false", 0},
		{"shop", "true", "", 1}, {"shop", "true", "true", 1}, {"shop", "true", "false", 0},
		{"shop", "false", "", 0}, {"shop", "false", "true", 1}, {"shop", "false", "false", 0},
		{"queue-proxy", "true", "true", 0}, {"kube-system", "", "true", 0},
	} {
		namespace, pod := labels.Set{"kubernetes.io/metadata.name": c.namespace}, labels.Set{}
		if c.of != "" {
			namespace[key] = c.of
		}
		if c.pod != "" {
			pod[key] = c.pod
		}
		got := 0
		for _, w := range hook.Webhooks {
			if matches(w.NamespaceSelector, namespace) && matches(w.ObjectSelector, pod) {
				got++
			}
		}
		harness.Equal(t, got, c.want, "namespace", c.namespace, c.of, "pod", c.pod, "webhooks")
	}
}

func TestExampleMatchesOutput(t *testing.T) {
	before, after := filepath.Join(deploy, "example/before.yaml"), filepath.Join(deploy, "example/after.yaml")
	out, report, code := injector(t, "inject", read(t, before))
	if *update {
		write(t, after, out)
	}
	if want := read(t, after); code != done || out != want {
		t.Errorf("got exit code %d, or the file is not up to date; run go test ./cmd/injector -update:\n%s%s", code, unified(after, []byte(want), []byte(out)), report)
	}
	if strings.Contains(report, "warning") {
		t.Errorf("got report %s, want no warnings", report)
	}
	decode(t, after, []byte(out))
}

// The autoscaling examples refer to metrics, ports and Services. All of them must exist.
func TestAutoscalingExamplesReferToExistingMetrics(t *testing.T) {
	after := read(t, filepath.Join(deploy, "example/after.yaml"))
	for _, name := range []string{"hpa-prometheus-adapter/podmonitor.yaml", "keda-metrics-api/service.yaml"} {
		if text := read(t, filepath.Join(deploy, "autoscaling", name)); !strings.Contains(text, "http-autometric") || !strings.Contains(after, "name: http-autometric") {
			t.Errorf("%s: the port is not http-autometric of the sidecar", name)
		}
	}
	stats := read(t, "../../pkg/proxy/stats/text.go")
	for _, name := range []string{"hpa-prometheus-adapter/adapter-values.yaml", "keda-prometheus/scaledobject.yaml", "keda-metrics-api/scaledobject.yaml"} {
		text := read(t, filepath.Join(deploy, "autoscaling", name))
		at := strings.Index(text, "queue_average")
		if at < 0 {
			t.Errorf("%s: no gauge of the sidecar", name)
			continue
		}
		gauge := strings.FieldsFunc(text[at:], func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') })[0]
		harness.Contains(t, stats, `"`+gauge+`"`, name, "the gauge", gauge)
	}
	if !strings.Contains(after, "name: STATS_FORMAT\n              value: prometheus") {
		t.Error("KEDA receives protobuf, want text")
	}
}

// A failed scrape must not count as zero load, and the load of other workloads with similar names
// must not be included.
func TestAutoscalingIgnoresFailedScrapes(t *testing.T) {
	for _, name := range []string{"keda-prometheus/scaledobject.yaml", "keda-metrics-api/scaledobject.yaml"} {
		text := read(t, filepath.Join(deploy, "autoscaling", name))
		for _, want := range []string{"behavior: currentReplicasIfHigher", "metricType: Value", "failureThreshold: "} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s", name, want)
			}
		}
	}
	text := read(t, filepath.Join(deploy, "autoscaling/keda-prometheus/scaledobject.yaml"))
	if !strings.Contains(text, `ignoreNullValues: "false"`) {
		t.Error("an empty response from Prometheus is treated as 0; want ignoreNullValues: \"false\"")
	}
	if !strings.Contains(text, `query: avg(`) || !strings.Contains(text, `,app="model"}`) || strings.Contains(text, "=~") {
		t.Error("the query is not the average over the pods with the label of the workload")
	}
	if text := read(t, filepath.Join(deploy, "autoscaling/keda-metrics-api/scaledobject.yaml")); !strings.Contains(text, "aggregationType: average") {
		t.Error("the query is a sum, want an average, which ignores pods that do not respond")
	} else if !strings.Contains(text, "url: http://model-concurrency.shop.svc:9090/") {
		t.Error("the URL has no .svc, which KEDA needs to separate the port from the namespace")
	}
	// The PodMonitor copies this label of the Deployment to the series.
	deployment := first[*appsv1.Deployment](t, decode(t, "before.yaml", []byte(read(t, filepath.Join(deploy, "example/before.yaml")))))
	if got := deployment.Spec.Selector.MatchLabels["app"]; got != "model" {
		t.Errorf("got label app=%s, want model", got)
	}
	if monitor := read(t, filepath.Join(deploy, "autoscaling/hpa-prometheus-adapter/podmonitor.yaml")); !strings.Contains(monitor, "podTargetLabels: [app]") {
		t.Error("series have no label app")
	}
}
