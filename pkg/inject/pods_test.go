package inject

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A maker creates random pods that an API server accepts.
type maker struct{ *rand.Rand }

func newMaker(seed uint64) maker { return maker{rand.New(rand.NewPCG(seed, 1))} }

func (m maker) often() bool  { return m.IntN(4) > 0 }
func (m maker) half() bool   { return m.IntN(2) == 0 }
func (m maker) seldom() bool { return m.IntN(8) == 0 }

func one[T any](m maker, of ...T) T { return of[m.IntN(len(of))] }

// template returns a random pod template as JSON.
func (m maker) template() any {
	t := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	if m.half() {
		t.Annotations = map[string]string{"note": one(m, "a", "$(B)", "x/y~z", "\n")}
	}
	if m.seldom() {
		t.Annotations = map[string]string{"prometheus.io/scrape": "true"}
	}
	for i := range 1 + m.IntN(6)/3 + m.IntN(4)/3 {
		t.Spec.Containers = append(t.Spec.Containers, m.container(fmt.Sprintf("c%d", i), i))
	}
	if m.seldom() {
		t.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "init"}}
	}
	if m.half() {
		t.Spec.TerminationGracePeriodSeconds = new(int64(m.IntN(200)))
	}
	if m.seldom() {
		t.Spec.HostNetwork = true
	}
	if m.seldom() {
		t.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("10Mi")}}
	}
	if m.seldom() {
		t.Spec.RestartPolicy = one(m, corev1.RestartPolicyAlways, corev1.RestartPolicyNever)
	}
	if m.seldom() {
		t.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(m.IntN(2)))}
	}
	whole, err := Decode(encode(t))
	if err != nil {
		panic(err)
	}
	pod := whole.(map[string]any)
	delete(pod["metadata"].(map[string]any), "creationTimestamp")
	pod["spec"].(map[string]any)["fieldOfTheFuture"] = map[string]any{"kept": true} // add a field that this version of the Kubernetes types does not contain
	return pod
}

func (m maker) container(name string, i int) corev1.Container {
	c := corev1.Container{Name: name, Image: one(m, "image", "image", "image", "image", "image", "image", "redis")}
	for j := range one(m, 0, 1, 1, 1, 2, 3) {
		p := corev1.ContainerPort{ContainerPort: int32(8000 + 10*i + j)}
		if m.often() {
			p.Name = fmt.Sprintf("port-%d-%d", j, i*m.IntN(4))
		}
		if j == 1 && m.half() {
			p.Name = one(m, "http", "http", "http", "metrics", "tcp-redis")
		}
		switch m.IntN(12) {
		case 0:
			p.ContainerPort = one[int32](m, 8012, 8022, 8112, 9090, 9091, 8008) + int32(10000*m.IntN(2))
		case 1:
			p.Protocol = corev1.ProtocolUDP
		case 2:
			p.HostPort, p.HostIP = p.ContainerPort, one(m, "", "127.0.0.1")
		}
		c.Ports = append(c.Ports, p)
	}
	c.ReadinessProbe, c.LivenessProbe, c.StartupProbe = m.probe(c, false), m.probe(c, true), m.probe(c, true)
	if m.seldom() {
		c.Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}}
	}
	if m.half() {
		c.Lifecycle = &corev1.Lifecycle{}
		if m.half() {
			c.Lifecycle.PostStart = &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: m.portOf(c)}}
		}
		switch m.IntN(4) {
		case 0:
			c.Lifecycle.PreStop = &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: int64(m.IntN(40))}}
		case 1:
			c.Lifecycle.PreStop = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: one(m, []string{"sleep", "3"}, []string{"quit"}, []string{"sh", "-c", "sleep 0.5"})}}
		case 2:
			c.Lifecycle.PreStop = &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: m.portOf(c)}}
		}
	}
	return c
}

func (m maker) portOf(c corev1.Container) intstr.IntOrString {
	if len(c.Ports) == 0 || m.half() {
		return intstr.FromInt32(one(m, 7000+int32(m.IntN(10)), 7000, 7001, 9090, 19091))
	}
	p := c.Ports[m.IntN(len(c.Ports))]
	if p.Name == "" || m.half() {
		return intstr.FromInt32(p.ContainerPort)
	}
	return intstr.FromString(p.Name)
}

func (m maker) probe(c corev1.Container, once bool) *corev1.Probe {
	if m.half() {
		return nil
	}
	p := &corev1.Probe{}
	switch m.IntN(4) {
	case 0:
		p.HTTPGet = &corev1.HTTPGetAction{Port: m.portOf(c), Path: one(m, "", "/ready", "/x?a=$(B)&c=<d>"), Scheme: one(m, "", corev1.URISchemeHTTP, corev1.URISchemeHTTPS)}
		if m.half() {
			p.HTTPGet.HTTPHeaders = []corev1.HTTPHeader{{Name: "Host", Value: "shop.example"}, {Name: "X-A", Value: "\"$$\\"}}
		}
	case 1:
		p.TCPSocket = &corev1.TCPSocketAction{Port: m.portOf(c)}
	case 2:
		p.GRPC = &corev1.GRPCAction{Port: 7000, Service: new(one(m, "", "shop.v1"))}
	case 3:
		p.Exec = &corev1.ExecAction{Command: []string{"true"}}
	}
	for _, field := range []*int32{&p.InitialDelaySeconds, &p.TimeoutSeconds, &p.PeriodSeconds, &p.FailureThreshold} {
		if m.half() {
			*field = int32(m.IntN(20))
		}
	}
	if !once && m.half() {
		p.SuccessThreshold = int32(1 + m.IntN(3))
	}
	return p
}

// options returns random options that are valid for most pods.
func (m maker) options() Options {
	o := Options{}
	for _, choice := range []struct {
		name   string
		values []string
	}{
		{modeOption, []string{modeSidecar, modeNative}},
		{"concurrency", []string{"0", "5"}},
		{timeoutOption, []string{"1", "60", "600"}},
		{containerOption, []string{"c0"}},
		{portOption, []string{"http", "8000", "7500"}},
		{drainMinOption, []string{"5s"}},
		{deadlineOption, []string{"20s", "1500ms", "3m"}},
		{metricsOption, []string{"false"}},
		{"cpu-limit", []string{"100m", "1m"}},
		{"log-level", []string{"debug"}},
		{"exclude-paths", []string{"/metrics,/a*"}},
		{settingsOption, []string{"CONNECT_RETRY=1s\nMAX_BODY_BYTES=5"}},
	} {
		if m.IntN(3) == 0 {
			o[choice.name] = one(m, choice.values...)
		}
	}
	return o
}
