package sidecar

import (
	"math"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
)

// Limits for waiting preStop hooks. If a hook fails or gets no response, the kubelet stops the user
// container immediately.
const (
	// hooksPerClient is the maximum number of hooks per client address. The kubelet sends one hook
	// for each container in the pod, all from the node address.
	hooksPerClient = 16
	// maxHooks is the maximum number of hooks for all clients. It is half of smallConnections,
	// so that new hooks can still connect.
	maxHooks = 128
)

// newHooks returns the semaphore for preStop hooks. If all slots are in use, the client with the
// most hooks loses its newest hook to a client with fewer hooks.
func newHooks() *fair.Semaphore {
	return fair.New(fair.Options{Slots: maxHooks, PerClient: hooksPerClient, MaxPatience: math.MaxInt64, Newest: true})
}
