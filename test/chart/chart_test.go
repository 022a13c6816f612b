// Package chart compares the Helm chart, rendered with the code of Helm, with the output of
// kustomize.
package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	root   = "../.."
	folder = root + "/deploy/chart/queue-proxy-injector"
)

// objects contains the objects of a cluster by "kind name".
type objects map[string]map[string]any

// read decodes a stream of objects. Objects of Kubernetes are decoded strictly.
func read(t *testing.T, text []byte) objects {
	t.Helper()
	all := objects{}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var raw runtime.RawExtension
		if err := d.Decode(&raw); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("parse YAML: %v:\n%s", err, text)
		}
		if len(raw.Raw) == 0 || string(raw.Raw) == "null" {
			continue
		}
		var is metav1.PartialObjectMetadata
		var o map[string]any
		if err := errors.Join(json.Unmarshal(raw.Raw, &is), json.Unmarshal(raw.Raw, &o)); err != nil {
			t.Fatal(err)
		}
		if scheme.Scheme.Recognizes(is.GroupVersionKind()) {
			if _, _, err := strict.Decode(raw.Raw, nil, nil); err != nil {
				t.Errorf("%s %s: strict decoding: %v", is.Kind, is.Name, err)
			}
		} else if group := is.GroupVersionKind().Group; group != "cert-manager.io" && group != "monitoring.coreos.com" {
			t.Errorf("%s %s: unknown API version %q", is.Kind, is.Name, is.APIVersion)
		}
		key := is.Kind + " " + is.Name
		if all[key] != nil {
			t.Errorf("duplicate object %s", key)
		}
		all[key] = o
	}
}

// render returns the objects that Helm would install with these values.
func render(t *testing.T, namespace string, values map[string]any) (objects, error) {
	t.Helper()
	chart, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	release := common.ReleaseOptions{Name: "q", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			text.WriteString("---\n" + files[name] + "\n")
		}
	}
	return read(t, text.Bytes()), nil
}

func rendered(t *testing.T, namespace string, values map[string]any) objects {
	t.Helper()
	all, err := render(t, namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func kustomized(t *testing.T, overlay string) objects {
	t.Helper()
	out, err := exec.Command(filepath.Join(root, "hack/kustomize"), "build", filepath.Join(root, "deploy", overlay)).Output()
	if err != nil {
		t.Fatalf("%s: %v", overlay, err)
	}
	return read(t, out)
}

// With the following values, the chart contains the same objects as an overlay.
func TestChartMatchesOverlays(t *testing.T) {
	for overlay, values := range map[string]map[string]any{
		"overlays/self-managed": {},
		"overlays/ha":           {"replicas": 2, "failurePolicy": "Fail"},
		"overlays/cert-manager": {"certificate": map[string]any{"mode": "cert-manager"}},
		"overlays/policy":       {"admission": "policy"},
		"monitoring":            {"admission": "policy", "monitoring": map[string]any{"enabled": true, "namespace": "monitoring"}},
	} {
		t.Run(overlay, func(t *testing.T) {
			got, want := rendered(t, "queue-proxy", values), kustomized(t, overlay)
			delete(want, "Namespace queue-proxy") // the chart does not contain the namespace, because helm install --create-namespace creates it
			if overlay == "monitoring" {
				maps.Copy(want, kustomized(t, "overlays/policy"))
			}
			for key := range want {
				if !reflect.DeepEqual(got[key], want[key]) {
					t.Errorf("%s: got %v, want %v", key, text(t, got[key]), text(t, want[key]))
				}
			}
			if len(got) != len(want) {
				t.Errorf("got %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
			}
		})
	}
}

func text(t *testing.T, o any) string {
	t.Helper()
	s, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(s)
}

func TestHelmLintHasNoWarnings(t *testing.T) {
	linter := lint.RunAll(folder, nil, "queue-proxy")
	for _, m := range linter.Messages {
		if m.Severity > support.InfoSev {
			t.Errorf("got %v, want no warnings", m)
		}
	}
}

// The namespace of the release replaces the namespace of the overlays everywhere.
func TestReleaseNamespaceIsUsedEverywhere(t *testing.T) {
	for _, mode := range []string{"self-managed", "cert-manager"} {
		for key, o := range rendered(t, "elsewhere", map[string]any{"certificate": map[string]any{"mode": mode}}) {
			s := text(t, o)
			for _, bad := range []string{`"namespace":"queue-proxy"`, `queue-proxy-injector.queue-proxy.svc`, `"queue-proxy/`, `["queue-proxy"`} {
				if strings.Contains(s, bad) {
					t.Errorf("%s: got %s in %s, want the namespace of the release", key, bad, s)
				}
			}
		}
	}
	hook := text(t, rendered(t, "elsewhere", nil)["MutatingWebhookConfiguration queue-proxy-injector"])
	if !strings.Contains(hook, `"values":["elsewhere","kube-system"]`) {
		t.Errorf("got %s, want the namespace of the injector in the excluded namespaces", hook)
	}
}

func TestChartValuesAreUsed(t *testing.T) {
	for _, c := range []struct {
		values map[string]any
		object string
		want   string
	}{
		{map[string]any{"images": map[string]any{"injector": "r.example/i:1"}}, "Deployment queue-proxy-injector", `"image":"r.example/i:1"`},
		{map[string]any{"images": map[string]any{"sidecar": "r.example/q:1"}}, "Deployment queue-proxy-injector", `"name":"INJECTOR_IMAGE","value":"r.example/q:1"`},
		{map[string]any{"admission": "policy", "images": map[string]any{"sidecar": "r.example/q:1"}}, "MutatingAdmissionPolicy queue-proxy-injector", `"expression":"'r.example/q:1'"`},
		{map[string]any{"imagePullSecrets": []any{map[string]any{"name": "pull"}}}, "Deployment queue-proxy-injector", `"imagePullSecrets":[{"name":"pull"}]`},
		{map[string]any{"timeoutSeconds": 7}, "MutatingWebhookConfiguration queue-proxy-injector", `"timeoutSeconds":7`},
		{map[string]any{"namespaces": map[string]any{"exclude": []any{"a", "b"}}}, "MutatingWebhookConfiguration queue-proxy-injector", `"values":["queue-proxy","a","b"]`},
		{map[string]any{"namespaces": map[string]any{"matchExpressions": []any{map[string]any{"key": "team", "operator": "Exists"}}}}, "MutatingWebhookConfiguration queue-proxy-injector", `{"key":"team","operator":"Exists"}`},
		{map[string]any{"admission": "policy", "namespaces": map[string]any{"matchExpressions": []any{map[string]any{"key": "team", "operator": "Exists"}}}}, "MutatingAdmissionPolicy queue-proxy-injector", `{"key":"team","operator":"Exists"}`},
		{map[string]any{"args": []any{"--concurrency=3"}}, "Deployment queue-proxy-injector", `["serve","--self-managed","--events","--concurrency=3"]`},
		{map[string]any{"resources": map[string]any{"limits": map[string]any{"cpu": "1"}}}, "Deployment queue-proxy-injector", `"cpu":"1"`},
		{map[string]any{"memoryTarget": "1GiB"}, "Deployment queue-proxy-injector", `"value":"1GiB"`},
		{map[string]any{"podAnnotations": map[string]any{"a": "b"}}, "Deployment queue-proxy-injector", `"a":"b"`},
		{map[string]any{"podLabels": map[string]any{"c": "d"}}, "Deployment queue-proxy-injector", `"c":"d"`},
		{map[string]any{"priorityClassName": "system-cluster-critical"}, "Deployment queue-proxy-injector", `"priorityClassName":"system-cluster-critical"`},
		{map[string]any{"nodeSelector": map[string]any{"e": "f"}}, "Deployment queue-proxy-injector", `"nodeSelector":{"e":"f"}`},
		{map[string]any{"tolerations": []any{map[string]any{"operator": "Exists"}}}, "Deployment queue-proxy-injector", `"tolerations":[{"operator":"Exists"}]`},
		{map[string]any{"replicas": 2, "affinity": map[string]any{"nodeAffinity": map[string]any{}}}, "Deployment queue-proxy-injector", `"affinity":{"nodeAffinity":{}}`},
		{map[string]any{"topologySpreadConstraints": []any{map[string]any{"maxSkew": 1}}}, "Deployment queue-proxy-injector", `"topologySpreadConstraints":[{"maxSkew":1}]`},
		{map[string]any{"replicas": 3, "podDisruptionBudget": map[string]any{"minAvailable": 2}}, "PodDisruptionBudget queue-proxy-injector", `"minAvailable":2`},
		{map[string]any{"networkPolicy": map[string]any{"apiServers": []any{"10.0.0.0/8"}}}, "NetworkPolicy queue-proxy-injector", `"from":[{"ipBlock":{"cidr":"10.0.0.0/8"}}]`},
		{map[string]any{"networkPolicy": map[string]any{"metricsNamespace": "observability"}}, "NetworkPolicy queue-proxy-injector", `"kubernetes.io/metadata.name":"observability"`},
		{map[string]any{"monitoring": map[string]any{"enabled": true, "labels": map[string]any{"release": "p"}}}, "PrometheusRule queue-proxy", `"release":"p"`},
		{map[string]any{"monitoring": map[string]any{"enabled": true, "dashboardLabels": map[string]any{"g": "h"}}}, "ConfigMap queue-proxy-dashboard", `"g":"h"`},
	} {
		if got := text(t, rendered(t, "queue-proxy", c.values)[c.object]); !strings.Contains(got, c.want) {
			t.Errorf("%v: got %s %s, want %s", c.values, c.object, got, c.want)
		}
	}
	for key, values := range map[string]map[string]any{
		"NetworkPolicy queue-proxy-injector":       {"networkPolicy": map[string]any{"enabled": false}},
		"PodDisruptionBudget queue-proxy-injector": {"replicas": 2, "podDisruptionBudget": map[string]any{"enabled": false}},
		"PrometheusRule queue-proxy":               {"monitoring": map[string]any{"enabled": true, "rules": false}},
		"ConfigMap queue-proxy-dashboard":          {"monitoring": map[string]any{"enabled": true, "dashboard": false}},
		"PodMonitor queue-proxy-injected":          {"monitoring": map[string]any{"enabled": true, "podMonitors": false}},
	} {
		if got := rendered(t, "queue-proxy", values)[key]; got != nil {
			t.Errorf("%v: got %s, want no objects", values, key)
		}
	}
}

func TestSchemaRejectsInvalidValues(t *testing.T) {
	deep := func(a, b string, v any) map[string]any { return map[string]any{a: map[string]any{b: v}} }
	for name, values := range map[string]map[string]any{
		"unknown key":                   {"replica": 2},
		"unknown key in a section":      deep("certificate", "kind", "x"),
		"zero replicas":                 {"replicas": 0},
		"fractional number":             {"replicas": 1.5},
		"string instead of a number":    {"replicas": "two"},
		"unknown failure policy":        {"failurePolicy": "fail"},
		"unknown certificate mode":      deep("certificate", "mode", "vault"),
		"unknown admission":             {"admission": "validating"},
		"image without a tag":           deep("images", "sidecar", "queue-proxy"),
		"image with a short digest":     deep("images", "sidecar", "queue-proxy@sha256:abc"),
		"long timeout":                  {"timeoutSeconds": 31},
		"unknown operator":              deep("namespaces", "matchExpressions", []any{map[string]any{"key": "a", "operator": "Equals"}}),
		"capitalized namespace":         deep("namespaces", "exclude", []any{"Kube"}),
		"forbidden argument":            {"args": []any{"serve"}},
		"address without a mask":        deep("networkPolicy", "apiServers", []any{"10.0.0.1"}),
		"number as an annotation":       {"podAnnotations": map[string]any{"a": 1}},
		"string as a disruption budget": deep("podDisruptionBudget", "minAvailable", "most"),
		"memory with the unit M":        {"memoryTarget": "200M"},
		"string instead of a boolean":   deep("monitoring", "enabled", "yes"),
	} {
		if _, err := render(t, "queue-proxy", values); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s, %v: got %v, want a schema error", name, values, err)
		}
	}
}

func TestChartValuesAreInSchema(t *testing.T) {
	chart, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties map[string]struct{ Properties map[string]any }
	}
	if err := json.Unmarshal(chart.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	for name, value := range chart.Values {
		p, ok := schema.Properties[name]
		if !ok {
			t.Errorf("%s: not found in the schema", name)
		}
		if inner, isMap := value.(map[string]any); isMap && p.Properties != nil {
			for key := range inner {
				if p.Properties[key] == nil {
					t.Errorf("%s.%s: not found in the schema", name, key)
				}
			}
		}
	}
	for name := range schema.Properties {
		if _, ok := chart.Values[name]; !ok && name != "global" {
			t.Errorf("%s: not found in values.yaml", name)
		}
	}
}

// as converts a rendered object to a type of Kubernetes.
func as[T any](t *testing.T, o map[string]any) *T {
	t.Helper()
	into := new(T)
	if err := json.Unmarshal([]byte(text(t, o)), into); err != nil {
		t.Fatal(err)
	}
	return into
}

const (
	secretKey = "Secret queue-proxy-injector-certificate"
	hookKey   = "MutatingWebhookConfiguration queue-proxy-injector"
)

// Helm 3 upgrades a release with a patch of the differences between two manifests. The
// patch must not remove the certificate that the injector writes.
func TestUpgradeByPatchKeepsCertificate(t *testing.T) {
	before := rendered(t, "queue-proxy", nil)
	after := rendered(t, "queue-proxy", map[string]any{"failurePolicy": "Fail", "replicas": 2})
	secret := as[corev1.Secret](t, before[secretKey])
	secret.Data = map[string][]byte{"tls.crt": []byte("c"), "tls.key": []byte("k")}
	hook := as[admissionregv1.MutatingWebhookConfiguration](t, before[hookKey])
	for i := range hook.Webhooks {
		hook.Webhooks[i].ClientConfig.CABundle = []byte("ca")
	}
	for key, live := range map[string]any{secretKey: secret, hookKey: hook} {
		meta, err := strategicpatch.NewPatchMetaFromStruct(live)
		if err != nil {
			t.Fatal(err)
		}
		current := []byte(text(t, live))
		patch, err := strategicpatch.CreateThreeWayMergePatch([]byte(text(t, before[key])), []byte(text(t, after[key])), current, meta, true)
		if err != nil {
			t.Fatal(err)
		}
		patched, err := strategicpatch.StrategicMergePatch(current, patch, live)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{secretKey: `"tls.key":"aw=="`, hookKey: `"caBundle":"Y2E="`}[key]; strings.Count(string(patched), want) != strings.Count(string(current), want) {
			t.Errorf("%s: got %s, want %s unchanged", key, patched, want)
		}
		if key == hookKey && strings.Count(string(patched), `"Fail"`) != 2 {
			t.Errorf("got %s, want failurePolicy Fail twice", patched)
		}
	}
}

// Helm 4 upgrades a release with server-side apply, where each field has an owner. The
// upgrade must not remove the certificate that the injector writes.
func TestUpgradeByApplyKeepsCertificate(t *testing.T) {
	ctx := context.Background()
	cluster := fake.NewClientset()
	secrets, hooks := cluster.CoreV1().Secrets("queue-proxy"), cluster.AdmissionregistrationV1().MutatingWebhookConfigurations()
	force := true
	apply := func(values map[string]any) {
		t.Helper()
		all := rendered(t, "queue-proxy", values)
		options := metav1.PatchOptions{FieldManager: "helm", Force: &force}
		_, errSecret := secrets.Patch(ctx, "queue-proxy-injector-certificate", types.ApplyPatchType, []byte(text(t, all[secretKey])), options)
		_, errHook := hooks.Patch(ctx, "queue-proxy-injector", types.ApplyPatchType, []byte(text(t, all[hookKey])), options)
		if err := errors.Join(errSecret, errHook); err != nil {
			t.Fatal(err)
		}
	}
	apply(nil)
	secret, err := secrets.Get(ctx, "queue-proxy-injector-certificate", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{"tls.crt": []byte("c"), "tls.key": []byte("k")}
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{FieldManager: "injector"}); err != nil {
		t.Fatal(err)
	}
	bundles := []byte(`[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"Y2E="},{"op":"add","path":"/webhooks/1/clientConfig/caBundle","value":"Y2E="}]`)
	if _, err := hooks.Patch(ctx, "queue-proxy-injector", types.JSONPatchType, bundles, metav1.PatchOptions{FieldManager: "injector"}); err != nil {
		t.Fatal(err)
	}

	apply(map[string]any{"failurePolicy": "Fail", "replicas": 2})

	secret, err = secrets.Get(ctx, "queue-proxy-injector-certificate", metav1.GetOptions{})
	if err != nil || string(secret.Data["tls.key"]) != "k" || string(secret.Data["tls.crt"]) != "c" {
		t.Errorf("got Secret %v, %v, want the unchanged certificate", secret.Data, err)
	}
	hook, err := hooks.Get(ctx, "queue-proxy-injector", metav1.GetOptions{})
	if err != nil || len(hook.Webhooks) != 2 {
		t.Fatalf("got %v, %v, want both webhooks", hook, err)
	}
	for _, w := range hook.Webhooks {
		if string(w.ClientConfig.CABundle) != "ca" || *w.FailurePolicy != admissionregv1.Fail {
			t.Errorf("%s: got CA bundle %q and %s, want the bundle of the injector, and Fail", w.Name, w.ClientConfig.CABundle, *w.FailurePolicy)
		}
	}
}

// Helm removes the objects that it has installed. The injector must not create other objects.
func TestUninstallRemovesAllObjects(t *testing.T) {
	for key, o := range rendered(t, "queue-proxy", map[string]any{"replicas": 2, "monitoring": map[string]any{"enabled": true}}) {
		if s := text(t, o); strings.Contains(s, "helm.sh/resource-policy") || strings.Contains(s, "helm.sh/hook") {
			t.Errorf("%s: got %s, want an object that is removed with the release", key, s)
		}
		var rules []rbacv1.PolicyRule
		switch {
		case strings.HasPrefix(key, "Role "):
			rules = as[rbacv1.Role](t, o).Rules
		case strings.HasPrefix(key, "ClusterRole "):
			rules = as[rbacv1.ClusterRole](t, o).Rules
		}
		for _, r := range rules {
			if slices.Contains(r.Verbs, "create") && !slices.Equal(r.Resources, []string{"events"}) {
				t.Errorf("%s: got permission to create %v, want permission for events only, because events expire", key, r.Resources)
			}
		}
	}
}
