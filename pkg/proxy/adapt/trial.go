package adapt

import (
	"math"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// The distances between the base and a candidate, as the logarithm of the ratio of the two limits.
const (
	changeStep = 0.4      // first and largest step of a search
	finestStep = 0.2      // smallest step
	failedStep = math.Ln2 // step to a lower candidate while most responses are errors

	// The last steps of a search are stepOfSpread times the spread of the application times,
	// clamped to the range from finestStep to changeStep. If the spread is large, the comparison of
	// two similar limits needs many requests.
	stepOfSpread = 0.16
)

// Constants for deciding whether a candidate is better.
const (
	// A higher limit is better if the logarithm of the goodput increases by more than timeWeight * x, where x is the
	// increase in the logarithm of the limit. In terms of the exponent w in the package comment, timeWeight is
	// w / (1 + w).
	timeWeight = 0.08

	// errorWeight is the weight of log(share of successful responses), relative to the weight 1 of
	// log(goodput).
	errorWeight = 2

	// If the logarithm of the share of successful responses decreases by more than errorDrop,
	// the higher limit is considered the cause of the errors.
	errorDrop = 0.05

	// If the goodput grows in proportion to the limit, and the logarithm of the goodput grows by at
	// least fullGain, an increase in the errors does not matter.
	fullGain = 0.3

	certainUp   = 2.5  // number of standard errors by which the powers must differ to end a trial of a higher limit early
	certainDown = 3.0  // number of standard errors by which the powers must differ to end a trial of a lower limit early
	precision   = 0.12 // a trial ends if the standard error of the power, divided by the step, is at most this value
	doubt       = 0.25 // minimum difference between the powers, in standard errors, that makes a candidate the better limit
	maxTurns    = 40   // maximum number of windows of the candidate
	minTurns    = 4    // minimum number of pairs of windows from which the variance is estimated

	// headroom is the ratio of the base to the limit at which the goodput stops growing. It is
	// greater than 1, because a base that is slightly too low reduces the goodput, but a base that
	// is slightly too high only moves requests from the queue to the application.
	headroom = 1.15

	straight = 0.8 // above this elasticity, the goodput is considered proportional to the limit
	flat     = 0.1 // below this elasticity, the goodput is considered constant

	// If only one of the two limits has successful responses, the trial ends after this number of
	// successful responses.
	fewGood = 3
)

// Pauses between two trials in the same direction. They apply after the limit is found.
const (
	firstRest   = 5 * time.Second // first pause; each further pause is twice as long
	maxRest     = 80 * time.Second
	longestRest = 4 * time.Minute // maximum pause that is computed from the effect of a candidate

	// maxLoss is the share of the goodput that may be lost because of trials. The pause after a
	// candidate is long enough to keep the loss below this share, but at most longestRest.
	maxLoss = 0.01

	// maxTrialLoss is the share of the goodput that may be lost during a trial. If the loss is
	// greater at the end of a window of the base, the base remains in effect for another window.
	maxTrialLoss = 0.015

	// If a higher candidate multiplies the application time by more than harm, the next pause is at least rareness
	// times as long as the candidate was in effect. The candidate then has little effect on the 99th percentile. This
	// minimum is at most longestRest, and does not apply while requests wait longer than the application time.
	harm     = 1.22
	rareness = 120
)

// A trial compares the base with a candidate.
type trial struct {
	limit           int // the candidate; 0 if it has not been chosen yet
	base, candidate tally
	turns           int           // number of windows of the candidate, including the current window
	began           time.Time     // start of the first window of the candidate
	lasted          time.Duration // how long the candidate was in effect in the completed windows
	watch           watch         // detects a change in the mean with the candidate

	lastBase tally // the last window of the base

	// The following fields contain sums over pairs of consecutive windows. The difference of a pair
	// is the difference between the logarithms of the two means.
	pairs, diffs, squares float64 // number of pairs, and the sums of the differences and of their squares
}

func (t *trial) addBase(w *tally) {
	t.lastBase = *w
	t.base.add(w)
}

// add adds a window of the candidate. If the mean with the candidate has changed, add discards the
// earlier windows, because a trial must compare windows from the same period.
func (t *trial) add(w *tally, lasted time.Duration) {
	t.lasted += lasted
	if t.candidate.samples() > 0 {
		t.watch.expected = t.candidate.work()
		if changed, _ := t.watch.note(w); changed {
			t.base, t.candidate, t.watch = tally{}, tally{}, watch{}
			t.pairs, t.diffs, t.squares = 0, 0, 0
		}
	}
	t.candidate.add(w)
	if t.lastBase.samples() > 0 && w.samples() > 0 {
		d := math.Log(w.mean() / t.lastBase.mean())
		t.pairs++
		t.diffs += d
		t.squares += d * d
	}
}

// variance returns the variance of the difference between the logarithms of the two means. It is
// the larger of two estimates. If requests are correlated, the variance between windows is larger
// than the variance computed from the requests.
func (t *trial) variance() float64 {
	v := t.base.variance() + t.candidate.variance()
	if t.pairs >= minTurns {
		mean := t.diffs / t.pairs
		v = max(v, (t.squares/t.pairs-mean*mean)/(t.pairs-1))
	}
	return v
}

// A direction indicates whether a candidate is lower or higher than the base.
type direction int

const (
	down direction = iota
	up
)

// A search contains the state from which the next candidate is chosen.
type search struct {
	direction direction // direction of the next candidate
	step      float64   // step to a higher candidate; if far is true, also the maximum step to a lower candidate
	finest    float64   // usual step to a lower candidate, and minimum of the field step; depends on the spread of the application times
	far       bool      // the next lower candidate is computed from lowest
	rejected  int       // number of consecutive candidates with the finest step that were rejected
	found     bool      // neither neighbor of the base is better
	compared  [2]bool   // by direction; since the last change of the base, a candidate was rejected or there was none
	lowest    lowest

	// The following pauses between trials apply after the limit is found.
	rest    [2]time.Duration // by direction; minimum length of the next pause
	until   [2]time.Time     // by direction; end of the current pause
	pressed time.Time        // end of the pause for higher candidates while requests wait longer than the application time

	// failing is the lowest candidate above the base that causes errors; 0 if there is none.
	// The next candidates are lower than failing. If the base is failing-1, failing is tried again
	// after failingUntil.
	failing      int
	failingUntil time.Time
}

// begin starts a search in the direction d with the given step.
func (s *search) begin(step float64, d direction) {
	s.step, s.direction, s.far = step, d, true
	s.finest = max(s.finest, finestStep)
	s.found, s.rejected = false, 0
	s.moved()
}

// moved ends the pauses of both directions and discards the comparisons, because the base or the
// application has changed.
func (s *search) moved() {
	s.rest, s.until = [2]time.Duration{firstRest, firstRest}, [2]time.Time{}
	s.pressed, s.compared = time.Time{}, [2]bool{}
}

// pauses reports whether the search must wait before it tries a candidate in the current direction.
func (c *controller) pauses(now time.Time) bool {
	s := &c.search
	if s.direction == up && c.base+1 == s.failing && now.Before(s.failingUntil) {
		return true
	}
	if s.direction == down && c.trial.base.isMixed() {
		return true
	}
	if !s.found || !now.Before(s.until[s.direction]) {
		return false
	}
	return s.direction == down || !c.pressed() || now.Before(s.pressed)
}

// next begins the next window, with a candidate if one may be tried, and otherwise with the base.
func (c *controller) next(now time.Time) {
	s, t := &c.search, &c.trial
	if t.limit == 0 && t.base.samples() == 0 {
		t.limit = c.further(c.base)
	}
	if t.limit == 0 && t.base.mostFailed() && !s.compared[down] {
		s.direction = down
	}
	for tries := 0; t.limit == 0 && tries < 2; tries++ {
		if c.pauses(now) {
			s.direction = 1 - s.direction
			continue
		}
		if candidate := c.candidate(); candidate != c.base {
			t.limit = candidate
			continue
		}
		if c.reason != observation.LimitErrors {
			c.reason = observation.LimitFloor
			if s.direction == up {
				c.reason = observation.LimitCeiling
			}
		}
		s.reject(now, 0, 0)
	}
	if t.limit == 0 || t.limit == c.base {
		*t = trial{}
		c.put(now, c.base)
		return
	}
	if t.turns == 0 {
		t.began = now
	}
	t.turns++
	c.put(now, t.limit)
}

// further returns the candidate after limit if neither the base nor limit has successful
// responses. If the application does not respond, the result is twice the limit. If all responses
// are errors, it is half of the limit.
func (c *controller) further(limit int) int {
	if c.reason == observation.LimitNoAnswers {
		return min(2*limit, c.max)
	}
	return max(limit/2, c.min)
}

// candidate returns the next limit in the direction of the search, or the base if there is
// none.
func (c *controller) candidate() int {
	base, s := float64(c.base), &c.search
	if s.direction == up {
		limit := bounded(base*math.Exp(s.step), c.base+1, c.max)
		if s.failing > 0 && limit >= s.failing {
			limit = max((c.base+s.failing)/2, c.base+1)
		}
		return limit
	}
	step := s.finest
	if c.trial.base.mostFailed() {
		// A small step might have no effect on the share of errors.
		step = failedStep
	} else if s.far && !s.found && s.lowest.mean > 0 {
		// With the lowest known mean, the limit at this distance would have the same goodput as the
		// base. The base approaches this limit in several steps, because a limit that is too low
		// delays the detection of a faster application.
		step = min(max(math.Log(c.trial.base.mean()/s.lowest.mean), s.finest), s.step)
	}
	return max(bounded(base*math.Exp(-step), c.min, c.base-1), c.min)
}

// reject records that the candidate is worse than the base, or that there is no candidate in this
// direction. The next candidate is in the other direction. After the limit is found, no candidate in
// this direction is tried for at least the duration rest. While requests wait longer than the
// application time, a higher candidate is tried after the duration pressed, but not before firstRest.
func (s *search) reject(now time.Time, rest, pressed time.Duration) {
	d := s.direction
	s.direction = 1 - d
	s.compared[d] = true
	s.until[d] = now.Add(max(s.rest[d], rest))
	if d == up {
		s.pressed = now.Add(max(firstRest, pressed))
	}
	if s.found {
		s.rest[d] = min(2*s.rest[d], maxRest)
		return
	}
	coarse := d == up && s.step > s.finest || d == down && s.far
	s.step = max(s.step/2, s.finest)
	if d == down {
		s.far = false
	}
	if coarse {
		s.rejected = 0
		return
	}
	s.rejected++
	s.found = s.rejected >= 2
}

// fail records that a higher candidate causes errors. It ends the pause for the candidates between
// the base and this candidate, because these candidates might not cause errors.
func (s *search) fail(candidate int, until time.Time) {
	s.failing, s.failingUntil = candidate, until
	s.until[up], s.pressed = time.Time{}, time.Time{}
}

// An outcome is the result of a trial.
type outcome struct {
	decided    bool
	better     bool    // the candidate is better than the base
	elasticity float64 // log(ratio of the goodputs) / log(ratio of the limits)
	errors     float64 // estimated effect of the limit on the logarithm of the share of successful responses
	silent     bool    // all responses with both limits are errors, or there are no responses
}

// outcome compares the candidate with the base.
func (t *trial) outcome(base int) (o outcome) {
	b, a := &t.base, &t.candidate
	growth := math.Log(float64(t.limit) / float64(base))
	goodput := growth - math.Log(a.mean()/b.mean())
	o.elasticity = goodput / growth
	shareBase, varianceBase := b.success()
	shareThere, varianceThere := a.success()
	// If the goodput grows with the limit, load does not cause the errors. Instead, the clients of
	// the failed requests send more requests because the queue is shorter. If the goodput grows by
	// less than fullGain, a large increase in the errors still matters, because some applications
	// reject requests above a certain number.
	flatness := 1 - min(max(o.elasticity, 0), 1)
	small := (1 - flatness) * (1 - min(math.Abs(goodput)/fullGain, 1))
	o.errors = flatness*math.Log(shareThere/shareBase) + small*(shareThere-shareBase)
	if b.samples() == 0 || a.samples() == 0 {
		o.silent = b.samples() == 0 && a.samples() == 0
		o.decided = o.silent || b.samples()+a.samples() >= fewGood
		o.better = a.samples() > 0
		return o
	}

	power := goodput - timeWeight*growth + errorWeight*o.errors
	weightBase, weightThere := errorWeight*(flatness+small*shareBase), errorWeight*(flatness+small*shareThere)
	sigma := math.Sqrt(t.variance() + weightBase*weightBase*varianceBase + weightThere*weightThere*varianceThere)
	o.better = power > doubt*sigma
	certain := certainUp
	if growth < 0 {
		certain = certainDown
	}
	o.decided = math.Abs(power) > certain*sigma || sigma <= precision*math.Abs(growth)
	if !o.decided && t.turns >= maxTurns {
		o.decided, o.better = true, false
	}
	return o
}

// decide ends the trial and begins the next window if the result of the trial is clear. It reports
// whether the trial ended.
func (c *controller) decide(now time.Time) bool {
	o := c.trial.outcome(c.base)
	if !o.decided {
		return false
	}
	t, was := c.trial, c.base
	c.trial = trial{}
	// knee is the limit at which the goodput stops growing, assuming that the goodput of lower limits is
	// proportional to the limit.
	least, most := float64(min(t.limit, was)), float64(max(t.limit, was))
	knee := least * math.Pow(most/least, min(max(o.elasticity, 0), 1))
	if o.elasticity > flat {
		knee *= headroom
	}
	switch {
	case o.silent && c.further(t.limit) != t.limit:
		c.trial.limit = c.further(t.limit) // the next trial compares the same base with a further candidate
		c.trial.turns, c.trial.began = 1, now
		c.put(now, c.trial.limit)
		return true
	case o.silent:
		c.search.reject(now, 0, 0)
	case !o.better || t.limit < was && knee >= float64(was) && o.errors <= errorDrop:
		if math.Log(most/least) > changeStep && o.errors > -errorDrop {
			c.base = bounded(min(knee, most), c.min, c.max)
		}
		rest, pressed := t.rest(was, &o)
		c.search.reject(now, rest, pressed)
		switch {
		case o.errors < -errorDrop && t.limit > was:
			c.reason = observation.LimitErrors
			c.search.fail(t.limit, now.Add(pressed))
		case c.search.found && c.base == was:
			c.reason = c.settledReason()
		}
	case t.limit > was:
		c.rise(t.limit, knee, o.elasticity)
	default:
		c.fall(t.limit, knee, &o)
	}
	if c.base != was || c.watch.expected == 0 {
		if c.base != was {
			c.start = startup{}
			c.search.compared = [2]bool{}
		}
		c.watch = watch{expected: t.base.work()}
	}
	c.put(now, c.base)
	return true
}

// settledReason returns the reason for a base if both neighbors are worse.
func (c *controller) settledReason() observation.LimitReason {
	switch c.base {
	case c.max:
		return observation.LimitCeiling
	case c.min:
		return observation.LimitFloor
	}
	return observation.LimitSteady
}

// rise raises the base to a better candidate, or to knee if the goodput is not proportional to the
// limit.
func (c *controller) rise(candidate int, knee, elasticity float64) {
	s := &c.search
	c.reason, c.base = observation.LimitGrowing, bounded(knee, c.base+1, candidate)
	if candidate >= s.failing {
		s.failing = 0
	}
	s.rejected = 0
	s.moved()
	switch {
	case elasticity <= straight:
		s.step = max(s.step/2, s.finest)
	case s.found:
		c.base = candidate
		s.begin(changeStep, up)
	default:
		c.base = candidate
		// The step doubles, up to changeStep. With a larger step, the limit could exceed the capacity of the
		// application.
		s.step = min(2*s.step, changeStep)
	}
}

// fall lowers the base to knee, where the goodput is about the same. If the candidate reduces the
// errors, fall lowers the base to the candidate.
func (c *controller) fall(candidate int, knee float64, o *outcome) {
	s := &c.search
	c.reason = observation.LimitAppTime
	if o.errors > errorDrop {
		c.reason, knee = observation.LimitErrors, float64(candidate)
	}
	c.base = bounded(knee, c.min, c.base-1)
	s.rejected = 0
	s.moved()
	if s.found && o.elasticity < flat {
		s.begin(changeStep, down)
	}
}

// rest returns the minimum pause after a worse candidate. pressed is the pause while requests wait
// longer than the application time, and depends on the lost goodput. rest can be longer than
// pressed if the application time at the candidate is more than harm times the time at base.
func (t *trial) rest(base int, o *outcome) (rest, pressed time.Duration) {
	loss := o.loss(t.limit, base)
	pressed = min(time.Duration(float64(t.lasted)*loss/maxLoss), longestRest)
	if t.limit > base && t.candidate.mean() > harm*t.base.mean() {
		return min(rareness*t.lasted, longestRest), pressed
	}
	return pressed, pressed
}

// loss returns the share of the goodput that is lost while the candidate is in effect, or the share of successful
// responses that is lost, whichever is larger.
func (o *outcome) loss(limit, base int) float64 {
	growth := math.Log(float64(limit) / float64(base))
	return max(1-math.Exp(o.elasticity*growth), 1-math.Exp(o.errors), 0)
}

// isCostly reports whether the loss during the trial exceeds maxTrialLoss.
func (t *trial) isCostly(base int, now time.Time) bool {
	o := t.outcome(base)
	return t.lasted.Seconds()*o.loss(t.limit, base) > maxTrialLoss*now.Sub(t.began).Seconds()
}
