package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

// warnOfUnknownNames adds a warning for each name that a Service uses as targetPort, if neither a
// container nor the sidecar has a port with this name. Such a Service port does not reach the
// pod.
func (in *injection) warnOfUnknownNames() error {
	names := map[string]bool{config.AutoscalerPortName: true, config.MetricsPortName: true}
	for _, c := range slices.Concat(in.pod.Containers, in.restartableInitContainers()) {
		for _, p := range c.Ports {
			if overTCP(p) {
				names[p.Name] = true
			}
		}
	}
	for _, s := range in.services {
		if name := s.Target.StrVal; name != "" && !names[name] {
			names[name] = true // one warning for each name
			in.warn("Service %s has targetPort %s, but no container has a port with this name", s.Service, name)
		}
	}
	return nil
}

// warnOfOtherPorts adds a warning for each Service that reaches the pod, if no Service reaches the port
// that the port option selects. The number of warnings is limited to maxNamedServices.
func (in *injection) warnOfOtherPorts() error {
	if in.options.get(portOption) == "" {
		return nil
	}
	var others []string
	for r, all := range in.routes {
		if r == (route{in.app.Name, in.port.ContainerPort}) {
			return nil
		}
		for _, s := range all {
			if nameInService(s, nil, corev1.ContainerPort{}).protocol != notForRequests {
				others = append(others, fmt.Sprintf("Service %s sends requests to port %d of container %s, but the option %s selects port %d of container %s, so these requests bypass the sidecar",
					s.Service, r.number, r.container, portOption, in.port.ContainerPort, in.app.Name))
			}
		}
	}
	slices.Sort(others)
	others = slices.Compact(others)
	for _, text := range others[:min(len(others), maxNamedServices)] {
		in.warn("%s", text)
	}
	return nil
}

// checkPortName returns an error if a container after the application has a port with the name of
// the application port. Kubernetes resolves a port name to the first container that declares it,
// and the sidecar is the last container. Therefore, a Service that uses the name would reach the
// other container after the injection. If an earlier container declares the name, no Service
// reaches the application by this name.
func (in *injection) checkPortName() error {
	others := slices.Clone(in.pod.Containers)
	if in.native { // the sidecar is the last restartable init container
		others = append(others, in.restartableInitContainers()...)
	}
	i := slices.IndexFunc(others, func(c corev1.Container) bool { return c.Name == in.app.Name })
	named := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == in.port.Name && overTCP(p) })
	}
	if in.port.Name == "" || slices.ContainsFunc(others[:i], named) {
		return nil
	}
	if later := slices.IndexFunc(others[i+1:], named); later >= 0 {
		return refuse(PortTaken, "port name %s: the name is required by the sidecar, but it is already used by container %s; rename one of the ports", in.port.Name, others[i+1+later].Name)
	}
	return nil
}

// restartableInitContainers returns the restartable init containers.
func (in *injection) restartableInitContainers() []corev1.Container {
	return slices.DeleteFunc(slices.Clone(in.pod.InitContainers), func(c corev1.Container) bool { return c.RestartPolicy == nil })
}

func overTCP(p corev1.ContainerPort) bool {
	return p.Protocol == "" || p.Protocol == corev1.ProtocolTCP
}

// checkPlainText returns an error if a probe uses HTTPS on the application port, because the
// sidecar sends plain HTTP to the application.
func (in *injection) checkPlainText() error {
	if probedOverTLS(in.app, in.port) {
		return refuse(SpeaksTLS, "a probe of container %s uses HTTPS on port %d, but the sidecar sends plain HTTP to the application; set the option %s to a port that serves plain HTTP",
			in.app.Name, in.port.ContainerPort, portOption)
	}
	if tlsName.MatchString(in.port.Name) {
		in.warn("the name of port %s suggests TLS, but the sidecar sends plain HTTP to the application", in.port.Name)
	}
	return nil
}

// ports contains the port numbers of the sidecar.
type ports struct{ serving, tls, admin, autoscaler, metrics, status int32 }

// defaults returns the names and default values of the sidecar's settings. The result must not be
// modified.
var defaults = sync.OnceValue(config.Default)

// A defaultPort is the default number of a sidecar port, and the option that changes it.
type defaultPort struct {
	option string
	number int32
}

// defaultPorts are the default ports of the sidecar, in the order in which choosePorts processes them.
var defaultPorts = readDefaultPorts()

func readDefaultPorts() []defaultPort {
	c := defaults()
	return []defaultPort{
		{"serving-port", int32(c.Port.V)},
		{"tls-port", int32(c.TLSPort.V)},
		{"admin-port", int32(c.AdminPort.V)},
		{"autoscaler-port", int32(c.AutoscalerPort.V)},
		{"metrics-port", int32(c.MetricsPort.V)},
		{"status-port", int32(c.StatusPort.V)},
	}
}

// portOffset is added to a default port of the sidecar if the port is in use.
const portOffset = 10000

// choosePorts sets the ports of the sidecar to the ports in the options or to the default ports. If a
// default port is in use, it adds portOffset. Clients find the ports by name or by an annotation, so the
// numbers can change.
func (in *injection) choosePorts() error {
	wants := slices.Clone(defaultPorts)
	for i, want := range wants {
		if value := in.options.get(want.option); value != "" {
			number, _ := strconv.Atoi(value) // the value is valid, because the options have been validated
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
		} else if by := user(n); by != "" && user(n+portOffset) == "" {
			in.warn("%s uses port %d, so %s of the sidecar is %d", by, n, want.option, n+portOffset)
			n += portOffset
		}
		if by := user(n); by != "" {
			return refuse(PortTaken, "port %d is already used by %s; set the option %s to another port", n, by, want.option)
		}
		taken[n] = "the sidecar's " + want.option
		*to[i] = n
	}
	return nil
}

// takenPorts returns the ports that the sidecar must not use, with the object that uses each port.
// It ignores probes and Services that use the number of a port in except, because they can refer to
// the sidecar.
func (in *injection) takenPorts(except []defaultPort) map[int32]string {
	taken := map[int32]string{in.port.ContainerPort: "container " + in.app.Name}
	containers := slices.Concat(in.pod.Containers, in.restartableInitContainers())
	for _, c := range containers {
		for _, p := range c.Ports {
			if overTCP(p) {
				taken[p.ContainerPort] = "container " + c.Name
			}
		}
	}
	add := func(n int32, user string) {
		if taken[n] == "" && !slices.ContainsFunc(except, func(u defaultPort) bool { return u.number == n }) {
			taken[n] = user
		}
	}
	// The application may listen on a port that a probe or a Service uses, even if the port
	// is not declared.
	for _, c := range containers {
		for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
			add(probedPort(p), "container "+c.Name)
		}
	}
	for _, s := range in.services {
		add(s.Target.IntVal, "Service "+s.Service)
	}
	return taken
}

// probedPort returns the number of the pod's port that a probe uses, or 0 if the probe uses a port
// name or another host.
func probedPort(p *corev1.Probe) int32 {
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

// swapPort moves the name of the application port to the sidecar, so that Services that use the
// name need no change. Other references to the name in the pod are replaced with the number of the
// application port.
func (in *injection) swapPort() error {
	if in.port.HostPort != 0 { // the sidecar receives connections to the node's port
		in.removeFromPort("hostPort")
		if in.port.HostIP != "" {
			in.removeFromPort("hostIP")
		}
	}
	old := in.port.Name
	if old == "" {
		return nil
	}
	others := map[string]bool{} // port names in all containers; the new name must differ from them, because a Service can use them
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
	in.note("port %d of the sidecar takes the name %s of application port %d, which is renamed to %s; Services with targetPort %s do not change",
		in.ports.serving, old, in.port.ContainerPort, renamed, old)
	if in.native {
		in.note("before Kubernetes 1.33, change targetPort %s of Services to %d, because they cannot use named ports of init containers", old, in.ports.serving)
	}
	for _, place := range portFields {
		path := slices.Concat([]string{"spec", "containers", in.app.Name}, strings.Split(place, "."), []string{"port"})
		if At(in.object, path...) == old {
			in.set(in.port.ContainerPort, path...)
			in.note("the port name in %s is replaced by the port number, because the name now refers to the sidecar", place)
		}
	}
	return nil
}

// portFields are the container fields that can contain a port name and that are not moved to
// the sidecar.
var portFields = []string{
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
