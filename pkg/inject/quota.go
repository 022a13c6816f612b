package inject

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A Quota contains the requirements of a ResourceQuota or a LimitRange for the resources of each
// container.
type Quota struct {
	namespace        string
	name             string
	limitedResources []string // ResourceQuota: resources for which each container must set a limit
	bounds           []bound  // LimitRange
}

// A bound is the part of a LimitRange for one resource of each container. A nil field means no
// requirement.
type bound struct {
	resource                       string
	minimum, maximum, defaultLimit *resource.Quantity
}

// ReadQuota parses a ResourceQuota or a LimitRange, a map as [Decode] returns it. ok is false for
// other objects.
func ReadQuota(object any) (_ Quota, ok bool) {
	q := Quota{namespace: text(at(object, "metadata"), "namespace"), name: text(at(object, "metadata"), "name")}
	switch {
	case groupOf(object) != "":
		return q, false
	case text(object, "kind") == "ResourceQuota":
		q.limitedResources = wantedLimits(object)
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

// wantedLimits returns the resources for which a ResourceQuota requires a limit of each container.
// These can only be CPU and memory (pkg/quota/v1/evaluator/core in Kubernetes). Quotas with the
// scope Terminating or BestEffort do not apply to pods of servers.
func wantedLimits(quota any) []string {
	scopes := listAt(quota, "spec", "scopes")
	if slices.Contains(scopes, any("Terminating")) || slices.Contains(scopes, any("BestEffort")) {
		return nil
	}
	return slices.DeleteFunc([]string{"cpu", "memory"}, func(name string) bool { return at(quota, "spec", "hard", "limits."+name) == nil })
}

// boundsOf returns the bounds of one item of a LimitRange.
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
		maximum := quantity("max", name) // Kubernetes uses max as the default limit if there is no default
		all = append(all, bound{resource: name, minimum: quantity("min", name), maximum: maximum, defaultLimit: cmp.Or(quantity("default", name), maximum)})
	}
	return all
}

// Unadmitted returns a warning for each requirement of the quotas that the injected pods violate.
// The API server would reject these pods.
func Unadmitted(pods Pods, quotas []Quota) []string {
	var all []string
	limited := map[string]bool{}
	for name := range pods.Outcome.resources.Limits {
		limited[string(name)] = true
	}
	quotas = slices.DeleteFunc(slices.Clone(quotas), func(q Quota) bool { return !canShareNamespace(q.namespace, pods.Namespace) })
	for _, q := range quotas {
		for _, b := range q.bounds {
			limited[b.resource] = limited[b.resource] || b.defaultLimit != nil
			if why := b.refuses(pods.Outcome.resources); why != "" {
				all = append(all, fmt.Sprintf("the API server will reject the pods: LimitRange %s %s", q.name, why))
			}
		}
	}
	for _, q := range quotas {
		for _, name := range q.limitedResources {
			// With pod-level resources, a quota does not require limits for each container.
			if !limited[name] && !pods.Outcome.shares {
				all = append(all, fmt.Sprintf("the API server will reject the pods: ResourceQuota %s requires limits.%s for each container, but the sidecar has no limit; set the option %s-limit, or a default in a LimitRange",
					q.name, name, name))
			}
		}
	}
	return all
}

// refuses returns the reason why a bound does not permit the resources of the sidecar, and the
// option to set. It returns "" if the bound permits them.
func (b bound) refuses(sidecar corev1.ResourceRequirements) string {
	request, requests := sidecar.Requests[corev1.ResourceName(b.resource)]
	limit, limits := sidecar.Limits[corev1.ResourceName(b.resource)]
	switch {
	case requests && b.minimum != nil && request.Cmp(*b.minimum) < 0:
		return fmt.Sprintf("requires at least %s of %s, but the sidecar requests %s; set the option %s-request", b.minimum, b.resource, &request, b.resource)
	case limits && b.minimum != nil && limit.Cmp(*b.minimum) < 0:
		return fmt.Sprintf("requires at least %s of %s, but the limit of the sidecar is %s; set the option %s-limit", b.minimum, b.resource, &limit, b.resource)
	case limits && b.maximum != nil && limit.Cmp(*b.maximum) > 0:
		return fmt.Sprintf("permits at most %s of %s, but the limit of the sidecar is %s; set the option %s-limit", b.maximum, b.resource, &limit, b.resource)
	case requests && !limits && b.defaultLimit != nil && request.Cmp(*b.defaultLimit) > 0:
		return fmt.Sprintf("sets a default limit of %s of %s, but the sidecar requests %s; set the option %s-request or %s-limit", b.defaultLimit, b.resource, &request, b.resource, b.resource)
	}
	return ""
}
