package inject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// defaultContainer is the annotation by which kubectl finds a pod's main container.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// chooseContainer finds the container that serves: the one that is named, the only one,
// the one that kubectl takes, or the only one with ports.
func (in *injection) chooseContainer() error {
	containers := in.pod.Containers
	byName := func(name string) int {
		return slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
	}
	if name := in.options.get(containerOption); name != "" {
		i := byName(name)
		if i < 0 {
			return refuse(WhichContainer, "no container is called %q; there are %s", name, strings.Join(containerNames(containers), ", "))
		}
		in.app = &containers[i]
		return nil
	}
	if len(containers) == 1 {
		in.app = &containers[0]
		return nil
	}
	if i := byName(in.meta.Annotations[defaultContainer]); i >= 0 && len(in.candidates(containers[i])) > 0 {
		in.app = &containers[i]
		return nil
	}
	var serving []*corev1.Container
	for i := range containers {
		if len(in.candidates(containers[i])) > 0 {
			serving = append(serving, &containers[i])
		}
	}
	switch len(serving) {
	case 0:
		return skip(NoPort, "no container declares a TCP port; if one serves, name it with the options %s and %s", containerOption, portOption)
	case 1:
		in.app = serving[0]
		return nil
	}
	var names []string
	for _, c := range serving {
		names = append(names, c.Name)
	}
	return refuse(WhichContainer, "the containers %s all declare ports; name the one that serves with the option %s", strings.Join(names, " and "), containerOption)
}

// candidates are the ports of a container that could be the one for requests: TCP, and
// the one that the option names if it names one.
func (in *injection) candidates(c corev1.Container) []corev1.ContainerPort {
	wanted := in.options.get(portOption)
	var found []corev1.ContainerPort
	for _, p := range c.Ports {
		if !overTCP(p) {
			continue
		}
		if wanted == "" || p.Name == wanted || strconv.Itoa(int(p.ContainerPort)) == wanted {
			found = append(found, p)
		}
	}
	return found
}

// choosePort finds the app's port for requests: the one that is named, the only one, or
// the only one that is called http.
func (in *injection) choosePort() error {
	candidates := in.candidates(*in.app)
	wanted := in.options.get(portOption)
	switch {
	case len(candidates) == 1:
		in.port = candidates[0]
	case len(candidates) == 0 && wanted != "":
		n, err := strconv.Atoi(wanted)
		if err != nil || n < 1 || n > 65535 {
			return refuse(WhichPort, "container %s has no TCP port called %q", in.app.Name, wanted)
		}
		in.port = corev1.ContainerPort{ContainerPort: int32(n)}
	case len(candidates) == 0:
		return skip(NoPort, "container %s declares no TCP port; if it serves, give the port with the option %s", in.app.Name, portOption)
	default:
		i := slices.IndexFunc(candidates, func(p corev1.ContainerPort) bool { return p.Name == "http" })
		if i < 0 {
			var all []string
			for _, p := range candidates {
				all = append(all, describePort(p))
			}
			return refuse(WhichPort, "container %s declares the ports %s; say which is for requests with the option %s", in.app.Name, strings.Join(all, " and "), portOption)
		}
		in.port = candidates[i]
	}
	if err := in.holdNameFree(); err != nil {
		return err
	}
	return in.holdToPlainText()
}

// holdNameFree refuses a port whose name stands again in a container behind the app's:
// Services take the first container that has it (those that stay among the init
// containers are behind all others), so that one would get the app's requests. Where one
// before the app's has it, nobody finds the app by it.
func (in *injection) holdNameFree() error {
	in.out.PortName = in.port.Name
	others := slices.Clone(in.pod.Containers)
	if in.native { // where the sidecar is the last of these
		others = append(others, in.staying()...)
	}
	behind := false
	for _, c := range others {
		if c.Name == in.app.Name {
			behind = true
			continue
		}
		if in.port.Name == "" || !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == in.port.Name && overTCP(p) }) {
			continue
		}
		if behind {
			return refuse(PortTaken, "the name %s is needed for the sidecar's port, but a port of container %s has it as well; give one of them another name", in.port.Name, c.Name)
		}
		in.out.PortName = ""
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

// holdToPlainText refuses a port on which the app speaks TLS: the sidecar speaks plain
// text to it.
func (in *injection) holdToPlainText() error {
	for _, p := range []*corev1.Probe{in.app.ReadinessProbe, in.app.LivenessProbe, in.app.StartupProbe} {
		if p == nil || p.HTTPGet == nil || p.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			continue
		}
		if n, err := resolve(p.HTTPGet.Port, in.app); err == nil && n == in.port.ContainerPort {
			return refuse(SpeaksTLS, "a probe says that container %s speaks HTTPS on %d; the sidecar speaks plain HTTP to it: name a plain port with the option %s",
				in.app.Name, n, portOption)
		}
	}
	if strings.HasPrefix(in.port.Name, "https") {
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

// usualPorts are the sidecar's, in the order in which they are chosen.
func usualPorts() []usualPort {
	return []usualPort{
		{"serving-port", 8012},
		{"tls-port", 8112},
		{"admin-port", 8022},
		{"autoscaler-port", 9090},
		{"metrics-port", 9091},
		{"status-port", 8008},
	}
}

// higher is how far a usual port moves where a container has it.
const higher = 10000

// choosePorts gives the sidecar its ports: those that were asked for, or the usual
// ones, each 10000 higher where a container has it. Whoever comes from outside
// comes by the port's name or by an annotation, so the number is free.
func (in *injection) choosePorts() error {
	taken := map[int32]string{in.port.ContainerPort: in.app.Name}
	wants := usualPorts()
	for i, want := range wants {
		if said := in.options.get(want.option); said != "" {
			number, _ := strconv.Atoi(said) // the option was judged
			wants[i].number = int32(number)
		}
	}
	containers := slices.Concat(in.pod.Containers, in.staying())
	for _, c := range containers {
		for _, p := range c.Ports {
			if overTCP(p) {
				taken[p.ContainerPort] = c.Name
			}
		}
	}
	// An app listens where a probe asks it, whether or not that is declared. To the
	// first two, a probe may be meant to come through the sidecar.
	for _, c := range containers {
		for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
			if n := askedBy(p); taken[n] == "" && n != wants[0].number && n != wants[1].number {
				taken[n] = c.Name
			}
		}
	}
	to := []*int32{&in.ports.serving, &in.ports.tls, &in.ports.admin, &in.ports.autoscaler, &in.ports.metrics, &in.ports.status}
	for i, want := range wants {
		n := want.number
		if by, is := taken[n]; is && in.options.get(want.option) == "" {
			if _, again := taken[n+higher]; !again {
				in.warn("container %s has the port %d: the sidecar's %s is %d", by, n, want.option, n+higher)
				n += higher
			}
		}
		if by, is := taken[n]; is {
			return refuse(PortTaken, "port %d is needed as %s, but %s has it; choose another with the option %s", n, want.option, by, want.option)
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
	others := map[string]bool{}
	for _, p := range in.app.Ports {
		others[p.Name] = true
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
	for _, place := range [][]string{
		{"livenessProbe", "httpGet"}, {"livenessProbe", "tcpSocket"},
		{"startupProbe", "httpGet"}, {"startupProbe", "tcpSocket"},
		{"lifecycle", "postStart", "httpGet"}, {"lifecycle", "postStart", "tcpSocket"},
		{"lifecycle", "preStop", "httpGet"}, {"lifecycle", "preStop", "tcpSocket"},
	} {
		path := append([]string{"spec", "containers", in.app.Name}, append(place, "port")...)
		if at(in.object, path...) == old {
			in.set(in.port.ContainerPort, path...)
			in.note("%s says the port's number, because its name has moved", strings.Join(place, "."))
		}
	}
	return nil
}

func (in *injection) removeFromPort(key string) {
	token := in.port.Name
	if token == "" {
		token = strconv.Itoa(int(in.port.ContainerPort))
	}
	in.remove("spec", "containers", in.app.Name, "ports", token, key)
}

func containerNames(containers []corev1.Container) []string {
	var all []string
	for _, c := range containers {
		all = append(all, c.Name)
	}
	return all
}

func describePort(p corev1.ContainerPort) string {
	if p.Name == "" {
		return strconv.Itoa(int(p.ContainerPort))
	}
	return fmt.Sprintf("%s (%d)", p.Name, p.ContainerPort)
}
