package plugin

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

// Sidecar is a queue-proxy in a pod.
type Sidecar struct {
	Namespace, Pod string
	Workload       string // owner of the pod, such as "deployment/web"; the pod itself if it has no owner

	Metrics int // port for metrics
	Stats   int // port for statistics, for the autoscaler

	Ready bool // the kubelet reports that the readiness probes succeed

	// Absent is the reason why the sidecar cannot respond, such as "Pending". It is empty if the sidecar is running.
	Absent string
}

// SidecarOf returns the sidecar of a pod, and whether the pod has a sidecar. The sidecar is a container, or an init
// container that is restarted, with the given name. A pod that has completed has no sidecar.
func SidecarOf(pod *corev1.Pod, name string) (Sidecar, bool) {
	var found *corev1.Container
	statuses := pod.Status.ContainerStatuses
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			found = &pod.Spec.Containers[i]
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			found, statuses = c, pod.Status.InitContainerStatuses
		}
	}
	if found == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return Sidecar{}, false
	}
	s := Sidecar{Namespace: pod.Namespace, Pod: pod.Name, Workload: workload(pod)}
	s.Metrics, s.Stats = ports(found)
	for _, status := range statuses {
		if status.Name != name {
			continue
		}
		s.Ready = status.Ready
		if w := status.State.Waiting; w != nil {
			s.Absent = w.Reason
		}
		if t := status.State.Terminated; t != nil {
			s.Absent = cmp.Or(t.Reason, s.Absent)
		}
	}
	if s.Absent == "" && pod.Status.PodIP == "" {
		s.Absent = string(pod.Status.Phase)
	}
	return s, true
}

// workload returns the kind and the name of the workload that a pod belongs to, such as "deployment/web". A
// ReplicaSet belongs to a Deployment if its name ends with the template hash.
func workload(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return "pod/" + pod.Name
	}
	kind, name := owner.Kind, owner.Name
	if hash := pod.Labels["pod-template-hash"]; kind == "ReplicaSet" && hash != "" {
		if deployment, found := strings.CutSuffix(name, "-"+hash); found {
			kind, name = "Deployment", deployment
		}
	}
	return strings.ToLower(kind) + "/" + name
}

// ports returns the ports of the sidecar in c. It computes them from the environment, as the sidecar does. If a setting
// is invalid, for example because the container runs another queue-proxy, ports uses the container ports with the
// names that Knative defines.
func ports(c *corev1.Container) (metrics, stats int) {
	environ := make([]config.EnvVar, len(c.Env))
	for i, v := range c.Env {
		environ[i] = config.EnvVar{Name: v.Name, Value: strings.ReplaceAll(v.Value, "$$", "$")} // replace $$ with $, as the kubelet does
	}
	if settings, err := config.Read(environ); err == nil {
		return settings.MetricsPort.V, settings.AutoscalerPort.V
	}
	defaults := config.Default()
	metrics, stats = defaults.MetricsPort.V, defaults.AutoscalerPort.V
	for _, p := range c.Ports {
		switch p.Name {
		case config.MetricsPortName:
			metrics = int(p.ContainerPort)
		case config.AutoscalerPortName:
			stats = int(p.ContainerPort)
		}
	}
	return metrics, stats
}
