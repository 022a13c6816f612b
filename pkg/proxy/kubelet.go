package proxy

import (
	"net/netip"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/knative"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// kubeletTime is the timeout of a kubelet probe that runs outside the limit, in every phase of
// the request. It is the longest sensible value of timeoutSeconds.
const kubeletTime = 60 * time.Second

// kubeletPlaces contains the slots outside the limit for requests that look like a liveness or
// startup probe from the kubelet (docs/promises.md section 1, row 5). Any client can send such a
// request. There are only two slots, so that these requests cannot overload the user container. Each
// client address can hold only one slot, so that a client that imitates the kubelet leaves the other
// slot to the node. The zero value has two free slots. A kubeletPlaces is safe for concurrent use.
type kubeletPlaces struct {
	mu    sync.Mutex
	peers [2]netip.Addr // the zero Addr means that the slot is free
}

// enter acquires a slot for a client address. It returns false if no slot is free or the address
// already holds a slot. If it returns true, the caller must call leave.
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

// leave releases the slot of a client address.
func (k *kubeletPlaces) leave(peer netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.peers {
		if k.peers[i] == peer {
			k.peers[i] = netip.Addr{}
		}
	}
}

// nonKubeletFields contains header fields that are never present in a probe from the kubelet. All
// fields except Upgrade show that the request came through a proxy.
var nonKubeletFields = [...]string{transport.Upgrade, transport.XForwardedFor, transport.Forwarded, knative.ProxyRequest}

// kubeletPeer returns the client address of a request that can run outside the limit. ok is
// false if the request is handled as traffic. No other function makes this decision. A request
// for which the client can send more data (Line.Open) is traffic. A field is considered present
// even if its first line is empty, because a proxy may add a second line.
func kubeletPeer(x transport.Exchange) (peer netip.Addr, ok bool) {
	line := x.Line()
	if line.Open {
		return netip.Addr{}, false
	}
	for _, name := range nonKubeletFields {
		if x.Header(name) != "" || x.Repeats(name) {
			return netip.Addr{}, false
		}
	}
	peer = fair.Address(line.Remote)
	return peer, peer.IsValid()
}
