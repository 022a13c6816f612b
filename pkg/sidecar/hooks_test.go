package sidecar

import (
	"context"
	"net/netip"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A waitingHook is a waiting preStop hook.
type waitingHook struct {
	*fair.Slot
	ended bool // the slot of the hook was revoked
}

// addHooks adds n hooks of a client. It returns the hooks that got a slot and the last error.
func addHooks(s *fair.Semaphore, client byte, n int) (all []*waitingHook, err error) {
	for range n {
		h := &waitingHook{}
		r := fair.Request{Client: netip.AddrFrom4([4]byte{10, 0, 0, client}), End: func() bool { h.ended = true; return true }}
		if h.Slot, err = s.Acquire(context.Background(), r); err != nil {
			return all, err
		}
		h.Idle()
		all = append(all, h)
	}
	return all, nil
}

func TestHooksPerClientAreLimited(t *testing.T) {
	s := newHooks()
	all, err := addHooks(s, 1, hooksPerClient+1)
	harness.Equal(t, len(all), hooksPerClient, "hooks of one client")
	harness.Equal(t, err, fair.ErrClientLimit, "error of an additional hook")
	_, err = addHooks(s, 2, 1)
	harness.NoError(t, err, "hook of another client")
	all[0].Release()
	_, err = addHooks(s, 1, 1)
	harness.NoError(t, err, "hook after another hook of the client returned")
}

func TestHookLimitRevokesNewestHook(t *testing.T) {
	s := newHooks()
	var newest []*waitingHook
	for client := range byte(maxHooks / hooksPerClient) {
		all, err := addHooks(s, client, hooksPerClient)
		harness.NoError(t, err)
		newest = append(newest, all[len(all)-1])
	}
	own, err := addHooks(s, 100, 1)
	harness.NoError(t, err, "hook of another client")
	ended := 0
	for _, h := range newest {
		if h.ended {
			ended++
		}
	}
	harness.Equal(t, ended, 1, "number of newest hooks that ended")
	harness.Equal(t, own[0].ended, false, "hook of the other client ended")
	hooks, _ := s.Load()
	harness.Equal(t, hooks, maxHooks, "hooks")
}

func TestHookLimitRejectsNewClient(t *testing.T) {
	s := newHooks()
	for client := range byte(maxHooks) {
		_, err := addHooks(s, client, 1)
		harness.NoError(t, err)
	}
	_, err := addHooks(s, 200, 1)
	harness.Equal(t, err, fair.ErrQueueFull, "error of an additional hook")
}
