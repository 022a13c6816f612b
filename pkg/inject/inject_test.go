package inject

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A property is a condition that every injected pod must satisfy.
type property struct {
	fact         string
	replacesHook func(t *testing.T, p *injected)
}

// injected is a random pod before and after its injection.
type injected struct {
	seed          uint64
	before, after any
	opts          Options
	out           Outcome
}

// changed returns a copy of an object after changes.
func changed(t *testing.T, object any, changes []Change) any {
	t.Helper()
	before := encode(object)
	after, err := Apply(object, changes)
	harness.NoError(t, err, encode(changes), "of", encode(object))
	harness.Equal(t, string(encode(object)), string(before), "original object")
	return after
}

// patched returns an object after the JSON patch of changes.
func patched(t *testing.T, object any, changes []Change) any {
	t.Helper()
	text, err := JSONPatch(object, changes)
	harness.NoError(t, err)
	patch, err := jsonpatch.DecodePatch(text)
	harness.NoError(t, err)
	after, err := patch.Apply(encode(object))
	harness.NoError(t, err, text, "of", encode(object))
	return parse(t, string(after))
}

// verdictOf returns the verdict and the reason of an outcome, for example "refused bad-option".
func verdictOf(out Outcome) string { return strings.TrimSpace(string(out.Verdict) + " " + out.Reason) }

// web returns a pod with one container. fields are additional fields of the container.
func web(t *testing.T, fields string) any {
	t.Helper()
	return parse(t, `{"metadata":{},"spec":{"containers":[{"name":"web"`+fields+`}]}}`)
}

func TestInjectRandomPods(t *testing.T) {
	const many = 500
	properties := []property{
		{"injection is idempotent", injectionIsIdempotent},
		{"uninject restores the pod", uninjectRestoresPod},
		{"the JSON patch equals the changes", patchEqualsChanges},
		{"the defaults of an API server do not affect the sidecar", defaultsKeepSidecar},
		{"the settings of the sidecar match the pod", settingsMatchPod},
		{"the pod is valid", podIsValid},
		{"the name of the application port refers to the sidecar", portNameRefersToSidecar},
		{"the ports of the sidecar are unused", sidecarPortsAreUnused},
	}
	verdicts := map[string]int{}
	for seed := range uint64(many) {
		m := newMaker(seed)
		p := &injected{seed: seed, before: m.template(), opts: m.options()}
		was := string(encode(p.before))
		p.out = Inject(p.before, p.opts)
		if got := string(encode(p.before)); got != was {
			t.Fatalf("seed %d: got the template changed to\n%s\nwant\n%s", seed, got, was)
		}
		verdicts[verdictOf(p.out)]++
		wantClosedReason(t, p.out)
		if p.out.Verdict != Injected {
			continue
		}
		p.after = changed(t, p.before, p.out.Changes)
		for _, property := range properties {
			property.replacesHook(t, p)
			if t.Failed() {
				t.Fatalf("violated property: %s\nseed %d, options %v:\nbefore %s\nafter  %s", property.fact, seed, p.opts, was, encode(p.after))
			}
		}
	}
	if got, want := verdicts[string(Injected)], many/4; got < want {
		t.Errorf("got %d pods injected, want at least %d: %v", got, want, verdicts)
	}
	if n := verdicts["refused "+Unreadable]; n > 0 {
		t.Errorf("got %d valid pods refused as unreadable, want none", n)
	}
	t.Logf("%v", verdicts)
}

func injectionIsIdempotent(t *testing.T, p *injected) {
	again := Inject(p.before, p.opts)
	harness.Equal(t, string(encode(again.Changes)), string(encode(p.out.Changes)), "changes of a second injection")
	harness.Equal(t, verdictOf(Inject(p.after, p.opts)), "skipped already-injected", "the injected pod")
}

func uninjectRestoresPod(t *testing.T, p *injected) {
	out := Uninject(p.after)
	if out.Verdict != Uninjected || len(out.Warnings) > 0 {
		t.Errorf("got %s %s %q, want it uninjected without warnings", out.Verdict, out.Text, out.Warnings)
	}
	harness.Equal(t, string(encode(changed(t, p.after, out.Changes))), string(encode(p.before)))
}

func TestUninjectKeepsLaterEdits(t *testing.T) {
	before := web(t, `,"ports":[{"name":"http","containerPort":8080}]`)
	after := changed(t, before, append(Inject(before, nil).Changes,
		Change{Path: "/metadata/annotations/restarted", Value: encode("today")},
		Change{Path: "/spec/containers/helper", Value: encode(map[string]any{"name": "helper"})}))
	// The containers are now in a different order.
	spec := after.(map[string]any)["spec"].(map[string]any)
	containers := spec["containers"].([]any)
	slices.Reverse(containers)

	got := string(encode(changed(t, after, Uninject(after).Changes)))
	want := `{"metadata":{"annotations":{"restarted":"today"}},"spec":{"containers":[{"name":"helper"},{"name":"web","ports":[{"containerPort":8080,"name":"http"}]}]}}`
	harness.Equal(t, got, want)
}

func patchEqualsChanges(t *testing.T, p *injected) {
	harness.Equal(t, string(encode(patched(t, p.before, p.out.Changes))), string(encode(p.after)))
}

func defaultsKeepSidecar(t *testing.T, p *injected) {
	filled := runtime.DeepCopyJSONValue(p.before)
	fillIn(filled)
	out := Inject(filled, p.opts)
	if out.Verdict != Injected {
		t.Fatalf("got %s (%s) %s, want it injected", out.Verdict, out.Reason, out.Text)
	}
	other := changed(t, filled, p.out.Changes)
	harness.Equal(t, string(encode(sidecarOf(other))), string(encode(sidecarOf(p.after))))
}

// fillIn sets the defaults that an API server sets before it calls a webhook, for the fields that
// the injection uses (core/v1).
func fillIn(template any) {
	spec := template.(map[string]any)["spec"].(map[string]any)
	put := func(m map[string]any, key string, v any) {
		if m[key] == nil || m[key] == json.Number("0") {
			m[key] = v
		}
	}
	put(spec, "restartPolicy", "Always")
	if spec["terminationGracePeriodSeconds"] == nil {
		spec["terminationGracePeriodSeconds"] = json.Number("30")
	}
	for _, c := range spec["containers"].([]any) {
		c := c.(map[string]any)
		ports, _ := c["ports"].([]any)
		for _, p := range ports {
			put(p.(map[string]any), "protocol", "TCP")
		}
		for _, name := range []string{"readinessProbe", "livenessProbe", "startupProbe"} {
			p, ok := c[name].(map[string]any)
			if !ok {
				continue
			}
			put(p, "timeoutSeconds", json.Number("1"))
			put(p, "periodSeconds", json.Number("10"))
			put(p, "successThreshold", json.Number("1"))
			put(p, "failureThreshold", json.Number("3"))
			if get, ok := p["httpGet"].(map[string]any); ok {
				put(get, "path", "/")
				put(get, "scheme", "HTTP")
			}
		}
	}
}

func sidecarOf(template any) any {
	if c := At(template, "spec", "containers", SidecarName); c != nil {
		return c
	}
	return At(template, "spec", "initContainers", SidecarName)
}

func settingsMatchPod(t *testing.T, p *injected) {
	pod := specOf(t, p.after)
	settings, err := config.Read(environOf(t, findSidecar(t, pod)))
	harness.NoError(t, err, "(settings that the sidecar takes)")
	if settings.OnKnative.V || settings.StatsFormat.V != "prometheus" {
		t.Errorf("got OnKnative %v and StatsFormat %s, want false and prometheus", settings.OnKnative.V, settings.StatsFormat.V)
	}
	harness.Equal(t, int32(settings.UserPort.V), p.out.AppPort, "USER_PORT")
	wantProbes := 0
	for _, was := range specOf(t, p.before).Containers {
		if r := was.ReadinessProbe; r != nil && r.Exec == nil || was.Name == p.out.Container {
			wantProbes++
		}
	}
	harness.Equal(t, len(settings.Probes.V), wantProbes, "probes")
	grace := int64(30)
	if pod.TerminationGracePeriodSeconds != nil {
		grace = *pod.TerminationGracePeriodSeconds
	}
	if least := settings.DrainDeadline.V + 3*time.Second; time.Duration(grace)*time.Second < least {
		t.Errorf("got a grace period of %d s, want at least %v for a drain of %v", grace, least, settings.DrainDeadline.V)
	}
	if was := specOf(t, p.before).TerminationGracePeriodSeconds; was != nil && grace < *was {
		t.Errorf("got a grace period of %d s, want at least the original %d s", grace, *was)
	}
	if p.opts[deadlineOption] == "" && p.opts[timeoutOption] != "" && settings.DrainDeadline.V < settings.RequestTimeout.V+30*time.Second {
		t.Errorf("got a drain of %v, want at least 30s more than the request timeout %v", settings.DrainDeadline.V, settings.RequestTimeout.V)
	}
	if settings.DrainEndpoint.V != (p.opts[modeOption] == modeNative) {
		t.Errorf("got DRAIN_ENDPOINT %v, want true only for native sidecars", settings.DrainEndpoint.V)
	}
}

func podIsValid(t *testing.T, p *injected) {
	pod := specOf(t, p.after)
	was := specOf(t, p.before)
	for _, complaint := range problemsOf(pod) {
		if !slices.Contains(problemsOf(was), complaint) {
			t.Error(complaint)
		}
	}
	if text, _ := At(p.after, "spec", "fieldOfTheFuture", "kept").(bool); !text {
		t.Error("got an unknown field removed, want it kept")
	}
	c := findSidecar(t, pod)
	s := c.SecurityContext
	if *s.AllowPrivilegeEscalation || !*s.RunAsNonRoot || !*s.ReadOnlyRootFilesystem || s.Capabilities.Drop[0] != "ALL" || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("got %s, want the restricted Pod Security Standard", encode(s))
	}
	i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == p.out.Container })
	app, wasApp := pod.Containers[i], was.Containers[i]
	for _, p := range []*corev1.Probe{app.LivenessProbe, app.StartupProbe, app.ReadinessProbe} {
		if p != nil && p.HTTPGet != nil {
			if _, err := resolve(p.HTTPGet.Port, &app); err != nil {
				t.Errorf("got a probe without a port: %v", err)
			}
		}
	}
	if wasApp.LivenessProbe != nil && wasApp.LivenessProbe.TCPSocket != nil {
		got, _ := resolve(app.LivenessProbe.TCPSocket.Port, &app)
		want, _ := resolve(wasApp.LivenessProbe.TCPSocket.Port, &wasApp)
		harness.Equal(t, got, want, "port of the liveness probe")
	}
}

func portNameRefersToSidecar(t *testing.T, p *injected) {
	name, app := p.out.PortName, p.out.AppPort
	if name == "" || portNamed(specOf(t, p.before), name) != app {
		return // the port with this name is not the port of the application
	}
	harness.Equal(t, portNamed(specOf(t, p.after), name), p.out.ServingPort, "port", "by the name", name)
}

func TestFollowServiceTargetPortAndWarnings(t *testing.T) {
	for ports, want := range map[string]struct {
		targetPort string
		warned     bool
	}{
		`[{"name":"web","containerPort":8080}]`: {`"web"`, false},
		`[{"containerPort":8080}]`:              {`8012`, true}, // no value works for old and new pods
	} {
		before := parse(t, `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","ports":`+ports+`}]}}`)
		for _, opts := range []Options{nil, {modeOption: modeNative}} {
			service := parse(t, `{"spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}`)
			out, _ := FollowService(service, []Pods{{Owner: "Pod web", Labels: map[string]string{"app": "web"}, Outcome: Inject(before, opts)}}, Services)
			after := changed(t, service, out.Changes)
			want := want
			if opts != nil { // Since Kubernetes 1.33, Services resolve the port names of native sidecars.
				want.targetPort, want.warned = `8012`, true
			}
			got := string(encode(At(after, "spec", "ports", "#0", "targetPort")))
			if warned := len(out.Warnings) > 0; got != want.targetPort || warned != want.warned {
				t.Errorf("%s, %v: got targetPort %s and warnings %q, want %s, warned %v", ports, opts, got, out.Warnings, want.targetPort, want.warned)
			}
		}
	}
}

// The clients of a headless Service connect to the port of the pod, so the target port has no effect.
func TestHeadlessServiceReturnsWarning(t *testing.T) {
	pod := parse(t, `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080},{"name":"admin","containerPort":9000}]}]}}`)
	pods := []Pods{{Owner: "Pod web", Labels: map[string]string{"app": "web"}, Outcome: Inject(pod, nil)}}
	for _, c := range []struct {
		ip, target string
		warned     bool
	}{
		{"None", `8080`, true},
		{"None", `"http"`, true},
		{"None", `"admin"`, false},
		{"10.0.0.1", `"http"`, false},
	} {
		service := parse(t, `{"spec":{"clusterIP":"`+c.ip+`","selector":{"app":"web"},"ports":[{"port":8080,"targetPort":`+c.target+`}]}}`)
		out, _ := FollowService(service, pods, Workloads)
		want := ""
		if c.warned {
			want = "the Service is headless, so clients that connect to port 8080 of a pod bypass the sidecar; use port 8012"
		}
		harness.Equal(t, strings.Join(out.Warnings, "\n"), want, c.ip, c.target)
	}
}

func TestUnchangedServiceTextContainsReason(t *testing.T) {
	pods := func(port string) Pods {
		pod := parse(t, `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","ports":[{"name":"http","containerPort":`+port+`}]}]}}`)
		return Pods{Owner: "Pod web", Labels: map[string]string{"app": "web"}, Outcome: Inject(pod, nil)}
	}
	for _, c := range []struct {
		target, otherPort string
		want              string
	}{
		{`"http"`, "8080", "the Service already uses the port name http"},
		{`9000`, "8080", "the Service does not use application port 8080"},
		{`"admin"`, "8080", "the Service does not use application port 8080"},
		{`8080`, "9000", "the Service selects pods with different ports"},
	} {
		service := parse(t, `{"spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":`+c.target+`}]}}`)
		out, _ := FollowService(service, []Pods{pods("8080"), pods(c.otherPort)}, Workloads)
		harness.Equal(t, out.Text, c.want, c.target)
		harness.Equal(t, out.Reason, Unaffected, c.target)
	}
}

// portNamed returns the port to which a Service resolves a name, or 0. It searches the containers
// and then the restartable init containers, as Kubernetes 1.33 does.
func portNamed(pod corev1.PodSpec, name string) int32 {
	stays := slices.DeleteFunc(slices.Clone(pod.InitContainers), func(c corev1.Container) bool { return c.RestartPolicy == nil })
	for _, c := range slices.Concat(pod.Containers, stays) {
		for _, p := range c.Ports {
			if p.Name == name && p.Protocol != corev1.ProtocolUDP {
				return p.ContainerPort
			}
		}
	}
	return 0
}

func sidecarPortsAreUnused(t *testing.T, p *injected) {
	const asked = "used by a probe"
	others := map[int32]string{p.out.AppPort: "the application port"}
	for _, c := range specOf(t, p.before).Containers {
		for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
			switch {
			case p == nil:
			case p.HTTPGet != nil:
				others[p.HTTPGet.Port.IntVal] = asked
			case p.TCPSocket != nil:
				others[p.TCPSocket.Port.IntVal] = asked
			case p.GRPC != nil:
				others[p.GRPC.Port] = asked
			}
		}
		for _, p := range c.Ports {
			if p.Protocol != corev1.ProtocolUDP {
				others[p.ContainerPort] = "a port of container " + c.Name
			}
		}
	}
	for _, port := range findSidecar(t, specOf(t, p.after)).Ports {
		passes := port.ContainerPort == p.out.ServingPort // a probe of the serving port may be meant for the sidecar
		if by := others[port.ContainerPort]; by != "" && (!passes || by != asked) {
			t.Errorf("got sidecar port %d, which is %s", port.ContainerPort, by)
		}
	}
}

// problemsOf returns the violations of core/v1 validation rules in the fields that an injection
// writes.
func problemsOf(pod corev1.PodSpec) (all []string) {
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	seen := map[string]bool{}
	hostPorts := map[string]bool{}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if len(validation.IsDNS1123Label(c.Name)) > 0 || seen[c.Name] {
			say("container %q: name is invalid or duplicated", c.Name)
		}
		seen[c.Name] = true
		names := map[string]bool{}
		for _, p := range c.Ports {
			if p.Name != "" && (len(validation.IsValidPortName(p.Name)) > 0 || names[p.Name]) {
				say("container %s: port %q: name is invalid or duplicated", c.Name, p.Name)
			}
			names[p.Name] = true
			if len(validation.IsValidPortNum(int(p.ContainerPort))) > 0 {
				say("container %s: port %d: out of range", c.Name, p.ContainerPort)
			}
			if key := fmt.Sprint(p.HostPort, p.HostIP); p.HostPort != 0 {
				if hostPorts[key] {
					say("hostPort %s is duplicated", key)
				}
				hostPorts[key] = true
			}
		}
		for _, v := range c.Env {
			if len(validation.IsEnvVarName(v.Name)) > 0 {
				say("container %s: env %q: invalid name", c.Name, v.Name)
			}
		}
		handlerProblems(c, say)
		for name, limit := range c.Resources.Limits {
			if request, has := c.Resources.Requests[name]; has && request.Cmp(limit) > 0 {
				say("container %s: %s: the request exceeds the limit", c.Name, name)
			}
		}
	}
	if pod.Resources != nil {
		for name, has := range pod.Resources.Requests {
			for _, c := range pod.Containers {
				has.Sub(c.Resources.Requests[name])
			}
			if has.Sign() < 0 {
				say("%s: the containers request more than the pod", name)
			}
		}
	}
	if g := pod.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		say("terminationGracePeriodSeconds %d", *g)
	}
	return all
}

// handlerProblems reports violations in the probes and hooks of a container.
func handlerProblems(c corev1.Container, say func(format string, args ...any)) {
	for name, p := range map[string]*corev1.Probe{"readiness": c.ReadinessProbe, "liveness": c.LivenessProbe, "startup": c.StartupProbe} {
		if p == nil {
			continue
		}
		if handlers(p) != 1 {
			say("container %s: %s: not exactly one handler", c.Name, name)
		}
		if name != "readiness" && p.SuccessThreshold > 1 {
			say("container %s: %s: successThreshold is not 1", c.Name, name)
		}
	}
	if l := c.Lifecycle; l != nil && l.PreStop != nil {
		if of, _ := Decode(encode(l.PreStop)); len(of.(map[string]any)) != 1 {
			say("container %s: preStop: not exactly one handler", c.Name)
		}
	}
}

func specOf(t *testing.T, template any) corev1.PodSpec {
	t.Helper()
	var whole corev1.PodTemplateSpec // decode the whole template, because Inject decodes only some of its fields
	harness.NoError(t, json.Unmarshal(encode(template), &whole))
	return whole.Spec
}

func findSidecar(t *testing.T, pod corev1.PodSpec) corev1.Container {
	t.Helper()
	for _, c := range slices.Concat(pod.Containers, pod.InitContainers) {
		if c.Name == SidecarName {
			return c
		}
	}
	t.Fatal("no sidecar container")
	return corev1.Container{}
}

func parse(t *testing.T, text string) any {
	t.Helper()
	v, err := Decode([]byte(text))
	harness.NoError(t, err)
	return v
}

// FuzzInject injects any JSON value. Inject must not panic, and Uninject must restore the
// original value.
func FuzzInject(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{"name":"#0","ports":[{"containerPort":1},{"name":"1","containerPort":2}]}]}}`), "1")
	f.Add([]byte(`{"metadata":{"annotations":null},"spec":{"containers":[{"name":"a/b~c","ports":[{"name":"http","containerPort":8080,"hostPort":1}],"lifecycle":null}]}}`), "")
	f.Add([]byte(`{"metadata":[],"spec":{"containers":{}}}`), "")
	f.Add([]byte(`[]`), "http")
	for seed := range uint64(20) {
		f.Add([]byte(encode(newMaker(seed).template())), "")
	}
	f.Fuzz(func(t *testing.T, text []byte, port string) {
		before, err := Decode(text)
		if err != nil {
			return
		}
		out := Inject(before, Options{portOption: port})
		if out.Verdict != Injected {
			Uninject(before)
			return
		}
		after := changed(t, before, out.Changes)
		restored := changed(t, after, Uninject(after).Changes)
		harness.Equal(t, string(encode(restored)), string(encode(before)))
	})
}

// wantClosedReason checks that the outcome of an injected pod has no reason, and that any
// other outcome has a reason with a text.
func wantClosedReason(t *testing.T, out Outcome) {
	t.Helper()
	word := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	if (out.Reason == "") != (out.Verdict == Injected) || out.Reason != "" && (!word.MatchString(out.Reason) || ReasonText(out.Reason) == "") {
		t.Errorf("got verdict %s with reason %q, want a known reason only if the pod was not injected", out.Verdict, out.Reason)
	}
}
