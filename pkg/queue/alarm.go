package queue

import (
	"context"
	"sync"
	"time"
)

// An Alarm is the part of an engine's exchange that ends it early. Whatever does so
// (a clock, the client, the drain's deadline) comes in by Notify, which makes the
// exchange look again; the clocks decide; and the first reason wins. An engine keeps the
// value for its next request: a wake that comes late only makes that one look.
//
// Its methods but Notify are for the goroutine that serves the request.
type Alarm struct {
	gone  func() bool   // whether the client has gone; any goroutine may ask
	woken chan struct{} // holds a wake until somebody sleeps

	mu     sync.Mutex
	state  *RequestState // that is watched; nil between two requests
	timer  *time.Timer   // rings when a clock may have run out
	armed  time.Time     // when it rings; zero: it does not
	abort  func()        // breaks a running Forward off; nil: there is none
	killed Reason        // what did
	stall  Stall         // the transfer that the client stalled when killed was set
}

// NewAlarm returns the alarm of an exchange whose client has gone when gone says
// so.
func NewAlarm(gone func() bool) *Alarm {
	return &Alarm{gone: gone, woken: make(chan struct{}, 1)}
}

// Reset releases the request, for the next one.
func (a *Alarm) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state, a.killed, a.stall, a.abort = nil, OK, NoStall, nil
	select {
	case <-a.woken:
	default:
	}
}

// Watch begins to watch a request, and sets the timer to the next moment at which a
// clock may have run out. An earlier ring is left alone, that of an earlier
// request included: it looks and sets the timer again.
func (a *Alarm) Watch(state *RequestState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = state
	a.arm()
}

// WriteStarted notes that a piece of the response waits for the client to take it, until
// WriteDone, and watches state: its clock may be the next.
func (a *Alarm) WriteStarted(state *RequestState) {
	state.writeStarted()
	a.Watch(state)
}

func (a *Alarm) expired() Reason {
	reason, _ := a.expiry()
	return reason
}

func (a *Alarm) expiry() (Reason, Stall) {
	if a.gone() {
		return ClientGone, NoStall
	}
	return a.state.expiry()
}

// Wait watches state and returns after Notify, or at once when the request has expired. It
// returns the reason, OK if it may go on.
func (a *Alarm) Wait(state *RequestState) Reason {
	a.Watch(state)
	a.mu.Lock()
	reason := a.expired()
	a.mu.Unlock()
	if reason != OK {
		return reason
	}
	<-a.woken
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.expired()
}

// Notify makes a Wait return and breaks a Forward off whose request is over. Any
// goroutine may call it.
func (a *Alarm) Notify() {
	select {
	case a.woken <- struct{}{}:
	default:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.look()
}

// look breaks the running Forward off if the request is over.
func (a *Alarm) look() {
	if a.abort == nil || a.killed != OK {
		return
	}
	if reason, stall := a.expiry(); reason != OK {
		a.killed, a.stall = reason, stall
		a.abort()
	}
}

// Abortable says how a Forward whose request is watched is broken off; nil: not any
// more. abort is called once at most, perhaps before Abortable
// returns; it must not block and must not call the alarm. What has broken the
// Forward off by now is returned.
func (a *Alarm) Abortable(abort func()) Reason {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.abort = abort
	a.look()
	return a.killed
}

// Context returns a context that ends when the Forward is broken off, until the next
// Abortable, or by cancel.
func (a *Alarm) Context() (ctx context.Context, cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(context.Background())
	if a.Abortable(cancel) != OK {
		cancel()
	}
	return ctx, cancel
}

// Killed returns what has broken the Forward off; OK: nothing has. Any goroutine may call
// it.
func (a *Alarm) Killed() Reason {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.killed
}

// Stall returns the transfer that the client stalled when the Forward was broken off. Any
// goroutine may call it.
func (a *Alarm) Stall() Stall {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stall
}

// arm sets the timer.
func (a *Alarm) arm() {
	next := a.state.nextExpiry()
	if next.IsZero() || !a.armed.IsZero() && !next.Before(a.armed) {
		return
	}
	a.armed = next
	if a.timer == nil {
		a.timer = time.AfterFunc(time.Until(next), a.ring)
	} else {
		a.timer.Reset(time.Until(next))
	}
}

// ring looks, and arms again for a request that is not over.
func (a *Alarm) ring() {
	a.mu.Lock()
	a.armed = time.Time{}
	over := a.state != nil && a.expired() != OK
	if a.state != nil && !over {
		a.arm()
	}
	a.mu.Unlock()
	if over {
		a.Notify()
	}
}

// Stop ends the timer of an alarm that is no longer used.
func (a *Alarm) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
}
