package sidecar

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
)

// Bounds on preStop hooks that wait at once. A hook that gets no answer, or a bad one,
// has failed for the kubelet, and it ends the user container at once. So no client may
// take the places of another.
const (
	// hooksPerClient wait for one address. The kubelet sends one hook for each container
	// of the pod, all from the node's address.
	hooksPerClient = 16
	// hooksAtOnce wait for all addresses together: half of smallConnections, so that
	// there are connections left for those that come.
	hooksAtOnce = 128
)

// hooks are the preStop hooks that wait. The zero value has none. It is safe for
// concurrent use.
type hooks struct {
	mu      sync.Mutex
	waiting []*hook // the oldest first
}

// A hook is one that waits.
type hook struct {
	client string             // its address
	end    context.CancelFunc // gives its place to another
}

// enter takes a place for a hook, or says with which status it is refused (0: it is
// not). Where all places are taken, the client that holds the most loses its newest to
// a client that holds fewer. ctx ends with the request, or when the place is lost.
// leave returns how many still wait; it is called once, and only after status 0.
func (h *hooks) enter(r *http.Request) (ctx context.Context, leave func() (left int), status int) {
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	h.mu.Lock()
	defer h.mu.Unlock()
	held := map[string]int{}
	for _, one := range h.waiting {
		held[one.client]++
	}
	switch {
	case held[client] >= hooksPerClient:
		return nil, nil, http.StatusTooManyRequests
	case len(h.waiting) >= hooksAtOnce && !h.endOne(held, held[client]+1):
		return nil, nil, http.StatusServiceUnavailable
	}
	ctx, cancel := context.WithCancel(r.Context())
	one := &hook{client, cancel}
	h.waiting = append(h.waiting, one)
	return ctx, func() int {
		cancel()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.remove(one)
		return len(h.waiting)
	}, 0
}

// endOne ends the newest hook of the client that holds the most, if that is more than
// some. h.mu is held.
func (h *hooks) endOne(held map[string]int, some int) bool {
	newest := h.waiting[0]
	for _, one := range h.waiting {
		if held[one.client] >= held[newest.client] {
			newest = one
		}
	}
	if held[newest.client] <= some {
		return false
	}
	newest.end()
	h.remove(newest)
	return true
}

// remove takes a hook out, if it still is there. h.mu is held.
func (h *hooks) remove(one *hook) {
	h.waiting = slices.DeleteFunc(h.waiting, func(other *hook) bool { return other == one })
}
