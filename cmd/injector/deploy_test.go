package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
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

	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
)

const deploy = "../../deploy"

// overlays are the folders that are applied as they are.
func overlays() []string {
	return []string{"overlays/self-managed", "overlays/ha", "overlays/cert-manager"}
}

// strict decodes an object of Kubernetes' and refuses fields that do not exist.
func strict(t *testing.T, text []byte) runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, autoscalingv2.AddToScheme, admissionregv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		t.Fatalf("got %v, want it decoded strictly:\n%s", err, text)
	}
	return object
}

// An issuer and a certificate are cert-manager's, as far as we use them.
type (
	issuer struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			SelfSigned *struct{} `json:"selfSigned"`
			CA         *struct {
				SecretName string `json:"secretName"`
			} `json:"ca"`
		} `json:"spec"`
	}
	certificate struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			IsCA        bool   `json:"isCA"`
			CommonName  string `json:"commonName"`
			SecretName  string `json:"secretName"`
			Duration    string `json:"duration"`
			RenewBefore string `json:"renewBefore"`
			PrivateKey  struct {
				Algorithm      string `json:"algorithm"`
				Size           int    `json:"size"`
				RotationPolicy string `json:"rotationPolicy"`
			} `json:"privateKey"`
			DNSNames  []string `json:"dnsNames"`
			IssuerRef struct {
				Kind string `json:"kind"`
				Name string `json:"name"`
			} `json:"issuerRef"`
		} `json:"spec"`
	}
)

// foreign are the objects of others that stand in deploy, as far as we use them, with
// the names of their custom resource definitions.
func foreign(apiVersion, kind string) any {
	type meta struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string            `json:"name"`
			Namespace string            `json:"namespace"`
			Labels    map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	switch apiVersion + " " + kind {
	case "keda.sh/v1alpha1 ScaledObject":
		return &struct {
			meta
			Spec struct {
				ScaleTargetRef struct {
					Name string `json:"name"`
				} `json:"scaleTargetRef"`
				PollingInterval int32 `json:"pollingInterval"`
				MinReplicaCount int32 `json:"minReplicaCount"`
				MaxReplicaCount int32 `json:"maxReplicaCount"`
				Fallback        struct {
					FailureThreshold int32 `json:"failureThreshold"`
					Replicas         int32 `json:"replicas"`
				} `json:"fallback"`
				Triggers []struct {
					Type       string            `json:"type"`
					MetricType string            `json:"metricType"`
					Metadata   map[string]string `json:"metadata"`
				} `json:"triggers"`
			} `json:"spec"`
		}{}
	case "monitoring.coreos.com/v1 PodMonitor":
		return &struct {
			meta
			Spec struct {
				NamespaceSelector struct {
					Any bool `json:"any"`
				} `json:"namespaceSelector"`
				Selector            metav1.LabelSelector `json:"selector"`
				PodTargetLabels     []string             `json:"podTargetLabels"`
				PodMetricsEndpoints []struct {
					Port     string `json:"port"`
					Path     string `json:"path"`
					Interval string `json:"interval"`
				} `json:"podMetricsEndpoints"`
			} `json:"spec"`
		}{}
	case "monitoring.coreos.com/v1 PrometheusRule":
		return &struct {
			meta
			Spec struct {
				Groups []struct {
					Name  string `json:"name"`
					Rules []struct {
						Alert       string            `json:"alert"`
						Expr        string            `json:"expr"`
						For         string            `json:"for"`
						Labels      map[string]string `json:"labels"`
						Annotations map[string]string `json:"annotations"`
					} `json:"rules"`
				} `json:"groups"`
			} `json:"spec"`
		}{}
	case "cert-manager.io/v1 Issuer":
		return new(issuer)
	case "cert-manager.io/v1 Certificate":
		return new(certificate)
	case "operator.knative.dev/v1beta1 KnativeServing":
		return &struct {
			meta
			Spec struct {
				Config map[string]map[string]string `json:"config"`
			} `json:"spec"`
		}{}
	}
	return nil
}

// decode decodes every object of a stream strictly.
func decode(t *testing.T, name string, text []byte) []runtime.Object {
	t.Helper()
	stream, err := manifest.Parse(name, text).JSON()
	if err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	for d := json.NewDecoder(bytes.NewReader(stream)); d.More(); {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			t.Fatal(err)
		}
		var is metav1.TypeMeta
		if err := json.Unmarshal(raw, &is); err != nil {
			t.Fatal(err)
		}
		if into := foreign(is.APIVersion, is.Kind); into != nil {
			one := json.NewDecoder(bytes.NewReader(raw))
			one.DisallowUnknownFields()
			if err := one.Decode(into); err != nil {
				t.Errorf("%s: %s: got %v, want it decoded strictly", name, is.Kind, err)
			}
			continue
		}
		objects = append(objects, strict(t, raw))
	}
	return objects
}

func TestEveryManifestIsDecodedStrictly(t *testing.T) {
	// What is no object: the builds' own files, which are built below, the values of
	// a chart, and Prometheus' files, which deploy/monitoring/check gives to promtool.
	parts := []string{"kustomization.yaml", "hpa-prometheus-adapter/adapter-values.yaml", "monitoring/rules"}
	seen := 0
	err := filepath.WalkDir(deploy, func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".yaml" || slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(filepath.ToSlash(name), p) }) {
			return err
		}
		seen++
		text := read(t, name)
		if strings.HasSuffix(filepath.ToSlash(name), "knative/config-deployment.yaml") {
			text = "apiVersion: v1\nkind: ConfigMap\n" + text // it is a patch of one
		}
		if len(decode(t, name, []byte(text))) == 0 && !strings.Contains(text, "apiVersion: ") {
			t.Errorf("%s: got no object, want one", name)
		}
		return nil
	})
	if err != nil || seen < 24 {
		t.Errorf("got %d files (%v), want at least 24; have they moved?", seen, err)
	}
}

// kustomize is built by the go command, and kept in its cache: as a module of ours it
// would bring twenty others with it, for a test.
const kustomize = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"

// build does what kubectl kustomize does.
func build(t *testing.T, overlay string) []runtime.Object {
	t.Helper()
	return buildIn(t, deploy, overlay)
}

func buildIn(t *testing.T, folder, overlay string) []runtime.Object {
	t.Helper()
	cmd := exec.Command("go", "run", kustomize, "build", filepath.Join(folder, overlay))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", overlay, err, stderr.String())
	}
	return decode(t, overlay, text)
}

func first[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	for _, o := range objects {
		if found, ok := o.(T); ok {
			return found
		}
	}
	var none T
	t.Fatalf("got no %T, want one", none)
	return none
}

func TestWhatIsForMonitoringIsBuilt(t *testing.T) {
	dashboard := first[*corev1.ConfigMap](t, build(t, "monitoring"))
	if !json.Valid([]byte(dashboard.Data["queue-proxy.json"])) {
		t.Error("got a dashboard that is no JSON, want JSON")
	}
}

func TestOverlaysFitTheProgram(t *testing.T) {
	for _, overlay := range overlays() {
		t.Run(overlay, func(t *testing.T) {
			objects := build(t, overlay)
			d := first[*appsv1.Deployment](t, objects)
			hook := first[*admissionregv1.MutatingWebhookConfiguration](t, objects)
			service := first[*corev1.Service](t, objects)
			c := d.Spec.Template.Spec.Containers[0]

			// The program takes the arguments, and means the objects that are there.
			args := slices.Clone(c.Args[1:])
			for i := range args { // whoever applies it puts a digest in their place
				args[i] = strings.ReplaceAll(args[i], strings.Repeat("0", 64), strings.Repeat("1", 64))
			}
			s, err := (&command{}).readServing(args, []string{"POD_NAMESPACE=" + d.Namespace})
			if c.Args[0] != "serve" || err != nil {
				t.Fatalf("got the arguments %q, want serve and what it takes: %v", c.Args, err)
			}
			if s.service != service.Name || s.namespace != service.Namespace || s.configuration != hook.Name {
				t.Errorf("got service %s/%s and configuration %s, want those of the objects: %s/%s, %s", s.namespace, s.service, s.configuration, service.Namespace, service.Name, hook.Name)
			}
			if !strings.Contains(c.Image, "@sha256:") || !strings.Contains(s.said["image"], "@sha256:") {
				t.Errorf("got the images %s and %s, want both by digest", c.Image, s.said["image"])
			}
			if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
				t.Error("got a Service that does not select the pods")
			}
			if c.SecurityContext.AllowPrivilegeEscalation == nil || *c.SecurityContext.AllowPrivilegeEscalation || c.SecurityContext.Capabilities.Drop[0] != "ALL" ||
				!*d.Spec.Template.Spec.SecurityContext.RunAsNonRoot || d.Spec.Template.Spec.SecurityContext.SeccompProfile.Type != "RuntimeDefault" {
				t.Error("got pods that the restricted Pod Security Standard refuses")
			}
			wantPolicy := admissionregv1.Ignore
			if overlay == "overlays/ha" {
				wantPolicy = admissionregv1.Fail
				if *d.Spec.Replicas != 2 {
					t.Errorf("got %d replicas, want 2", *d.Spec.Replicas)
				}
				first[*policyv1.PodDisruptionBudget](t, objects)
			}
			wantEffects := admissionregv1.SideEffectClassNone
			if s.events { // which are not written about a dry run
				wantEffects = admissionregv1.SideEffectClassNoneOnDryRun
			}
			for _, w := range hook.Webhooks {
				if *w.FailurePolicy != wantPolicy || *w.SideEffects != wantEffects || *w.ReinvocationPolicy != admissionregv1.IfNeededReinvocationPolicy || *w.TimeoutSeconds != 5 {
					t.Errorf("%s: got %s %s %s %d, want %s %s IfNeeded 5", w.Name, *w.FailurePolicy, *w.SideEffects, *w.ReinvocationPolicy, *w.TimeoutSeconds, wantPolicy, wantEffects)
				}
				if ref := w.ClientConfig.Service; ref.Name != service.Name || ref.Namespace != service.Namespace || *ref.Path != "/inject" {
					t.Errorf("%s: got the service %v, want ours", w.Name, ref)
				}
			}
			mounts := d.Spec.Template.Spec.AutomountServiceAccountToken
			if needs := s.selfManaged || s.events; needs != (mounts != nil && *mounts) {
				t.Errorf("got the token mounted %v, want it where it is needed: %v", mounts, needs)
			}
			for _, o := range objects {
				if secret, ok := o.(*corev1.Secret); ok && secret.Name != s.secret {
					t.Errorf("got the Secret %s, want %s", secret.Name, s.secret)
				}
			}
		})
	}
}

// Who has set it in one place, and runs the overlay of another, would run an image of zeros.
func TestTheSidecarsImageIsSetInOnePlace(t *testing.T) {
	const set = "--image=sidecar.test/queue-proxy:1"
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(deploy)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(copied, "base/deployment.yaml")
	write(t, file, regexp.MustCompile(`--image=\S+`).ReplaceAllString(read(t, file), set))
	for _, overlay := range overlays() {
		d := first[*appsv1.Deployment](t, buildIn(t, copied, overlay))
		if args := d.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, set) {
			t.Errorf("%s: got the arguments %q, want %s among them, as the base has it", overlay, args, set)
		}
	}
}

func TestThePolicyIsWhatTheInjectorPrints(t *testing.T) {
	name := filepath.Join(deploy, "overlays/policy/policy.yaml")
	const image = "--image=queue-proxy@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	out, report, code := injector(t, "policy", nil, image)
	if again, _, _ := injector(t, "policy", nil, image); code != done || again != out {
		t.Fatalf("got exit code %d, want 0 and the same text each time: %s", code, report)
	}
	if *update {
		write(t, name, out)
	}
	if want := read(t, name); out != want {
		t.Errorf("got a difference (go test ./cmd/injector -update):\n%s", unified(name, []byte(want), []byte(out)))
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
	// The API server's bounds (validation of admissionregistration).
	if n := len(policy.Spec.MatchConditions); n > 64 {
		t.Errorf("got %d conditions, want at most 64", n)
	}
	names := map[string]bool{}
	for _, v := range policy.Spec.Variables {
		if names[v.Name] || v.Expression == "" {
			t.Errorf("got the variable %q twice or without a meaning", v.Name)
		}
		names[v.Name] = true
	}
}

// A kubelet brings a renewed certificate to the injector after a minute or so, and the
// caBundle is published at once: what it holds must have signed the old one as well.
func TestARenewedCertificateHasTheAuthorityOfTheOldOne(t *testing.T) {
	issuers, certificates := map[string]*issuer{}, map[string]*certificate{}
	name := filepath.Join(deploy, "overlays/cert-manager/certificate.yaml")
	stream, err := manifest.Parse(name, []byte(read(t, name))).JSON()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(stream)); d.More(); {
		var c certificate // an Issuer has the same name and kind
		var raw json.RawMessage
		if err := errors.Join(d.Decode(&raw), json.Unmarshal(raw, &c)); err != nil {
			t.Fatal(err)
		}
		if c.Kind == "Certificate" {
			certificates[c.Name] = &c
			continue
		}
		i := new(issuer)
		if err := json.Unmarshal(raw, i); err != nil {
			t.Fatal(err)
		}
		issuers[i.Name] = i
	}
	served := certificates["queue-proxy-injector"]
	by := issuers[served.Spec.IssuerRef.Name]
	if by == nil || by.Spec.CA == nil {
		t.Fatalf("got the certificate issued by %+v, want it issued by an authority: each that signs itself is trusted alone", by)
	}
	for _, c := range certificates {
		if c.Spec.SecretName != by.Spec.CA.SecretName {
			continue
		}
		if of := issuers[c.Spec.IssuerRef.Name]; !c.Spec.IsCA || c.Spec.PrivateKey.RotationPolicy != "Never" || of == nil || of.Spec.SelfSigned == nil {
			t.Errorf("got the authority %+v, want one that signs itself and keeps its key", c.Spec)
		}
		return
	}
	t.Errorf("got no authority in the Secret %s, want one", by.Spec.CA.SecretName)
}

func TestRightsAreThoseThatAreUsed(t *testing.T) {
	objects := build(t, "overlays/self-managed")
	role, cluster := first[*rbacv1.Role](t, objects), first[*rbacv1.ClusterRole](t, objects)
	got := map[string]string{}
	for _, r := range append(slices.Clone(role.Rules), cluster.Rules...) {
		got[strings.Join(r.Resources, ",")+" "+strings.Join(r.ResourceNames, ",")] = strings.Join(r.Verbs, ",")
	}
	want := map[string]string{
		"secrets queue-proxy-injector-certificate":           "get,update",
		"mutatingwebhookconfigurations queue-proxy-injector": "get,patch",
		"namespaces ": "get",
		"events ":     "create",
	}
	for rule, verbs := range want {
		if got[rule] != verbs {
			t.Errorf("%s: got %q, want %q", rule, got[rule], verbs)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got the rules %v, want only %v", got, want)
	}
	for _, o := range build(t, "overlays/cert-manager") {
		switch o.(type) {
		case *rbacv1.Role, *rbacv1.ClusterRole:
			t.Errorf("got a %T, want no rights at all", o)
		}
	}
}

func TestOnlyTheWebhooksPortIsOpenToAll(t *testing.T) {
	for _, overlay := range overlays() {
		objects := build(t, overlay)
		d, p := first[*appsv1.Deployment](t, objects), first[*networkingv1.NetworkPolicy](t, objects)
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil || p.Namespace != d.Namespace || !selector.Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("%s: got a policy for %s in %s, %v, want one for the injector's pods", overlay, selector, p.Namespace, err)
		}
		ports := map[string]int32{}
		for _, port := range d.Spec.Template.Spec.Containers[0].Ports {
			ports[port.Name] = port.ContainerPort
		}
		open := map[int32]bool{} // to all
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				open[port.Port.IntVal] = len(rule.From) == 0
			}
		}
		if want := map[int32]bool{ports["https"]: true, ports["metrics"]: false}; !maps.Equal(open, want) {
			t.Errorf("%s: got the ports %v, open to all or not, want %v", overlay, open, want)
		}
		// Who manages certificates and writes events must reach the API server, and nobody else anybody.
		closed := slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		if mounts := d.Spec.Template.Spec.AutomountServiceAccountToken; closed != (mounts == nil) || len(p.Spec.Egress) > 0 {
			t.Errorf("%s: got egress closed %v, want it closed where there is no token", overlay, closed)
		}
	}
}

func TestEachPodIsAskedForOnceOrNotAtAll(t *testing.T) {
	hook := first[*admissionregv1.MutatingWebhookConfiguration](t, build(t, "overlays/self-managed"))
	matches := func(s *metav1.LabelSelector, set labels.Set) bool {
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		return selector.Matches(set)
	}
	const key = "queue-proxy.dev/inject"
	for _, c := range []struct {
		namespace, of, pod string // "" is no label
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
		if got != c.want {
			t.Errorf("namespace %s %q, pod %q: got %d webhooks, want %d", c.namespace, c.of, c.pod, got, c.want)
		}
	}
}

func TestTheExampleIsWhatTheInjectorMakes(t *testing.T) {
	before, after := filepath.Join(deploy, "example/before.yaml"), filepath.Join(deploy, "example/after.yaml")
	out, report, code := injector(t, "inject", []byte(read(t, before)))
	if *update {
		write(t, after, out)
	}
	if want := read(t, after); code != done || out != want {
		t.Errorf("got exit code %d and a difference (go test ./cmd/injector -update):\n%s%s", code, unified(after, []byte(want), []byte(out)), report)
	}
	if strings.Contains(report, "warning") {
		t.Errorf("got %s, want an example without warnings", report)
	}
	decode(t, after, []byte(out))
}

// The autoscaling examples name metrics, ports and a Service that must exist.
func TestAutoscalingReadsWhatThereIs(t *testing.T) {
	after := read(t, filepath.Join(deploy, "example/after.yaml"))
	for _, name := range []string{"hpa-prometheus-adapter/podmonitor.yaml", "keda-metrics-api/service.yaml"} {
		if text := read(t, filepath.Join(deploy, "autoscaling", name)); !strings.Contains(text, "http-autometric") || !strings.Contains(after, "name: http-autometric") {
			t.Errorf("%s: got another port, want the sidecar's http-autometric", name)
		}
	}
	stats := read(t, "../../pkg/stats/text.go")
	for _, name := range []string{"hpa-prometheus-adapter/adapter-values.yaml", "keda-prometheus/scaledobject.yaml", "keda-metrics-api/scaledobject.yaml"} {
		text := read(t, filepath.Join(deploy, "autoscaling", name))
		at := strings.Index(text, "queue_average")
		if at < 0 {
			t.Errorf("%s: got no gauge of ours, want one", name)
			continue
		}
		gauge := strings.FieldsFunc(text[at:], func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') })[0]
		if !strings.Contains(stats, `"`+gauge+`"`) {
			t.Errorf("%s: got the gauge %s, want one that the sidecar has", name, gauge)
		}
	}
	if !strings.Contains(after, "name: STATS_FORMAT\n              value: prometheus") {
		t.Error("got a sidecar that answers protobuf to KEDA, want text")
	}
}
