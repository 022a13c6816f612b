// Package fair limits concurrent work and divides it fairly between clients.
package fair

import (
	"container/list"
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// Errors returned by [Semaphore.Acquire].
var (
	ErrQueueFull   = errors.New("too many waiting clients")
	ErrClientLimit = errors.New("the client uses too many slots")
)

// A Semaphore has a fixed number of slots. If there are not enough free slots, clients wait in a queue.
// The queue is served round-robin by client address, so that a client with many connections does not
// delay other clients.
//
// The semaphore can revoke the slot of an idle holder for a waiting client. It revokes a slot of the client
// that uses the most slots, unless this client uses fewer slots than the waiting client would use with the
// requested slot. If several slots qualify, the order depends on whether their holders have completed work.
// If at least half of all holders, rounded down, have never completed work, the slots of these holders are
// revoked first. Otherwise these slots are revoked last. Among slots that are equal in this respect, the slot
// with the longest idle time is revoked first, or the slot with the shortest if Options.Newest is set.
//
// A Semaphore is safe for concurrent use.
type Semaphore struct {
	options Options

	mu       sync.Mutex
	holders  map[*Slot]struct{}
	used     int // sum of the weights of the holders
	unknown  int // number of holders that have never completed work
	queued   int // number of waiters
	clients  map[netip.Addr]*client
	turns    list.List     // clients with waiters (*client), in the order of their turns
	patience time.Duration // required idle time of the slots to which Options.MinPatience does not apply
	timer    *time.Timer   // calls advance; nil before the first use
}

// Options holds the limits of a semaphore.
type Options struct {
	Slots     int // number of slots
	Queue     int // maximum number of waiters
	PerClient int // maximum number of holders and waiters of a client address; 0 means no limit

	// A slot can be revoked after an idle time of MinPatience if the holder has completed work, or if the
	// client uses more slots than the waiting client would use. For other slots, the required idle time is
	// initially MaxPatience. It is doubled, up to MaxPatience, when a holder completes work for the first
	// time, and halved, down to MinPatience, when one of these other slots is revoked.
	MinPatience, MaxPatience time.Duration

	// If Newest is set, the slot that has been idle for the shortest time is revoked first.
	Newest bool
}

// A Request contains the parameters of [Semaphore.Acquire].
type Request struct {
	Client netip.Addr
	Weight int // number of slots that the request uses; 0 means 1. A sole holder may use more than Options.Slots

	// End is called to revoke the slot of an idle holder. It must not block or call a method of the slot.
	// It returns false if the holder is no longer idle. The holder then keeps the slot, and its idle time
	// begins again. If End is nil, the slot is never revoked.
	End func() bool
}

// A client contains the holders and the waiters with the same client address.
type client struct {
	address netip.Addr
	holders int
	used    int           // the sum of the weights of the holders
	waiters list.List     // waiters (*waiter), the oldest first
	turn    *list.Element // in Semaphore.turns; nil if there are no waiters
}

// A waiter is a call to Acquire that waits for a slot.
type waiter struct {
	slot    *Slot
	element *list.Element // element of the waiter in client.waiters; nil if the waiter is not queued
	err     error         // valid after done is closed
	done    chan struct{} // closed when the waiter has the slot or an error
}

// A Slot represents a slot in use. Its methods have no effect after the slot was released or revoked.
type Slot struct {
	semaphore *Semaphore
	client    *client
	weight    int
	end       func() bool
	idle      time.Time // start of the current idle time; zero if the slot is not idle
	known     bool      // the holder has completed work
	free      bool      // the slot was released or revoked
}

// New returns a semaphore.
func New(options Options) *Semaphore {
	return &Semaphore{
		options:  options,
		holders:  make(map[*Slot]struct{}),
		clients:  make(map[netip.Addr]*client),
		patience: options.MaxPatience,
	}
}

// Acquire waits for a slot. The returned slot is not idle. If ctx is done before the request gets a slot,
// Acquire returns the error of ctx. It returns ErrClientLimit if the client already has Options.PerClient
// holders and waiters and none of its slots can be revoked immediately.
//
// If the queue is full, the newest waiter of the client with the most waiters leaves the queue, and its call
// to Acquire returns ErrQueueFull. This waiter can be the caller.
func (s *Semaphore) Acquire(ctx context.Context, r Request) (*Slot, error) {
	w, err := s.enqueue(r)
	if err != nil {
		return nil, err
	}
	select {
	case <-w.done:
		return w.slot, w.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.element != nil { // otherwise the waiter received a slot or an error at the same time
		s.remove(w, ctx.Err())
		s.advance() // the next waiter may need fewer slots
	}
	return w.slot, w.err
}

// enqueue adds a waiter to the queue. If slots are free or can be revoked, the waiter can get a
// slot before enqueue returns.
func (s *Semaphore) enqueue(r Request) (*waiter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[r.Client]
	if c == nil {
		c = &client{address: r.Client}
		s.clients[r.Client] = c
	}
	if n := s.options.PerClient; n > 0 && c.holders+c.waiters.Len() >= n && !s.takeOwn(c) {
		return nil, ErrClientLimit
	}
	w := &waiter{slot: &Slot{semaphore: s, client: c, weight: max(r.Weight, 1), end: r.End}, done: make(chan struct{})}
	w.element = c.waiters.PushBack(w)
	if c.turn == nil {
		c.turn = s.turns.PushBack(c)
	}
	s.queued++
	s.advance()
	if s.queued > s.options.Queue {
		s.reject()
	}
	return w, nil
}

// reject removes the newest waiter of the client with the most waiters. s.mu must be held.
func (s *Semaphore) reject() {
	var most *client
	for e := s.turns.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*client); most == nil || c.waiters.Len() >= most.waiters.Len() {
			most = c
		}
	}
	s.remove(most.waiters.Back().Value.(*waiter), ErrQueueFull)
}

// remove removes a waiter from the queue. If err is nil, the waiter gets a slot. s.mu must be held.
func (s *Semaphore) remove(w *waiter, err error) {
	c := w.slot.client
	c.waiters.Remove(w.element)
	w.element = nil
	s.queued--
	if c.waiters.Len() == 0 {
		s.turns.Remove(c.turn)
		c.turn = nil
	}
	if w.err = err; err != nil {
		w.slot = nil
		s.forget(c)
	} else {
		c.holders++
		s.unknown++
		s.holders[w.slot] = struct{}{}
		s.use(w.slot, w.slot.weight)
	}
	close(w.done)
}

// use adds n, which can be negative, to the number of slots that the client of slot uses, and to the total
// number of used slots. s.mu must be held.
func (s *Semaphore) use(slot *Slot, n int) {
	s.used += n
	slot.client.used += n
}

// forget removes the client if it has no holders and no waiters. s.mu must be held.
func (s *Semaphore) forget(c *client) {
	if c.holders == 0 && c.waiters.Len() == 0 {
		delete(s.clients, c.address)
	}
}

// advance gives slots to waiters while slots are free or can be revoked. s.mu must be held.
func (s *Semaphore) advance() {
	for s.turns.Len() > 0 {
		c := s.turns.Front().Value.(*client)
		next := c.waiters.Front().Value.(*waiter)
		switch {
		case s.used == 0 || s.used+next.slot.weight <= s.options.Slots:
			s.turns.MoveToBack(c.turn)
			s.remove(next, nil)
		case !s.take():
			return
		}
	}
}

// take revokes a slot for the waiting client with the fewest slots, and moves this waiting client to the
// front of the queue. It returns false if no slot can be revoked now. If a slot can be revoked later, take
// schedules a call to advance. s.mu must be held.
func (s *Semaphore) take() bool {
	c := s.fewest()
	for {
		victim := s.victim(c, false)
		if victim == nil {
			return false
		}
		equal := victim.client.used <= c.used+victim.weight
		switch wait := s.wait(victim, equal); {
		case wait > 0:
			s.advanceLater(wait)
			return false
		case s.evict(victim, equal):
			s.turns.MoveToFront(c.turn)
			return true
		}
	}
}

// takeOwn revokes a slot of c, so that c can use it for another connection. It reports whether a
// slot was revoked. s.mu must be held.
func (s *Semaphore) takeOwn(c *client) bool {
	victim := s.victim(c, true)
	return victim != nil && s.wait(victim, true) <= 0 && s.evict(victim, true)
}

// wait returns the time until a slot may be revoked. equal is true if the client that holds the
// slot uses at most as many slots as the waiting client would use with this slot.
func (s *Semaphore) wait(victim *Slot, equal bool) time.Duration {
	patience := s.options.MinPatience
	if equal && !victim.known {
		patience = s.patience
	}
	return patience - time.Since(victim.idle)
}

// evict revokes a slot. If the holder is no longer idle, evict restarts the idle time of the slot and returns
// false. s.mu must be held.
func (s *Semaphore) evict(victim *Slot, equal bool) bool {
	if !victim.end() {
		victim.idle = time.Now()
		return false
	}
	if equal && !victim.known {
		s.patience = max(s.patience/2, s.options.MinPatience)
	}
	s.release(victim)
	return true
}

// fewest returns the waiting client that uses the fewest slots. If there are several such clients, it
// returns the first of them in the queue. s.mu must be held.
func (s *Semaphore) fewest() (c *client) {
	for e := s.turns.Front(); e != nil && (c == nil || c.used > 0); e = e.Next() {
		if next := e.Value.(*client); c == nil || next.used < c.used {
			c = next
		}
	}
	return c
}

// advanceLater schedules a call to advance after the given time. s.mu must be held.
func (s *Semaphore) advanceLater(wait time.Duration) {
	if s.timer != nil {
		s.timer.Reset(wait)
		return
	}
	s.timer = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.advance()
	})
}

// victim returns the slot to revoke for the waiting client c, or nil if no slot can be revoked for c. If own is
// true, victim considers only the slots of c. s.mu must be held.
func (s *Semaphore) victim(c *client, own bool) (victim *Slot) {
	known := s.unknown+1 <= len(s.holders)/2 // the slots with this value of Slot.known are revoked first
	used := func(slot *Slot) int {
		if slot.client == c {
			return c.used + 1 // includes the slot that the client waits for
		}
		return slot.client.used
	}
	before := func(a, b *Slot) bool {
		switch ua, ub := used(a), used(b); {
		case ua != ub:
			return ua > ub
		case a.known != b.known:
			return a.known == known
		case s.options.Newest:
			return a.idle.After(b.idle)
		}
		return a.idle.Before(b.idle)
	}
	for slot := range s.holders {
		can := slot.end != nil && !slot.idle.IsZero() && used(slot) > c.used && (slot.client == c || !own)
		if can && (victim == nil || before(slot, victim)) {
			victim = slot
		}
	}
	return victim
}

// release frees a slot. s.mu must be held.
func (s *Semaphore) release(slot *Slot) {
	slot.free = true
	delete(s.holders, slot)
	s.use(slot, -slot.weight)
	slot.client.holders--
	if !slot.known {
		s.unknown--
	}
	s.forget(slot.client)
}

// change calls f with the lock held if the slot is in use.
func (slot *Slot) change(f func(s *Semaphore)) {
	s := slot.semaphore
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slot.free {
		f(s)
	}
}

// Release frees the slot.
func (slot *Slot) Release() {
	slot.change(func(s *Semaphore) {
		s.release(slot)
		s.advance()
	})
}

// Resize changes the weight of the slot.
func (slot *Slot) Resize(weight int) {
	slot.change(func(s *Semaphore) {
		s.use(slot, weight-slot.weight)
		slot.weight = weight
		s.advance()
	})
}

// Idle records that the holder has begun to wait for its client.
func (slot *Slot) Idle() {
	slot.change(func(s *Semaphore) {
		slot.idle = time.Now()
		s.advance()
	})
}

// Active records that the holder no longer waits for its client.
func (slot *Slot) Active() {
	slot.change(func(*Semaphore) { slot.idle = time.Time{} })
}

// Answered records that the holder has completed work for its client.
func (slot *Slot) Answered() {
	slot.change(func(s *Semaphore) {
		if !slot.known {
			slot.known = true
			s.unknown--
			s.patience = min(2*s.patience, s.options.MaxPatience)
		}
	})
}

// Load returns the number of holders and the number of waiters.
func (s *Semaphore) Load() (holders, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.holders), s.queued
}

// Address returns the IP address of a peer such as "127.0.0.1:1234", or the zero Addr if peer is not an address
// with a port.
func Address(peer string) netip.Addr {
	a, _ := netip.ParseAddrPort(peer)
	return a.Addr().Unmap()
}
