package inject

import (
	"fmt"
	"strings"
)

// Template is where the pod of an object stands, as the tokens of a [Change]'s path:
// none for a Pod, which is its own template. ok is false for objects that make no pods
// that we can change.
//
// Of custom resources, those are known that have a template where a Deployment has it, as
// Rollouts of Argo and the workloads of OpenKruise do.
func Template(object any) (path []string, ok bool) {
	group, kind := groupOf(object), text(object, "kind")
	if path, ok = templateOf(group, kind); ok {
		return path, len(path) == 0 || at(object, path...) != nil
	}
	if len(listAt(object, "spec", "template", "spec", "containers")) > 0 && !strings.HasPrefix(group, "serving.k") {
		return []string{"spec", "template"}, true
	}
	return nil, false
}

// templateOf returns the path of the template of a workload of Kubernetes.
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

// groupOf is the API group of an object, "" for the core's.
func groupOf(object any) string {
	if group, _, grouped := strings.Cut(text(object, "apiVersion"), "/"); grouped {
		return group
	}
	return ""
}

// isOfKubernetes reports whether Kubernetes itself defines a group: its names have no dot, or
// end as only its own may.
func isOfKubernetes(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// Leave is the outcome of an object that makes no pods that we can change.
func Leave(object any) Outcome {
	group, kind := groupOf(object), text(object, "kind")
	switch group {
	case "serving.knative.dev":
		return Outcome{Verdict: Skipped, Reason: Knative, Text: "Knative adds the queue-proxy to its pods itself; see deploy/knative"}
	case "serving.kserve.io":
		return Outcome{Verdict: Skipped, Reason: Knative, Text: "KServe makes its pods itself: on Knative see deploy/knative, else label its pods for the webhook"}
	}
	out := Outcome{Verdict: Skipped, Reason: NoPods, Text: "a " + kind + " makes no pods"}
	if path, ok := templateOf(group, kind); ok {
		out.Text = fmt.Sprintf("the %s has no %s", kind, strings.Join(path, "."))
		out.Warnings = []string{out.Text + "; is it a patch? To inject the pods, use the output of kustomize build"}
		return out
	}
	switch workload := text(at(object, "spec", "workloadRef"), "name"); {
	case workload != "":
		out.Text = fmt.Sprintf("its pods are those of the %s %s, where they are injected", text(at(object, "spec", "workloadRef"), "kind"), workload)
	case !isOfKubernetes(group):
		out.Text = "it has no spec.template with containers; if it makes pods, label them for the webhook"
	}
	return out
}
