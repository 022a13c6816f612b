package inject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// meshProxies are the names of the containers that Istio and Linkerd add. Each is its mesh's
// alone: it is no app, though it declares ports, and its probes stay with the kubelet. Their
// webhooks come before ours, by the alphabet.
var meshProxies = []string{"istio-proxy", "linkerd-proxy"}

func isMeshProxy(c *corev1.Container) bool { return slices.Contains(meshProxies, c.Name) }
