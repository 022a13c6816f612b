package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

// defaultContainer is the annotation by which kubectl finds a pod's main container.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// A way is a port by which requests may come to a container.
type way struct {
	container *corev1.Container
	port      corev1.ContainerPort
	sign      sign
	found     string // who says it, where the container does not declare it; else ""
}

// chooseApp finds the container that serves, and its port for requests: those that are
// named, or else the only ones that could be meant.
func (in *injection) chooseApp() error {
	containers, err := in.eligible()
	if err != nil {
		return err
	}
	if in.options.get(portOption) != "" {
		return in.chooseNamedPort(containers)
	}
	return in.chooseAmong(containers)
}

// eligible are the containers that may be the app: the one that is named, or all but those
// of service meshes.
func (in *injection) eligible() ([]*corev1.Container, error) {
	name := in.options.get(containerOption)
	var all []*corev1.Container
	var names []string
	for i := range in.pod.Containers {
		c := &in.pod.Containers[i]
		names = append(names, c.Name)
		if c.Name == name || name == "" && !isMeshProxy(c) {
			all = append(all, c)
		}
	}
	if len(all) == 0 && name == "" {
		return nil, skip(NoPort, "the pod has no container but those of a service mesh")
	}
	if len(all) == 0 {
		return nil, refuse(WhichContainer, "no container is called %q; there are %s", name, strings.Join(names, ", "))
	}
	return all, nil
}

// chooseNamedPort finds the port that the option names. What it speaks is not asked.
func (in *injection) chooseNamedPort(containers []*corev1.Container) error {
	wanted := in.options.get(portOption)
	ways := slices.DeleteFunc(in.declared(containers), func(w way) bool { return w.port.Name != wanted && decimal(w.port.ContainerPort) != wanted })
	n, err := strconv.Atoi(wanted)
	switch {
	case len(ways) == 0 && len(containers) > 1:
		return skip(NoPort, "no container declares the TCP port %s; if one serves on it, name it: %s", wanted, cure(containerOption, containers[0].Name))
	case len(ways) == 0 && (err != nil || n < 1 || n > 65535):
		return refuse(WhichPort, "container %s has no TCP port called %q", containers[0].Name, wanted)
	case len(ways) == 0:
		ways = []way{{container: containers[0], port: corev1.ContainerPort{ContainerPort: int32(n)}}}
	}
	ways, err = in.ofOneContainer(ways)
	if err != nil {
		return err
	}
	i := calledHTTP(ways)
	if len(ways) > 1 && i < 0 { // several with the number: only its name tells one from another
		return refuseWhichPort(ways)
	}
	in.take(ways[max(i, 0)], "the option "+portOption+" names it")
	return nil
}

// calledHTTP is the place of the way whose port has the usual name, -1 for none.
func calledHTTP(ways []way) int {
	return slices.IndexFunc(ways, func(w way) bool { return w.port.Name == "http" })
}

// chooseAmong finds the port for requests where no option does.
func (in *injection) chooseAmong(containers []*corev1.Container) error {
	all := in.declared(containers)
	usable := requestWays(all)
	if len(usable) == 0 && !slices.ContainsFunc(all, func(w way) bool { return w.sign.protocol != notForRequests }) {
		more := in.undeclared(containers)
		all, usable = append(all, more...), requestWays(more)
	}
	if slices.ContainsFunc(all, func(w way) bool { return w.sign.protocol == notHTTP }) {
		// Beside a database, what says nothing of itself is a helper of it.
		usable = slices.DeleteFunc(usable, func(w way) bool { return w.sign.protocol == unknownProtocol })
	}
	switch {
	case len(all) == 0:
		return skipNoPort(containers)
	case len(usable) == 0:
		return skipNotHTTP(all)
	}
	ways, err := in.ofOneContainer(usable)
	if err != nil {
		return err
	}
	named, service := in.namedByServices(ways)
	switch i := calledHTTP(ways); {
	case len(ways) == 1:
		in.take(ways[0], whyOnly(ways[0], all))
	case i >= 0:
		in.take(ways[i], "it is called http")
	case len(named) == 1:
		in.take(named[0], fmt.Sprintf("of its ports, Service %s names this one", service))
	default:
		return refuseWhichPort(ways)
	}
	return nil
}

// take makes a way the one for requests.
func (in *injection) take(w way, why string) {
	in.app, in.port, in.found = w.container, w.port, w.found
	in.note("requests are for port %s of container %s: %s", describePort(w.port), w.container.Name, why)
}

// declared are the TCP ports that containers declare.
func (in *injection) declared(containers []*corev1.Container) []way {
	var all []way
	for _, c := range containers {
		for _, p := range c.Ports {
			if overTCP(p) {
				all = append(all, way{container: c, port: p, sign: in.signOf(c, p)})
			}
		}
	}
	return all
}

// undeclared are ports that only a Service, or else a readiness probe, names by number: a
// declaration opens nothing, so many leave it out.
func (in *injection) undeclared(containers []*corev1.Container) []way {
	var all []way
	add := func(c *corev1.Container, n int32, found string) {
		if n < 1 || n > 65535 || slices.ContainsFunc(all, func(w way) bool { return w.container.Name == c.Name && w.port.ContainerPort == n }) {
			return
		}
		p := corev1.ContainerPort{ContainerPort: n}
		all = append(all, way{container: c, port: p, sign: in.signOf(c, p), found: found})
	}
	for _, s := range in.services {
		for _, c := range containers {
			asks := slices.ContainsFunc(probesOf(c), func(p namedProbe) bool { return askedBy(p.Probe) == s.Target.IntVal })
			if s.Target.StrVal == "" && !declares(c, s.Target.IntVal) && (len(containers) == 1 || asks) {
				add(c, s.Target.IntVal, "Service "+s.Service+" names it")
			}
		}
	}
	if len(all) > 0 {
		return all
	}
	for _, c := range containers {
		if n := askedBy(c.ReadinessProbe); n != 0 && !declares(c, n) {
			add(c, n, "the readiness probe asks it")
		}
	}
	return all
}

func declares(c *corev1.Container, n int32) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return overTCP(p) && p.ContainerPort == n })
}

// requestWays are the ways that may be for requests.
func requestWays(all []way) []way {
	return slices.DeleteFunc(slices.Clone(all), func(w way) bool { return !w.sign.takesRequests() })
}

// ofOneContainer keeps the ways of the container that serves: the only one, the one that
// kubectl takes, or the only one that Services find.
func (in *injection) ofOneContainer(ways []way) ([]way, error) {
	of := func(name string) []way {
		return slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return w.container.Name != name })
	}
	names := namesOf(ways)
	if len(names) == 1 {
		return ways, nil
	}
	if usual := in.meta.Annotations[defaultContainer]; slices.Contains(names, usual) {
		return of(usual), nil
	}
	if named, _ := in.namedByServices(ways); len(namesOf(named)) == 1 {
		return of(named[0].container.Name), nil
	}
	return nil, refuse(WhichContainer, "the containers %s all have ports that could be for requests; name the one that serves: %s",
		strings.Join(names, " and "), cure(containerOption, names[0]))
}

// namesOf are the names of the containers of some ways, each once.
func namesOf(ways []way) []string {
	var all []string
	for _, w := range ways {
		if !slices.Contains(all, w.container.Name) {
			all = append(all, w.container.Name)
		}
	}
	return all
}

// namedByServices are the ways that Services find, and one of these Services.
func (in *injection) namedByServices(ways []way) (named []way, service string) {
	for _, w := range ways {
		if i := slices.IndexFunc(in.services, func(s ServicePort) bool { return s.finds(w.port) }); i >= 0 {
			named, service = append(named, w), in.services[i].Service
		}
	}
	return named, service
}

// whyOnly says why a way is the only one, of all that there are.
func whyOnly(w way, all []way) string {
	if w.found != "" {
		return "nothing declares a port for requests, and " + w.found
	}
	var others []string
	for _, o := range all {
		if o.container.Name == w.container.Name && o.port != w.port {
			others = append(others, fmt.Sprintf("%s is not for requests, because %s", describePort(o.port), o.sign.why))
		}
	}
	switch {
	case len(others) > 0:
		return strings.Join(others, "; ")
	case w.sign.why != "":
		return "it is the only one, and " + w.sign.why
	}
	return "it is the only one"
}

// skipNotHTTP names the port that says most about why a pod is left alone.
func skipNotHTTP(all []way) error {
	others := slices.DeleteFunc(slices.Clone(all), func(w way) bool { return w.sign.takesRequests() })
	w := slices.MinFunc(others, func(a, b way) int { return int(a.sign.protocol - b.sign.protocol) })
	does := map[protocol]string{notHTTP: "does not speak HTTP", overTLS: "speaks TLS, and the sidecar plain HTTP", notForRequests: "is not for requests"}[w.sign.protocol]
	return skip(NotHTTP, "port %s of container %s %s: %s; if that is wrong, say so: %s", describePort(w.port), w.container.Name, does, w.sign.why, cure(portOption, decimal(w.port.ContainerPort)))
}

func skipNoPort(containers []*corev1.Container) error {
	if len(containers) > 1 {
		return skip(NoPort, "no container declares a TCP port, and no Service at hand or readiness probe names one; if one serves: %s and %s",
			cure(containerOption, containers[0].Name), cure(portOption, "8080"))
	}
	return skip(NoPort, "container %s declares no TCP port, and no Service at hand or readiness probe names one; if it serves: %s", containers[0].Name, cure(portOption, "8080"))
}

func refuseWhichPort(ways []way) error {
	var all []string
	for _, w := range ways {
		all = append(all, describePort(w.port))
	}
	return refuse(WhichPort, "container %s has the ports %s; say which is for requests: %s", ways[0].container.Name, strings.Join(all, " and "),
		cure(portOption, decimal(ways[0].port.ContainerPort)))
}

// cure says how an option is given.
func cure(option, value string) string {
	return fmt.Sprintf("--%s %s, or the annotation %s%s: %q", option, value, Prefix, option, value)
}

// holdNameFree returns an error if a container after the app's container has a port with the name of the app's port. A
// Service resolves the name to the first container that has it. After the injection, this would be the other
// container, because the sidecar is the last one. If a container before the app's container has the name, no Service
// reaches the app by the name.
func (in *injection) holdNameFree() error {
	others := slices.Clone(in.pod.Containers)
	if in.native { // the sidecar is the last of the init containers that stay
		others = append(others, in.staying()...)
	}
	i := slices.IndexFunc(others, func(c corev1.Container) bool { return c.Name == in.app.Name })
	named := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == in.port.Name && overTCP(p) })
	}
	if in.port.Name == "" || slices.ContainsFunc(others[:i], named) {
		return nil
	}
	if later := slices.IndexFunc(others[i+1:], named); later >= 0 {
		return refuse(PortTaken, "the name %s is needed for the sidecar's port, but a port of container %s has it as well; give one of them another name", in.port.Name, others[i+1+later].Name)
	}
	return nil
}

// staying are the init containers that stay.
func (in *injection) staying() []corev1.Container {
	return slices.DeleteFunc(slices.Clone(in.pod.InitContainers), func(c corev1.Container) bool { return c.RestartPolicy == nil })
}

func overTCP(p corev1.ContainerPort) bool {
	return p.Protocol == "" || p.Protocol == corev1.ProtocolTCP
}

// holdToPlainText refuses a port that was named, on which the app speaks TLS: the sidecar
// speaks plain text to it.
func (in *injection) holdToPlainText() error {
	for _, p := range probesOf(in.app) {
		if byProbe(p, in.app, in.port).protocol == overTLS {
			return refuse(SpeaksTLS, "a probe says that container %s speaks HTTPS on %d; the sidecar speaks plain HTTP to it: name a plain port with the option %s",
				in.app.Name, in.port.ContainerPort, portOption)
		}
	}
	if tlsName.MatchString(in.port.Name) {
		in.warn("the port %s sounds like TLS; the sidecar speaks plain HTTP to it", in.port.Name)
	}
	return nil
}

// ports are the sidecar's.
type ports struct{ serving, tls, admin, autoscaler, metrics, status int32 }

// A usualPort is a port of the sidecar's, by the option that chooses another.
type usualPort struct {
	option string
	number int32
}

// usualPorts are the sidecar's, where config has them, in the order in which they are
// chosen.
var usualPorts = allPorts()

func allPorts() []usualPort {
	c := config.Default()
	return []usualPort{
		{"serving-port", int32(c.Port.V)},
		{"tls-port", int32(c.TLSPort.V)},
		{"admin-port", int32(c.AdminPort.V)},
		{"autoscaler-port", int32(c.AutoscalerPort.V)},
		{"metrics-port", int32(c.MetricsPort.V)},
		{"status-port", int32(c.StatusPort.V)},
	}
}

// higher is how far a usual port moves where a container has it.
const higher = 10000

// choosePorts gives the sidecar its ports: those that were asked for, or the usual
// ones, each 10000 higher where a container has it. Whoever comes from outside
// comes by the port's name or by an annotation, so the number is free.
func (in *injection) choosePorts() error {
	taken := map[int32]string{in.port.ContainerPort: "container " + in.app.Name}
	wants := slices.Clone(usualPorts)
	for i, want := range wants {
		if said := in.options.get(want.option); said != "" {
			number, _ := strconv.Atoi(said) // the option was validated
			wants[i].number = int32(number)
		}
	}
	containers := slices.Concat(in.pod.Containers, in.staying())
	for _, c := range containers {
		for _, p := range c.Ports {
			if overTCP(p) {
				taken[p.ContainerPort] = "container " + c.Name
			}
		}
	}
	// An app listens where a probe asks it, whether or not that is declared. To the
	// first two, a probe may be meant to come through the sidecar.
	for _, c := range containers {
		for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
			if n := askedBy(p); taken[n] == "" && n != wants[0].number && n != wants[1].number {
				taken[n] = "container " + c.Name
			}
		}
	}
	// A Service reaches the app at the number of its targetPort, whether or not the port is declared.
	for _, s := range in.services {
		if n := s.Target.IntVal; taken[n] == "" && n != wants[0].number && n != wants[1].number {
			taken[n] = "Service " + s.Service
		}
	}
	to := []*int32{&in.ports.serving, &in.ports.tls, &in.ports.admin, &in.ports.autoscaler, &in.ports.metrics, &in.ports.status}
	for i, want := range wants {
		n := want.number
		if by, is := taken[n]; is && in.options.get(want.option) == "" {
			if _, again := taken[n+higher]; !again {
				in.warn("%s uses port %d, so %s of the sidecar is %d", by, n, want.option, n+higher)
				n += higher
			}
		}
		if by, is := taken[n]; is {
			return refuse(PortTaken, "port %d is needed as %s, but %s uses it; choose another port with the option %s", n, want.option, by, want.option)
		}
		taken[n] = "the sidecar's " + want.option
		*to[i] = n
	}
	return nil
}

// askedBy is the port of this pod that a probe asks by its number, 0 for none.
func askedBy(p *corev1.Probe) int32 {
	switch {
	case p == nil:
	case p.HTTPGet != nil && p.HTTPGet.Host == "":
		return int32(p.HTTPGet.Port.IntValue())
	case p.TCPSocket != nil && p.TCPSocket.Host == "":
		return int32(p.TCPSocket.Port.IntValue())
	case p.GRPC != nil:
		return p.GRPC.Port
	}
	return 0
}

// swapPort gives the sidecar the name of the app's port, so that Services, which find
// ports by name, need no edit. What else names the port becomes its number.
func (in *injection) swapPort() error {
	if in.port.HostPort != 0 { // the way in from the node is the sidecar's now
		in.removeFromPort("hostPort")
		if in.port.HostIP != "" {
			in.removeFromPort("hostIP")
		}
	}
	old := in.port.Name
	if old == "" {
		return nil
	}
	others := map[string]bool{} // in any container, because a Service may use one of them
	for _, c := range slices.Concat(in.pod.Containers, in.pod.InitContainers) {
		for _, p := range c.Ports {
			others[p.Name] = true
		}
	}
	renamed := "user-port"
	for i := 2; others[renamed]; i++ {
		renamed = fmt.Sprintf("user-port-%d", i)
	}
	in.set(renamed, "spec", "containers", in.app.Name, "ports", old, "name")
	in.note("the sidecar's port %d takes the name %s from the app's port %d, which becomes %s: Services that say %s need no edit",
		in.ports.serving, old, in.port.ContainerPort, renamed, old)
	if in.native {
		in.note("before Kubernetes 1.33, Services that say %s must say %d: they find no port of an init container by its name", old, in.ports.serving)
	}
	for _, place := range namers {
		path := slices.Concat([]string{"spec", "containers", in.app.Name}, strings.Split(place, "."), []string{"port"})
		if at(in.object, path...) == old {
			in.set(in.port.ContainerPort, path...)
			in.note("%s says the port's number, because its name has moved", place)
		}
	}
	return nil
}

// namers are what may name a port of a container, and stays there.
var namers = []string{
	"livenessProbe.httpGet", "livenessProbe.tcpSocket", "startupProbe.httpGet", "startupProbe.tcpSocket",
	"lifecycle.postStart.httpGet", "lifecycle.postStart.tcpSocket", "lifecycle.preStop.httpGet", "lifecycle.preStop.tcpSocket",
}

func (in *injection) removeFromPort(key string) {
	in.remove("spec", "containers", in.app.Name, "ports", cmp.Or(in.port.Name, decimal(in.port.ContainerPort)), key)
}

func describePort(p corev1.ContainerPort) string {
	if p.Name == "" {
		return decimal(p.ContainerPort)
	}
	return fmt.Sprintf("%s (%d)", p.Name, p.ContainerPort)
}
