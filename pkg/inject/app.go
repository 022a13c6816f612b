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

// holdNameFree returns an error if a later container has a port with the name of the app's port. Kubernetes resolves a
// name to the first container with the name, and the sidecar is the last container. Therefore, the Service would use the
// other container after the injection. If an earlier container has the name, no Service uses the app by the name.
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
		return refuse(PortTaken, "port name %s: the sidecar needs the name, but a port of container %s has it as well; rename one of the ports", in.port.Name, others[i+1+later].Name)
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
	wants := slices.Clone(usualPorts)
	for i, want := range wants {
		if said := in.options.get(want.option); said != "" {
			number, _ := strconv.Atoi(said) // the option was validated
			wants[i].number = int32(number)
		}
	}
	taken, mentioned := in.takenPorts(wants[:2]), in.mentionedPorts()
	to := []*int32{&in.ports.serving, &in.ports.tls, &in.ports.admin, &in.ports.autoscaler, &in.ports.metrics, &in.ports.status}
	for i, want := range wants {
		n := want.number
		user := func(n int32) string { return cmp.Or(taken[n], mentioned[n]) }
		if in.options.get(want.option) != "" {
			user = func(n int32) string { return taken[n] }
		} else if by := user(n); by != "" && user(n+higher) == "" {
			in.warn("%s uses port %d, so %s of the sidecar is %d", by, n, want.option, n+higher)
			n += higher
		}
		if by := user(n); by != "" {
			return refuse(PortTaken, "port %d is used by %s; set the option %s to another port", n, by, want.option)
		}
		taken[n] = "the sidecar's " + want.option
		*to[i] = n
	}
	return nil
}

// takenPorts returns the ports that the sidecar must not use, and their users. A probe or a Service may use the ports of
// except to reach the sidecar.
func (in *injection) takenPorts(except []usualPort) map[int32]string {
	taken := map[int32]string{in.port.ContainerPort: "container " + in.app.Name}
	containers := slices.Concat(in.pod.Containers, in.staying())
	for _, c := range containers {
		for _, p := range c.Ports {
			if overTCP(p) {
				taken[p.ContainerPort] = "container " + c.Name
			}
		}
	}
	add := func(n int32, user string) {
		if taken[n] == "" && !slices.ContainsFunc(except, func(u usualPort) bool { return u.number == n }) {
			taken[n] = user
		}
	}
	// The app listens on a port that a probe or a Service uses, whether or not the port is declared.
	for _, c := range containers {
		for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
			add(askedBy(p), "container "+c.Name)
		}
	}
	for _, s := range in.services {
		add(s.Target.IntVal, "Service "+s.Service)
	}
	return taken
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
	others := map[string]bool{} // names in all containers, because Services use them
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
