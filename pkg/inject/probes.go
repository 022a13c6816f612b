package inject

import (
	"cmp"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
)

// What Kubernetes means by the fields of a probe that are not set (core/v1 Probe).
const (
	usualTimeout   = 1  // seconds
	usualPeriod    = 10 // seconds
	usualSuccesses = 1
	usualFailures  = 3
)

// Where the app has no readiness probe, the sidecar waits for its port, and looks again
// as soon as it opens (docs/promises.md 2.2). Two questions of two seconds follow on one
// another without a gap, so the kubelet notices it at once; and after the start it is
// one TCP connection every two seconds. Three that fail end a readiness in six.
const (
	eagerTimeout  = 2 // seconds
	eagerPeriod   = 2 // seconds
	eagerFailures = 3
)

// moveProbes collects the readiness probes that the sidecar runs from now on: the app's
// first, then those of the other containers, in their order. A command cannot be run
// from the sidecar and stays with the kubelet; an app without a probe that can be run is
// asked by TCP. Whoever asks the sidecar does so with the timings of the first probe.
func (in *injection) moveProbes() error {
	in.timings = corev1.Probe{TimeoutSeconds: eagerTimeout, PeriodSeconds: eagerPeriod, SuccessThreshold: usualSuccesses, FailureThreshold: eagerFailures}
	containers := []*corev1.Container{in.app}
	for i := range in.pod.Containers {
		if c := &in.pod.Containers[i]; c.Name != in.app.Name {
			containers = append(containers, c)
		}
	}
	longest := int32(0)
	for _, c := range containers {
		if !movesProbe(c) {
			continue
		}
		filled, p, err := convert(c)
		if err != nil {
			return err
		}
		if len(in.probes) == 0 {
			in.timings = *filled
			in.timings.ProbeHandler = corev1.ProbeHandler{} // without its question
		}
		in.probes = append(in.probes, p)
		longest = max(longest, filled.TimeoutSeconds)
		in.note("the readiness probe of container %s moves to the sidecar, which answers the kubelet for it on %d", c.Name, in.ports.serving)
	}
	in.timings.TimeoutSeconds = max(in.timings.TimeoutSeconds, longest) // the sidecar waits for all of them
	if movesProbe(in.app) {
		return nil
	}
	if in.app.ReadinessProbe != nil {
		in.note("the readiness command of container %s stays with the kubelet; the sidecar asks port %d by TCP as well", in.app.Name, in.port.ContainerPort)
	} else {
		in.note("container %s has no readiness probe, so the sidecar asks port %d by TCP", in.app.Name, in.port.ContainerPort)
	}
	if len(in.probes) > 0 { // alone, it is what the sidecar does by default
		tcp := probe.Probe{TCPSocket: &probe.TCPSocketAction{Port: probe.Port{Number: in.port.ContainerPort}}}
		in.probes = append([]probe.Probe{tcp}, in.probes...)
	}
	return nil
}

// canMove reports whether the sidecar can run a probe in the kubelet's place.
func canMove(p *corev1.Probe) bool { return p != nil && p.Exec == nil }

// movesProbe reports whether the readiness probe of a container moves to the sidecar.
func movesProbe(c *corev1.Container) bool { return canMove(c.ReadinessProbe) && !isMeshProxy(c) }

// convert makes the sidecar's probe of a container's: what Kubernetes fills in is filled
// in, and names of ports become numbers. theirs is the same as Kubernetes' type.
func convert(c *corev1.Container) (theirs *corev1.Probe, ours probe.Probe, err error) {
	p := c.ReadinessProbe.DeepCopy()
	p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, usualTimeout)
	p.PeriodSeconds = cmp.Or(p.PeriodSeconds, usualPeriod)
	p.SuccessThreshold = cmp.Or(p.SuccessThreshold, usualSuccesses)
	p.FailureThreshold = cmp.Or(p.FailureThreshold, usualFailures)
	switch {
	case p.HTTPGet != nil:
		p.HTTPGet.Path = cmp.Or(p.HTTPGet.Path, "/")
		p.HTTPGet.Scheme = cmp.Or(p.HTTPGet.Scheme, corev1.URISchemeHTTP)
		p.HTTPGet.Port, err = resolved(p.HTTPGet.Port, c)
	case p.TCPSocket != nil:
		p.TCPSocket.Port, err = resolved(p.TCPSocket.Port, c)
	case p.GRPC != nil && p.GRPC.Service == nil:
		p.GRPC.Service = new(string)
	}
	if err != nil {
		return nil, probe.Probe{}, refuse(BadProbe, "the readiness probe of container %s: %v", c.Name, err)
	}
	converted, problems := probe.Parse(string(encode(p)), false)
	if len(problems) > 0 {
		return nil, probe.Probe{}, refuse(BadProbe, "the readiness probe of container %s: %v", c.Name, problems[0])
	}
	return p, converted[0], nil
}

// resolved is a port by number.
func resolved(port intstr.IntOrString, c *corev1.Container) (intstr.IntOrString, error) {
	n, err := resolve(port, c)
	return intstr.FromInt32(n), err
}

// resolve finds the number of a port as the kubelet does: a name is looked for among the
// ports of the probe's own container, and then read as a number.
func resolve(port intstr.IntOrString, c *corev1.Container) (int32, error) {
	if port.Type == intstr.Int {
		return port.IntVal, nil
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return p.ContainerPort, nil
		}
	}
	n, err := strconv.ParseInt(port.StrVal, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("no port of the container is called %q", port.StrVal)
	}
	return int32(n), nil
}

// takeReadinessProbes removes the probes that the sidecar runs from the containers.
func (in *injection) takeReadinessProbes() error {
	for _, c := range in.pod.Containers {
		if movesProbe(&c) {
			in.remove("spec", "containers", c.Name, "readinessProbe")
		}
	}
	return nil
}

// queueProbe asks the sidecar whether the pod may serve (docs/promises.md 1, row 1).
func (in *injection) queueProbe() *corev1.Probe {
	p := in.timings
	p.HTTPGet = &corev1.HTTPGetAction{
		Port:        intstr.FromInt32(in.ports.serving),
		HTTPHeaders: []corev1.HTTPHeader{{Name: header.Probe, Value: header.QueueValue}},
	}
	return &p
}
