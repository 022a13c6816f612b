package manifest

import (
	"fmt"
	"slices"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// A Rollout is the progress of the rollout of the sidecar in the pods of one Service. The JSON names are
// stable.
type Rollout struct {
	Namespace string `json:"namespace,omitempty"`
	Service   string `json:"service"`
	Wait      bool   `json:"wait"` // the Service must not be rewritten yet
	Text      string `json:"text"` // a summary in one line
}

// Status returns the rollout progress of each Service in the files, so that the user knows when to rewrite
// the Service: see [inject.Services]. The files contain the pods of a cluster in the output format
// of kubectl get. Services without injected pods are omitted. Status also returns the results for all
// objects. A document that cannot be parsed has a result with the verdict [inject.Refused]. The list of Services
// is not nil.
func Status(files []*File) (all []Rollout, results []*Result) {
	defer retain(files)()
	results = list(files, (*document).listFacts)
	places := map[*Result]int{}
	for i, r := range results {
		places[r] = i
	}
	pods := make([]*livePod, len(results)) // pods[i] belongs to results[i]; nil if the object is not a running pod
	isPod := func(r *Result) bool { return r.facts.apiVersion == "v1" && r.Kind == "Pod" }
	visit(results, isPod, func(r *Result, object map[string]any) {
		if isRunning(object) {
			p := inject.Pods{Owner: r.Object(), Namespace: r.Namespace, Labels: r.facts.labels, Outcome: inject.Inject(object, nil)}
			pods[places[r]] = &livePod{p.Compact(), isReady(object)}
		}
	}, nil)
	index := labelIndex{}
	for i, p := range pods {
		if p == nil {
			continue
		}
		for key, value := range p.Labels {
			index.add(p.Namespace, [2]string{key, value}, i)
		}
	}
	rollouts := make([]*Rollout, len(results)) // rollouts[i] belongs to results[i]; nil if the object is not a Service with injected pods
	visit(results, isService, func(r *Result, object map[string]any) {
		var possible []*livePod
		for _, place := range index.possible(r.Namespace, r.facts.selector) {
			possible = append(possible, pods[place])
		}
		rollouts[places[r]] = rolloutOf(r, object, possible)
	}, nil)
	all = []Rollout{}
	for _, r := range rollouts {
		if r != nil {
			all = append(all, *r)
		}
	}
	return all, results
}

// A livePod is a pod of a cluster that has not completed.
type livePod struct {
	inject.Pods

	ready bool
}

// rolloutOf returns the progress for a Service, or nil if it selects no pod with a sidecar. pods can
// contain pods that the Service does not select.
func rolloutOf(s *Result, object map[string]any, pods []*livePod) *Rollout {
	r := &Rollout{Namespace: s.Namespace, Service: s.Name}
	var with []inject.Pods // pods with the sidecar
	all, ready := 0, 0
	service := s.facts.service
	if service == nil {
		return nil
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
		return nil
	}
	follows, _ := inject.FollowService(object, with, inject.Workloads)
	switch {
	case follows.Reason != inject.SecondStep:
		r.Text = fmt.Sprintf("%d of %d pods have the sidecar; the Service needs no change", len(with), all)
	case ready < all:
		r.Wait = true
		r.Text = fmt.Sprintf("wait: %d of %d pods have the sidecar and are ready", ready, all)
	default:
		r.Text = fmt.Sprintf("all %d pods have the sidecar and are ready; continue with --step=services", all)
	}
	return r
}

// isRunning reports whether the phase of a pod is not final.
func isRunning(pod map[string]any) bool {
	phase := inject.Text(pod["status"], "phase")
	return phase != "Succeeded" && phase != "Failed"
}

func isReady(pod map[string]any) bool {
	conditions, _ := inject.At(pod, "status", "conditions").([]any)
	return slices.ContainsFunc(conditions, func(c any) bool {
		return inject.Text(c, "type") == "Ready" && inject.Text(c, "status") == "True"
	})
}
