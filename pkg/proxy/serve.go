// Package proxy implements the lifecycle of a request. [Proxy.Serve] contains all steps, in the
// order in which they happen:
//
//  1. Classify the request. Respond if it is a probe.
//  2. Start the timeouts and the trace.
//  3. Record the arrival for the drain and the statistics.
//  4. Wait for a slot of the concurrency limit.
//  5. Forward the request to the user container.
//  6. Release the slot, or hold it while the user container still processes an aborted request.
//  7. Respond if the user container did not.
//  8. Report the observation and end the trace.
//  9. Record the end for the statistics and the drain.
//
// The package uses a [transport.Exchange] and does not depend on sockets. The engines, which are the
// packages http1 and http2, implement Exchange.
package proxy

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/knative"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/stats"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Proxy is the request path of a sidecar. All engines share one Proxy. Its fields are set before
// the first request and do not change afterwards. Fields must not be nil unless their comment
// allows it.
type Proxy struct {
	Ready   func(context.Context) error // returns nil if the user container can serve requests; otherwise the error text is included in the response; called concurrently
	Drain   *Drain
	Limit   *Limit        // nil means no limit
	Grace   time.Duration // maximum time that a slot is held while the user container still processes an aborted request (docs/promises.md 3.1); 0 means that slots are not held
	Clocks  Clocks
	Stats   *stats.Stats
	Observe func(*observation.Observation) // called after each request except the probes that Serve answers; must not retain its argument
	Probed  func(*observation.Observation) // called after each answered queue, network or unknown probe; may be nil
	Exclude Exclude
	Trace   func(transport.Exchange) Trace // starts the trace of a request that is included in the statistics; Trace and its result may be nil

	kubelet kubeletPlaces
}

// Exclude selects requests that do not count as load, such as health checks and scrapes by other
// tools (docs/promises.md 3.10). The zero value excludes nothing.
type Exclude struct {
	Paths      []string // exact paths, or prefixes that end in '*'
	UserAgents []string // prefixes of User-Agent
}

// A Trace is the trace of one request. The methods are not called concurrently or after End. Their
// results are valid until End is called.
type Trace interface {
	transport.TraceFields
	ID() string
	Sampled() bool           // whether the trace is exported
	Enter(observation.Phase) // the request enters this phase now
	End(*observation.Observation)
}

// Reject calls Serve for a request that is rejected with the reason observation.Overload. Serve does
// not queue or forward the request. If reset is true, the engine resets the stream of the client, and
// no response is sent.
func (p *Proxy) Reject(x transport.Exchange, s transport.State, reset bool) {
	state := s.(*RequestState) // a result of NewState
	state.rejected, state.reset = observation.Overload, reset
	p.Serve(x, state)
	state.rejected, state.reset = observation.OK, false
}

// Refuse responds with status to a request that an engine rejects because the header section is
// invalid. The request is reported to Observe, but it is not limited and is not included in the
// statistics for the autoscaler.
func (p *Proxy) Refuse(x transport.Exchange, status int) {
	o := &observation.Observation{Kind: observation.Traffic, Exchange: x, Line: x.Line(), Reason: observation.BadRequest, Start: time.Now()}
	o.Excluded = p.Exclude.has(o)
	o.Status, o.Out, o.RPC = send(x, badRequest(status, http.StatusText(status)+"\n"))
	o.End = time.Now()
	p.Observe(o)
}

// NewState returns a state that an exchange can reuse for sequential requests.
func (p *Proxy) NewState() transport.State { return new(RequestState) }

// Draining reports whether a drain is running.
func (p *Proxy) Draining() bool { return p.Drain.Draining() }

// Serve serves one request. The engine owns s, which must be a result of NewState. x and s must not
// be used for another request before Serve returns.
func (p *Proxy) Serve(x transport.Exchange, s transport.State) {
	state := s.(*RequestState) // a result of NewState
	kind := knative.KindOf(x)
	if kind.Answered() {
		p.serveProbe(kind, x, state)
		return
	}

	limit, fresh := p.Limit, true
	if kind == observation.KubeletRequest {
		peer, may := kubeletPeer(x)
		may = may && state.rejected == observation.OK
		if may && p.Drain.Draining() {
			send(x, plain(observation.Draining))
			return
		}
		if may && p.kubelet.enter(peer) {
			defer p.kubelet.leave(peer)
			limit, fresh = nil, false
		} else {
			kind = observation.Traffic
		}
	}

	o := &state.seen
	*o = observation.Observation{}
	o.Exchange, o.Kind, o.Start, o.Line = x, kind, time.Now(), x.Line()
	o.Excluded = kind == observation.Traffic && p.Exclude.has(o)
	o.Proxied = x.Header(knative.ProxyRequest) == knative.ActivatorValue
	fresh = fresh && !o.Excluded

	state.begin(&p.Clocks, o.Start)
	if kind == observation.KubeletRequest {
		state.most = kubeletTime
	}
	if state.trace = nil; p.Trace != nil && fresh {
		if state.trace = p.Trace(x); state.trace != nil {
			o.TraceID, o.Sampled = state.trace.ID(), state.trace.Sampled()
		}
	}
	p.Drain.arrive(x, state, fresh)
	defer p.Drain.leave(state)
	if fresh { // the statistics include only requests that reset the quiet period
		p.Stats.In(o.Start, o.Proxied)
	}
	held := false
	defer func() {
		if fresh && !held {
			p.Stats.Out(time.Now(), o.Proxied)
		}
	}()

	held = p.forward(limit, fresh, x, state, o)
	if o.Reason != observation.OK && !o.Begun {
		finish(x, o)
	}
	blameDeadline(o, x)
	o.End, o.Phase = time.Now(), state.Phase()
	o.Uploading = state.endedUpload(o.End)
	p.Observe(o)
	if state.trace != nil {
		state.trace.End(o)
	}
}

// blameDeadline changes the reason of a gRPC call to client-gone if the user container did not complete the call
// because the timeout of the client expired. The user container either resets the stream with CANCEL, or responds
// with DEADLINE_EXCEEDED, which grpc-go sends if it notices the timeout first.
func blameDeadline(o *observation.Observation, x transport.Exchange) {
	switch {
	case o.Reason == observation.AppReset && canceledAtDeadline(o, x):
		if o.Reset && !o.Begun {
			o.Status = observation.ClientGone.Status()
		}
	case o.Reason == observation.OK && o.RPC == observation.GRPCStatusOf(grpcDeadlineExceeded) && isExpiredCall(o, x):
		o.Status, o.Begun = observation.ClientGone.Status(), false // the same result as if the client had reset the stream first
	default:
		return
	}
	o.Reason = observation.ClientGone
}

// serveProbe responds to a probe. serveProbe and send are separate functions because their
// variables would otherwise increase the stack of each waiting request.
func (p *Proxy) serveProbe(kind observation.Kind, x transport.Exchange, state *RequestState) {
	start := time.Now()
	a := plain(state.rejected)
	if state.rejected == observation.OK {
		a = p.answerProbe(kind, x)
	}
	if !state.reset {
		x.Answer(&a)
	}
	if p.Probed != nil {
		o := &state.seen
		*o = observation.Observation{Exchange: x, Kind: kind, Start: start, End: time.Now()}
		o.Line = x.Line()
		o.Status, o.Reason, o.Out = a.status, a.reason, a.size(o.Method)
		p.Probed(o)
	}
}

// finish sends the response to a request that failed before the user container responded. It sends
// no response if the client has disconnected or the stream was reset.
func finish(x transport.Exchange, o *observation.Observation) {
	o.Status = o.Reason.Status()
	if o.Reason != observation.ClientGone && !o.Reset {
		o.Status, o.Out, o.RPC = send(x, answerFor(o, x))
	}
}

// send sends a response and returns its status, the length of its content and its gRPC status.
//
//go:noinline
func send(x transport.Exchange, a answer) (status int, size int64, rpc observation.GRPCStatus) {
	x.Answer(&a)
	return a.status, a.size(x.Line().Method), observation.GRPCStatusOf(a.grpc)
}

// forward waits for a slot and holds the slot until the exchange with the user container has ended.
// If held is true, hold releases the slot later.
func (p *Proxy) forward(limit *Limit, counted bool, x transport.Exchange, state *RequestState, o *observation.Observation) (held bool) {
	if state.rejected != observation.OK {
		o.Reason, o.Reset = state.rejected, state.reset
		return false
	}
	if reason := limit.acquire(x, state); reason != observation.OK {
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
	state.enter(observation.Dialling)
	o.Result = x.Forward(state)
	o.Reason, o.Err = reasonOf(o.Err), detailOf(o.Err)
	if o.Held != nil {
		p.startHold(limit, counted, state, o)
		return true
	}
	return false
}

// startHold starts hold for an aborted exchange. It is not inlined, so that the stack of a request
// stays small.
//
//go:noinline
func (p *Proxy) startHold(limit *Limit, counted bool, state *RequestState, o *observation.Observation) {
	go p.hold(limit, limit.hold(&state.ticket), counted, broken{
		o.Held, o.Reason, o.Slot, o.Proxied, observation.Shown(o.Method), observation.Shown(o.Path()),
	})
	o.Held = nil
}

// hold keeps the slot of an aborted request, and its entry in the statistics, while the user
// container is still processing the request, but at most for p.Grace. The drain does not wait for
// this request, because no client is waiting for the response.
func (p *Proxy) hold(limit *Limit, t *ticket, counted bool, broken broken) {
	began := time.Now()
	answered := broken.held.Wait(p.Grace)
	now := time.Now()
	var last observation.HeldRequests
	switch {
	case answered:
		last.Answered = now
	case now.Sub(began) >= p.Grace: // otherwise, the user container has closed the connection
		last = observation.HeldRequests{Expired: now, Method: broken.method, Path: broken.path, Waited: now.Sub(broken.slot)}
	}
	limit.endHeld(t, heldResult(broken.reason, answered, began.Sub(broken.slot), now.Sub(began)), last)
	if counted {
		p.Stats.Out(now, broken.proxied)
	}
}

// broken is an exchange that was aborted while the user container processed the request.
type broken struct {
	held    transport.Held
	reason  observation.Reason
	slot    time.Time // when the request got its slot
	proxied bool
	method  string // truncated for display, like path
	path    string
}

// has reports whether the request is excluded.
func (e *Exclude) has(o *observation.Observation) bool {
	if len(e.UserAgents) > 0 {
		agent := o.Exchange.Header(transport.UserAgent)
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
