package manifest

import (
	"fmt"
	"slices"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// A Rollout is the progress of the rollout of the sidecar in the pods of one Service.
type Rollout struct {
	File      string
	Line      int
	Namespace string
	Name      string
	Text      string // a summary in one line
	Wait      bool   // the Service must not be rewritten yet
}

// Status returns the progress for each Service in the files, so that the user knows when to rewrite
// the Service: see [inject.Services]. The files contain the pods of a cluster in the output format
// of kubectl get. Services without injected pods are omitted.
func Status(files []*File) []Rollout {
	var pods []*livePod
	var services []*Result
	index := labelIndex{}
	for _, r := range list(files) {
		switch {
		case r.apiVersion() == "v1" && r.Kind == "Pod" && isRunning(r.object):
			p := &livePod{inject.Pods{Owner: r.Object(), Namespace: r.Namespace, Labels: labelsOf(r.object), Outcome: inject.Inject(r.object, nil)}, isReady(r.object)}
			for key, value := range p.Labels {
				index.add(p.Namespace, [2]string{key, value}, len(pods))
			}
			pods = append(pods, p)
		case isService(r):
			services = append(services, r)
		}
	}
	var all []Rollout
	for _, s := range services {
		var possible []*livePod
		for _, place := range index.possible(s.Namespace, selectorOf(s)) {
			possible = append(possible, pods[place])
		}
		if r, ok := rolloutOf(s, possible); ok {
			all = append(all, r)
		}
	}
	return all
}

// A livePod is a pod of a cluster that is not terminated.
type livePod struct {
	inject.Pods

	ready bool
}

// rolloutOf returns the progress for a Service. pods can contain pods that the Service does not
// select.
func rolloutOf(s *Result, pods []*livePod) (Rollout, bool) {
	r := Rollout{File: s.File, Line: s.Line, Namespace: s.Namespace, Name: s.Name}
	var with []inject.Pods // pods with the sidecar
	all, ready := 0, 0
	service, ok := inject.ReadService(s.object)
	if !ok {
		return r, false
	}
	for _, p := range pods {
		if !service.Selects(p.Namespace, p.Labels) {
			continue
		}
		all++
		if p.Outcome.Reason == inject.AlreadyInjected {
			with = append(with, p.Pods)
			if p.ready {
				ready++
			}
		}
	}
	if len(with) == 0 {
		return r, false
	}
	follows, _ := inject.FollowService(s.object, with, inject.Workloads)
	switch {
	case follows.Reason != inject.SecondStep:
		r.Text = fmt.Sprintf("%d of %d pods have the sidecar; the Service needs no change", len(with), all)
	case ready < all:
		r.Wait = true
		r.Text = fmt.Sprintf("wait: %d of %d pods have the sidecar and are ready", ready, all)
	default:
		r.Text = fmt.Sprintf("all %d pods have the sidecar and are ready; continue with --step=services", all)
	}
	return r, true
}

// isRunning reports whether the phase of a pod is not final.
func isRunning(pod map[string]any) bool {
	phase := word(dig(pod, "status", "phase"))
	return phase != "Succeeded" && phase != "Failed"
}

func isReady(pod map[string]any) bool {
	conditions, _ := dig(pod, "status", "conditions").([]any)
	return slices.ContainsFunc(conditions, func(c any) bool {
		m, _ := c.(map[string]any)
		return word(m["type"]) == "Ready" && word(m["status"]) == "True"
	})
}
