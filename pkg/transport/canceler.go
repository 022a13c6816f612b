package transport

import (
	"context"
	"sync"
	"time"
)

// A Canceler aborts an exchange. Notify is called for each event that may end the exchange, such as a timeout, a
// disconnect of the client or the drain deadline. Notify checks whether the client has disconnected or a timeout has
// expired, and the first reason that it finds ends the exchange. An engine can reuse the Canceler for its next
// request, because a late notification for an earlier request only causes a check.
//
// Reset, Wait, Abortable, Context and Stop must be called by the goroutine that serves the request. The other methods
// are safe for concurrent use.
type Canceler struct {
	gone  func() bool   // reports whether the client has disconnected; may be called from any goroutine
	woken chan struct{} // holds one notification until Wait receives it

	mu     sync.Mutex
	state  State       // watched request; nil between two requests
	timer  *time.Timer // fires when a timeout may have expired
	armed  time.Time   // time at which timer fires; zero if timer is not set
	abort  func()      // aborts a running Forward; nil if no Forward is running
	killed error       // reason for the abort; nil if the Forward was not aborted
}

// NewCanceler returns the canceler of an exchange. gone reports whether the client has disconnected.
func NewCanceler(gone func() bool) *Canceler {
	return &Canceler{gone: gone, woken: make(chan struct{}, 1)}
}

// Reset prepares the canceler for the next request.
func (a *Canceler) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state, a.killed, a.abort = nil, nil, nil
	select {
	case <-a.woken:
	default:
	}
}

// Watch starts to watch a request, and sets the timer to the time of [State.NextExpiry]. If the timer is already set to
// an earlier time, possibly for a previous request, Watch does not change the timer. ring then sets the timer again.
func (a *Canceler) Watch(state State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = state
	a.arm()
}

// WriteStarted calls [State.WriteStarted] to record that output cannot be sent until the client reads. It also calls
// Watch, because the send timeout may be the next timeout to expire.
func (a *Canceler) WriteStarted(state State) {
	state.WriteStarted()
	a.Watch(state)
}

// expiry returns the reason why the request must end, or nil.
func (a *Canceler) expiry() error {
	if a.gone() {
		return FaultClientGone
	}
	return a.state.Expiry()
}

// Wait calls Watch and returns after Notify is called, or immediately if the request has expired. It returns nil if
// the request can continue. Otherwise it returns FaultClientGone or the error of [State.Expiry].
func (a *Canceler) Wait(state State) error {
	a.Watch(state)
	a.mu.Lock()
	err := a.expiry()
	a.mu.Unlock()
	if err != nil {
		return err
	}
	<-a.woken
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.expiry()
}

// Notify makes Wait return, and aborts a running Forward if the request must end. It is safe for concurrent use.
func (a *Canceler) Notify() {
	select {
	case a.woken <- struct{}{}:
	default:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.abortExpired()
}

// abortExpired aborts the running Forward if the request must end. a.mu must be held.
func (a *Canceler) abortExpired() {
	if a.abort == nil || a.killed != nil {
		return
	}
	if a.killed = a.expiry(); a.killed != nil {
		a.abort()
	}
}

// Abortable sets the function that aborts the Forward of the watched request. A nil function means that the Forward
// has ended. abort is called at most once, possibly before Abortable returns. It must not block and must not call
// the canceler. Abortable returns the reason for the abort if the Forward was already aborted, and nil otherwise.
func (a *Canceler) Abortable(abort func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.abort = abort
	a.abortExpired()
	return a.killed
}

// Context returns a context that is canceled when the Forward is aborted. An abort after the next call to Abortable
// does not cancel the context.
func (a *Canceler) Context() (ctx context.Context, cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(context.Background())
	if a.Abortable(cancel) != nil {
		cancel()
	}
	return ctx, cancel
}

// Killed returns the reason why the Forward was aborted, or nil. It is safe for concurrent use.
func (a *Canceler) Killed() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.killed
}

// arm sets the timer to the next expiry, unless the timer is already set to an earlier time. a.mu must be held.
func (a *Canceler) arm() {
	next := a.state.NextExpiry()
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

// ring is called by the timer. It calls Notify if the request has expired, and sets the timer again
// otherwise.
func (a *Canceler) ring() {
	a.mu.Lock()
	a.armed = time.Time{}
	over := a.state != nil && a.expiry() != nil
	if a.state != nil && !over {
		a.arm()
	}
	a.mu.Unlock()
	if over {
		a.Notify()
	}
}

// Stop stops the timer of a canceler that is no longer used.
func (a *Canceler) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
}
