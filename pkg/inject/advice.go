package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Advise says what people often get wrong in probes, a sentence each. template is as
// for [Inject], before an API server has filled in what is missing.
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
				say("%s sets periodSeconds but not %s; unset is not 0: timeoutSeconds is then 1, failureThreshold 3, successThreshold 1",
					where, strings.Join(missing, " and "))
			}
			if timeout, period := cmp.Or(p.TimeoutSeconds, usualTimeout), cmp.Or(p.PeriodSeconds, usualPeriod); timeout > period {
				say("%s may take %d s but is asked every %d s: a slow answer delays the next question, so it takes up to %d s to notice a failure",
					where, timeout, period, timeout*max(p.FailureThreshold, usualFailures))
			}
			if p.name == "readiness" && p.Exec != nil {
				say("%s runs a command, which the kubelet goes on to run; an HTTP, TCP or gRPC probe could be run by the sidecar, next to the app", where)
			}
		}
		if l, r := c.LivenessProbe, c.ReadinessProbe; l != nil && r != nil && sameQuestion(l, r, c) {
			say("container %s: liveness and readiness ask the same: an app that is only busy, or waits for another service, is restarted instead of being left alone", c.Name)
		}
		if c.LivenessProbe != nil && c.StartupProbe == nil && c.LivenessProbe.InitialDelaySeconds >= 30 {
			say("container %s: the liveness probe waits %d s before it asks; a startup probe waits no longer than the app needs", c.Name, c.LivenessProbe.InitialDelaySeconds)
		}
	}
	return all
}

// unset are the fields that belong with periodSeconds and are not there.
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

// sameQuestion reports whether two probes ask the same thing of the same port.
func sameQuestion(a, b *corev1.Probe, c *corev1.Container) bool {
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
