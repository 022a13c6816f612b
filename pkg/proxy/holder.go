package proxy

import (
	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// maxHolders is the maximum number of requests that [Proxy.Holders] returns.
const maxHolders = 20

// Holders returns the oldest 20 requests that hold a slot. It does not include the slots of clients
// that disconnected. [Limit.Held] returns the number of those slots.
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
			Method:  observation.Shown(line.Method),
			Path:    observation.Shown(line.Path()),
			Phase:   phase.String(),
			Since:   state.start,
			Counted: p.Limit.exemption(&state.ticket),
		})
	}
	return all
}

// exemption returns whether the adaptive limit applies to a request.
func (m *Limit) exemption(t *ticket) string {
	if m == nil || m.adaptive == nil {
		return "counted"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return t.slot.Exemption().String()
}
