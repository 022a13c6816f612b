package top

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

// A Sidecar is a queue-proxy in a pod, and where its numbers are.
type Sidecar struct {
	Namespace, Pod string

	Metrics int // port of its metrics
	Stats   int // port of its statistics, for the autoscaler

	// Ready is what the kubelet has found: it asks the sidecar.
	Ready bool

	// Absent says why the sidecar cannot be asked, such as "Pending"; "" where it can.
	Absent string
}

// A Page is one page of a list of pods: the sidecars in them.
type Page struct {
	Sidecars []Sidecar
	Continue string // names the next page; "" is the last
}

// ReadPods reads a page of a PodList as JSON. container is the name of the container that is
// a sidecar, in both places where one may be: beside the app's, as Knative and the injector
// put it, and among the init containers that stay. Pods that have ended are left out.
func ReadPods(r io.Reader, container string) (Page, error) {
	var list podList
	if err := json.NewDecoder(r).Decode(&list); err != nil {
		return Page{}, fmt.Errorf("list of pods: %w", err)
	}
	page := Page{Continue: list.Metadata.Continue}
	for i := range list.Items {
		if s, ok := list.Items[i].sidecar(container); ok {
			page.Sidecars = append(page.Sidecars, s)
		}
	}
	return page, nil
}

// podList is what is read of a PodList: little, so that a page of large pods costs little.
type podList struct {
	Metadata struct{ Continue string }
	Items    []pod
}

type pod struct {
	Metadata struct{ Name, Namespace string }
	Spec     struct{ Containers, InitContainers []container }
	Status   struct {
		Phase, PodIP                             string
		ContainerStatuses, InitContainerStatuses []containerStatus
	}
}

type container struct {
	Name, RestartPolicy string
	Env                 []config.EnvVar
	Ports               []struct {
		Name          string
		ContainerPort int
	}
}

type containerStatus struct {
	Name  string
	Ready bool
	State struct {
		Waiting, Terminated *struct{ Reason string }
	}
}

// sidecar finds it in a pod that has one.
func (p *pod) sidecar(name string) (Sidecar, bool) {
	var found *container
	statuses := p.Status.ContainerStatuses
	for i := range p.Spec.Containers {
		if p.Spec.Containers[i].Name == name {
			found = &p.Spec.Containers[i]
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.Name == name && c.RestartPolicy == "Always" {
			found, statuses = c, p.Status.InitContainerStatuses
		}
	}
	if found == nil || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
		return Sidecar{}, false
	}
	s := Sidecar{Namespace: p.Metadata.Namespace, Pod: p.Metadata.Name}
	s.Metrics, s.Stats = found.portNumbers()
	for _, status := range statuses {
		if status.Name != name {
			continue
		}
		s.Ready = status.Ready
		switch state := status.State; {
		case state.Waiting != nil && state.Waiting.Reason != "":
			s.Absent = state.Waiting.Reason
		case state.Terminated != nil && state.Terminated.Reason != "":
			s.Absent = state.Terminated.Reason
		}
	}
	if s.Absent == "" && p.Status.PodIP == "" {
		s.Absent = p.Status.Phase
	}
	return s, true
}

// portNumbers are where the sidecar serves, by its own rules for its environment. Where that
// cannot be read (another queue-proxy's, or with a setting that is bad), names of ports say
// it.
func (c *container) portNumbers() (metrics, stats int) {
	environ := make([]config.EnvVar, len(c.Env))
	for i, v := range c.Env {
		environ[i] = config.EnvVar{Name: v.Name, Value: strings.ReplaceAll(v.Value, "$$", "$")} // as a kubelet does
	}
	if settings, err := config.Read(environ); err == nil {
		return settings.MetricsPort.V, settings.AutoscalerPort.V
	}
	usual := config.Default()
	metrics, stats = usual.MetricsPort.V, usual.AutoscalerPort.V
	for _, p := range c.Ports {
		switch p.Name {
		case config.MetricsPortName:
			metrics = p.ContainerPort
		case config.AutoscalerPortName:
			stats = p.ContainerPort
		}
	}
	return metrics, stats
}
