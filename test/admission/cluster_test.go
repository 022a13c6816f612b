// Package admission tests the injector with the admission code of the API server. The webhook
// is called over HTTPS with the configuration in deploy/, and the policy is compiled and
// evaluated, as in an API server. The package is a separate module because this code has
// hundreds of dependencies.
//
// The tests run the programs as processes and check their output and responses.
package admission

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
)

const (
	root   = "../.."
	golden = root + "/pkg/inject/testdata/pairs"
)

// program is the path of the injector that is built for these tests.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "injector")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "injector")
	build := exec.Command("go", "build", "-o", program, "./cmd/injector")
	build.Dir, build.Stderr = root, os.Stderr
	code := 1
	if err := build.Run(); err == nil {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// injector runs the injector.
func injector(t *testing.T, stdin []byte, args ...string) (stdout []byte, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "INJECTOR_IMAGE=queue-proxy:dev")
	var out, report bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &report
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.Bytes(), report.String(), cmd.ProcessState.ExitCode()
}

// objects decodes a YAML stream strictly, like an API server.
func objects(t *testing.T, text []byte) []runtime.Object {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var all []runtime.Object
	for stream := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := stream.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(document), "apiVersion: cert-manager.io/") {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		all = append(all, object)
	}
}

// A cluster is the admission part of an API server.
type cluster struct {
	chain      admission.MutationInterface
	interfaces admission.ObjectInterfaces
}

// client is a fake client with the schema of pods.
type client struct{ *fake.Clientset }

func (c client) Discovery() discovery.DiscoveryInterfaces { return schemas{c.Clientset.Discovery()} }

type schemas struct{ discovery.DiscoveryInterfaces }

func (schemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }

// namespaces returns the namespaces that each cluster contains.
func namespaces() []runtime.Object {
	var all []runtime.Object
	for name, labels := range map[string]map[string]string{
		"chosen": {"queue-proxy.dev/inject": "true"}, "plain": {}, "closed": {"queue-proxy.dev/inject": "false"},
		"queue-proxy": {"queue-proxy.dev/inject": "true"}, "kube-system": {"queue-proxy.dev/inject": "true"},
	} {
		labels["kubernetes.io/metadata.name"] = name
		all = append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	return all
}

// newCluster starts admission plugins with some existing objects.
func newCluster(t *testing.T, has []runtime.Object, plugins ...admission.Interface) *cluster {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	kube := client{fake.NewClientset(append(namespaces(), has...)...)}
	factory := informers.NewSharedInformerFactory(kube, 0)
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	initialize := initializer.New(kube, dynamicfake.NewSimpleDynamicClient(scheme.Scheme), factory, authorizerfactory.NewAlwaysAllowAuthorizer(),
		utilfeature.DefaultFeatureGate, compatibility.DefaultBuildEffectiveVersion(), ctx.Done(), mapper)
	registry, names := admission.NewPlugins(), []string{}
	for i, p := range plugins {
		name := fmt.Sprintf("plugin%d", i)
		registry.Register(name, func(io.Reader) (admission.Interface, error) { return p, nil })
		names = append(names, name)
	}
	chain, err := registry.NewFromPlugins(names, noConfig{}, initialize, nil)
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return &cluster{
		chain:      admission.WithAudit(chain).(admission.MutationInterface),
		interfaces: admission.NewObjectInterfacesFromScheme(scheme.Scheme),
	}
}

// noConfig is the configuration of plugins without settings.
type noConfig struct{}

func (noConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// create admits a pod and returns the result.
func (c *cluster) create(namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	made, _, err := c.createHeard(namespace, pod)
	return made, err
}

// heard contains the warnings and audit annotations of an admission.
type heard struct {
	warnings []string
	audit    map[string]string
}

// AddWarning records a warning.
func (h *heard) AddWarning(_, text string) { h.warnings = append(h.warnings, text) }

// createHeard is like create and also returns the warnings and audit annotations.
func (c *cluster) createHeard(namespace string, pod *corev1.Pod) (*corev1.Pod, *heard, error) {
	pod = pod.DeepCopy()
	pod.Namespace = namespace
	attributes := admission.NewAttributesRecord(pod, nil, corev1.SchemeGroupVersion.WithKind("Pod"), namespace, pod.Name,
		corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "somebody"})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	h := new(heard)
	ctx = audit.WithAuditContext(warning.WithWarningRecorder(ctx, h))
	log := audit.AuditContextFrom(ctx)
	if err := log.Init(audit.RequestAuditConfig{Level: auditinternal.LevelMetadata}, nil); err != nil {
		return nil, nil, err
	}
	err := c.chain.Admit(ctx, attributes, c.interfaces)
	h.audit = log.GetEventAnnotations()
	return pod, h, err
}

// A pair is a golden pair with its pods as an API server decodes them.
type pair struct {
	name string
	args []string
	mark string // content of the file policy
	pods []*corev1.Pod
}

func pairs(t *testing.T) []pair {
	t.Helper()
	folders, err := os.ReadDir(golden)
	if err != nil || len(folders) < 40 {
		t.Fatalf("got %d pairs and %v, want at least 40", len(folders), err)
	}
	var all []pair
	for _, f := range folders {
		p := pair{name: f.Name()}
		args, _ := os.ReadFile(filepath.Join(golden, f.Name(), "args"))
		p.args = strings.Fields(string(args))
		mark, err := os.ReadFile(filepath.Join(golden, f.Name(), "policy"))
		if err != nil {
			t.Errorf("%s: %v: each pair requires a file policy", f.Name(), err)
		}
		p.mark = strings.TrimSpace(string(mark))
		inputs, _ := filepath.Glob(filepath.Join(golden, f.Name(), "in.*"))
		text, err := os.ReadFile(inputs[0])
		if err != nil {
			t.Fatal(err)
		}
		p.pods = podsOf(text)
		all = append(all, p)
	}
	return all
}

// podsOf returns the pods that controllers would create for the objects in a file. It returns
// no pods for invalid objects.
func podsOf(text []byte) []*corev1.Pod {
	var pods []*corev1.Pod
	for stream := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var object map[string]any
		if stream.Decode(&object) != nil {
			return pods
		}
		items, _ := object["items"].([]any)
		for _, o := range append([]any{object}, items...) {
			m, _ := o.(map[string]any)
			kind, _ := m["kind"].(string)
			if kind == "" && object["kind"] == "PodList" {
				kind = "Pod"
			}
			path := map[string][]string{"Pod": {}, "CronJob": {"spec", "jobTemplate", "spec", "template"}}[kind]
			if slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "ReplicationController"}, kind) {
				path = []string{"spec", "template"}
			}
			if path == nil {
				continue
			}
			template := m
			if len(path) > 0 {
				template, _, _ = unstructured.NestedMap(m, path...)
			}
			written, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]})
			pod := new(corev1.Pod)
			if err == nil && json.Unmarshal(written, pod) == nil {
				if pod.Name == "" {
					pod.GenerateName = "some-"
				}
				pods = append(pods, pod)
			}
		}
	}
}

// withDefaults returns a pod with the defaults that an API server sets before admission, as far
// as the injector reads them (pkg/apis/core/v1/defaults.go of Kubernetes).
func withDefaults(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	spec := &pod.Spec
	if spec.RestartPolicy == "" {
		spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	if spec.TerminationGracePeriodSeconds == nil {
		grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
		spec.TerminationGracePeriodSeconds = &grace
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	probe := func(p *corev1.Probe) {
		if p == nil {
			return
		}
		for _, d := range []struct {
			field *int32
			usual int32
		}{{&p.TimeoutSeconds, 1}, {&p.PeriodSeconds, 10}, {&p.SuccessThreshold, 1}, {&p.FailureThreshold, 3}} {
			if *d.field == 0 {
				*d.field = d.usual
			}
		}
		if p.HTTPGet != nil {
			if p.HTTPGet.Path == "" {
				p.HTTPGet.Path = "/"
			}
			if p.HTTPGet.Scheme == "" {
				p.HTTPGet.Scheme = corev1.URISchemeHTTP
			}
		}
		if p.GRPC != nil && p.GRPC.Service == nil {
			p.GRPC.Service = new(string)
		}
	}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			c := &list[i]
			for j := range c.Ports {
				if c.Ports[j].Protocol == "" {
					c.Ports[j].Protocol = corev1.ProtocolTCP
				}
			}
			probe(c.ReadinessProbe)
			probe(c.LivenessProbe)
			probe(c.StartupProbe)
		}
	}
	return pod
}

// byHand returns the pod that the injector command writes, or nil if the command rejects
// the pod. injected reports whether the command changed the pod.
func byHand(t *testing.T, pod *corev1.Pod, args []string) (made *corev1.Pod, report string, injected bool) {
	t.Helper()
	pod = pod.DeepCopy()
	pod.APIVersion, pod.Kind = "v1", "Pod"
	out, report, code := injector(t, marshal(t, pod), append([]string{"inject", "-o", "json"}, args...)...)
	if code != 0 {
		return nil, report, false
	}
	made = new(corev1.Pod)
	if err := json.Unmarshal(out, made); err != nil {
		t.Fatal(err)
	}
	// A policy does not change a file, so its status does not contain the layout of the file.
	if status, _, found := strings.Cut(made.Annotations["queue-proxy.dev/status"], `,"text":"`); found {
		made.Annotations["queue-proxy.dev/status"] = status + "}"
	}
	return made, report, strings.Contains(report, ": injected: ")
}

// same reports whether two pods have the same JSON encoding. It ignores their kind and
// API version.
func same(t *testing.T, a, b *corev1.Pod) bool {
	t.Helper()
	a, b = a.DeepCopy(), b.DeepCopy()
	a.TypeMeta, b.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
	return bytes.Equal(marshal(t, a), marshal(t, b))
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func indented(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
