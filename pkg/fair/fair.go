// Package fair limits concurrent work and divides it between clients.
package fair

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
)

// ErrQueueFull is the error of a client that cannot wait because the queue is full.
var ErrQueueFull = errors.New("too many clients wait for a slot")

// A Semaphore has a number of slots. If all slots are in use, clients wait in a queue. The next
// slot is given to the client address whose last turn is the longest ago, so that a client with
// many connections does not delay another client. It is safe for concurrent use.
type Semaphore struct {
	slots     int
	maxQueued int

	mu      sync.Mutex
	used    int // slots in use
	queued  int
	clients map[netip.Addr]*client
	turns   list.List // of *client, the clients with waiters, the next one first
}

// A client is a client address with slots or waiters.
type client struct {
	address netip.Addr
	used    int           // slots in use
	waiters list.List     // of *waiter, the oldest first
	turn    *list.Element // in Semaphore.turns; nil if there are no waiters
}

// A waiter is a call of Acquire that waits.
type waiter struct {
	slot    *Slot
	element *list.Element // in client.waiters; nil if the waiter is not queued
	err     error         // valid after done is closed
	done    chan struct{} // closed when the waiter has the slot or an error
}

// A Slot is a slot in use.
type Slot struct {
	semaphore *Semaphore
	client    *client
}

// New returns a semaphore with a number of slots, and with a queue for maxQueued waiters.
func New(slots, maxQueued int) *Semaphore {
	return &Semaphore{slots: slots, maxQueued: maxQueued, clients: make(map[netip.Addr]*client)}
}

// Acquire waits for a slot for a client. It returns ErrQueueFull if the queue is full, and the error
// of the context if it ends. If the queue is full, the client with the most waiters loses its newest
// waiter to a client with fewer waiters.
func (s *Semaphore) Acquire(ctx context.Context, address netip.Addr) (*Slot, error) {
	slot, w := s.acquireOrQueue(address)
	if w == nil {
		return slot, nil
	}
	select {
	case <-w.done:
		return w.result()
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.element == nil { // it was removed from the queue at the same time
		return w.result()
	}
	s.remove(w)
	return nil, ctx.Err()
}

// acquireOrQueue returns a free slot, or adds a waiter to the queue.
func (s *Semaphore) acquireOrQueue(address netip.Addr) (*Slot, *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[address]
	if c == nil {
		c = &client{address: address}
		s.clients[address] = c
	}
	slot := &Slot{s, c}
	if s.used < s.slots {
		s.use(slot)
		return slot, nil
	}
	w := &waiter{slot: slot, done: make(chan struct{})}
	w.element = c.waiters.PushBack(w)
	if c.turn == nil {
		c.turn = s.turns.PushBack(c)
	}
	if s.queued++; s.queued > s.maxQueued {
		s.reject()
	}
	return nil, w
}

// reject removes the newest waiter of the client with the most waiters. s.mu must be held.
func (s *Semaphore) reject() {
	var most *client
	for e := s.turns.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*client); most == nil || c.waiters.Len() >= most.waiters.Len() {
			most = c
		}
	}
	w := most.waiters.Back().Value.(*waiter)
	s.remove(w)
	w.err = ErrQueueFull
	close(w.done)
}

// result returns the result of a waiter that was removed from the queue.
func (w *waiter) result() (*Slot, error) {
	if w.err != nil {
		return nil, w.err
	}
	return w.slot, nil
}

// use counts a slot that is used from now on. s.mu must be held.
func (s *Semaphore) use(slot *Slot) {
	s.used++
	slot.client.used++
}

// remove removes a waiter from the queue. s.mu must be held.
func (s *Semaphore) remove(w *waiter) {
	c := w.slot.client
	c.waiters.Remove(w.element)
	w.element = nil
	s.queued--
	if c.waiters.Len() == 0 {
		s.turns.Remove(c.turn)
		c.turn = nil
	}
	s.forget(c)
}

// forget removes a client without slots and waiters. s.mu must be held.
func (s *Semaphore) forget(c *client) {
	if c.used == 0 && c.waiters.Len() == 0 {
		delete(s.clients, c.address)
	}
}

// Release returns the slot. It must be called once.
func (slot *Slot) Release() {
	s := slot.semaphore
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	slot.client.used--
	for s.used < s.slots && s.turns.Len() > 0 {
		c := s.turns.Front().Value.(*client)
		s.turns.MoveToBack(c.turn)
		next := c.waiters.Front().Value.(*waiter)
		s.use(next.slot)
		s.remove(next)
		close(next.done)
	}
	s.forget(slot.client)
}

// Queued returns the number of waiters.
func (s *Semaphore) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queued
}

// Excessive reports whether the client uses more than an equal part of the slots. The slots are
// divided by the number of clients that use slots or wait.
func (slot *Slot) Excessive() bool {
	s := slot.semaphore
	s.mu.Lock()
	defer s.mu.Unlock()
	return slot.client.used*len(s.clients) > s.slots
}

// Address returns the IP address of a peer, or the zero address if there is none.
func Address(peer net.Addr) netip.Addr {
	a, _ := peer.(*net.TCPAddr) // AddrPort of nil returns the zero address
	return a.AddrPort().Addr().Unmap()
}
