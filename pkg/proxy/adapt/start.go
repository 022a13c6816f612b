package adapt

import (
	"math"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// Constants of the startup phase. The elasticity is log(ratio of the goodputs) / log(ratio of the
// limits).
const (
	startGrows   = 0.5 // minimum elasticity at which the limit is doubled again
	startCertain = 2   // number of standard errors by which the elasticity must be below 1 to end the startup phase
	startTurns   = 4   // number of windows with one limit after which the limit is doubled even if the result is not clear
)

// A startup is the state of the startup phase, which doubles the limit until the goodput stops
// growing. The phase compares the windows of the last two limits. If the application becomes faster
// between these windows, the resulting limit may be too high, and the search lowers it again.
type startup struct {
	active  bool  // the startup phase has not ended
	before  tally // windows with the previous limit; the zero value if there was no previous limit
	current tally // windows with the current limit
	turns   int   // number of windows with the current limit
}

// endStart ends a window of the startup phase. It doubles the limit, ends the phase, or begins
// another window with the same limit.
func (c *controller) endStart(now time.Time, w *tally) {
	s := &c.start
	s.current.add(w)
	s.turns++
	if s.before.limit == 0 {
		c.double(now)
		return
	}
	o := s.elasticity()
	switch {
	case o.errors:
		c.search.failing = s.current.limit
		c.endSearchStart(now, s.before.limit, observation.LimitErrors)
	case o.value >= startGrows:
		c.double(now)
	case o.value+startCertain*o.sigma < 1 || c.base >= c.max:
		growth := float64(s.current.limit) / float64(s.before.limit)
		c.endSearchStart(now, bounded(headroom*float64(s.before.limit)*math.Pow(growth, min(max(o.value+o.sigma, 0), 1)), c.min, c.max), observation.LimitGrowing)
	case s.turns >= startTurns: // it is not clear that a higher limit is worse
		c.double(now)
	default:
		c.put(now, c.base)
	}
}

// double doubles the limit, or ends the startup phase if the limit has reached the ceiling.
func (c *controller) double(now time.Time) {
	s := &c.start
	if c.base >= c.max {
		c.endSearchStart(now, c.base, observation.LimitCeiling)
		return
	}
	s.before, s.current, s.turns = s.current, tally{}, 0
	c.reason, c.base = observation.LimitStarting, min(2*c.base, c.max)
	c.put(now, c.base)
}

// endSearchStart ends the startup phase. The search then begins with limit as the base.
func (c *controller) endSearchStart(now time.Time, limit int, why observation.LimitReason) {
	c.start = startup{}
	c.base, c.reason = limit, why
	direction := up
	if c.base >= c.max {
		direction = down
	}
	c.search.begin(changeStep, direction)
	c.trial, c.watch = trial{}, watch{}
	c.put(now, c.base)
}

// A startOutcome compares the last two limits of the startup phase.
type startOutcome struct {
	value, sigma float64 // elasticity of the goodput, and its standard error
	errors       bool    // the higher limit increases the share of errors, and this outweighs the increase in goodput
}

// elasticity returns the weighted mean of two estimates of the elasticity. The first estimate uses
// the goodput. The second estimate uses the typical application time, and is better if a few
// requests are very slow. The estimate with the smaller variance has the greater weight.
func (s *startup) elasticity() (o startOutcome) {
	b, a := &s.before, &s.current
	growth := math.Log(float64(a.limit) / float64(b.limit))
	byGoodput := 1 - math.Log(a.mean()/b.mean())/growth
	goodputVariance := (a.variance() + b.variance()) / (growth * growth)
	logAfter, varianceAfter := a.typical()
	logBefore, varianceBefore := b.typical()
	byTime := 1 - (logAfter-logBefore)/growth
	timeVariance := (varianceAfter + varianceBefore) / (growth * growth)

	weight := timeVariance / (goodputVariance + timeVariance)
	o.value = weight*byGoodput + (1-weight)*byTime
	o.sigma = math.Sqrt(goodputVariance * timeVariance / (goodputVariance + timeVariance))
	before, _ := b.success()
	after, _ := a.success()
	// If the goodput grows with the limit, load does not cause the errors. See [trial.outcome].
	flatness := 1 - min(max(byGoodput+math.Sqrt(goodputVariance), 0), 1)
	errors := flatness * math.Log(after/before)
	o.errors = errors < -errorDrop && byGoodput*growth+errorWeight*errors < 0
	return o
}
