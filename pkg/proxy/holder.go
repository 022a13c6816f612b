package proxy

import "time"

// maxHolders is the maximum number of requests that [Proxy.Holders] returns.
const maxHolders = 20

// A Holder describes a request that holds a slot.
type Holder struct {
	Method  string    `json:"method"` // truncated for display, like Path
	Path    string    `json:"path"`
	Phase   string    `json:"phase"`
	Since   time.Time `json:"since"`   // arrival time of the request
	Counted string    `json:"counted"` // "counted", or the reason for the exemption from the adaptive limit
}

// Holders returns the oldest 20 requests that hold a slot. It does not include the slots of clients
// that disconnected. [Limit.Held] returns the number of those slots.
func (p *Proxy) Holders() []Holder {
	d := p.Drain
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Holder
	for state := d.head; state != nil && len(all) < maxHolders; state = state.flight.next {
		phase := state.Phase()
		if phase == Queued {
			continue
		}
		line := &state.seen.Line // set before the request was added to the list
		all = append(all, Holder{
			Method:  Shown(line.Method),
			Path:    Shown(line.Path()),
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
