package simulation

import (
	"math"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
)

// A Gate admits requests to the application. [adapt.Limiter] implements Gate.
type Gate interface {
	State() observation.LimitState
	Free() bool
	Admit(now time.Time, s *adapt.Slot, path uint32)
	AwaitClient(now time.Time, s *adapt.Slot)
	ClientReady(now time.Time, s *adapt.Slot)
	Stream(now time.Time, s *adapt.Slot)
	End(now time.Time, s *adapt.Slot, r adapt.Result)
	Tick(now time.Time, waited time.Duration)
}

// plain is a Gate without special cases for streams and slow clients. Each admitted request holds a
// slot until it ends.
type plain struct {
	running int
	since   map[*adapt.Slot]plainSlot
	limit   interface {
		limit() int
		done(now time.Time, took time.Duration, inFlight int, failed bool)
	}
}

type plainSlot struct {
	since    time.Time
	inFlight int
}

func (p *plain) State() observation.LimitState    { return observation.LimitState{Limit: p.limit.limit()} }
func (p *plain) Free() bool                       { return p.running < p.limit.limit() }
func (*plain) AwaitClient(time.Time, *adapt.Slot) {}
func (*plain) ClientReady(time.Time, *adapt.Slot) {}
func (*plain) Stream(time.Time, *adapt.Slot)      {}
func (*plain) Tick(time.Time, time.Duration)      {}
func (p *plain) Admit(now time.Time, s *adapt.Slot, _ uint32) {
	p.running++
	p.since[s] = plainSlot{now, p.running}
}

func (p *plain) End(now time.Time, s *adapt.Slot, r adapt.Result) {
	slot := p.since[s]
	delete(p.since, s)
	p.running--
	p.limit.done(now, now.Sub(slot.since), slot.inFlight, r != adapt.Answered)
}

// Fixed returns a fixed limit.
func Fixed(limit int) Gate { return &plain{since: map[*adapt.Slot]plainSlot{}, limit: fixed(limit)} }

type fixed int

func (f fixed) limit() int                             { return int(f) }
func (fixed) done(time.Time, time.Duration, int, bool) {}

// Gradient2 returns a Gate with the algorithm Gradient2 of Netflix's concurrency-limits library and
// its default settings: windows of one second, a long average of 600 windows, and a minimum of 20.
func Gradient2(maxLimit int) Gate {
	return &plain{since: map[*adapt.Slot]plainSlot{}, limit: &gradient2{estimate: min(20, float64(maxLimit)), max: float64(maxLimit)}}
}

type gradient2 struct {
	estimate, max float64
	long          float64 // long average of the round-trip time in seconds
	windows       int
	end           time.Time
	sum           float64
	samples       int
	inFlight      int
}

func (g *gradient2) limit() int { return int(g.estimate) }

func (g *gradient2) done(now time.Time, took time.Duration, inFlight int, _ bool) {
	g.sum += took.Seconds()
	g.samples++
	g.inFlight = max(g.inFlight, inFlight)
	if g.samples < 10 || now.Before(g.end) {
		return
	}
	short := g.sum / float64(g.samples)
	n := g.inFlight
	g.sum, g.samples, g.inFlight, g.end = 0, 0, 0, now.Add(time.Second)
	g.update(short, n)
}

func (g *gradient2) update(short float64, inFlight int) {
	const warmUp, window, tolerance, queue, smoothing = 10, 600, 1.5, 4, 0.2
	if g.windows++; g.windows <= warmUp {
		g.long += (short - g.long) / float64(g.windows)
	} else {
		g.long += (short - g.long) * 2 / (window + 1)
	}
	if g.long/short > 2 {
		g.long *= 0.95
	}
	if float64(inFlight) < g.estimate/2 {
		return
	}
	gradient := max(0.5, min(1, tolerance*g.long/short))
	next := g.estimate*(1-smoothing) + (g.estimate*gradient+queue)*smoothing
	g.estimate = max(min(20, g.max), min(g.max, next))
}

// Vegas returns a Gate with the algorithm Vegas of Netflix's concurrency-limits library.
func Vegas(maxLimit int) Gate {
	return &plain{since: map[*adapt.Slot]plainSlot{}, limit: &vegas{estimate: min(20, float64(maxLimit)), max: float64(maxLimit)}}
}

type vegas struct {
	estimate, max float64
	least         float64 // round-trip time without load, in seconds
	samples       int
}

func (v *vegas) limit() int { return int(v.estimate) }

func (v *vegas) done(_ time.Time, took time.Duration, inFlight int, failed bool) {
	const probe = 30
	rtt := max(took.Seconds(), 1e-6)
	v.samples++
	if v.least == 0 || rtt < v.least || float64(v.samples) > probe*v.estimate {
		v.least, v.samples = rtt, 0
		return
	}
	log := math.Log10(max(v.estimate, 10))
	queue := math.Ceil(v.estimate * (1 - v.least/rtt))
	next := v.estimate
	switch {
	case failed:
		next -= log
	case 2*float64(inFlight) < v.estimate:
		return
	case queue <= log:
		next += 6 * log
	case queue < 3*log:
		next += log
	case queue > 6*log:
		next -= log
	}
	v.estimate = max(1, min(v.max, next))
}
