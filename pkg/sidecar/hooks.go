package sidecar

import (
	"math"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
)

// Limits on preStop hooks that wait at the same time. If a hook gets no response, or an error, the kubelet
// ends the user container immediately.
const (
	// hooksPerClient is the maximum number for one address. The kubelet sends one hook for each container
	// of the pod, all of them from the address of the node.
	hooksPerClient = 16
	// hooksAtOnce is the maximum number for all addresses. It is half of smallConnections, so that there
	// are connections for new hooks.
	hooksAtOnce = 128
)

// newHooks returns the semaphore of preStop hooks. If all slots are used, the client with the most hooks
// loses its newest hook to a client with fewer hooks.
func newHooks() *fair.Semaphore {
	return fair.New(fair.Options{Slots: hooksAtOnce, PerClient: hooksPerClient, MaxPatience: math.MaxInt64, Newest: true})
}
