package check

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// label is the key of the label that selects a pod, or all pods of a namespace, for the
// injection.
const label = inject.Prefix + "inject"

// Values of the label.
const (
	selected = "true"
	excluded = "false"
)

// neverInjected are the namespaces that the webhook and the policy exclude.
var neverInjected = []string{"kube-system", "queue-proxy"}

// maxProblems is the maximum number of problems in the result of a check.
const maxProblems = 50

// pod contains the fields of a pod that the checks use.
type pod struct {
	corev1.Pod

	object any // result of inject.Decode
}

// sidecar returns the container of the sidecar, or nil if the pod was not injected.
func (p *pod) sidecar() *corev1.Container {
	if _, injected := p.Annotations[inject.StatusAnnotation]; !injected {
		return nil
	}
	for _, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range containers {
			if containers[i].Name == inject.SidecarName {
				return &containers[i]
			}
		}
	}
	return nil
}

func (p *pod) isReady() bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// owner returns the kind, namespace and name of a pod's workload. A ReplicaSet whose name ends with the template hash
// belongs to a Deployment.
func (p *pod) owner() string {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return "Pod " + p.Namespace + "/" + p.Name
	}
	kind, name := owner.Kind, owner.Name
	if hash := p.Labels["pod-template-hash"]; kind == "ReplicaSet" && hash != "" {
		if deployment, is := strings.CutSuffix(name, "-"+hash); is {
			kind, name = "Deployment", deployment
		}
	}
	return kind + " " + p.Namespace + "/" + name
}

// listPods lists pods and calls add for each pod that is neither completed nor being deleted.
func (r *run) listPods(path string, query url.Values, add func(pod)) error {
	return r.list(path, query, func(object json.RawMessage) error {
		var p pod
		if err := json.Unmarshal(object, &p.Pod); err != nil {
			return err
		}
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			return nil
		}
		var err error
		if p.object, err = inject.Decode(object); err == nil {
			add(p)
		}
		return err
	})
}

// checkNamespaces checks the labels of the namespaces.
func (r *run) checkNamespaces() {
	r.begin("namespaces")
	r.namespaces = map[string]string{}
	err := r.list("/api/v1/namespaces", nil, func(object json.RawMessage) error {
		var n metav1.PartialObjectMetadata
		err := json.Unmarshal(object, &n)
		r.namespaces[n.Name] = n.Labels[label]
		return err
	})
	if err != nil {
		r.addError("namespaces have the label "+label, err)
		return
	}
	var chosen, invalid []string
	for _, name := range slices.Sorted(maps.Keys(r.namespaces)) {
		switch value := r.namespaces[name]; {
		case value == selected && slices.Contains(neverInjected, name):
			invalid = append(invalid, fmt.Sprintf("the label of namespace %s has no effect because the webhook excludes the namespace", name))
		case value == selected:
			chosen = append(chosen, name)
		case value != "" && value != excluded:
			invalid = append(invalid, fmt.Sprintf("the label of namespace %s has the value %q, which has no effect; want true or false", name, value))
		}
	}
	var problems []string
	if len(chosen) == 0 {
		problems = []string{"no namespace is selected for the injection"}
	}
	r.add("namespaces have the label "+label, Warning, problems, "run kubectl label namespace NAMESPACE "+label+"=true, and restart the workloads")
	r.add("values of the label are valid", Warning, invalid, "")
}

// isSelected reports whether the webhook selects a pod.
func (r *run) isSelected(p *pod) bool {
	switch own := p.Labels[label]; {
	case slices.Contains(neverInjected, p.Namespace) || own == excluded:
		return false
	default:
		return own == selected || r.namespaces[p.Namespace] == selected
	}
}

// A namespaceContent contains the pods and Services of a namespace.
type namespaceContent struct {
	pods     []pod
	services []serviceObject
}

// A serviceObject is a Service in the form that package inject reads.
type serviceObject struct {
	namespace, name string
	object          any // result of inject.Decode
}

// read returns the pods and Services that are checked, by namespace. By default, these are the pods and
// Services in the selected namespaces and in the namespaces with selected pods.
func (r *run) read() (map[string]*namespaceContent, error) {
	all := map[string]*namespaceContent{}
	of := func(namespace string) *namespaceContent {
		if all[namespace] == nil {
			all[namespace] = &namespaceContent{}
		}
		return all[namespace]
	}
	addPod := func(p pod) { c := of(p.Namespace); c.pods = append(c.pods, p) }
	addService := func(object json.RawMessage) error {
		var s metav1.PartialObjectMetadata
		if err := json.Unmarshal(object, &s); err != nil {
			return err
		}
		decoded, err := inject.Decode(object)
		c := of(s.Namespace)
		c.services = append(c.services, serviceObject{s.Namespace, s.Name, decoded})
		return err
	}
	if r.options.Everywhere {
		if err := r.listPods("/api/v1/pods", nil, addPod); err != nil {
			return nil, err
		}
		return all, r.list("/api/v1/services", nil, addService)
	}
	if _, exists := r.namespaces[r.options.Namespace]; r.options.Namespace != "" && len(r.namespaces) > 0 && !exists {
		return nil, fmt.Errorf("namespace %s does not exist", r.options.Namespace)
	}
	names := []string{r.options.Namespace}
	if r.options.Namespace == "" {
		var err error
		if names, err = r.selectedNamespaces(); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		path := "/api/v1/namespaces/" + url.PathEscape(name)
		if err := r.listPods(path+"/pods", nil, addPod); err != nil {
			return nil, err
		}
		if err := r.list(path+"/services", nil, addService); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// selectedNamespaces returns the namespaces with the label, and the namespaces of pods with the label.
func (r *run) selectedNamespaces() ([]string, error) {
	names := map[string]bool{}
	for name, value := range r.namespaces {
		if value == selected {
			names[name] = true
		}
	}
	err := r.listPods("/api/v1/pods", url.Values{"labelSelector": {label + "=" + selected}}, func(p pod) { names[p.Namespace] = true })
	for _, name := range neverInjected {
		delete(names, name)
	}
	return slices.Sorted(maps.Keys(names)), err
}

// checkWorkloads checks the pods and the Services.
func (r *run) checkWorkloads() {
	r.begin("workloads")
	all, err := r.read()
	if err != nil {
		r.addError("pods and Services are readable", err)
		return
	}
	var missing, refused, bypassed []string
	for _, namespace := range slices.Sorted(maps.Keys(all)) {
		c := all[namespace]
		without, problems := r.podsWithoutSidecar(c)
		missing, refused = append(missing, without...), append(refused, problems...)
		bypassed = append(bypassed, bypassingServices(c)...)
		for _, p := range c.pods {
			if p.sidecar() != nil {
				r.pods = append(r.pods, p)
			}
		}
	}
	hint := "if the injector is available, restart the workloads: kubectl rollout restart"
	if r.policyOnly {
		hint = "restart the workloads: kubectl rollout restart; the policy does not support all pods, see https://github.com/queue-proxy/queue-proxy/blob/main/docs/injection.md#the-policy"
	}
	r.add("selected pods have a sidecar", Error, truncate(missing), hint)
	r.add("selected pods can be injected", Warning, truncate(refused), "see https://github.com/queue-proxy/queue-proxy/blob/main/docs/injection.md#skipped-and-refused-objects")
	r.add("Services send requests to the sidecar", Warning, truncate(bypassed), "see https://github.com/queue-proxy/queue-proxy/blob/main/docs/injection.md#services")
}

// truncate limits the number of problems.
func truncate(problems []string) []string {
	if len(problems) <= maxProblems {
		return problems
	}
	return append(problems[:maxProblems:maxProblems], fmt.Sprintf("%d more", len(problems)-maxProblems))
}

// podsWithoutSidecar returns the workloads with selected pods that have no sidecar.
// missing contains the workloads that can be injected, and refused contains the workloads
// that the injector refuses.
func (r *run) podsWithoutSidecar(c *namespaceContent) (missing, refused []string) {
	var services []*inject.Service
	for _, one := range c.services {
		if s, ok := inject.ReadService(one.object); ok {
			services = append(services, s)
		}
	}
	without, reasons := map[string]int{}, map[string]string{}
	for i := range c.pods {
		p := &c.pods[i]
		if !r.isSelected(p) || p.sidecar() != nil {
			continue
		}
		var ports []inject.ServicePort
		for _, s := range services {
			ports = append(ports, s.PortsOf(p.Namespace, p.Labels)...)
		}
		switch out := inject.Inject(p.object, nil, inject.CompactPorts(ports)...); out.Verdict {
		case inject.Injected:
			without[p.owner()]++
		case inject.Refused:
			reasons[p.owner()] = out.Reason + ": " + out.Text
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(without)) {
		missing = append(missing, owner+": "+message.Count(without[owner], "pod")+" without a sidecar")
	}
	for _, owner := range slices.Sorted(maps.Keys(reasons)) {
		refused = append(refused, owner+": "+reasons[owner])
	}
	return missing, refused
}

// bypassingServices returns the Services that send requests to the applications of pods with a sidecar.
func bypassingServices(c *namespaceContent) []string {
	var injected []inject.Pods
	for i := range c.pods {
		p := &c.pods[i]
		if p.sidecar() != nil {
			injected = append(injected, inject.Pods{Owner: p.owner(), Namespace: p.Namespace, Labels: p.Labels, Outcome: inject.Inject(p.object, nil)})
		}
	}
	var all []string
	for _, one := range c.services {
		out, _ := inject.FollowService(one.object, injected, inject.Workloads)
		var problems []string
		if out.Verdict == inject.Rewritten || out.Reason == inject.SecondStep {
			problems = append(problems, "requests bypass the sidecar; run injector inject ("+strings.Join(out.Notes, ", ")+")")
		}
		if out.Verdict != inject.Rewritten {
			problems = append(problems, out.Warnings...)
		}
		for _, problem := range problems {
			all = append(all, fmt.Sprintf("Service %s/%s: %s", one.namespace, one.name, problem))
		}
	}
	return all
}

// checkVersions checks that the sidecars, the webhook and this program have the same version.
func (r *run) checkVersions() {
	r.begin("versions")
	r.checkInjectorVersion()
	pods := map[string]int{}
	for i := range r.pods {
		pods[r.pods[i].sidecar().Image]++
	}
	wanted := ""
	for i := range r.injectorPods {
		for _, c := range r.injectorPods[i].Spec.Containers {
			for _, v := range c.Env {
				if v.Name == "INJECTOR_IMAGE" {
					wanted = v.Value
				}
			}
		}
	}
	images := slices.SortedFunc(maps.Keys(pods), func(a, b string) int { return cmp.Or(pods[b]-pods[a], strings.Compare(a, b)) })
	var problems []string
	for _, image := range images {
		if len(images) > 1 || wanted != "" && image != wanted {
			problems = append(problems, message.Count(pods[image], "sidecar")+" with image "+image)
		}
	}
	if len(problems) > 0 && wanted != "" {
		problems = append(problems, "the injector adds sidecars with image "+wanted)
	}
	r.add("sidecars have the image of the injector", Warning, truncate(problems), "restart the workloads to update the image; the annotation "+inject.Prefix+"image overrides the image")
}

// checkInjectorVersion compares the version of this program with the versions of the injectors. It adds no check if no
// injector is ready.
func (r *run) checkInjectorVersion() {
	ready := slices.DeleteFunc(slices.Clone(r.injectorPods), func(p pod) bool { return !p.isReady() })
	if len(ready) == 0 {
		return
	}
	var problems []string
	for i := range ready {
		p := &ready[i]
		version, err := r.versionOf(p)
		switch {
		case err != nil:
			problems = append(problems, fmt.Sprintf("read version of Pod %s/%s: %v", p.Namespace, p.Name, err))
		case version != r.options.Version:
			problems = append(problems, fmt.Sprintf("Pod %s/%s has version %s, but this program has version %s", p.Namespace, p.Name, version, r.options.Version))
		}
	}
	r.add("the injector has the same version as this program", Warning, truncate(problems), "")
}

// versionOf reads the version of an injector from its metrics.
func (r *run) versionOf(p *pod) (string, error) {
	port := int32(8080)
	for _, c := range p.Spec.Containers {
		for _, declared := range c.Ports {
			if declared.Name == "metrics" {
				port = declared.ContainerPort
			}
		}
	}
	body, err := r.api.Get(r.ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", p.Namespace, p.Name, port))
	if err != nil {
		return "", err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("parse metrics: %w", err)
	}
	for _, m := range families["queue_proxy_injector_build_info"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "version" {
				return l.GetValue(), nil
			}
		}
	}
	return "", errors.New("the metrics contain no version")
}
