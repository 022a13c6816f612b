// Package queue implements the lifecycle of a request. [Proxy.Serve] contains all steps, in the
// order in which they happen:
//
//  1. Classify the request. Respond if it is a probe.
//  2. Start the timeouts and the trace.
//  3. Record the arrival for the drain and the statistics.
//  4. Wait for a slot of the concurrency limit.
//  5. Forward the request to the user container.
//  6. Release the slot, or hold it while the user container still works on a request that was
//     broken off.
//  7. Respond if the user container did not.
//  8. Report the observation and end the trace.
//  9. Record the end for the statistics and the drain.
//
// The package uses an [Exchange] and does not depend on sockets. The engines implement Exchange
// (packages http1 and http2).
package queue

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/stats"
)

// Proxy is the request path of one sidecar, shared by all engines. Its fields are
// set before the first request and not changed afterwards; those that may be nil
// say so.
type Proxy struct {
	Ready   func(context.Context) error // may the user container serve? A nil error is yes, another's text is part of the answer; called concurrently
	Drain   *Drain
	Limit   *Limit        // nil: none
	Grace   time.Duration // how long a slot is held at most for a user container that is still at work on a request that was broken off (docs/promises.md 3.1); 0: not at all
	Clocks  Clocks
	Stats   *stats.Stats
	Observe func(*Observation) // after each request that was forwarded or would have been; must not keep its argument
	Probed  func(*Observation) // after each probe that was answered; nil: nobody wants to know
	Exclude Exclude
	Trace   func(Exchange) Trace // begins the trace of a request that counts; it or what it returns may be nil

	kubelet kubeletPlaces
}

// Exclude names the health checks and scrapes of people's own tools, which are
// no load (docs/promises.md 3.10). The zero value excludes nothing.
type Exclude struct {
	Paths      []string // exact, or a prefix that ends in '*'
	UserAgents []string // prefixes
}

// A Trace follows one request. Its methods are called one after the other, and none
// after End. What they return is valid until End.
type Trace interface {
	ID() string
	Enter(Phase)           // the request has come to this phase, now
	Drop(name string) bool // whether the client's field, in any case, is replaced by those of Fields
	Fields() []Field       // that the request to the user container carries
	End(*Observation)
}

// Field is a field of a request.
type Field struct{ Name, Value string }

// Reject is Serve for a request that is rejected with the reason [Overload]. It does not wait.
// If reset is true, the engine resets the stream of the client, and no response is sent.
func (p *Proxy) Reject(x Exchange, state *RequestState, reset bool) {
	state.rejected, state.reset = Overload, reset
	p.Serve(x, state)
	state.rejected, state.reset = OK, false
}

// Serve serves one request. state is memory of the engine; the two must not
// be used for another request before Serve has returned.
func (p *Proxy) Serve(x Exchange, state *RequestState) {
	kind := header.KindOf(x)
	if kind.Answered() {
		p.serveProbe(kind, x, state)
		return
	}

	limit, fresh := p.Limit, true
	if kind == header.KubeletRequest {
		peer, may := kubeletPeer(x)
		may = may && state.rejected == OK
		if may && p.Drain.Draining() {
			answer(x, plain(Draining))
			return
		}
		if may && p.kubelet.enter(peer) {
			defer p.kubelet.leave(peer)
			limit, fresh = nil, false
		} else {
			kind = header.Traffic
		}
	}

	o := &state.seen
	*o = Observation{}
	o.Exchange, o.Kind, o.Start, o.Line = x, kind, time.Now(), x.Line()
	o.Excluded = kind == header.Traffic && p.Exclude.has(o)
	o.Proxied = x.Header(header.ProxyRequest) == header.ActivatorValue
	fresh = fresh && !o.Excluded

	state.begin(&p.Clocks, o.Start)
	if kind == header.KubeletRequest {
		state.most = kubeletTime
	}
	if state.trace = nil; p.Trace != nil && fresh {
		if state.trace = p.Trace(x); state.trace != nil {
			o.TraceID = state.trace.ID()
		}
	}
	p.Drain.arrive(x, state, fresh)
	defer p.Drain.leave(state)
	if fresh { // what counts against quiet counts for scaling
		p.Stats.In(o.Start, o.Proxied)
	}
	held := false
	defer func() {
		if fresh && !held {
			p.Stats.Out(time.Now(), o.Proxied)
		}
	}()

	held = p.forward(limit, fresh, x, state, o)
	if o.Reason != OK && !o.Begun {
		finish(x, o)
	}
	blameDeadline(o, x)
	o.End, o.Phase = time.Now(), state.Phase()
	p.Observe(o)
	if state.trace != nil {
		state.trace.End(o)
	}
	o.Line = Line{} // its strings can point into a buffer of the engine
}

// blameDeadline changes the reason of a call that the user container canceled because the timeout of the client expired.
func blameDeadline(o *Observation, x Exchange) {
	if o.Reason != AppReset || !canceledAtDeadline(o, x) {
		return
	}
	o.Reason = ClientGone
	if o.Reset && !o.Begun {
		o.Status = ClientGone.Status()
	}
}

// serveProbe answers a probe. It and answer are not part of Serve because what
// they need on the stack would be held by every request that waits.
func (p *Proxy) serveProbe(kind header.Kind, x Exchange, state *RequestState) {
	start := time.Now()
	a := plain(state.rejected)
	if state.rejected == OK {
		a = p.answerProbe(kind, x)
	}
	if !state.reset {
		x.Answer(&a)
	}
	if p.Probed != nil {
		o := &state.seen
		*o = Observation{Exchange: x, Kind: kind, Start: start, End: time.Now()}
		o.Line = x.Line()
		o.Status, o.Reason, o.Out = a.Status, a.Reason, a.size(o.Method)
		p.Probed(o)
	}
}

// finish sends the response to a request for which the user container has sent none. It does
// not send a response if the client closed the connection or if the stream was reset.
func finish(x Exchange, o *Observation) {
	o.Status = o.Reason.Status()
	if o.Reason != ClientGone && !o.Reset {
		o.Status, o.Out = answer(x, answerFor(o, x))
	}
}

// answer gives an answer and returns its status and the size of its content.
//
//go:noinline
func answer(x Exchange, a Answer) (status int, size int64) {
	x.Answer(&a)
	return a.Status, a.size(x.Line().Method)
}

// forward waits for a slot and holds it until the exchange with the user
// container has ended. It reports whether it has left that to hold.
func (p *Proxy) forward(limit *Limit, counted bool, x Exchange, state *RequestState, o *Observation) (held bool) {
	if state.rejected != OK {
		o.Reason, o.Reset = state.rejected, state.reset
		return false
	}
	if reason := limit.acquire(x, state); reason != OK {
		o.Reason = reason
		return false
	}
	o.Slot = time.Now()
	state.adaptTo(limit)
	defer func() {
		if limit == nil {
			return
		}
		state.adaptTo(nil)
		if !held {
			limit.end(&state.ticket, resultOf(o))
		}
	}()
	state.ticket.holds = limit != nil && p.Grace > 0
	state.Enter(Dialling)
	o.Result = x.Forward(state)
	if o.Held != nil {
		p.startHold(limit, counted, state, o)
		return true
	}
	return false
}

// startHold starts hold for the exchange that was broken off. It is not inlined, so that the stack
// of a request stays small.
//
//go:noinline
func (p *Proxy) startHold(limit *Limit, counted bool, state *RequestState, o *Observation) {
	go p.hold(limit, limit.hold(&state.ticket), counted, broken{o.Held, o.Reason, o.Slot, o.Proxied})
	o.Held = nil
}

// hold keeps the slot of a request that has been broken off, and its place in the
// statistics, while the user container is at work on it. The drain does not wait: nobody
// gets the response.
func (p *Proxy) hold(limit *Limit, t *ticket, counted bool, broken broken) {
	began := time.Now()
	answered := broken.held.Wait(p.Grace)
	now := time.Now()
	limit.endHeld(t, heldResult(broken.reason, answered, began.Sub(broken.slot), now.Sub(began)))
	if counted {
		p.Stats.Out(now, broken.proxied)
	}
}

// broken is an exchange that was broken off while the user container was at work on it.
type broken struct {
	held    Held
	reason  Reason
	slot    time.Time // the request got its slot
	proxied bool
}

// has reports whether the request is one that does not count.
func (e *Exclude) has(o *Observation) bool {
	if len(e.UserAgents) > 0 {
		agent := o.Exchange.Header(header.UserAgent)
		if slices.ContainsFunc(e.UserAgents, func(prefix string) bool { return strings.HasPrefix(agent, prefix) }) {
			return true
		}
	}
	return len(e.Paths) > 0 && e.hasPath(o.Path())
}

func (e *Exclude) hasPath(path string) bool {
	return slices.ContainsFunc(e.Paths, func(want string) bool {
		prefix, more := strings.CutSuffix(want, "*")
		return path == want || more && strings.HasPrefix(path, prefix)
	})
}
