package knative

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"knative.dev/pkg/apis"
	"knative.dev/pkg/configmap"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	configurations "knative.dev/serving/pkg/reconciler/configuration/resources"
	"knative.dev/serving/pkg/reconciler/revision/config"
	revisions "knative.dev/serving/pkg/reconciler/revision/resources"
	services "knative.dev/serving/pkg/reconciler/service/resources"
	"sigs.k8s.io/yaml"
)

// serviceFiles contains a file for each Knative Service. The file contains the Service, and the
// keys of ConfigMaps that differ from the defaults of Knative. Files in a subdirectory apply only
// to that release.
//
//go:embed services
var serviceFiles embed.FS

const podIP, hostIP = "127.0.0.1", "127.0.0.1"

// A revision contains the objects that the reconcilers of Knative create for a Service.
type revision struct {
	*v1.Revision
	pod       corev1.PodSpec
	configMap map[string]*corev1.ConfigMap // all ConfigMaps of Knative by name
}

// serviceNames returns the Services for a release.
func serviceNames(t *testing.T, release string) []string {
	t.Helper()
	var names []string
	for _, dir := range []string{"services", path.Join("services", release)} {
		files, err := fs.Glob(serviceFiles, dir+"/*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(f, "services/"), ".yaml"))
		}
	}
	slices.Sort(names)
	return names
}

// reconcile runs the webhook of Knative and the reconcilers of Services, Configurations and
// Revisions.
func reconcile(t *testing.T, name string) *revision {
	t.Helper()
	r := &revision{configMap: installed(t)}
	var service v1.Service
	for _, document := range documents(t, name) {
		var kind metav1.TypeMeta
		decode(t, name, document, &kind, yaml.Unmarshal)
		switch kind.Kind {
		case "ConfigMap":
			var differs corev1.ConfigMap
			decode(t, name, document, &differs, strict)
			r.change(t, differs.Name, differs.Data)
		case "Service":
			decode(t, name, document, &service, strict)
		default:
			t.Fatalf("%s: got kind %q, want ConfigMap or Service", name, kind.Kind)
		}
	}

	store := config.NewStore(configLogger{t})
	store.WatchConfigs(configmap.NewStaticWatcher(slices.Collect(maps.Values(r.configMap))...))
	ctx := store.ToContext(context.Background())
	service.Namespace, service.UID, service.Generation = "default", "1", 1
	service.SetDefaults(ctx)
	if err := service.Validate(apis.WithinCreate(ctx)).Filter(apis.ErrorLevel); err != nil {
		t.Fatalf("%s: validate: %v", name, err)
	}
	configuration := services.MakeConfiguration(&service)
	configuration.UID, configuration.Generation = "2", 1
	r.Revision = configurations.MakeRevision(ctx, configuration, time.Now())
	r.UID = types.UID("3")
	r.SetDefaults(ctx)
	deployment, err := revisions.MakeDeployment(r.Revision, store.Load())
	if err != nil {
		t.Fatalf("%s: make the Deployment: %v", name, err)
	}
	r.pod = deployment.Spec.Template.Spec
	return r
}

func (r *revision) change(t *testing.T, name string, data map[string]string) {
	t.Helper()
	to, ok := r.configMap[name]
	if !ok {
		t.Fatalf("the ConfigMap %s does not exist", name)
	}
	if to.Data == nil {
		to.Data = map[string]string{}
	}
	maps.Copy(to.Data, data)
}

// installed returns the ConfigMaps that the release installs.
func installed(t *testing.T) map[string]*corev1.ConfigMap {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(os.Getenv(servingName), "config/core/configmaps/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, filepath.Join(os.Getenv(networkingName), "config/config-network.yaml"))
	all := map[string]*corev1.ConfigMap{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var c corev1.ConfigMap
		decode(t, f, text, &c, yaml.Unmarshal)
		c.Namespace = "knative-serving"
		all[c.Name] = &c
	}
	return all
}

func documents(t *testing.T, name string) [][]byte {
	t.Helper()
	text, err := serviceFiles.ReadFile("services/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, document)
	}
}

func decode(t *testing.T, name string, text []byte, into any, by func([]byte, any, ...yaml.JSONOpt) error) {
	t.Helper()
	if err := by(text, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func strict(text []byte, into any, _ ...yaml.JSONOpt) error { return yaml.UnmarshalStrict(text, into) }

// container returns a container of the pod.
func (r *revision) container(t *testing.T, name string) *corev1.Container {
	t.Helper()
	i := slices.IndexFunc(r.pod.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("container %s not found in the pod", name)
	}
	return &r.pod.Containers[i]
}

// environment returns a container's environment: the variables that the kubelet and the
// Deployment set, with resolved references to pod fields.
func (r *revision) environment(t *testing.T, c *corev1.Container) []string {
	t.Helper()
	podName := r.Name + "-deployment-5d4f8b7c9-x2x4z"
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/ko-app",
		"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
		"HOSTNAME=" + podName,
		"KUBERNETES_SERVICE_HOST=10.96.0.1",
		"KUBERNETES_SERVICE_PORT=443",
		"KUBERNETES_SERVICE_PORT_HTTPS=443",
		"KUBERNETES_PORT=tcp://10.96.0.1:443",
		"KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443",
		"KUBERNETES_PORT_443_TCP_PROTO=tcp",
		"KUBERNETES_PORT_443_TCP_PORT=443",
		"KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1",
	}
	fields := map[string]string{
		"metadata.name": podName, "metadata.namespace": r.Namespace,
		"status.podIP": podIP, "status.hostIP": hostIP,
	}
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil {
			resolved, ok := "", false
			if e.ValueFrom.FieldRef != nil {
				resolved, ok = fields[e.ValueFrom.FieldRef.FieldPath]
			}
			if !ok {
				t.Fatalf("%s: unsupported reference %v", e.Name, e.ValueFrom)
			}
			value = resolved
		}
		env = append(env, e.Name+"="+value)
	}
	return env
}

// configLogger fails the test if Knative rejects a ConfigMap.
type configLogger struct{ t *testing.T }

func (configLogger) Debugf(string, ...any) {}
func (configLogger) Infof(string, ...any)  {}
func (l configLogger) Errorf(format string, of ...any) {
	l.t.Error("Knative: ", fmt.Sprintf(format, of...))
}

func (l configLogger) Fatalf(format string, of ...any) {
	l.t.Fatal("Knative: ", fmt.Sprintf(format, of...))
}
