package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Advise returns a sentence for each common mistake in the probes of a pod. template has
// the form that [Inject] accepts. It must not contain the default values that an API
// server sets.
func Advise(template any) []string {
	t, err := decodeTemplate(template)
	if err != nil {
		return nil
	}
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for i := range t.Spec.Containers {
		c := &t.Spec.Containers[i]
		for _, p := range probesOf(c) {
			where := fmt.Sprintf("container %s: the %s probe", c.Name, p.name)
			if missing := unset(p.Probe); p.PeriodSeconds != 0 && len(missing) > 0 {
				say("%s sets periodSeconds but not %s; the defaults are timeoutSeconds 1, failureThreshold 3 and successThreshold 1",
					where, strings.Join(missing, " and "))
			}
			if timeout, period := cmp.Or(p.TimeoutSeconds, defaultTimeout), cmp.Or(p.PeriodSeconds, defaultPeriod); timeout > period {
				say("%s has timeoutSeconds %d but periodSeconds %d: slow responses delay the next probe, and a failure may be detected only after %d s",
					where, timeout, period, timeout*max(p.FailureThreshold, defaultFailures))
			}
			if p.name == "readiness" && p.Exec != nil {
				say("%s runs a command, which the kubelet continues to run; use an HTTP, TCP or gRPC probe, which the sidecar can run", where)
			}
		}
		if l, r := c.LivenessProbe, c.ReadinessProbe; l != nil && r != nil && sameRequest(l, r, c) {
			say("container %s: the liveness probe is the same as the readiness probe, so an overloaded application is restarted", c.Name)
		}
		if c.LivenessProbe != nil && c.StartupProbe == nil && c.LivenessProbe.InitialDelaySeconds >= 30 {
			say("container %s: the liveness probe has initialDelaySeconds %d; use a startup probe, which ends when the application has started", c.Name, c.LivenessProbe.InitialDelaySeconds)
		}
	}
	return all
}

// unset returns the names of the fields of p that are 0 and that should be set together
// with periodSeconds.
func unset(p *corev1.Probe) []string {
	var missing []string
	for _, f := range []struct {
		name  string
		value int32
	}{{"timeoutSeconds", p.TimeoutSeconds}, {"failureThreshold", p.FailureThreshold}, {"successThreshold", p.SuccessThreshold}} {
		if f.value == 0 {
			missing = append(missing, f.name)
		}
	}
	return missing
}

// sameRequest reports whether two probes send the same request to the same port, or run the same
// command.
func sameRequest(a, b *corev1.Probe, c *corev1.Container) bool {
	same := func(x, y intstr.IntOrString) bool {
		m, err := resolve(x, c)
		n, err2 := resolve(y, c)
		return err == nil && err2 == nil && m == n
	}
	switch {
	case a.HTTPGet != nil && b.HTTPGet != nil:
		return a.HTTPGet.Path == b.HTTPGet.Path && same(a.HTTPGet.Port, b.HTTPGet.Port)
	case a.GRPC != nil && b.GRPC != nil:
		return a.GRPC.Port == b.GRPC.Port && serviceOf(a) == serviceOf(b)
	case a.Exec != nil && b.Exec != nil:
		return slices.Equal(a.Exec.Command, b.Exec.Command)
	}
	return false
}

func serviceOf(p *corev1.Probe) string { return *cmp.Or(p.GRPC.Service, new(string)) }
