package sidecar

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// hookFrom is a hook of the client with this address.
func hookFrom(address string) *http.Request {
	return &http.Request{RemoteAddr: address}
}

// fill takes n places for each of the addresses, of which there must be enough.
func fill(t *testing.T, h *hooks, n int, addresses ...string) (all []context.Context) {
	t.Helper()
	for range n {
		for _, a := range addresses {
			ctx, _, status := h.enter(hookFrom(a))
			if status != 0 {
				t.Fatalf("a hook of %s: got status %d, want a place", a, status)
			}
			all = append(all, ctx)
		}
	}
	return all
}

func TestOneClientHasSoManyHooksAndNoMore(t *testing.T) {
	var h hooks
	fill(t, &h, hooksPerClient-1, "10.0.0.1:1000")
	_, leave, status := h.enter(hookFrom("10.0.0.1:2000"))
	if status != 0 {
		t.Fatalf("the last place of an address: got status %d", status)
	}
	if _, _, status := h.enter(hookFrom("10.0.0.1:3000")); status != http.StatusTooManyRequests {
		t.Errorf("one more hook of the address: got status %d, want 429", status)
	}
	if _, _, status := h.enter(hookFrom("10.0.0.2:1000")); status != 0 {
		t.Errorf("a hook of another address: got status %d, want a place", status)
	}
	harness.Equal(t, leave(), hooksPerClient, "hooks left")
	if _, _, status := h.enter(hookFrom("10.0.0.1:3000")); status != 0 {
		t.Errorf("after one has left: got status %d, want a place", status)
	}
}

func TestAClientWithManyHooksLosesItsNewestToOneWithFewer(t *testing.T) {
	var h hooks
	var greedy []string
	for i := range hooksAtOnce / hooksPerClient {
		greedy = append(greedy, fmt.Sprintf("10.0.1.%d:1000", i))
	}
	fill(t, &h, hooksPerClient-1, greedy...)
	newest := fill(t, &h, 1, greedy...)
	own := fill(t, &h, 1, "10.0.0.1:1000")
	ended := 0
	for _, ctx := range newest {
		if ctx.Err() != nil {
			ended++
		}
	}
	if ended != 1 || own[0].Err() != nil {
		t.Errorf("got %d of the newest ended, and the new one %v, want one and not the new one", ended, own[0].Err())
	}
	harness.Equal(t, len(h.waiting), hooksAtOnce, "hooks")
}

func TestAHookIsRefusedWhereAllClientsHaveOneEach(t *testing.T) {
	var h hooks
	for i := range hooksAtOnce {
		fill(t, &h, 1, fmt.Sprintf("10.0.1.%d:1000", i))
	}
	if _, _, status := h.enter(hookFrom("10.0.0.1:1000")); status != http.StatusServiceUnavailable {
		t.Errorf("got status %d, want 503", status)
	}
}
