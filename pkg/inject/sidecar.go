package inject

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

// The end of a pod, docs/promises.md 3.5.
const (
	usualGrace   = 30 * time.Second // Kubernetes', where a pod says nothing
	afterDrain   = 3 * time.Second  // what the end of the process may take after the drain
	usualDrain   = usualGrace - afterDrain
	longestQuiet = 30 * time.Second     // before the drain ends, no new request has come for so long
	longestGrace = 365 * 24 * time.Hour // a pod may say more, which a drain does not need
)

// settled is what the sidecar will be configured with.
type settled struct {
	environ  []config.EnvVar
	deadline time.Duration // of the drain
	grace    time.Duration // of the pod
	holds    bool          // the app's preStop hook is, or becomes, the sidecar's
	pause    time.Duration // that the app's hook took
}

// settle writes the sidecar's settings, by config's own rules, so that what is wrong is
// found here and not in a pod that does not start.
func (in *injection) settle() error {
	c := config.Default() // which knows the names of its settings
	asked := in.asked(c)
	if err := checkLengths(asked, c.Probes.Name()); err != nil {
		return err
	}
	asked, err := in.planEnd(asked)
	if err != nil {
		return err
	}
	if c, err = config.Read(asked); err != nil {
		return badSettings(err)
	}
	in.out.Warnings = append(in.out.Warnings, c.Warnings()...)
	in.settled.environ = config.Environ(c)
	return nil
}

// asked are the variables that the pod and the options ask for.
func (in *injection) asked(c *config.Config) []config.EnvVar {
	all := []config.EnvVar{
		// SERVING_ variables would be taken for Knative's. KEDA asks for statistics
		// without Accept and without its query where it asks every pod itself.
		{Name: c.OnKnative.Name(), Value: "false"},
		{Name: c.StatsFormat.Name(), Value: "prometheus"},
		{Name: c.UserPort.Name(), Value: decimal(in.port.ContainerPort)},
		{Name: c.Port.Name(), Value: decimal(in.ports.serving)},
		{Name: c.TLSPort.Name(), Value: decimal(in.ports.tls)},
		{Name: c.AdminPort.Name(), Value: decimal(in.ports.admin)},
		{Name: c.AutoscalerPort.Name(), Value: decimal(in.ports.autoscaler)},
		{Name: c.MetricsPort.Name(), Value: decimal(in.ports.metrics)},
		{Name: c.StatusPort.Name(), Value: decimal(in.ports.status)},
		{Name: c.DrainEndpoint.Name(), Value: strconv.FormatBool(in.native)},
	}
	switch len(in.probes) {
	case 0: // TCP to the app's port, which is the sidecar's own choice
	case 1:
		all = append(all, config.EnvVar{Name: c.Probes.Name(), Value: string(encode(in.probes[0]))})
	default:
		all = append(all, config.EnvVar{Name: c.Probes.Name(), Value: string(encode(in.probes))},
			config.EnvVar{Name: c.ProbeArray.Name(), Value: "true"})
	}
	more, _ := settings(in.options.get(settingsOption)) // it was validated
	all = append(all, more...)
	for _, option := range table {
		if said := in.options.get(option.Name); option.variable != "" && said != "" {
			all = append(all, config.EnvVar{Name: option.variable, Value: said})
		}
	}
	return all
}

// planEnd works out how long the end of the pod may take, and adds what the sidecar needs
// to know of it.
func (in *injection) planEnd(asked []config.EnvVar) ([]config.EnvVar, error) {
	// The clocks decide how long the drain takes, so they are read first.
	clocks := new(config.Config)
	if in.options.get(timeoutOption) != "" || in.options.get(drainMinOption) != "" {
		var err error
		if clocks, err = config.Read(append(slices.Clone(asked), longDeadline())); err != nil {
			return nil, badSettings(err)
		}
	}
	s := &in.settled
	s.pause, s.holds = pauseOf(at(in.object, "spec", "containers", in.app.Name, "lifecycle", "preStop"))
	least := max(clocks.DrainMin.V, s.pause)
	if least > 0 {
		asked = append(asked, config.EnvVar{Name: variableOf(drainMinOption), Value: least.String()})
	}
	grace := secondsOf(in.graceBefore())
	s.deadline = max(usualDrain, grace-afterDrain, least+clocks.RequestTimeout.V)
	if clocks.RequestTimeout.V > 0 {
		s.deadline = max(s.deadline, longestQuiet+clocks.RequestTimeout.V)
	}
	if said := in.options.get(deadlineOption); said != "" {
		s.deadline, _ = time.ParseDuration(said) // it was validated
		if s.deadline < clocks.RequestTimeout.V {
			in.warn("%s is shorter than %s: requests that came late are cut at the end of the pod", deadlineOption, timeoutOption)
		}
	}
	s.grace = max(grace, time.Duration(ceilSeconds(s.deadline+afterDrain))*time.Second)
	return append(asked, config.EnvVar{Name: variableOf(deadlineOption), Value: s.deadline.String()}), nil
}

// mostVariable bounds a variable of the sidecar's, name and value, in bytes: Linux starts no
// program with a longer one (MAX_ARG_STRLEN, execve(2)).
const mostVariable = 128 << 10

// checkLengths refuses variables with which no container starts; probes is the name of one.
func checkLengths(asked []config.EnvVar, probes string) error {
	for _, v := range asked {
		n := len(v.Name) + len("=") + len(v.Value) + len("\x00")
		switch {
		case n <= mostVariable:
		case v.Name == probes:
			return refuse(BadProbe, "readiness probes of %d bytes: no container starts with a variable of more than %d", n, mostVariable)
		default:
			return refuse(BadOption, "%s of %d bytes: no container starts with a variable of more than %d", v.Name, n, mostVariable)
		}
	}
	return nil
}

// graceBefore is the time that the pod has to end so far, in seconds.
func (in *injection) graceBefore() int64 {
	return *cmp.Or(in.pod.TerminationGracePeriodSeconds, new(int64(usualGrace/time.Second)))
}

// secondsOf is a number of seconds that a pod gives, at most longestGrace.
func secondsOf(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(longestGrace/time.Second))) * time.Second
}

// ceilSeconds is a duration in whole seconds, or the next.
func ceilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// badSettings is an error of config's, with the options' names beside the variables'.
func badSettings(err error) error {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	for _, option := range table {
		if option.variable != "" && strings.Contains(text, option.variable+": ") {
			text = strings.ReplaceAll(text, option.variable+": ", "option "+option.Name+": ")
		}
	}
	return refuse(BadOption, "%s", text)
}

// pauseOf is how long a hook before the app's end does nothing but wait, and whether the
// sidecar's hook can stand in its place: it can if there is none, or if it only waits, which
// DRAIN_MIN does as well. hook is a lifecycle's preStop, as JSON.
func pauseOf(hook any) (time.Duration, bool) {
	if hook == nil {
		return 0, true
	}
	switch sleep, exec := only(hook, "sleep"), only(hook, "exec"); {
	case sleep != nil && isEmpty(sleep):
		return 0, true
	case sleep != nil:
		n, ok := only(sleep, "seconds").(json.Number)
		seconds, err := n.Int64()
		return secondsOf(seconds), ok && err == nil
	case exec != nil:
		list, _ := only(exec, "command").([]any)
		words := make([]string, len(list))
		for i, word := range list {
			words[i], _ = word.(string)
		}
		return pauseOfCommand(words)
	}
	return 0, false
}

// only is what stands in a map under a key, nil if anything else stands in it too.
func only(node any, key string) any {
	m, _ := node.(map[string]any)
	for other, v := range m {
		if other != key && v != nil {
			return nil
		}
	}
	return m[key]
}

func pauseOfCommand(words []string) (time.Duration, bool) {
	if len(words) == 3 && words[1] == "-c" && slices.Contains([]string{"sh", "bash", "ash"}, base(words[0])) {
		words = strings.Fields(words[2])
	}
	if len(words) != 2 || base(words[0]) != "sleep" {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(words[1], "s"), 64)
	if err != nil || !(seconds >= 0 && seconds <= math.MaxInt32) {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// holdApp keeps the app alive until the sidecar has drained: the hook returns then
// (docs/promises.md 3.5).
func (in *injection) holdApp() error {
	path := []string{"spec", "containers", in.app.Name, "lifecycle", "preStop"}
	if !in.settled.holds {
		in.warn("container %s has a preStop hook of its own, which is kept: it must take as long as requests take to end, or call http://localhost:%d/wait-for-drain",
			in.app.Name, in.ports.admin)
		return nil
	}
	hook := corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/wait-for-drain", Port: intstr.FromInt32(in.ports.admin)}}
	in.set(hook, path...)
	in.note("before container %s is ended, the kubelet asks the sidecar on %d, which answers when all requests have theirs", in.app.Name, in.ports.admin)
	if in.settled.pause > 0 {
		in.note("the pause of %v that stood there becomes DRAIN_MIN, the least time of the drain", in.settled.pause)
	}
	return nil
}

// lengthenGrace gives the pod time for the drain.
func (in *injection) lengthenGrace() error {
	was, seconds := in.graceBefore(), int64(in.settled.grace/time.Second)
	if was < seconds {
		in.set(seconds, "spec", "terminationGracePeriodSeconds")
		in.note("terminationGracePeriodSeconds goes from %d to %d: the drain may take %v", was, seconds, in.settled.deadline)
	}
	return nil
}

// annotateMetrics says where Prometheus finds the sidecar's metrics.
func (in *injection) annotateMetrics() error {
	if isFalse(in.options.get(metricsOption)) {
		return nil
	}
	all := [][2]string{{"prometheus.io/scrape", "true"}, {"prometheus.io/port", decimal(in.ports.metrics)}, {"prometheus.io/path", "/metrics"}}
	for _, a := range all {
		if _, has := in.meta.Annotations[a[0]]; has {
			in.warn("the pod has its own prometheus.io annotations, which are kept: the sidecar's metrics on %d need a scrape of their own", in.ports.metrics)
			return nil
		}
	}
	for _, a := range all {
		in.set(a[1], "metadata", "annotations", a[0])
	}
	in.note("annotations say that Prometheus finds the sidecar's metrics on %d", in.ports.metrics)
	return nil
}

// addSidecar puts the container in: last among the containers, where Knative has it, so
// that kubectl's first container is still the app; or last among the init containers.
func (in *injection) addSidecar() error {
	in.out.shares = in.shares(corev1.ResourceCPU) || in.shares(corev1.ResourceMemory)
	var err error
	if in.out.resources, err = in.resources(); err != nil {
		return err
	}
	c := corev1.Container{
		Name:            sidecarName,
		Image:           in.options.get(imageOption),
		ImagePullPolicy: corev1.PullPolicy(in.options.get(pullOption)),
		Ports:           in.containerPorts(),
		Resources:       in.out.resources,
		ReadinessProbe:  in.queueProbe(),
		SecurityContext: in.securityContext(),
	}
	for _, v := range in.settled.environ {
		// A kubelet reads $(NAME) in a value as another variable, and $$ as $.
		c.Env = append(c.Env, corev1.EnvVar{Name: v.Name, Value: strings.ReplaceAll(v.Value, "$", "$$")})
	}
	if !in.native {
		in.set(c, "spec", "containers", sidecarName)
		in.note("the container %s is added last", sidecarName)
		return nil
	}
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	// What a mesh redirects to an ordinary container reaches nobody yet, and the pod would wait
	// for this probe forever.
	if !slices.ContainsFunc(in.pod.Containers, func(c corev1.Container) bool { return isMeshProxy(&c) }) {
		c.StartupProbe = in.startupProbe()
	}
	// It is ended after the app, so its own SIGTERM comes too late to begin a drain.
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/drain", Port: intstr.FromInt32(in.ports.admin)},
	}}
	in.set(c, "spec", "initContainers", sidecarName)
	in.note("the init container %s is added last, and stays: it starts before the app and ends after it", sidecarName)
	return nil
}

// startupProbe asks whether a native sidecar listens. The app starts after this probe, so it
// must not depend on the app.
func (in *injection) startupProbe() *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(in.ports.serving)}},
		TimeoutSeconds:   usualTimeout,
		PeriodSeconds:    1,
		SuccessThreshold: usualSuccesses,
		FailureThreshold: 30,
	}
}

// unnamedPort is the name of the sidecar's port where the app's has none.
const unnamedPort = "queue-port"

// containerPorts are the ports that others may find by name: Knative's names for the
// statistics and metrics, the app's name for requests.
func (in *injection) containerPorts() []corev1.ContainerPort {
	serving := corev1.ContainerPort{Name: cmp.Or(in.port.Name, unnamedPort), ContainerPort: in.ports.serving, HostPort: in.port.HostPort, HostIP: in.port.HostIP, Protocol: corev1.ProtocolTCP}
	all := []corev1.ContainerPort{
		{Name: config.AutoscalerPortName, ContainerPort: in.ports.autoscaler, Protocol: corev1.ProtocolTCP},
		{Name: config.MetricsPortName, ContainerPort: in.ports.metrics, Protocol: corev1.ProtocolTCP},
	}
	for i := range all {
		if all[i].Name == serving.Name { // an app that calls its port so
			all[i].Name = ""
		}
	}
	return append(all, serving)
}

// imageUser is the user that our image names.
const imageUser = 65532

// securityContext is what the restricted Pod Security Standard wants. A pod that runs
// as root would make our image root as well, which runAsNonRoot forbids.
func (in *injection) securityContext() *corev1.SecurityContext {
	s := &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		ReadOnlyRootFilesystem:   new(true),
		RunAsNonRoot:             new(true),
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if p := in.pod.SecurityContext; p != nil && p.RunAsUser != nil && *p.RunAsUser == 0 {
		s.RunAsUser = new(int64(imageUser))
	}
	return s
}

// resources are what the options say. Of a share of the app's, Knative's bounds hold.
func (in *injection) resources() (corev1.ResourceRequirements, error) {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	share, _ := strconv.ParseFloat(in.options.get(percentOption), 64) // it was validated; 0: not said
	for _, row := range []struct {
		option    string
		name      corev1.ResourceName
		to, of    corev1.ResourceList
		low, high string // of a share; "": a share does not say this
	}{
		{"cpu-request", corev1.ResourceCPU, r.Requests, in.app.Resources.Requests, "25m", "100m"},
		{"cpu-limit", corev1.ResourceCPU, r.Limits, in.app.Resources.Limits, "40m", "500m"},
		{"memory-request", corev1.ResourceMemory, r.Requests, in.app.Resources.Requests, "50Mi", "200Mi"},
		{"memory-limit", corev1.ResourceMemory, r.Limits, in.app.Resources.Limits, "200Mi", "500Mi"},
		{"ephemeral-storage-request", corev1.ResourceEphemeralStorage, r.Requests, nil, "", ""},
		{"ephemeral-storage-limit", corev1.ResourceEphemeralStorage, r.Limits, nil, "", ""},
	} {
		of, has := row.of[row.name]
		switch said := in.options[row.option]; {
		case said != "":
			row.to[row.name] = resource.MustParse(said) // it was validated
		case share > 0 && has && !of.IsZero():
			row.to[row.name] = shareOf(of, share, row.low, row.high)
		default:
			if usual := in.options.get(row.option); usual != "" && !in.shares(row.name) {
				row.to[row.name] = resource.MustParse(usual)
			}
		}
	}
	for name, limit := range r.Limits {
		request, has := r.Requests[name]
		if !has || request.Cmp(limit) <= 0 {
			continue
		}
		if said := in.options[string(name)+"-request"]; said != "" {
			return r, refuse(BadOption, "%s-request %s is above %s-limit %s", name, said, name, limit.String())
		}
		r.Requests[name] = limit // the default gives way
	}
	if in.isGuaranteed() && !isGuaranteed(r) && !in.out.shares {
		in.warn("the pod is of QoS class Guaranteed and becomes Burstable; set cpu-limit and memory-limit to what cpu-request and memory-request say to keep it")
	}
	return r, nil
}

// shares reports whether the pod has so much of a resource for all of its containers
// together (core/v1 PodSpec.resources, Kubernetes 1.34). What they request may not be
// more, and the pod's own decide its QoS class.
func (in *injection) shares(name corev1.ResourceName) bool {
	all := cmp.Or(in.pod.Resources, new(corev1.ResourceRequirements))
	_, requests := all.Requests[name]
	_, limits := all.Limits[name]
	return requests || limits
}

// shareOf is a percentage of a quantity, between two bounds.
func shareOf(q resource.Quantity, percent float64, low, high string) resource.Quantity {
	lowest, highest := resource.MustParse(low), resource.MustParse(high)
	n := float64(q.MilliValue()) * percent / 100
	switch {
	case n <= float64(lowest.MilliValue()):
		return lowest
	case n >= float64(highest.MilliValue()):
		return highest
	}
	if q.Format == resource.BinarySI { // bytes have no parts
		return *resource.NewQuantity(int64(n)/1000, q.Format)
	}
	return *resource.NewMilliQuantity(int64(n), q.Format)
}

// isGuaranteed reports whether all containers ask for exactly what they may use, which
// is Kubernetes' rule for the QoS class Guaranteed.
func (in *injection) isGuaranteed() bool {
	return !slices.ContainsFunc(slices.Concat(in.pod.InitContainers, in.pod.Containers), func(c corev1.Container) bool { return !isGuaranteed(c.Resources) })
}

func isGuaranteed(r corev1.ResourceRequirements) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, has := r.Limits[name]
		if !has {
			return false
		}
		if request, has := r.Requests[name]; has && request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

func isFalse(text string) bool {
	b, err := strconv.ParseBool(text)
	return err == nil && !b
}

func decimal(n int32) string { return fmt.Sprint(n) }
