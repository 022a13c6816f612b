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
	waiting map[string][]*hook // by the client's address, the oldest first
	n       int                // of all
}

// A hook is one that waits.
type hook struct {
	end context.CancelFunc // gives its place to another
}

// enter takes a place for a hook, or says with which status it is refused (0: it is
// not). Where all places are taken, the client that holds the most loses its newest to
// a client that holds fewer. ctx ends with the request, or when the place is lost.
// leave returns how many still wait; it is called once, and only after status 0.
func (h *hooks) enter(r *http.Request) (ctx context.Context, leave func() (left int), status int) {
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	h.mu.Lock()
	defer h.mu.Unlock()
	own := len(h.waiting[client])
	switch {
	case own >= hooksPerClient:
		return nil, nil, http.StatusTooManyRequests
	case h.n >= hooksAtOnce && !h.endOne(own+1):
		return nil, nil, http.StatusServiceUnavailable
	}
	ctx, cancel := context.WithCancel(r.Context())
	one := &hook{end: cancel}
	if h.waiting == nil {
		h.waiting = make(map[string][]*hook)
	}
	h.waiting[client] = append(h.waiting[client], one)
	h.n++
	return ctx, func() int {
		cancel()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.remove(client, one)
		return h.n
	}, 0
}

// endOne ends the newest hook of the client that has the most, if that is more than
// some. h.mu is held.
func (h *hooks) endOne(some int) bool {
	client, most := "", 0
	for c, all := range h.waiting {
		if len(all) > most {
			client, most = c, len(all)
		}
	}
	if most <= some {
		return false
	}
	newest := h.waiting[client][most-1]
	newest.end()
	h.remove(client, newest)
	return true
}

// remove takes a hook out, if it still is there. h.mu is held.
func (h *hooks) remove(client string, one *hook) {
	all := h.waiting[client]
	i := slices.Index(all, one)
	if i < 0 {
		return
	}
	h.n--
	if len(all) == 1 {
		delete(h.waiting, client)
		return
	}
	h.waiting[client] = slices.Delete(all, i, i+1)
}
