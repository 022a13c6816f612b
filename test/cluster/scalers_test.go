//go:build cluster && clusterfull

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// autoscaling is the directory of the published manifests. The tests use these manifests.
const autoscaling = "../../deploy/autoscaling"

// nodeService returns a Service whose endpoint is a program on the node.
func nodeService(namespace, name string, port int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec: {ports: [{name: http, port: %[3]d, targetPort: %[3]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[2]s-1, namespace: %[1]s, labels: {kubernetes.io/service-name: %[2]s}}
addressType: IPv4
endpoints: [{addresses: ["%[4]s"], conditions: {ready: true}}]
ports: [{name: http, port: %[3]d, protocol: TCP}]
`, namespace, name, port, nodeAddress)
}

// startKEDA starts the operator and the metrics server of KEDA with the manifests of KEDA,
// without its webhook.
func startKEDA(t *testing.T) {
	t.Helper()
	bin, err := programs("keda")
	if err != nil {
		t.Fatal(err)
	}
	for program, as := range map[string]string{"operator": "keda", "adapter": "keda-adapter"} {
		if err := it.importProgram(bin+"/"+program, "dev.local/"+as+":dev", "/"+as); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := moduleField("keda", "github.com/kedacore/keda/v2", "Dir")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, part := range []string{"general", "crd", "service_account", "rbac", "manager", "metrics-server"} {
		all.WriteString(kubectl(t, "kustomize", dir+"/config/"+part) + "---\n")
	}
	manifest := strings.NewReplacer("image: ghcr.io/kedacore/keda-metrics-apiserver:main", "image: dev.local/keda-adapter:dev",
		"image: ghcr.io/kedacore/keda:main", "image: dev.local/keda:dev", "imagePullPolicy: Always", "imagePullPolicy: Never",
		"cpu: 100m", "cpu: 20m").Replace(all.String())
	if strings.Contains(manifest, "ghcr.io") {
		t.Fatal("the KEDA manifests contain an image that is not replaced")
	}
	// Use server-side apply, because the custom resource definitions are too long for the
	// annotation of a client-side apply.
	eventually(t, "KEDA is applied", func() error {
		_, err := run([]byte(manifest), "kubectl", "apply", "--server-side", "-f", "-")
		return err
	})
	for _, name := range []string{"keda-operator", "keda-metrics-apiserver"} {
		kubectl(t, "-n", "keda", "rollout", "status", "deployment/"+name, "--timeout=110s")
	}
	available(t, "v1beta1.external.metrics.k8s.io")
}

// available waits until an aggregated API is available.
func available(t *testing.T, name string) {
	t.Helper()
	eventually(t, name+" is available", func() error {
		var o object
		if err := it.api.get("/apis/apiregistration.k8s.io/v1/apiservices/"+name, &o); err != nil {
			return err
		}
		if !o.condition("Available") {
			return fmt.Errorf("got conditions %v", o.at("status", "conditions"))
		}
		return nil
	})
}

// startPrometheus starts Prometheus on the node. It scrapes the endpoints of the PodMonitor in
// all namespaces, like the Prometheus Operator.
func startPrometheus(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Fatalf("%v (run test/cluster/setup full)", err)
	}
	file := it.state + "/prometheus.yml"
	if err := os.WriteFile(file, scrapeConfig(t), 0o644); err != nil {
		t.Fatal(err)
	}
	discoverPods(t)
	it.define("prometheus", "prometheus", "--config.file="+file, "--storage.tsdb.path="+it.state+"/prometheus", "--web.listen-address="+nodeAddress+":9090")
	if err := it.start("prometheus"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { it.stop("prometheus") })
	prometheusAnswers(t)
	apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: monitoring}\n---\n"+nodeService("monitoring", "prometheus", 9090))
}

func prometheusAnswers(t *testing.T) {
	t.Helper()
	eventually(t, "Prometheus is ready", func() error {
		if status, body := ask("GET", "http://"+nodeAddress+":9090/-/ready"); status != 200 {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
}

// podTargets is the file with the targets of Prometheus.
func podTargets() string { return it.state + "/pods.json" }

// discoverPods replaces the pod discovery of Prometheus, which the Debian package does not
// contain. Every second, it writes the ports of all pods, with the labels that the relabeling
// rules use, to podTargets.
func discoverPods(t *testing.T) {
	t.Helper()
	write := func() error {
		pods, err := it.api.list("/api/v1/pods")
		if err != nil {
			return err
		}
		text, err := json.Marshal(targetsOf(pods))
		if err != nil {
			return err
		}
		if err := os.WriteFile(podTargets()+".new", text, 0o644); err != nil {
			return err
		}
		return os.Rename(podTargets()+".new", podTargets())
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = write() // the write is retried after a second
			}
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
}

// A target is a pod port in the format of Prometheus's target files.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

func targetsOf(pods []object) []target {
	all := []target{}
	for _, pod := range pods {
		if pod.text("status", "podIP") == "" || pod.text("status", "phase") != "Running" {
			continue
		}
		for _, c := range append(pod.each("spec", "initContainers"), pod.each("spec", "containers")...) {
			for _, port := range c.each("ports") {
				labels := map[string]string{
					"__meta_kubernetes_namespace": pod.text("metadata", "namespace"), "__meta_kubernetes_pod_name": pod.name(),
					"__meta_kubernetes_pod_container_name": c.text("name"), "__meta_kubernetes_pod_container_port_name": port.text("name"),
					"__meta_kubernetes_pod_label_app": pod.text("metadata", "labels", "app"),
				}
				all = append(all, target{[]string{fmt.Sprintf("%s:%d", pod.text("status", "podIP"), port.number("containerPort"))}, labels})
			}
		}
	}
	return all
}

// scrapeConfig converts the PodMonitor to the configuration format of Prometheus.
func scrapeConfig(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(autoscaling + "/hpa-prometheus-adapter/podmonitor.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var monitor struct {
		Spec struct {
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			PodTargetLabels     []string                                `yaml:"podTargetLabels"`
			PodMetricsEndpoints []struct{ Port, Path, Interval string } `yaml:"podMetricsEndpoints"`
		}
	}
	if err := yaml.Unmarshal(text, &monitor); err != nil {
		t.Fatal(err)
	}
	if len(monitor.Spec.PodMetricsEndpoints) != 1 || len(monitor.Spec.Selector.MatchLabels) == 0 {
		t.Fatalf("got PodMonitor %+v, want labels and one endpoint", monitor)
	}
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	rules := []map[string]any{
		{"action": "keep", "source_labels": []string{"__meta_kubernetes_pod_container_port_name"}, "regex": endpoint.Port},
		{"source_labels": []string{"__meta_kubernetes_namespace"}, "target_label": "namespace"},
		{"source_labels": []string{"__meta_kubernetes_pod_name"}, "target_label": "pod"},
		{"source_labels": []string{"__meta_kubernetes_pod_container_name"}, "target_label": "container"},
	}
	for name, value := range monitor.Spec.Selector.MatchLabels {
		rules = append(rules, map[string]any{"action": "keep", "source_labels": []string{"__meta_kubernetes_pod_label_" + name}, "regex": value})
	}
	for _, name := range monitor.Spec.PodTargetLabels {
		rules = append(rules, map[string]any{"source_labels": []string{"__meta_kubernetes_pod_label_" + name}, "target_label": name})
	}
	config, err := yaml.Marshal(map[string]any{"scrape_configs": []map[string]any{{
		"job_name": "model", "metrics_path": endpoint.Path, "scrape_interval": endpoint.Interval,
		"file_sd_configs": []map[string]any{{"files": []string{podTargets()}}},
		"relabel_configs": rules,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// startAdapter starts the Prometheus adapter with the rules in adapter-values.yaml.
func startAdapter(t *testing.T) {
	t.Helper()
	bin, err := programs("prometheus-adapter")
	if err != nil {
		t.Fatal(err)
	}
	if err := it.importProgram(bin+"/adapter", "dev.local/prometheus-adapter:dev", "/adapter"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(autoscaling + "/hpa-prometheus-adapter/adapter-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct{ Rules struct{ Custom []any } }
	if err := yaml.Unmarshal(text, &values); err != nil || len(values.Rules.Custom) == 0 {
		t.Fatalf("got %v and %d rules, want at least one rule", err, len(values.Rules.Custom))
	}
	// The chart writes the rules in this format to the file of the adapter.
	config, err := yaml.Marshal(map[string]any{"rules": values.Rules.Custom})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		t.Fatal(err)
	}
	apply(t, adapterManifest)
	kubectl(t, "-n", "monitoring", "create", "configmap", "adapter-config", "--from-file=config.yaml="+file)
	kubectl(t, "-n", "monitoring", "rollout", "status", "deployment/prometheus-adapter", "--timeout=110s")
	available(t, "v1beta1.custom.metrics.k8s.io")
}

// adapterManifest contains the objects of the adapter's chart that the test needs.
const adapterManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus-adapter, namespace: monitoring}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus-adapter}
rules:
- {apiGroups: [""], resources: [pods, namespaces, nodes, services, configmaps], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: custom-metrics-reader}
rules:
- {apiGroups: [custom.metrics.k8s.io], resources: ["*"], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus-adapter}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus-adapter}
subjects: [{kind: ServiceAccount, name: prometheus-adapter, namespace: monitoring}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus-adapter-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: prometheus-adapter, namespace: monitoring}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: prometheus-adapter-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: prometheus-adapter, namespace: monitoring}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: hpa-custom-metrics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: custom-metrics-reader}
subjects: [{kind: ServiceAccount, name: horizontal-pod-autoscaler, namespace: kube-system}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: prometheus-adapter, namespace: monitoring}
spec:
  selector: {matchLabels: {app: prometheus-adapter}}
  template:
    metadata: {labels: {app: prometheus-adapter}}
    spec:
      serviceAccountName: prometheus-adapter
      containers:
      - name: adapter
        image: dev.local/prometheus-adapter:dev
        args: ["--cert-dir=/tmp", "--secure-port=6443", "--prometheus-url=http://prometheus.monitoring.svc:9090",
          "--metrics-relist-interval=15s", "--config=/etc/adapter/config.yaml"]
        readinessProbe: {httpGet: {scheme: HTTPS, path: /readyz, port: 6443}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/adapter}, {name: tmp, mountPath: /tmp}]
      volumes: [{name: config, configMap: {name: adapter-config}}, {name: tmp, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: prometheus-adapter, namespace: monitoring}
spec: {selector: {app: prometheus-adapter}, ports: [{port: 443, targetPort: 6443}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.custom.metrics.k8s.io}
spec:
  service: {name: prometheus-adapter, namespace: monitoring}
  group: custom.metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// inNetworkOf runs a command in the network namespace of a pod.
func inNetworkOf(pod object, args ...string) error {
	group, err := groupOfContainer(pod.container(sidecarName).text("containerID"))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(group + "/cgroup.procs")
	if err != nil {
		return err
	}
	pids := strings.Fields(string(text))
	if len(pids) == 0 {
		return errors.New("no process of the sidecar found")
	}
	_, err = run(nil, append([]string{"nsenter", "-t", pids[0], "-n"}, args...)...)
	return err
}
