package inject

import (
	"strings"
)

// Template is where the pod of an object stands, as the tokens of a [Change]'s path:
// none for a Pod, which is its own template. ok is false for objects that make no pods
// that we can change.
func Template(apiVersion, kind string) (path []string, ok bool) {
	group, _, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group = ""
	}
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

// Leave is the outcome of an object that makes no pods that we can change.
func Leave(apiVersion, kind string) Outcome {
	group, _, _ := strings.Cut(apiVersion, "/")
	switch group {
	case "serving.knative.dev":
		return Outcome{Verdict: Skipped, Reason: Knative, Text: "Knative adds the queue-proxy to its pods itself; see deploy/knative"}
	case "serving.kserve.io":
		return Outcome{Verdict: Skipped, Reason: Knative, Text: "KServe makes its pods itself: on Knative see deploy/knative, else label its pods for the webhook"}
	}
	return Outcome{Verdict: Skipped, Reason: NoPods, Text: "a " + kind + " makes no pods"}
}
