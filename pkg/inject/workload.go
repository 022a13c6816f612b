package inject

import (
	"fmt"
	"slices"
	"strings"
)

// Template returns the path of the pod template in an object, as the tokens of a
// [Change.Path]. The path of a Pod is empty. ok is false for objects without a known pod
// template.
//
// A custom resource is supported if it has spec.template like a Deployment, for example an Argo
// Rollout or a workload of OpenKruise.
func Template(object any) (path []string, ok bool) {
	group, kind := groupOf(object), Text(object, "kind")
	if path, ok = templateOf(group, kind); ok {
		return path, len(path) == 0 || missingIn(object, path) == nil
	}
	if len(listAt(object, "spec", "template", "spec", "containers")) > 0 && !strings.HasPrefix(group, "serving.k") {
		return []string{"spec", "template"}, true
	}
	return nil, false
}

// templateOf returns the path of the pod template in a Kubernetes workload.
func templateOf(group, kind string) (path []string, ok bool) {
	switch group + "/" + kind {
	case "/Pod":
		return nil, true
	case "/ReplicationController", "apps/Deployment", "apps/StatefulSet", "apps/DaemonSet", "apps/ReplicaSet", "batch/Job":
		return []string{"spec", "template"}, true
	case "batch/CronJob":
		return []string{"spec", "jobTemplate", "spec", "template"}, true
	}
	return nil, false
}

// missingIn returns the path of the pod template or of its containers if the object does not have them,
// because it is a patch. Otherwise, it returns nil. path is the path of the template.
func missingIn(object any, path []string) []string {
	template := At(object, path...)
	if template == nil {
		return path
	}
	members, isMap := template.(map[string]any)
	spec, hasSpec := members["spec"].(map[string]any)
	if isMap && (hasSpec || members["spec"] == nil) && spec["containers"] == nil {
		return slices.Concat(path, []string{"spec", "containers"})
	}
	return nil
}

// groupOf returns the API group of an object. It is "" for the core group.
func groupOf(object any) string {
	if group, _, grouped := strings.Cut(Text(object, "apiVersion"), "/"); grouped {
		return group
	}
	return ""
}

// isOfKubernetes reports whether Kubernetes defines an API group. The names of these groups contain
// no dot, or have the reserved suffix .k8s.io.
func isOfKubernetes(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// Leave returns the outcome for an object without a known pod template.
func Leave(object any) Outcome {
	group, kind := groupOf(object), Text(object, "kind")
	switch group {
	case "serving.knative.dev":
		return Outcome{Verdict: Skipped, Reason: Knative, Text: "Knative adds its own queue-proxy to the pods; see deploy/knative"}
	case "serving.kserve.io":
		return Outcome{Verdict: Skipped, Reason: Knative, Text: "KServe creates the pods; with Knative, see deploy/knative, otherwise label the pods for the webhook"}
	}
	out := Outcome{Verdict: Skipped, Reason: NoPods, Text: kind + " does not create pods"}
	if path, ok := templateOf(group, kind); ok {
		out.Text = fmt.Sprintf("the %s has no %s", kind, strings.Join(missingIn(object, path), "."))
		out.Warnings = []string{out.Text + "; if the document is a patch, inject the output of kustomize build instead"}
		return out
	}
	switch workload := Text(At(object, "spec", "workloadRef"), "name"); {
	case workload != "":
		out.Text = fmt.Sprintf("the pods are created by %s %s, which is injected", Text(At(object, "spec", "workloadRef"), "kind"), workload)
	case !isOfKubernetes(group):
		out.Text = "spec.template has no containers; if this object creates pods, label the pods for the webhook"
	}
	return out
}
