package queue

import (
	"net/netip"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// kubeletTime is the timeout of a kubelet probe that runs outside the limit, in every phase of
// the request. It is the longest sensible value of timeoutSeconds.
const kubeletTime = 60 * time.Second

// kubeletPlaces are the places beside the limit for requests that look like a
// kubelet's liveness or startup probe (docs/promises.md section 1, row 5). Anybody
// can look like one: so there are two places in all, too few to flood the user
// container, and one for each client address, so that a forger leaves the other
// one to the node. The zero value has all places free; it is safe for concurrent
// use.
type kubeletPlaces struct {
	mu    sync.Mutex
	peers [2]netip.Addr // the zero Addr: the place is free
}

// enter takes a place for a client address and reports whether there was one.
// Only then may and must leave be called.
func (k *kubeletPlaces) enter(peer netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	free := -1
	for i, p := range k.peers {
		switch {
		case p == peer:
			return false
		case !p.IsValid():
			free = i
		}
	}
	if free < 0 {
		return false
	}
	k.peers[free] = peer
	return true
}

// leave gives the place of a client address back.
func (k *kubeletPlaces) leave(peer netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.peers {
		if k.peers[i] == peer {
			k.peers[i] = netip.Addr{}
		}
	}
}

// notOfKubelets are the request fields that a kubelet's probe never has. All but
// Upgrade say that the request has come through a proxy.
var notOfKubelets = [...]string{header.Upgrade, header.XForwardedFor, header.Forwarded, header.ProxyRequest}

// kubeletPeer returns the client address of a request that can run outside the limit. ok is
// false if the request is handled as traffic. It is the only function that makes this
// decision. Each engine reports in [Line].Open whether the client can send more on the same
// request. A field counts even if its first line is empty, because a proxy can add a second line.
func kubeletPeer(x Exchange) (peer netip.Addr, ok bool) {
	line := x.Line()
	if line.Open {
		return netip.Addr{}, false
	}
	for _, name := range notOfKubelets {
		if x.Header(name) != "" || x.Repeats(name) {
			return netip.Addr{}, false
		}
	}
	peer = fair.Address(line.Remote)
	return peer, peer.IsValid()
}
