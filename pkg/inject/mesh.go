package inject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// meshProxies contains the names of the containers that Istio and Linkerd inject. Although
// such a container declares ports, it is never the application, and the kubelet continues
// to run its probes. API servers call webhooks in alphabetical order, so these containers
// are injected before the sidecar.
var meshProxies = []string{"istio-proxy", "linkerd-proxy"}

func isMeshProxy(c *corev1.Container) bool { return slices.Contains(meshProxies, c.Name) }
