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
	limitedResources []string    // resources for which each container must set a limit, from a ResourceQuota
	hard             []hardLimit // limits of a ResourceQuota
	bounds           []bound     // bounds of a LimitRange
}

// A hardLimit is the limit of a ResourceQuota for the sum of a resource in all pods.
type hardLimit struct {
	field    string // key in spec.hard, for example requests.cpu
	resource corev1.ResourceName
	limits   bool // the quota limits the sum of the limits instead of the sum of the requests
	amount   resource.Quantity
}

// A bound is the part of a LimitRange that limits one resource of each container. A nil field
// means no requirement.
type bound struct {
	resource                       string
	minimum, maximum, defaultLimit *resource.Quantity
}

// ReadQuota parses a ResourceQuota or a LimitRange that [Decode] returned. ok is false for other
// objects.
func ReadQuota(object any) (_ Quota, ok bool) {
	q := Quota{namespace: Text(At(object, "metadata"), "namespace"), name: Text(At(object, "metadata"), "name")}
	switch {
	case groupOf(object) != "":
		return q, false
	case Text(object, "kind") == "ResourceQuota":
		if !hasOtherScope(object) {
			q.limitedResources, q.hard = wantedLimits(object), hardLimitsOf(object)
		}
		return q, true
	case Text(object, "kind") == "LimitRange":
		for _, l := range listAt(object, "spec", "limits") {
			if Text(l, "type") == string(corev1.LimitTypeContainer) {
				q.bounds = append(q.bounds, boundsOf(l)...)
			}
		}
		return q, true
	}
	return q, false
}

// hasOtherScope reports whether a ResourceQuota has a scope that can exclude the pod of a server.
func hasOtherScope(quota any) bool {
	scopes := slices.Clone(listAt(quota, "spec", "scopes"))
	for _, e := range listAt(quota, "spec", "scopeSelector", "matchExpressions") {
		scopes = append(scopes, Text(e, "scopeName"))
	}
	return slices.ContainsFunc(scopes, func(scope any) bool {
		return scope != string(corev1.ResourceQuotaScopeNotTerminating) && scope != string(corev1.ResourceQuotaScopeNotBestEffort)
	})
}

// wantedLimits returns the resources for which a ResourceQuota requires a limit for each container.
// These can only be CPU and memory (pkg/quota/v1/evaluator/core in Kubernetes).
func wantedLimits(quota any) []string {
	return slices.DeleteFunc([]string{"cpu", "memory"}, func(name string) bool { return At(quota, "spec", "hard", "limits."+name) == nil })
}

// hardLimitsOf returns the limits of a ResourceQuota for the resources and the number of pods.
func hardLimitsOf(quota any) []hardLimit {
	var all []hardLimit
	add := func(field string, name corev1.ResourceName, limits bool) {
		if amount := quantityAt(At(quota, "spec", "hard"), field); amount != nil {
			all = append(all, hardLimit{field, name, limits, *amount})
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		add(string(name), name, false) // cpu and memory mean requests.cpu and requests.memory
		add("requests."+string(name), name, false)
		add("limits."+string(name), name, true)
	}
	add("pods", corev1.ResourcePods, false)
	add("count/pods", corev1.ResourcePods, false)
	return all
}

// quantityAt returns the quantity at a key of a map, or nil if there is no valid quantity.
func quantityAt(node any, key string) *resource.Quantity {
	amount := Text(node, key)
	if amount == "" || checkQuantityLength(amount) != nil {
		return nil
	}
	q, err := resource.ParseQuantity(amount)
	if err != nil {
		return nil
	}
	return &q
}

// boundsOf returns the bounds that one item of a LimitRange contains.
func boundsOf(item any) []bound {
	quantity := func(field, name string) *resource.Quantity { return quantityAt(At(item, field), name) }
	var all []bound
	for _, name := range []string{"cpu", "memory", "ephemeral-storage"} {
		maximum := quantity("max", name) // Kubernetes uses max as the default limit if there is no default
		all = append(all, bound{resource: name, minimum: quantity("min", name), maximum: maximum, defaultLimit: cmp.Or(quantity("default", name), maximum)})
	}
	return all
}

// ReleaseResources releases memory that only [Unadmitted] needs.
func (o *Outcome) ReleaseResources() { o.resources = corev1.ResourceRequirements{} }

// Unadmitted returns a warning for each requirement of the quotas that the injected pods violate.
// The API server would reject these pods. template is the pod template before the injection.
func Unadmitted(pods Pods, template any, quotas []Quota) []string {
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
	return append(all, exceeded(&pods.Outcome, template, quotas)...)
}

// exceeded returns a warning for each hard limit of the quotas that a single injected pod exceeds.
func exceeded(out *Outcome, template any, quotas []Quota) []string {
	var all []string
	var pod *corev1.PodSpec // decoded pod after the injection; nil until it is needed
	for _, q := range quotas {
		for _, h := range q.hard {
			if pod == nil {
				pod = podAfter(template, out.Changes)
			}
			used := usage(pod, h)
			if used.Cmp(h.amount) <= 0 {
				continue
			}
			var why string
			switch {
			case h.resource == corev1.ResourcePods:
				why = "permits no pods"
			case h.limits:
				why = fmt.Sprintf("permits at most %s of %s, but the limit of the pod with the sidecar is %s; increase the quota, or set the option %s-limit", &h.amount, h.field, &used, h.resource)
			default:
				why = fmt.Sprintf("permits at most %s of %s, but the pod with the sidecar requests %s; increase the quota, or set the option %s-request", &h.amount, h.field, &used, h.resource)
			}
			all = append(all, fmt.Sprintf("the API server will reject the pods: ResourceQuota %s %s", q.name, why))
		}
	}
	return all
}

// podAfter returns the pod specification that results from the changes, or an empty one if the
// changed template is invalid.
func podAfter(template any, changes []Change) *corev1.PodSpec {
	if after, err := Apply(template, changes); err == nil {
		if t, err := decodeTemplate(after); err == nil {
			return &t.Spec
		}
	}
	return new(corev1.PodSpec)
}

// usage returns the minimum amount of a resource that a ResourceQuota counts for a pod
// (PodRequests in k8s.io/component-helpers/resource). Init containers run one after the
// other, and restartable init containers continue to run. The result does not include the
// defaults of a LimitRange.
func usage(pod *corev1.PodSpec, h hardLimit) resource.Quantity {
	if h.resource == corev1.ResourcePods {
		return resource.MustParse("1")
	}
	if all := pod.Resources; all != nil {
		from := all.Requests
		if h.limits {
			from = all.Limits
		}
		if amount, has := from[h.resource]; has {
			return amount
		}
	}
	var restartable, highest resource.Quantity
	for _, c := range pod.InitContainers {
		amount := amountOf(c.Resources, h)
		during := restartable.DeepCopy()
		during.Add(amount)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			restartable = during.DeepCopy()
		}
		if during.Cmp(highest) > 0 {
			highest = during
		}
	}
	total := restartable
	for _, c := range pod.Containers {
		total.Add(amountOf(c.Resources, h))
	}
	if highest.Cmp(total) > 0 {
		return highest
	}
	return total
}

// amountOf returns the limit of a container if h.limits is set, and otherwise its request. The API
// server sets a missing request to the limit.
func amountOf(r corev1.ResourceRequirements, h hardLimit) resource.Quantity {
	if request, has := r.Requests[h.resource]; has && !h.limits {
		return request
	}
	return r.Limits[h.resource]
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
		return fmt.Sprintf("sets a default %s limit of %s, but the sidecar requests %s; set the option %s-request or %s-limit", b.resource, b.defaultLimit, &request, b.resource, b.resource)
	}
	return ""
}
