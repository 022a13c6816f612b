package manifest

import (
	"fmt"
	"slices"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// A Rollout is how far the pods of one Service are, of which some have a sidecar.
type Rollout struct {
	File      string
	Line      int
	Namespace string
	Name      string
	Text      string // one line for people
	Wait      bool   // the Service must not be rewritten yet
}

// Status says of each Service in some files, which hold the pods of a cluster as kubectl get
// writes them, whether it may be rewritten: [inject.Services]. Services none of whose pods have a
// sidecar are left out.
func Status(files []*File) []Rollout {
	var pods, services []*Result
	for _, r := range list(files) {
		switch {
		case r.apiVersion() == "v1" && r.Kind == "Pod" && lives(r.object):
			pods = append(pods, r)
		case isService(r):
			services = append(services, r)
		}
	}
	var all []Rollout
	for _, s := range services {
		if r, ok := rolloutOf(s, pods); ok {
			all = append(all, r)
		}
	}
	return all
}

func rolloutOf(s *Result, pods []*Result) (Rollout, bool) {
	r := Rollout{File: s.File, Line: s.Line, Namespace: s.Namespace, Name: s.Name}
	var with []inject.Pods // the sidecar
	all, ready := 0, 0
	service, ok := inject.ReadService(s.object)
	if !ok {
		return r, false
	}
	for _, p := range pods {
		if !service.Selects(p.Namespace, labelsOf(p.object)) {
			continue
		}
		all++
		if out := inject.Inject(p.object, nil); out.Reason == inject.AlreadyInjected {
			with = append(with, inject.Pods{Owner: p.Object(), Namespace: p.Namespace, Labels: labelsOf(p.object), Outcome: out})
			if isReady(p.object) {
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
		r.Text = fmt.Sprintf("%d of %d pods have the sidecar, which it finds", len(with), all)
	case ready < all:
		r.Wait = true
		r.Text = fmt.Sprintf("wait: %d of %d pods have the sidecar and are ready", ready, all)
	default:
		r.Text = fmt.Sprintf("all %d pods have the sidecar and are ready: --step=services may come", all)
	}
	return r, true
}

// lives reports whether a pod has not ended.
func lives(pod map[string]any) bool {
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
