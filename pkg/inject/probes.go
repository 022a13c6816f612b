package inject

import (
	"cmp"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/knative"
)

// The values that Kubernetes uses for unset fields of a probe (core/v1 Probe).
const (
	defaultTimeout   = 1  // seconds
	defaultPeriod    = 10 // seconds
	defaultSuccesses = 1
	defaultFailures  = 3
)

// Timings of the sidecar's probe if the application has no readiness probe. The sidecar waits for
// the port of the application, and checks it as soon as the port is open (docs/promises.md 2.2).
// The timeout equals the period, so there is always a pending probe, and the kubelet detects
// readiness immediately. After the application has started, the sidecar opens a TCP connection
// every two seconds. The pod is unready after three failures, which take six seconds.
const (
	eagerTimeout  = 2 // seconds
	eagerPeriod   = 2 // seconds
	eagerFailures = 3
)

// moveProbes collects the readiness probes that the sidecar runs: first the probe of the
// application, then those of the other containers in order. The sidecar cannot run commands, so
// exec probes stay with the kubelet. If the application has no probe that can move, the sidecar
// checks its port with TCP. The kubelet probes the sidecar with the timings of the first probe and
// the longest timeout.
func (in *injection) moveProbes() error {
	in.timings = corev1.Probe{TimeoutSeconds: eagerTimeout, PeriodSeconds: eagerPeriod, SuccessThreshold: defaultSuccesses, FailureThreshold: eagerFailures}
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
			in.timings.ProbeHandler = corev1.ProbeHandler{} // copy only the timings, not the handler
		}
		in.probes = append(in.probes, p)
		longest = max(longest, filled.TimeoutSeconds)
		in.note("the sidecar runs the readiness probe of container %s, and the kubelet probes port %d of the sidecar instead", c.Name, in.ports.serving)
	}
	in.timings.TimeoutSeconds = max(in.timings.TimeoutSeconds, longest) // the sidecar reports readiness after all probes complete
	if movesProbe(in.app) {
		return nil
	}
	if in.app.ReadinessProbe != nil {
		in.note("the kubelet continues to run the exec readiness probe of container %s; the sidecar also checks port %d with TCP", in.app.Name, in.port.ContainerPort)
	} else {
		in.note("container %s has no readiness probe, so the sidecar checks port %d with TCP", in.app.Name, in.port.ContainerPort)
	}
	if len(in.probes) > 0 { // if the list is empty, the sidecar runs a single TCP probe by default
		tcp := probe.Probe{TCPSocket: &probe.TCPSocketAction{Port: probe.Port{Number: in.port.ContainerPort}}}
		in.probes = append([]probe.Probe{tcp}, in.probes...)
	}
	return nil
}

// canMove reports whether the sidecar can run a probe instead of the kubelet.
func canMove(p *corev1.Probe) bool { return p != nil && p.Exec == nil }

// movesProbe reports whether the sidecar runs the readiness probe of a container.
func movesProbe(c *corev1.Container) bool { return canMove(c.ReadinessProbe) && !isMeshProxy(c) }

// convert returns the readiness probe of a container as a Kubernetes probe and as a probe of the
// sidecar. In both, all defaults are set, and port names are replaced with numbers.
func convert(c *corev1.Container) (filled *corev1.Probe, sidecar probe.Probe, err error) {
	p := c.ReadinessProbe.DeepCopy()
	p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, defaultTimeout)
	p.PeriodSeconds = cmp.Or(p.PeriodSeconds, defaultPeriod)
	p.SuccessThreshold = cmp.Or(p.SuccessThreshold, defaultSuccesses)
	p.FailureThreshold = cmp.Or(p.FailureThreshold, defaultFailures)
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

// resolved returns the number of a port as an IntOrString: see resolve.
func resolved(port intstr.IntOrString, c *corev1.Container) (intstr.IntOrString, error) {
	n, err := resolve(port, c)
	return intstr.FromInt32(n), err
}

// resolve returns the number of a port as the kubelet does. A name refers to a port of the
// container that declares the probe. If there is no such port, the name is parsed as a number.
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
		return 0, fmt.Errorf("container has no port named %q", port.StrVal)
	}
	return int32(n), nil
}

// removeReadinessProbes removes each readiness probe that the sidecar runs instead of the kubelet.
func (in *injection) removeReadinessProbes() error {
	for _, c := range in.pod.Containers {
		if movesProbe(&c) {
			in.remove("spec", "containers", c.Name, "readinessProbe")
		}
	}
	return nil
}

// queueProbe returns the readiness probe of the sidecar, which reports the readiness of the pod
// (docs/promises.md 1, row 1).
func (in *injection) queueProbe() *corev1.Probe {
	p := in.timings
	p.HTTPGet = &corev1.HTTPGetAction{
		Port:        intstr.FromInt32(in.ports.serving),
		HTTPHeaders: []corev1.HTTPHeader{{Name: knative.Probe, Value: knative.QueueValue}},
	}
	return &p
}
