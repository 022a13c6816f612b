package inject

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

// Times for the shutdown of a pod (docs/promises.md 3.5).
const (
	defaultGrace   = 30 * time.Second // default terminationGracePeriodSeconds of Kubernetes
	afterDrain     = 3 * time.Second  // maximum time from the end of the drain until the process exits
	defaultDrain   = defaultGrace - afterDrain
	maxQuietPeriod = 30 * time.Second     // maximum quiet period: the drain continues until no request has arrived for this time
	maxGracePeriod = 365 * 24 * time.Hour // maximum grace period that the injector uses for computations
)

// sidecarSettings contains the configuration of the sidecar.
type sidecarSettings struct {
	environ      []config.EnvVar
	deadline     time.Duration // drain deadline
	grace        time.Duration // grace period of the pod
	replacesHook bool          // the preStop hook of the application calls the sidecar
	pause        time.Duration // duration of the application's preStop hook that was replaced
}

// computeSettings computes the settings of the sidecar and validates them with package config, so
// that the injector reports invalid settings before the pod starts.
func (in *injection) computeSettings() error {
	requested := in.requested()
	if err := checkLengths(requested, defaults().Probes.Name()); err != nil {
		return err
	}
	requested, err := in.planShutdown(requested)
	if err != nil {
		return err
	}
	c, err := config.Read(requested)
	if err != nil {
		return in.badSettings(err)
	}
	in.out.Warnings = append(in.out.Warnings, c.Warnings(false)...)
	in.sidecarSettings.environ = config.Environ(c)
	return nil
}

// requested returns the settings that result from the pod and the options.
func (in *injection) requested() []config.EnvVar {
	c := defaults()
	all := []config.EnvVar{
		// Without this variable, the sidecar would treat SERVING_ variables as Knative's
		// variables. The statistics are in the Prometheus format by default, because KEDA
		// requests the statistics of each pod without an Accept header and without the query
		// of the configured URL.
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
	case 0: // by default, the sidecar checks the application port with TCP
	case 1:
		all = append(all, config.EnvVar{Name: c.Probes.Name(), Value: string(encode(in.probes[0]))})
	default:
		all = append(all, config.EnvVar{Name: c.Probes.Name(), Value: string(encode(in.probes))},
			config.EnvVar{Name: c.ProbeArray.Name(), Value: "true"})
	}
	more, _ := settings(in.options.get(settingsOption)) // the value is valid, because the options have been validated
	all = append(all, more...)
	for _, option := range table {
		if value := in.options.get(option.Name); option.variable != "" && value != "" {
			all = append(all, config.EnvVar{Name: option.variable, Value: value})
		}
	}
	return all
}

// planShutdown computes the drain deadline and the grace period of the pod, and adds the settings
// for the drain.
func (in *injection) planShutdown(requested []config.EnvVar) ([]config.EnvVar, error) {
	// The deadline depends on the request timeout and the minimum drain time.
	clocks := new(config.Config)
	if in.options.get(timeoutOption) != "" || in.options.get(drainMinOption) != "" {
		var err error
		if clocks, err = config.Read(append(slices.Clone(requested), longDeadline())); err != nil {
			return nil, in.badSettings(err)
		}
	}
	s := &in.sidecarSettings
	s.pause, s.replacesHook = pauseOf(At(in.object, "spec", "containers", in.app.Name, "lifecycle", "preStop"))
	least := max(clocks.DrainMin.V, s.pause)
	if least > 0 {
		requested = append(requested, config.EnvVar{Name: variableOf(drainMinOption), Value: least.String()})
	}
	grace := secondsOf(in.originalGracePeriod())
	s.deadline = max(defaultDrain, grace-afterDrain, least+clocks.RequestTimeout.V)
	if clocks.RequestTimeout.V > 0 {
		s.deadline = max(s.deadline, maxQuietPeriod+clocks.RequestTimeout.V)
	}
	if value := in.options.get(deadlineOption); value != "" {
		s.deadline, _ = time.ParseDuration(value) // the value is valid, because the options have been validated
		if s.deadline < clocks.RequestTimeout.V {
			in.warn("%s is shorter than %s, so requests can be aborted at the end of the drain", deadlineOption, timeoutOption)
		}
	}
	s.grace = max(grace, time.Duration(ceilSeconds(s.deadline+afterDrain))*time.Second)
	return append(requested, config.EnvVar{Name: variableOf(deadlineOption), Value: s.deadline.String()}), nil
}

// maxVariableBytes is the maximum length in bytes of an environment variable, including its name.
// Linux does not start a program with a longer variable (MAX_ARG_STRLEN, execve(2)).
const maxVariableBytes = 128 << 10

// checkLengths returns an error for variables that are too long. probes is the name of the variable
// for probes.
func checkLengths(requested []config.EnvVar, probes string) error {
	for _, v := range requested {
		n := len(v.Name) + len("=") + len(v.Value) + len("\x00")
		switch {
		case n <= maxVariableBytes:
		case v.Name == probes:
			return refuse(BadProbe, "readiness probes: %d bytes exceed the limit of %d for an environment variable", n, maxVariableBytes)
		default:
			return refuse(BadOption, "%s: %d bytes exceed the limit of %d for an environment variable", v.Name, n, maxVariableBytes)
		}
	}
	return nil
}

// originalGracePeriod returns the grace period of the pod before the injection, in seconds.
func (in *injection) originalGracePeriod() int64 {
	return *cmp.Or(in.pod.TerminationGracePeriodSeconds, new(int64(defaultGrace/time.Second)))
}

// secondsOf converts n seconds to a duration between 0 and maxGracePeriod.
func secondsOf(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(maxGracePeriod/time.Second))) * time.Second
}

// ceilSeconds returns a duration in seconds, rounded up.
func ceilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// badSettings converts an error from package config into an outcome. It replaces each variable that
// an option sets with the name of the annotation or the option, because users set options instead
// of variables.
func (in *injection) badSettings(err error) error {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	for _, option := range table {
		if option.variable == "" || !strings.Contains(text, option.variable) {
			continue
		}
		name := "option " + option.Name
		for _, key := range slices.Backward(option.Annotations()) {
			if in.meta.Annotations[key] != "" {
				name = "annotation " + key
			}
		}
		text = regexp.MustCompile(`\b`+option.variable+`\b`).ReplaceAllString(text, name)
	}
	return refuse(BadOption, "%s", text)
}

// pauseOf returns how long a preStop hook sleeps, and reports whether the injector can replace the
// hook. A hook that is missing or only sleeps can be replaced, because DRAIN_MIN has the same
// effect. hook is the decoded lifecycle.preStop field of the container.
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

// only returns the value at a key of a map, or nil if another key of the map has a value.
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

// addPreStopHook adds a preStop hook that keeps the application running until the sidecar is
// drained (docs/promises.md 3.5).
func (in *injection) addPreStopHook() error {
	path := []string{"spec", "containers", in.app.Name, "lifecycle", "preStop"}
	if !in.sidecarSettings.replacesHook {
		in.warn("the preStop hook of container %s is not changed; the hook must wait until all requests are complete, or call http://localhost:%d/wait-for-drain",
			in.app.Name, in.ports.admin)
		return nil
	}
	hook := corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/wait-for-drain", Port: intstr.FromInt32(in.ports.admin)}}
	in.set(hook, path...)
	in.note("the preStop hook of container %s calls port %d of the sidecar, which responds after all requests are complete", in.app.Name, in.ports.admin)
	if in.sidecarSettings.pause > 0 {
		in.note("the replaced preStop hook slept for %v, which is now DRAIN_MIN, the minimum duration of the drain", in.sidecarSettings.pause)
	}
	return nil
}

// extendGracePeriod extends the grace period of the pod to the drain deadline.
func (in *injection) extendGracePeriod() error {
	was, seconds := in.originalGracePeriod(), int64(in.sidecarSettings.grace/time.Second)
	if was < seconds {
		in.set(seconds, "spec", "terminationGracePeriodSeconds")
		in.note("terminationGracePeriodSeconds changes from %d to %d, because the drain can take %v", was, seconds, in.sidecarSettings.deadline)
	}
	return nil
}

// annotateMetrics adds the annotations with which Prometheus finds the metrics of the sidecar.
func (in *injection) annotateMetrics() error {
	if isFalse(in.options.get(metricsOption)) {
		return nil
	}
	all := [][2]string{{"prometheus.io/scrape", "true"}, {"prometheus.io/port", decimal(in.ports.metrics)}, {"prometheus.io/path", "/metrics"}}
	for _, a := range all {
		if _, has := in.meta.Annotations[a[0]]; has {
			in.warn("the prometheus.io annotations of the pod are not changed; configure a separate scrape for the sidecar metrics on port %d", in.ports.metrics)
			return nil
		}
	}
	for _, a := range all {
		in.set(a[1], "metadata", "annotations", a[0])
	}
	in.note("prometheus.io annotations are added for the metrics of the sidecar on port %d", in.ports.metrics)
	return nil
}

// addSidecar appends the sidecar to the containers, as Knative does, so that the application
// remains the first container for kubectl. A native sidecar is appended to the init containers.
func (in *injection) addSidecar() error {
	in.out.shares = in.shares(corev1.ResourceCPU) || in.shares(corev1.ResourceMemory)
	var err error
	if in.out.resources, err = in.resources(); err != nil {
		return err
	}
	c := corev1.Container{
		Name:            SidecarName,
		Image:           in.options.get(imageOption),
		ImagePullPolicy: corev1.PullPolicy(in.options.get(pullOption)),
		Ports:           in.containerPorts(),
		Resources:       in.out.resources,
		ReadinessProbe:  in.queueProbe(),
		SecurityContext: in.securityContext(),
	}
	for _, v := range in.sidecarSettings.environ {
		// In the value of a variable, the kubelet replaces $(NAME) with another variable, and $$
		// with $.
		c.Env = append(c.Env, corev1.EnvVar{Name: v.Name, Value: strings.ReplaceAll(v.Value, "$", "$$")})
	}
	if !in.native {
		in.set(c, "spec", "containers", SidecarName)
		in.note("container %s is added at the end", SidecarName)
		return nil
	}
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	// A mesh redirects the probe to a proxy that runs as a regular container. The proxy only
	// starts after the probe succeeds, so a redirected probe would never succeed.
	if !slices.ContainsFunc(in.pod.Containers, func(c corev1.Container) bool { return isMeshProxy(&c) }) {
		c.StartupProbe = in.startupProbe()
	}
	// The kubelet stops a native sidecar after the application, so SIGTERM is too late to begin the
	// drain.
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/drain", Port: intstr.FromInt32(in.ports.admin)},
	}}
	in.set(c, "spec", "initContainers", SidecarName)
	in.note("restartable init container %s is added at the end; the sidecar starts before the application and stops after the application", SidecarName)
	return nil
}

// startupProbe returns a probe that succeeds when a native sidecar listens. The kubelet starts the
// application after this probe, so the probe must not depend on the application.
func (in *injection) startupProbe() *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(in.ports.serving)}},
		TimeoutSeconds:   defaultTimeout,
		PeriodSeconds:    1,
		SuccessThreshold: defaultSuccesses,
		FailureThreshold: 30,
	}
}

// unnamedPort is the name of the sidecar port if the application port has no name.
const unnamedPort = "queue-port"

// containerPorts returns the ports of the sidecar that clients find by name. The ports for
// statistics and metrics have the names that Knative uses, and the port for requests has the name
// of the application port.
func (in *injection) containerPorts() []corev1.ContainerPort {
	serving := corev1.ContainerPort{Name: cmp.Or(in.port.Name, unnamedPort), ContainerPort: in.ports.serving, HostPort: in.port.HostPort, HostIP: in.port.HostIP, Protocol: corev1.ProtocolTCP}
	all := []corev1.ContainerPort{
		{Name: config.AutoscalerPortName, ContainerPort: in.ports.autoscaler, Protocol: corev1.ProtocolTCP},
		{Name: config.MetricsPortName, ContainerPort: in.ports.metrics, Protocol: corev1.ProtocolTCP},
	}
	for i := range all {
		if all[i].Name == serving.Name { // the application port has this name, so the sidecar's port is unnamed
			all[i].Name = ""
		}
	}
	return append(all, serving)
}

// imageUser is the user of the sidecar image.
const imageUser = 65532

// securityContext returns a security context that satisfies the restricted Pod Security
// Standard. If the pod runs as root, the context sets the user to imageUser, because
// runAsNonRoot does not permit root.
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

// resources returns the resources in the options. A percentage of the application's resources is
// limited to the same range as in Knative.
func (in *injection) resources() (corev1.ResourceRequirements, error) {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	share, _ := strconv.ParseFloat(in.options.get(percentOption), 64) // the value is empty or valid, because the options have been validated; 0 means not set
	for _, row := range []struct {
		option    string
		name      corev1.ResourceName
		to, of    corev1.ResourceList
		low, high string // limits of the result if a percentage is used; "" if percentages do not apply to the resource
	}{
		{"cpu-request", corev1.ResourceCPU, r.Requests, in.app.Resources.Requests, "25m", "100m"},
		{"cpu-limit", corev1.ResourceCPU, r.Limits, in.app.Resources.Limits, "40m", "500m"},
		{"memory-request", corev1.ResourceMemory, r.Requests, in.app.Resources.Requests, "50Mi", "200Mi"},
		{"memory-limit", corev1.ResourceMemory, r.Limits, in.app.Resources.Limits, "200Mi", "500Mi"},
		{"ephemeral-storage-request", corev1.ResourceEphemeralStorage, r.Requests, nil, "", ""},
		{"ephemeral-storage-limit", corev1.ResourceEphemeralStorage, r.Limits, nil, "", ""},
	} {
		of, has := row.of[row.name]
		switch value := in.options[row.option]; {
		case value != "":
			row.to[row.name] = resource.MustParse(value) // the value is valid, because the options have been validated
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
		if value := in.options[string(name)+"-request"]; value != "" {
			return r, refuse(BadOption, "%s-request %s exceeds %s-limit %s", name, value, name, limit.String())
		}
		r.Requests[name] = limit // the default request must not exceed the limit
	}
	if in.isGuaranteed() && !isGuaranteed(r) && !in.out.shares {
		in.warn("the QoS class of the pod changes from Guaranteed to Burstable; to keep it, set cpu-limit and memory-limit to the values of cpu-request and memory-request")
	}
	return r, nil
}

// shares reports whether the pod has a pod-level resource with the given name (core/v1
// PodSpec.resources, Kubernetes 1.34). The sum of the containers' requests must not
// exceed the pod-level resource, which also determines the QoS class.
func (in *injection) shares(name corev1.ResourceName) bool {
	all := cmp.Or(in.pod.Resources, new(corev1.ResourceRequirements))
	_, requests := all.Requests[name]
	_, limits := all.Limits[name]
	return requests || limits
}

// shareOf returns a percentage of a quantity, limited to the range from low to high.
func shareOf(q resource.Quantity, percent float64, low, high string) resource.Quantity {
	lowest, highest := resource.MustParse(low), resource.MustParse(high)
	n := float64(q.MilliValue()) * percent / 100
	switch {
	case n <= float64(lowest.MilliValue()):
		return lowest
	case n >= float64(highest.MilliValue()):
		return highest
	}
	if q.Format == resource.BinarySI { // round up, because bytes are integers
		return *resource.NewQuantity(int64(n)/1000, q.Format)
	}
	return *resource.NewMilliQuantity(int64(n), q.Format)
}

// isGuaranteed reports whether the CPU and memory requests of all containers equal their limits, as
// the QoS class Guaranteed requires.
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
