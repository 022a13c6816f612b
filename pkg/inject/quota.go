package inject

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A Quota is the part of a namespace's ResourceQuotas and LimitRanges that says which resources
// each container must have, and may have.
type Quota struct {
	namespace string
	name      string
	wants     []string // of a ResourceQuota: resources of which each container needs a limit
	bounds    []bound  // of a LimitRange
}

// A bound is what a LimitRange says of one resource of each container; nil is nothing.
type bound struct {
	resource           string
	least, most, usual *resource.Quantity // usual is the limit of those that have none
}

// ReadQuota reads a ResourceQuota or a LimitRange, a map as [Decode] returns it. ok is false for
// other objects.
func ReadQuota(object any) (_ Quota, ok bool) {
	q := Quota{namespace: text(at(object, "metadata"), "namespace"), name: text(at(object, "metadata"), "name")}
	switch {
	case groupOf(object) != "":
		return q, false
	case text(object, "kind") == "ResourceQuota":
		q.wants = wantedLimits(object)
		return q, true
	case text(object, "kind") == "LimitRange":
		for _, l := range listAt(object, "spec", "limits") {
			if text(l, "type") == string(corev1.LimitTypeContainer) {
				q.bounds = append(q.bounds, boundsOf(l)...)
			}
		}
		return q, true
	}
	return q, false
}

// wantedLimits are the resources of which a ResourceQuota wants a limit of each container: of those
// that it counts, CPU and memory alone (pkg/quota/v1/evaluator/core of Kubernetes). Quotas for pods
// that end, or that have no limits at all, are not for those that serve.
func wantedLimits(quota any) []string {
	scopes := listAt(quota, "spec", "scopes")
	if slices.Contains(scopes, any("Terminating")) || slices.Contains(scopes, any("BestEffort")) {
		return nil
	}
	return slices.DeleteFunc([]string{"cpu", "memory"}, func(name string) bool { return at(quota, "spec", "hard", "limits."+name) == nil })
}

// boundsOf are the bounds of one item of a LimitRange.
func boundsOf(item any) []bound {
	quantity := func(field, name string) *resource.Quantity {
		amount := text(at(item, field), name)
		if amount == "" || isShortQuantity(amount) != nil {
			return nil
		}
		q, err := resource.ParseQuantity(amount)
		if err != nil {
			return nil
		}
		return &q
	}
	var all []bound
	for _, name := range []string{"cpu", "memory", "ephemeral-storage"} {
		most := quantity("max", name) // which Kubernetes fills in where there is no default
		all = append(all, bound{resource: name, least: quantity("min", name), most: most, usual: cmp.Or(quantity("default", name), most)})
	}
	return all
}

// Unadmitted are warnings about pods that the API server would refuse with the sidecar, for what
// quotas say of its resources.
func Unadmitted(pods Pods, quotas []Quota) []string {
	var all []string
	limited := map[string]bool{}
	for name := range pods.Outcome.resources.Limits {
		limited[string(name)] = true
	}
	quotas = slices.DeleteFunc(slices.Clone(quotas), func(q Quota) bool { return !near(q.namespace, pods.Namespace) })
	for _, q := range quotas {
		for _, b := range q.bounds {
			limited[b.resource] = limited[b.resource] || b.usual != nil
			if why := b.refuses(pods.Outcome.resources); why != "" {
				all = append(all, fmt.Sprintf("LimitRange %s %s, so no pod is admitted", q.name, why))
			}
		}
	}
	for _, q := range quotas {
		for _, name := range q.wants {
			// Of a pod that has resources for all of its containers nothing more is wanted.
			if !limited[name] && !pods.Outcome.shares {
				all = append(all, fmt.Sprintf("ResourceQuota %s wants limits.%s of every container, and the sidecar has none, so no pod is admitted: set the option %s-limit, or a default in a LimitRange",
					q.name, name, name))
			}
		}
	}
	return all
}

// refuses says why a bound does not take the sidecar, and what to do; "" if it does.
func (b bound) refuses(sidecar corev1.ResourceRequirements) string {
	request, requests := sidecar.Requests[corev1.ResourceName(b.resource)]
	limit, limits := sidecar.Limits[corev1.ResourceName(b.resource)]
	switch {
	case requests && b.least != nil && request.Cmp(*b.least) < 0:
		return fmt.Sprintf("wants %s of %s at least, and the sidecar requests %s: set the option %s-request", b.least, b.resource, &request, b.resource)
	case limits && b.least != nil && limit.Cmp(*b.least) < 0:
		return fmt.Sprintf("wants %s of %s at least, and the sidecar's limit is %s: set the option %s-limit", b.least, b.resource, &limit, b.resource)
	case limits && b.most != nil && limit.Cmp(*b.most) > 0:
		return fmt.Sprintf("lets no container have more than %s of %s, and the sidecar's limit is %s: set the option %s-limit", b.most, b.resource, &limit, b.resource)
	case requests && !limits && b.usual != nil && request.Cmp(*b.usual) > 0:
		return fmt.Sprintf("gives containers a limit of %s of %s, and the sidecar requests %s: set the option %s-request or %s-limit", b.usual, b.resource, &request, b.resource, b.resource)
	}
	return ""
}
