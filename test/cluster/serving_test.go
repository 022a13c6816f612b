//go:build cluster

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The images of Knative Serving, built from its Go module.
const (
	knativeQueue = "dev.local/knative-queue:dev"
	wsserver     = "dev.local/wsserver:dev"
	grpcPing     = "dev.local/grpc-ping:dev"
)

// ledgerTemplate is a Knative request log template with the fields that the ledgers need.
const ledgerTemplate = `{"message":"request","target":"{{js .Request.URL.RequestURI}}","status":{{.Response.Code}},` +
	`"protocol":"{{.Request.Proto}}","reason":"{{if lt .Response.Code 500}}ok{{else}}failed{{end}}"}`

// servingConfig contains the keys of Knative's ConfigMaps that the tests set, by ConfigMap.
var servingConfig = map[string]string{
	// Releases before 1.0 use the keys that contain a dot.
	"network": `{"ingress-class":"test.ingress.networking.knative.dev","certificate-class":"test.ingress.networking.knative.dev",` +
		`"ingress.class":"test.ingress.networking.knative.dev","certificate.class":"test.ingress.networking.knative.dev"}`,
	"domain":        `{"example.com":""}`,
	"deployment":    queueImage(sidecarImage),
	"autoscaler":    `{"stable-window":"12s","scale-to-zero-grace-period":"10s"}`,
	"features":      `{"multi-container-probing":"enabled"}`,
	"observability": `{"logging.enable-request-log":"true","logging.enable-probe-request-log":"false","logging.request-log-template":` + strconv.Quote(ledgerTemplate) + `}`,
}

// knativeState is the state of the Knative installation.
type knativeState struct {
	once sync.Once
	err  error
}

// serving installs Knative Serving with our image as its queue-proxy, once for all tests.
func serving(t *testing.T) {
	t.Helper()
	if err := it.startServing(); err != nil {
		t.Fatalf("Knative: %v", err)
	}
}

func (m *machine) startServing() error {
	m.serving.once.Do(func() { m.serving.err = m.installServing() })
	return m.serving.err
}

func (m *machine) installServing() error {
	if err := m.importServing(); err != nil {
		return err
	}
	manifest, err := servingManifest()
	if err != nil {
		return err
	}
	file := m.state + "/knative.yaml"
	if err := os.WriteFile(file, []byte(manifest), 0o644); err != nil {
		return err
	}
	// Retry, because some objects precede the definitions of their kinds.
	if err := m.until("Knative is applied", func() error {
		_, err := run(nil, "kubectl", "apply", "--server-side", "--force-conflicts", "-f", file)
		return err
	}); err != nil {
		return err
	}
	if err := m.rollouts("webhook"); err != nil {
		return err
	}
	for name, data := range servingConfig {
		if err := m.until("config-"+name+" is set", func() error { return patchConfig(name, data) }); err != nil {
			return err
		}
	}
	if _, err := run([]byte(fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: gateway, namespace: knative-serving}
spec: {ports: [{name: http, port: 80, targetPort: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: gateway-1, namespace: knative-serving, labels: {kubernetes.io/service-name: gateway}}
addressType: IPv4
endpoints: [{addresses: ["%s"], conditions: {ready: true}}]
ports: [{name: http, port: 80, protocol: TCP}]
`, nodeAddress)), "kubectl", "apply", "-f", "-"); err != nil {
		return err
	}
	m.define("ingress", "ingress", "-kubeconfig", m.state+"/pki/admin.kubeconfig", "-listen", nodeAddress+":80")
	if err := m.start("ingress"); err != nil {
		return err
	}
	return m.rollouts("controller", "autoscaler", "activator")
}

// importServing imports the programs of the selected release into containerd.
func (m *machine) importServing() error {
	bin, err := programs(*release)
	if err != nil {
		return err
	}
	for name, ref := range map[string]string{"controller": "", "webhook": "", "autoscaler": "", "activator": "", "queue": knativeQueue, "wsserver": wsserver, "grpc-ping": grpcPing} {
		if ref == "" {
			ref = "dev.local/knative-" + name + ":dev"
		}
		if err := m.importProgram(bin+"/"+name, ref, "/ko-app/"+name); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) rollouts(names ...string) error {
	for _, name := range names {
		if _, err := run(nil, "kubectl", "-n", "knative-serving", "rollout", "status", "deployment/"+name, "--timeout=110s"); err != nil {
			return err
		}
	}
	return nil
}

// patchConfig sets keys in one of Knative's ConfigMaps. The keys are given as JSON.
func patchConfig(name, data string) error {
	_, err := run(nil, "kubectl", "-n", "knative-serving", "patch", "configmap", "config-"+name, "--type=merge", "-p", `{"data":`+data+`}`)
	return err
}

// queueImage returns the setting for the image of the queue-proxy. Releases before 1.0 use
// another key.
func queueImage(image string) string {
	return fmt.Sprintf(`{"queue-sidecar-image":%q,"queueSidecarImage":%[1]q}`, image)
}

func setQueueImage(image string) error { return patchConfig("deployment", queueImage(image)) }

// moduleField returns a field of `go list -m` for a module in a go.mod file of this package.
func moduleField(in, module, field string) (string, error) {
	c := exec.Command("go", "list", "-m", "-f", "{{."+field+"}}", module)
	c.Dir = in
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// servingManifest combines the manifests in the modules of Serving, networking and caching,
// like the release files of Knative.
func servingManifest() (string, error) {
	dirs := map[string]string{}
	for _, module := range []string{"serving", "networking", "caching"} {
		dir, err := moduleField(*release, "knative.dev/"+module, "Dir")
		if err != nil {
			return "", err
		}
		dirs[module] = dir
	}
	core := dirs["serving"] + "/config/core"
	var files []string
	for _, pattern := range []string{
		core + "/100-*.yaml", core + "/200-*.yaml", core + "/200-roles/*.yaml", dirs["caching"] + "/config/image.yaml",
		dirs["networking"] + "/config/*.yaml", core + "/300-resources/*.yaml", core + "/300-*.yaml", core + "/configmaps/*.yaml",
		core + "/deployments/activator.yaml", core + "/deployments/autoscaler.yaml", core + "/deployments/controller.yaml",
		core + "/deployments/webhook.yaml", core + "/webhooks/*.yaml",
	} {
		found, err := filepath.Glob(pattern)
		// Some releases contain no files that match these patterns.
		optional := pattern == core+"/200-*.yaml" || pattern == core+"/300-*.yaml"
		if err != nil || len(found) == 0 && !optional {
			return "", errors.Join(err, fmt.Errorf("%s: no files found", pattern))
		}
		files = append(files, found...)
	}
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		b.Write(text)
		b.WriteString("\n---\n")
	}
	all := strings.ReplaceAll(b.String(), "certificate.class: cert-manager.certificate.networking.knative.dev", "certificate.class: test.ingress.networking.knative.dev")
	images := regexp.MustCompile(`ko://knative.dev/serving/cmd/([a-z]+)`).ReplaceAllString(all, "dev.local/knative-$1:dev")
	// The machine is small, so the CPU requests are reduced.
	return regexp.MustCompile(`(?m)^( +)cpu: (100|300|30)m$`).ReplaceAllString(images, "${1}cpu: 20m"), nil
}

// A kservice is a Knative Service with the sample app.
type kservice struct {
	name        string
	annotations []string // annotations of the template ("key: value")
	spec        []string // additional lines of the template spec
	port        string   // name of the port; empty for HTTP/1.1
	image       string   // image of the container; empty for the sample app
	container   []string // additional lines of the container
	others      string   // additional containers in braces
	traffic     string   // list of traffic targets in brackets
}

// manifest returns the Service in YAML.
func (k kservice) manifest() string {
	image, port := k.image, "{containerPort: 8080}"
	if image == "" {
		image = appImage
		k.container = append(k.container, `args: ["-ledger"]`, `readinessProbe: {httpGet: {path: /ready}}`)
	}
	if k.port != "" {
		port = "{containerPort: 8080, name: " + k.port + "}"
	}
	container := append([]string{"name: user-container", "image: " + image, "ports: [" + port + "]", "resources: {requests: {cpu: 10m, memory: 16Mi}}"}, k.container...)
	containers := "{" + strings.Join(container, ", ") + "}"
	if k.others != "" {
		containers += ", " + k.others
	}
	spec := append([]string{"containers: [" + containers + "]"}, k.spec...)
	text := fmt.Sprintf(`apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: %s}
spec:
  template:
    metadata: {annotations: {%s}}
    spec: {%s}
`, k.name, strings.Join(k.annotations, ", "), strings.Join(spec, ", "))
	if k.traffic != "" {
		text += "  traffic: " + k.traffic + "\n"
	}
	if strings.HasPrefix(*release, "knative-v0.") {
		// Releases before 1.0 do not support annotation names with hyphens.
		text = strings.NewReplacer("/min-scale:", "/minScale:", "/max-scale:", "/maxScale:", "/target-burst-capacity:", "/targetBurstCapacity:").Replace(text)
	}
	return text
}

// direct contains the annotations of a Service whose requests go directly to its pods, so that
// the autoscaler receives the number of requests only from the sidecars.
var direct = []string{`autoscaling.knative.dev/target-burst-capacity: "0"`}

// always returns the annotations of a Service that is never scaled to zero.
func always(more ...string) []string {
	return append([]string{`autoscaling.knative.dev/min-scale: "1"`}, more...)
}

// deploy applies a Knative Service, waits until its newest generation is ready, and returns its
// host.
func (s *space) deploy(k kservice) string {
	s.t.Helper()
	s.apply(k.manifest())
	return s.deployed(k.name)
}

func (s *space) deployed(name string) string {
	s.t.Helper()
	eventually(s.t, "Knative Service "+name+" is ready", func() error {
		o, err := s.one("serving.knative.dev/v1/services", name)
		if err != nil {
			return err
		}
		if o.number("metadata", "generation") != o.number("status", "observedGeneration") || !o.condition("Ready") {
			return fmt.Errorf("got conditions %v", o.at("status", "conditions"))
		}
		return nil
	})
	return name + "." + s.name + ".example.com"
}

// replicas returns the total number of replicas in the Deployments of a Knative Service.
func (s *space) replicas(name string) (int, error) {
	all, err := it.api.list("/apis/apps/v1/namespaces/" + s.name + "/deployments?labelSelector=serving.knative.dev%2Fservice%3D" + name)
	n := 0
	for _, d := range all {
		n += d.number("spec", "replicas")
	}
	if len(all) == 0 && err == nil {
		err = errors.New("no Deployment found")
	}
	return n, err
}

// scaled waits until the number of replicas of a Knative Service satisfies a condition.
func (s *space) scaled(name string, is func(n int) bool, what string) {
	s.t.Helper()
	eventually(s.t, name+" is scaled to "+what, func() error {
		n, err := s.replicas(name)
		if err == nil && !is(n) {
			err = fmt.Errorf("got %d replicas", n)
		}
		return err
	})
}

// atZero waits until a Knative Service has no pods, including terminating pods.
func (s *space) atZero(name string) {
	s.t.Helper()
	s.scaled(name, func(n int) bool { return n == 0 }, "zero")
	eventually(s.t, "the pods of "+name+" are deleted", func() error {
		all, err := it.api.list("/api/v1/namespaces/" + s.name + "/pods?labelSelector=serving.knative.dev%2Fservice%3D" + name)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("got %d pods", len(all))
		}
		return err
	})
}

// mode waits until requests to the active Revision go through the activator (want is
// Proxy), or directly to the pods (want is Serve).
func (s *space) mode(name, want string) {
	s.t.Helper()
	eventually(s.t, name+" is in mode "+want, func() error {
		all, err := it.api.list("/apis/networking.internal.knative.dev/v1alpha1/namespaces/" + s.name + "/serverlessservices?labelSelector=serving.knative.dev%2Fservice%3D" + name)
		for _, o := range all {
			if got := o.text("spec", "mode"); got != want {
				return fmt.Errorf("got mode %s", got)
			}
		}
		if len(all) == 0 && err == nil {
			err = errors.New("no ServerlessService found")
		}
		return err
	})
}
