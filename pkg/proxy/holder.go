package proxy

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// maxHolders is the maximum number of requests that [Proxy.Holders] returns.
const maxHolders = 20

// Holders returns the oldest 20 requests that hold a slot, or that run outside the limit. It does
// not include aborted requests for which a slot is held. [Limit.Held] returns the number of these
// slots.
func (p *Proxy) Holders() []observation.Holder {
	d := p.Drain
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []observation.Holder
	for state := d.head; state != nil && len(all) < maxHolders; state = state.flight.next {
		phase := state.Phase()
		if phase == observation.Queued {
			continue
		}
		line := &state.seen.Line // set before the request was added to the list
		all = append(all, observation.Holder{
			Method: observation.Shown(line.Method),
			Path:   observation.Shown(line.Path()),
			Phase:  phase.String(),
			Since:  state.start,
			Slot:   state.seen.Slot, // set before the phase Dialling

			Uploading: phase < observation.Streaming && state.awaitsBody(),

			Counted: p.Limit.exemption(&state.ticket),
		})
	}
	return all
}

// maxCounted is the maximum number of requests that [Proxy.InApp] examines. It limits the time during which InApp
// holds the lock to a few milliseconds.
const maxCounted = 10_000

// InApp counts the client requests in the user container, except excluded requests. app.Long counts the pending
// requests that have waited for at least the duration long. If more than maxCounted requests are in flight, the newest
// requests are not counted.
func (p *Proxy) InApp(long time.Duration) (app observation.AppRequests) {
	app.Held = p.Limit.heldRequests()
	before := time.Now().Add(-long)
	d := p.Drain
	d.mu.Lock()
	defer d.mu.Unlock()
	for state, n := d.head, 0; state != nil && n < maxCounted; state, n = state.flight.next, n+1 {
		state.count(&app, before)
	}
	return app
}

// count adds the request to app if the request is in the user container and is not excluded. It also adds a pending
// request to app.Long if its wait began at the time before or earlier.
func (state *RequestState) count(app *observation.AppRequests, before time.Time) {
	if state.seen.Kind != observation.Traffic || state.seen.Excluded { // set before the request was added to the list
		return
	}
	switch state.Phase() {
	case observation.Dialling, observation.Waiting:
		if state.awaitsBody() {
			return // the client has not sent the complete request
		}
		app.Pending++
		since := state.seen.Slot // set before the phase Dialling
		if sent := state.start.Add(time.Duration(state.active.Load())); sent.After(since) {
			since = sent
		}
		if !since.After(before) {
			app.Long++
		}
		if app.Oldest.IsZero() || since.Before(app.Oldest) {
			app.Oldest = since
		}
	case observation.Streaming:
		app.Responding++
	case observation.Tunnelled:
		app.Upgraded++
	}
}

// exemption returns the reason why a request is exempt from the adaptive limit. It returns "counted" if the request is
// not exempt, or if the limit is fixed or nil.
func (m *Limit) exemption(t *ticket) string {
	if m == nil || m.adaptive == nil {
		return "counted"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return t.slot.Exemption().String()
}
