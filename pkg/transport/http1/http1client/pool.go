package http1client

import (
	"context"
	"slices"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// A waiter waits for a connection or a slot. A slot is the permission to open one connection. It is used from the dial
// until the connection is closed. The number of slots is Settings.MaxConns. If all slots are in use, waiters receive
// connections and slots in FIFO order.
type waiter struct {
	fresh bool             // the waiter needs a new connection, and therefore a slot
	turn  chan *clientConn // receives an idle connection, or nil for a slot; has a buffer for one value
}

// ConnState returns the state of the HTTP/1 connections to the user container. Open includes the
// connections that are being opened.
func (a *App) ConnState() bound.Pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return bound.Pool{Open: a.open, Limit: a.settings.MaxConns, Waiting: a.waiters.Len(), Reached: a.full}
}

// tryGet returns an idle connection, or reserves a slot for a new connection. If fresh is true, it does not return an
// idle connection. If all slots are in use, n is nil and reserved is false.
func (a *App) tryGet(fresh bool) (n *clientConn, reserved bool) {
	if !fresh {
		if n = a.take(); n != nil {
			return n, false
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return nil, a.reserveLocked()
}

// reserveLocked reserves a slot. It returns false if all slots are in use. a.mu must be held.
func (a *App) reserveLocked() bool {
	if a.settings.MaxConns > 0 && a.open >= a.settings.MaxConns {
		return false
	}
	a.open++
	return true
}

// await waits for a connection or a slot. If n and err are nil, a slot was reserved. If the context is done, err is the
// cause of the context.
func (a *App) await(ctx context.Context, fresh bool) (n *clientConn, err error) {
	a.mu.Lock()
	if len(a.idle) > 0 {
		return a.reuseUnlock(fresh), nil
	}
	if a.reserveLocked() {
		a.mu.Unlock()
		return nil, nil
	}
	w := &waiter{fresh: fresh, turn: make(chan *clientConn, 1)}
	element := a.waiters.PushBack(w)
	a.full = time.Now()
	a.mu.Unlock()
	if a.settings.OnFull != nil {
		a.settings.OnFull()
	}
	select {
	case n = <-w.turn:
		return n, nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	a.waiters.Remove(element) // no effect if nextWaiterLocked has removed w; w.turn then contains a value
	a.mu.Unlock()
	select {
	case n = <-w.turn:
		if n != nil {
			n.close()
		} else {
			a.release()
		}
	default:
	}
	return nil, context.Cause(ctx)
}

// reuseUnlock returns the most recently used idle connection. If fresh is true, it instead closes the least recently
// used idle connection, passes its slot to the caller, and returns nil. There must be an idle connection. a.mu must be
// held, and reuseUnlock unlocks it.
func (a *App) reuseUnlock(fresh bool) *clientConn {
	if !fresh {
		last := len(a.idle) - 1
		n := a.idle[last]
		a.idle = slices.Delete(a.idle, last, last+1)
		a.mu.Unlock()
		n.reused = true
		return n
	}
	n := a.idle[0]
	a.idle = slices.Delete(a.idle, 0, 1)
	a.mu.Unlock()
	n.slot.Store(nil)
	n.close()
	return nil
}

// openConn returns a new connection. The caller must have reserved a slot. After an error, the slot is released.
func (a *App) openConn(ctx context.Context) (*clientConn, error) {
	nc, err := a.dialAside(ctx)
	if err != nil {
		a.release()
		return nil, err
	}
	n := newClientConn(nc, a.buffers)
	n.slot.Store(a)
	return n, nil
}

// release releases a slot, or passes it to the first waiter.
func (a *App) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.nextWaiterLocked(); w != nil {
		w.turn <- nil
	} else {
		a.open--
	}
}

// passLocked passes an idle connection to the first waiter. It returns false if there is no waiter or if the first
// waiter needs a new connection. a.mu must be held.
func (a *App) passLocked(n *clientConn) bool {
	if first := a.waiters.Front(); first == nil || first.Value.(*waiter).fresh {
		return false
	}
	n.reused = true
	a.nextWaiterLocked().turn <- n
	return true
}

// nextWaiterLocked removes the first waiter and returns it, or nil if there is none. a.mu must be
// held.
func (a *App) nextWaiterLocked() *waiter {
	first := a.waiters.Front()
	if first == nil {
		return nil
	}
	return a.waiters.Remove(first).(*waiter)
}
