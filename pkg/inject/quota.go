package inject

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// A Quota is the part of a namespace's ResourceQuotas and LimitRanges that says which limits
// each container must have.
type Quota struct {
	namespace string
	name      string
	wants     []string // of a ResourceQuota: resources of which each container needs a limit
	gives     []string // of a LimitRange: those that a container has by default
}

// limited are the resources of which the sidecar may have a limit, by the options of that name.
var limited = []string{string(corev1.ResourceCPU), string(corev1.ResourceMemory), string(corev1.ResourceEphemeralStorage)}

// ReadQuota reads a ResourceQuota or a LimitRange, a map as [Decode] returns it. ok is false for
// other objects.
func ReadQuota(object any) (_ Quota, ok bool) {
	q := Quota{namespace: text(at(object, "metadata"), "namespace"), name: text(at(object, "metadata"), "name")}
	switch {
	case groupOf(object) != "":
		return q, false
	case text(object, "kind") == "ResourceQuota":
		for _, resource := range limited {
			if at(object, "spec", "hard", "limits."+resource) != nil {
				q.wants = append(q.wants, resource)
			}
		}
		return q, true
	case text(object, "kind") == "LimitRange":
		limits, _ := at(object, "spec", "limits").([]any)
		for _, l := range limits {
			for _, resource := range limited {
				if text(l, "type") == string(corev1.LimitTypeContainer) && (at(l, "default", resource) != nil || at(l, "max", resource) != nil) {
					q.gives = append(q.gives, resource) // Kubernetes fills in max where there is no default
				}
			}
		}
		return q, true
	}
	return q, false
}

// Unlimited are warnings about pods whose sidecar has no limit where a quota wants one: the API
// server refuses such pods.
func Unlimited(pods Pods, quotas []Quota) []string {
	given := slices.Clone(pods.Outcome.limits)
	for _, q := range quotas {
		if near(q.namespace, pods.Namespace) {
			given = append(given, q.gives...)
		}
	}
	var all []string
	for _, q := range quotas {
		for _, resource := range q.wants {
			if near(q.namespace, pods.Namespace) && !slices.Contains(given, resource) {
				all = append(all, fmt.Sprintf("ResourceQuota %s wants limits.%s of every container, and the sidecar has none, so no pod is admitted: set the option %s-limit, or a default in a LimitRange",
					q.name, resource, resource))
			}
		}
	}
	return all
}
