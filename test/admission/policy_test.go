package admission

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
)

// withPolicy returns a cluster with the policy that the injector prints, or nil and the error
// output if it prints none.
func withPolicy(t *testing.T, args []string) (*cluster, string) {
	t.Helper()
	text, report, code := injector(t, nil, append([]string{"policy"}, args...)...)
	if code != 0 {
		return nil, report
	}
	plugin, err := mutating.NewPlugin(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, objects(t, text), plugin)
	c.await(t)
	return c, ""
}

// await waits until the plugin has compiled the policy and loaded the schema of pods.
func (c *cluster) await(t *testing.T) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "first", Annotations: map[string]string{"queue-proxy.dev/container": "app", "queue-proxy.dev/port": "1"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Ports: []corev1.ContainerPort{{ContainerPort: 1}}}}}}
	var err error
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var made *corev1.Pod
		if made, err = c.create("chosen", pod); err == nil && len(made.Spec.Containers)+len(made.Spec.InitContainers) == 2 {
			return
		}
		if err != nil && !apierrors.IsServiceUnavailable(err) {
			break
		}
	}
	t.Fatalf("got %v, want an injected pod", err)
}

func TestPolicyMatchesInjectorCommand(t *testing.T) {
	clusters := map[string]*cluster{}
	injected := 0
	for _, p := range pairs(t) {
		key := strings.Join(p.args, " ")
		c, known := clusters[key]
		if !known {
			var report string
			if c, report = withPolicy(t, p.args); c == nil {
				if !strings.HasPrefix(p.mark, "excluded: ") {
					t.Errorf("%s: no policy found: %s", p.name, report)
				}
				continue
			}
			clusters[key] = c
		}
		t.Run(p.name, func(t *testing.T) {
			for _, given := range p.pods {
				for _, pod := range []*corev1.Pod{given, withDefaults(given)} {
					pod.Namespace = "chosen"
					want, report, is := byHand(t, pod, p.args)
					got, err := c.create("chosen", pod)
					if err != nil {
						t.Fatal(err)
					}
					switch {
					case p.mark == "same" && want == nil:
						t.Errorf("the injector command rejects the pod; mark it as excluded: %s", report)
					case p.mark == "same" && !same(t, got, want):
						t.Errorf("got\n%s\nwant\n%s", indented(t, got), indented(t, want))
					case p.mark == "same" && is:
						injected++
					case p.mark != "same" && !same(t, got, pod):
						t.Errorf("got a changed pod, want no change (%s):\n%s", p.mark, indented(t, got))
					}
				}
			}
			if p.mark != "same" && !strings.HasPrefix(p.mark, "excluded: ") {
				t.Errorf("got mark %q, want same, or excluded and a reason", p.mark)
			}
		})
	}
	if injected < 2*25 {
		t.Errorf("got %d injected pods, want at least 25, each with and without defaults", injected)
	}
}

// chosen returns namespaces and labels with the expected selection. The webhook and the policy
// select the same pods.
func chosen() []struct {
	namespace, label string
	want             bool
} {
	return []struct {
		namespace, label string
		want             bool
	}{
		{"chosen", "", true}, {"chosen", "true", true}, {"chosen", "false", false},
		{"plain", "", false}, {"plain", "true", true}, {"plain", "false", false},
		{"closed", "", false}, {"closed", "true", true}, {"closed", "false", false},
		{"queue-proxy", "", false}, {"queue-proxy", "true", false}, {"kube-system", "", false}, {"kube-system", "true", false},
	}
}

// plainPod returns a pod that both the webhook and the policy can inject.
func plainPod(label string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "web", Image: "web:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
	}}}}
	if label != "" {
		pod.Labels = map[string]string{"queue-proxy.dev/inject": label}
	}
	return pod
}

func sidecars(pod *corev1.Pod) int {
	n := 0
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == "queue-proxy" {
			n++
		}
	}
	return n
}

func TestPolicySelectsPodsLikeWebhook(t *testing.T) {
	c, _ := withPolicy(t, nil)
	for _, w := range chosen() {
		made, err := c.create(w.namespace, plainPod(w.label))
		if err != nil {
			t.Fatal(err)
		}
		if got := sidecars(made) == 1; got != w.want {
			t.Errorf("namespace %s, label %q: got a sidecar %v, want %v", w.namespace, w.label, got, w.want)
		}
		again, err := c.create(w.namespace, made)
		if err != nil || !same(t, again, made) {
			t.Errorf("namespace %s, label %q: the second admission changes the pod; %v", w.namespace, w.label, err)
		}
	}
}

func TestPolicyMatchesInjectorCommandForRandomPods(t *testing.T) {
	const pods = 400
	random := rand.New(rand.NewPCG(1, 2))
	for _, args := range [][]string{nil, {"--mode=native", "--concurrency=0x10", "--request-timeout=10m", "--drain-min=7s", "--metrics-port=9191", "--image-pull-policy=Always", "--exclude-user-agents=it's \"x\"", "--cpu-limit=1"},
		{"--drain-deadline=1500ms", "--metrics-annotations=false", "--queue-depth=10", "--port=http", "--ephemeral-storage-limit=1Gi", "--exclude-paths=/a,/b*"},
		{"--lock=concurrency,queue-depth,request-timeout", "--concurrency=4"}, {"--sure=high"}} {
		c, report := withPolicy(t, args)
		if c == nil {
			t.Fatal(report)
		}
		taken := 0
		for range pods {
			pod := randomPod(random)
			pod.Namespace = "chosen"
			got, err := c.create("chosen", pod)
			if err != nil {
				t.Fatalf("%v:\n%s", err, indented(t, pod))
			}
			if same(t, got, pod) {
				continue // the injector command may inject pods that the policy excludes
			}
			taken++
			if want, report, _ := byHand(t, pod, args); want == nil || !same(t, got, want) {
				t.Fatalf("%q: pod\n%s\ngot\n%s\nwant\n%s\n%s", args, indented(t, pod), indented(t, got), indented(t, want), report)
			}
		}
		t.Logf("%q: %d of %d pods", args, taken, pods)
		if taken < pods/20 {
			t.Errorf("%q: got %d of %d pods injected, want at least 5 %%", args, taken, pods)
		}
	}
}

// A podMaker creates random pods.
type podMaker struct{ *rand.Rand }

func (m podMaker) maybe(percent int) bool    { return m.IntN(100) < percent }
func (m podMaker) number(all ...int32) int32 { return all[m.IntN(len(all))] }
func (m podMaker) word(all ...string) string { return all[m.IntN(len(all))] }

func (m podMaker) annotations() map[string]string {
	annotations := map[string]string{"a": "b"}
	all := map[string][]string{
		"queue-proxy.dev/concurrency": {"", "0", "7", "100", "-1", "x"}, "queue-proxy.dev/queue-depth": {"0", "70", "71"}, "queue-proxy.dev/request-timeout": {"0", "29", "3600", "5m"},
		"queue-proxy.dev/container": {"c0", "c1"}, "queue-proxy.dev/port": {"8080", "http", "5000", "0"}, "queue-proxy.dev/inject": {"true", "false", "1"},
		"prometheus.io/port": {"1", "9090"}, "kubectl.kubernetes.io/default-container": {"c0", "c1", "none"}, "queue-proxy.dev/log-level": {"debug"},
	}
	for _, key := range slices.Sorted(maps.Keys(all)) { // sort the keys, so that a seed always creates the same pods
		if m.maybe(8) {
			annotations[key] = m.word(all[key]...)
		}
	}
	return annotations
}

func (m podMaker) port(names ...string) intstr.IntOrString {
	if m.maybe(50) {
		return intstr.FromInt32(m.number(8080, 8080, 5000, 5000, 80, 80, 9090, 0))
	}
	return intstr.FromString(m.word(append(names, "http", "8080")...))
}

func (m podMaker) handler() corev1.ProbeHandler {
	switch m.IntN(4) {
	case 0:
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: m.port("metrics"), Host: m.word("", "", "localhost", "::1")}}
	case 1:
		g := &corev1.GRPCAction{Port: m.number(8080, 50051)}
		if m.maybe(50) {
			service := m.word("", `a"b\c`, "ä")
			g.Service = &service
		}
		return corev1.ProbeHandler{GRPC: g}
	case 2:
		if m.maybe(30) {
			return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{m.word("true", "redis-cli", "x; /bin/pg_isready -q", "redis-clip", "curl https://localhost:8080/", "curl http://localhost:5000/", "grpc_health_probe -addr=:80 -tls")}}}
		}
	}
	get := &corev1.HTTPGetAction{Path: m.word("", "/", "/healthz", `/a?b=$(c)&d="<e>"\`, "/\u2028", "/ü", "/\x01"), Port: m.port("metrics"), Scheme: corev1.URIScheme(m.word("", "HTTP", "HTTP", "HTTPS"))}
	if m.maybe(30) {
		get.HTTPHeaders = []corev1.HTTPHeader{{Name: m.word("X-A", "Host", "x_b"), Value: m.word("", "$x", `q"`, "a.b:80")}, {Name: "Accept", Value: "*/*"}}
	}
	return corev1.ProbeHandler{HTTPGet: get}
}

func (m podMaker) probe(percent int) *corev1.Probe {
	if !m.maybe(percent) {
		return nil
	}
	return &corev1.Probe{ProbeHandler: m.handler(), InitialDelaySeconds: m.number(0, 0, 5), TimeoutSeconds: m.number(0, 1, 7), PeriodSeconds: m.number(0, 3), SuccessThreshold: m.number(0, 1), FailureThreshold: m.number(0, 1, 9)}
}

func (m podMaker) lifecycle() *corev1.Lifecycle {
	l := &corev1.Lifecycle{}
	switch m.IntN(5) {
	case 0:
		l.PreStop = &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: int64(m.number(0, 5, 90, 4000))}}
	case 1, 2:
		l.PreStop = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: [][]string{
			{"sleep", "5"}, {"/bin/sleep", "15s"}, {"sh", "-c", "sleep 20"}, {"/bin/bash", "-c", " sleep  3s "}, {"sleep", "1.5"}, {"sh", "-c", "sleep 5; kill 1"},
			{"sh", "-c", "sleep 5m"}, {"nginx", "-s", "quit"}, {"sleep"}, {"sh", "-c", "/usr/bin/sleep 04"}, {"sh", "-c", "a\tb\n"},
		}[m.IntN(11)]}}
	case 3:
		l.PreStop = &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/quit", Port: m.port("web")}}
	}
	if m.maybe(20) {
		l.PostStart = &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: m.port("web")}}
	}
	return l
}

func (m podMaker) ports(first bool) (all []corev1.ContainerPort) {
	name := m.word("http", "http", "http", "web", "")
	if m.maybe(5) {
		name = m.word("redis", "https", "http-admin")
	}
	if !first && m.maybe(80) { // a pod is not injected if a second container also has the port name of the app
		name = m.word("api", "")
	}
	for _, name := range []string{name, "metrics"}[:1+m.IntN(2)] {
		p := corev1.ContainerPort{Name: name, ContainerPort: m.number(8080, 5000, 80, 9090, 8012, 19090, 8080, 5000, 80, 9090, 8012, 19090, 6379), Protocol: corev1.Protocol(m.word("", "TCP", "TCP", "UDP"))}
		if m.maybe(10) {
			p.HostPort, p.HostIP = 80, m.word("", "10.0.0.1")
		}
		all = append(all, p)
	}
	return all
}

func (m podMaker) containers(n int, prefix string) []corev1.Container {
	var all []corev1.Container
	for i := range n {
		image := "x"
		if m.maybe(12) {
			image = m.word("redis:7", "shop/redis-exporter", "shop/order-operator:1", "git-sync:4", "ingress-nginx/controller:1", "prom/prometheus:v3", "pushgateway")
		}
		c := corev1.Container{Name: fmt.Sprintf("%s%d", prefix, i), Image: image, ReadinessProbe: m.probe(60), LivenessProbe: m.probe(30), StartupProbe: m.probe(20)}
		if i == 0 || m.maybe(30) {
			c.Ports = m.ports(i == 0)
		}
		if m.maybe(15) {
			c.Command, c.Args = []string{"serve"}, []string{m.word("--https-port=8080", "--tls-addr :5000", "--port=80", "--metrics-addr=:5000", "-httpPort=5000", "--health-port=80", "sh -c 'x --listen https://0.0.0.0:80'", "tcp-listen:80", "-Dserver.ssl.enabled=true", "--server.ssl.enabled=false",
				"--upstream=http://127.0.0.1:8080/", "--target=http://localhost:5000", "--backend-port=80", "--web.listen-address=:9091", "-Dmanagement.server.port=9090", "--ports=x8008x", "--host=127.0.0.1"),
				m.word("--tls-cert=/c/tls.crt --tls-key=/c/tls.key", "--cert-dir=/c", "--client-cert=/c/x --client-key=/c/y", "--verbose", "--verbose")}
		}
		if m.maybe(15) {
			c.Env = []corev1.EnvVar{{Name: m.word("HTTPS_PORT", "PORT", "METRICS_PORT", "HTTP_PORT"), Value: m.word("8080", "5000", "80", "9090", "19090")}, {Name: m.word("A", "SERVER_SSL_ENABLED", "LISTEN_URLS", "OAUTH2_PROXY_UPSTREAMS", "BACKEND_PORT"), Value: m.word("8080", "http://localhost:8080", "true", "false", "https://+:5000;http://+:80")}}
		}
		if m.maybe(15) {
			c.Env = append(c.Env, corev1.EnvVar{Name: m.word("JAVA_TOOL_OPTIONS", "GUNICORN_CMD_ARGS", "SERVER_SSL_KEY_STORE", "SPRING_APPLICATION_JSON"), Value: m.word("-Xmx1g -Dserver.ssl.bundle=x", "-Dserver.ssl.enabled=false",
				"--bind 127.0.0.1:8080", "--bind 0.0.0.0:80 --certfile=/c/x --keyfile=/c/y", "/c/x.p12", `{"server":{"ssl":{"enabled":true},"port":5000}}`, `{"management.server.port":80}`)})
		}
		if m.maybe(15) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: m.word("tls", "data"), MountPath: m.word("/etc/app/tls", "/data", "/etc/mysql/certs")}}
		}
		if m.maybe(40) {
			c.Lifecycle = m.lifecycle()
		}
		all = append(all, c)
	}
	return all
}

// randomPod returns a pod with random and unusual parts.
func randomPod(random *rand.Rand) *corev1.Pod {
	m := podMaker{random}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"}}
	if m.maybe(50) {
		pod.Annotations = m.annotations()
	}
	if m.maybe(50) {
		grace := int64(m.number(0, 1, 5, 30, 31, 60, 3600, 100000))
		pod.Spec.TerminationGracePeriodSeconds = &grace
	}
	if m.maybe(10) {
		user := int64(m.number(0, 1000))
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user}
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicy(m.word("", "Always", "Always", "Always", "Never"))
	pod.Spec.Containers = m.containers(1+m.IntN(3), "c")
	if m.maybe(30) {
		pod.Spec.InitContainers = m.containers(1+m.IntN(2), "i")
		if m.maybe(50) {
			always := corev1.ContainerRestartPolicyAlways
			pod.Spec.InitContainers[0].RestartPolicy = &always
		}
	}
	for _, name := range []string{"tls", "data"} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}})
	}
	if m.maybe(50) {
		return withDefaults(pod)
	}
	return pod
}

// The API server limits the cost of the expressions of a policy. The cost for the largest
// pods must not exceed this budget.
func TestPolicyBudgetOfLargestPods(t *testing.T) {
	c, _ := withPolicy(t, nil)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large", Namespace: "chosen", Annotations: map[string]string{"queue-proxy.dev/container": "c0", "queue-proxy.dev/port": "p0-0"}}}
	for i := range 40 {
		container := corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "x", ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/" + strings.Repeat("x", 200), Port: intstr.FromString(fmt.Sprintf("p%d-39", i)), HTTPHeaders: []corev1.HTTPHeader{{Name: "X-A", Value: strings.Repeat("y", 200)}}},
		}}}
		for j := range 40 {
			container.Ports = append(container.Ports, corev1.ContainerPort{Name: fmt.Sprintf("p%d-%d", i, j), ContainerPort: int32(20000 + 40*i + j)})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	got, err := c.create("chosen", pod)
	if err != nil {
		t.Fatalf("got %.1000v, want an injected pod", err)
	}
	if want, report, _ := byHand(t, pod, nil); want == nil || !same(t, got, want) {
		t.Errorf("result differs from the injector command: %s", report)
	}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "one-more"})
	if got, err = c.create("chosen", pod); err != nil || !same(t, got, pod) {
		t.Errorf("got error %v or a changed pod, want no change because the pod is too large", err)
	}
}

// If an expression exceeds its budget, the API server rejects the pod. Therefore, texts
// of any length must not exceed the budget.
func TestPolicyBudgetOfLongTexts(t *testing.T) {
	c, _ := withPolicy(t, nil)
	for name, container := range map[string]corev1.Container{
		"a script":         {Args: []string{"-c", strings.Repeat("echo x -l ", 100_000)}},
		"many arguments":   {Args: slices.Repeat([]string{"--a-flag=80"}, 50_000)},
		"a variable":       {Env: []corev1.EnvVar{{Name: "SCRIPT", Value: strings.Repeat("echo x;", 140_000)}}},
		"many options":     {Env: slices.Repeat([]corev1.EnvVar{{Name: "JAVA_OPTS", Value: strings.Repeat("-Dserver.ssl ", 300)}}, 300)},
		"long properties":  {Args: slices.Repeat([]string{strings.Repeat("-Dserver.ssl ", 300)}, 300)},
		"many variables":   {Env: slices.Repeat([]corev1.EnvVar{{Name: "A_VARIABLE", Value: "/a/path"}}, 20_000)},
		"many mounts":      {VolumeMounts: slices.Repeat([]corev1.VolumeMount{{Name: "v", MountPath: "/a/path"}}, 10_000)},
		"a probes command": {LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", strings.Repeat("echo x;", 140_000)}}}}},
	} {
		container.Name, container.Image, container.Ports = "web", "x", []corev1.ContainerPort{{ContainerPort: 8080}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "long", Namespace: "chosen"}, Spec: corev1.PodSpec{Containers: []corev1.Container{container}, Volumes: []corev1.Volume{{Name: "v"}}}}
		got, err := c.create("chosen", pod)
		if err != nil {
			t.Errorf("%s: got %.300v, want an injected or unchanged pod", name, err)
			continue
		}
		if same(t, got, pod) {
			continue
		}
		if want, report, _ := byHand(t, pod, nil); want == nil || !same(t, got, want) {
			t.Errorf("%s: result differs from the injector command: %.300s", name, report)
		}
	}
}

// An API server rejects a policy with expressions that the previous minor version does
// not support, because the cluster may be downgraded. MutatingAdmissionPolicy v1 exists
// since Kubernetes 1.36, which accepts only the expressions of 1.35. Match conditions
// cannot use the variables of the policy.
func TestPolicyCompilesForOldestKubernetes(t *testing.T) {
	for _, args := range [][]string{nil, {"--mode=native", "--drain-deadline=1m", "--container=a", "--port=b"}} {
		text, report, code := injector(t, nil, append([]string{"policy"}, args...)...)
		if code != 0 {
			t.Fatal(report)
		}
		spec := objects(t, text)[0].(*admissionregv1.MutatingAdmissionPolicy).Spec
		fresh := func() *cel.CompositedCompiler {
			c, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 35)))
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		declared := cel.OptionalVariableDeclarations{HasAuthorizer: true}
		for i := range spec.MatchConditions {
			c := &spec.MatchConditions[i]
			if r := fresh().CompileCELExpression((*matchconditions.MatchCondition)(c), declared, environment.NewExpressions); r.Error != nil {
				t.Errorf("condition %s: %v", c.Name, r.Error)
			}
		}
		compiler := fresh()
		for _, v := range spec.Variables {
			if r := compiler.CompileAndStoreVariable(&mutating.Variable{Name: v.Name, Expression: v.Expression}, declared, environment.NewExpressions); r.Error != nil {
				t.Errorf("variable %s: %v", v.Name, r.Error)
			}
		}
		declared.HasPatchTypes = true
		if r := compiler.CompileCELExpression(&patch.JSONPatchCondition{Expression: spec.Mutations[0].JSONPatch.Expression}, declared, environment.NewExpressions); r.Error != nil {
			t.Errorf("mutation: %v", r.Error)
		}
	}
}
