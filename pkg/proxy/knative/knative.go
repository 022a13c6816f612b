// Package knative defines the header fields of Knative and Kubernetes, and the classification of probes.
package knative

// Header fields that mark a request as a probe from Knative or from the kubelet (docs/promises.md
// section 1).
const (
	Probe        = "K-Network-Probe"
	kubeletProbe = "K-Kubelet-Probe"
)

// Values of [Probe].
const (
	QueueValue   = "queue" // also the body of a successful response
	networkValue = "probe"
)

// Fields that the activator and the ingress set.
const (
	ProxyRequest   = "K-Proxy-Request"
	ActivatorValue = "activator" // value of ProxyRequest if the request came through the activator
)

// Prefixes of User-Agent. The comparison is case-sensitive (docs/promises.md section 1).
const (
	kubeletAgent     = "kube-probe/"
	activatorAgent   = "Knative-Activator-Probe"
	autoscalingAgent = "Knative-Autoscaling-Probe"
)
