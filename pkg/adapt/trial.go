package adapt

import (
	"math"
	"time"
)

// The steps from a base to a candidate, as the logarithm of their ratio.
const (
	firstStep  = math.Ln2
	changeStep = 0.4 // after a change
	finestStep = 0.2 // with which the search ends

	// stepOfSpread makes the last step larger where app times differ much from one
	// another: a small gain would take too many requests to be seen.
	stepOfSpread = 0.16
)

// How a trial is decided.
const (
	// timeWeight is how much app time counts against throughput. A limit that grows must
	// bring throughput that grows by about this part of it, in logarithms.
	timeWeight = 0.12

	// errorWeight is how much the part of requests that succeed counts.
	errorWeight = 5

	// maxErrors is the part of requests that fail from which on the limit does not grow.
	maxErrors = 0.1

	certain   = 2.5  // standard errors by which a trial is decided early
	precision = 0.12 // of the elasticity of throughput, with which it is decided anyway
	doubt     = 0.5  // standard errors by which a higher limit must be better: the lower one, if in doubt
	maxTurns  = 40   // for each of the two limits

	straight = 0.8 // elasticity from which on throughput grows as the limit does
	flat     = 0.1 // elasticity below which it does not grow
)

// How long nothing is tried in a direction once a limit is found there to be worse.
const (
	firstRest   = 5 * time.Second // doubles each time
	maxRest     = 80 * time.Second
	longestRest = 4 * time.Minute // for candidates that cost much

	// maxLoss is the part of throughput that may be lost to candidates below.
	maxLoss = 0.01

	// Candidates above with which requests take harm times as long are in force for less
	// than one part in rareness of the time: the 99th percentile does not see them.
	harm     = 1.22
	rareness = 120
)

// A trial compares the base with a candidate.
type trial struct {
	limit           int // the candidate; 0: it is not chosen yet
	base, candidate tally
	turns           int
	lasted          time.Duration // with the candidate in force
	watch           watch         // of the app time with the candidate
}

// add adds a window of the candidate. A trial compares what is of the same seconds: once
// the app time with the candidate is no longer what it was, what was seen before says
// nothing of now, whether or not the app time at the base has changed, too.
func (t *trial) add(w *tally, lasted time.Duration) {
	t.lasted += lasted
	if t.candidate.good > 0 {
		t.watch.expected = t.candidate.mean()
		if changed, _ := t.watch.note(w); changed {
			t.base, t.candidate, t.watch = tally{}, tally{}, watch{}
		}
	}
	t.candidate.add(w)
}

// direction is where a candidate is.
type direction int

const (
	down direction = iota
	up
)

// A search says where the next candidate is.
type search struct {
	direction direction
	step      float64
	finest    float64
	far       bool // the next candidate below may be as far away as the app time says
	rejected  int  // candidates in a row, with the finest step
	found     bool // neither neighbour is better
	lowest    lowest

	// By direction, once it is found.
	rest  [2]time.Duration
	until [2]time.Time
}

// begin begins a search.
func (s *search) begin(step float64, d direction) {
	s.step, s.direction, s.far = step, d, true
	s.found, s.rejected = false, 0
	s.wake()
}

// wake ends all rests.
func (s *search) wake() { s.rest, s.until = [2]time.Duration{firstRest, firstRest}, [2]time.Time{} }

// next puts the limit in force that the base is to be compared with, or the base for
// another window.
func (l *Limiter) next(now time.Time) {
	s, t := &l.search, &l.trial
	for tries := 0; t.limit == 0 && tries < 2; tries++ {
		if s.found && now.Before(s.until[s.direction]) {
			s.direction = 1 - s.direction
			continue
		}
		candidate := l.candidate()
		switch {
		case s.direction == up && t.base.failed > maxErrors*t.base.all:
			l.reason = Errors
		case candidate != l.base:
			t.limit = candidate
			continue
		case s.direction == up:
			l.reason = Ceiling
		default:
			l.reason = Floor
		}
		s.reject(now, 0)
	}
	if t.limit == 0 {
		*t = trial{}
		l.put(now, l.base)
		return
	}
	t.turns++
	l.put(now, t.limit)
}

// candidate returns the limit to compare the base with in the search's direction; the base
// itself: there is none.
func (l *Limiter) candidate() int {
	base, s := float64(l.base), &l.search
	if s.direction == up {
		return bounded(base*math.Exp(s.step), l.base+1, l.max)
	}
	step := s.finest
	if s.far && !s.found && s.lowest.mean > 0 {
		// The throughput of now with the app time of then is that of so many requests. It is
		// gone to in steps: the app may become faster again, which is seen late from below.
		step = min(max(math.Log(l.trial.base.mean()/s.lowest.mean), s.finest), s.step)
	}
	return max(bounded(base*math.Exp(-step), l.min, l.base-1), l.min)
}

// reject notes that the base is better than the candidate, and that nothing is to be tried
// in its direction for at least so long.
func (s *search) reject(now time.Time, rest time.Duration) {
	d := s.direction
	s.direction = 1 - d
	s.until[d] = now.Add(max(s.rest[d], rest))
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

// An outcome is what a trial has shown.
type outcome struct {
	decided    bool
	better     bool    // the candidate
	elasticity float64 // growth of throughput over growth of the limit, in logarithms
}

// outcome compares the candidate with the base.
func (t *trial) outcome(base int) (o outcome) {
	growth := math.Log(float64(t.limit) / float64(base))
	throughput := growth - math.Log(t.candidate.mean()/t.base.mean())
	o.elasticity = throughput / growth

	success := func(y *tally) (share, variance float64) { return y.good / y.all, y.failed / y.all / y.good }
	successBase, varianceBase := success(&t.base)
	successThere, varianceThere := success(&t.candidate)
	power := throughput - timeWeight*growth + errorWeight*math.Log(successThere/successBase)
	sigma := math.Sqrt(t.base.variance() + t.candidate.variance() + errorWeight*errorWeight*(varianceBase+varianceThere))

	o.better = power > 0 && growth < 0 || power > doubt*sigma
	o.decided = math.Abs(power) > certain*sigma || sigma <= precision*math.Abs(growth)
	if !o.decided && t.turns >= maxTurns {
		o.decided, o.better = true, o.better && growth < 0
	}
	return o
}

// decide ends the trial if it has shown enough, and reports whether it did.
func (l *Limiter) decide(now time.Time) bool {
	o := l.trial.outcome(l.base)
	if !o.decided {
		return false
	}
	t, was := l.trial, l.base
	l.trial = trial{}
	// Where throughput stops growing all at once, it does so here.
	least, most := float64(min(t.limit, was)), float64(max(t.limit, was))
	knee := least * math.Pow(most/least, min(max(o.elasticity, 0), 1))
	switch {
	case !o.better:
		if math.Log(most/least) > changeStep {
			l.base = bounded(knee, l.min, l.max)
		}
		l.search.reject(now, t.rest(was, o.elasticity))
		if l.search.found && l.base == was {
			l.reason = l.settledReason()
		}
	case t.limit > was:
		l.rise(t.limit, knee, o.elasticity)
	default:
		l.fall(knee, o.elasticity)
	}
	if l.base != was || l.watch.expected == 0 {
		l.watch = watch{expected: t.base.mean()}
	}
	l.put(now, l.base)
	return true
}

// settledReason is why a base is kept to whose neighbours are worse.
func (l *Limiter) settledReason() Reason {
	switch l.base {
	case l.max:
		return Ceiling
	case l.min:
		return Floor
	}
	return Steady
}

// rise moves the base up towards a candidate that is better.
func (l *Limiter) rise(candidate int, knee, elasticity float64) {
	s := &l.search
	l.reason, l.base = Growing, bounded(knee, l.base+1, candidate)
	s.rejected = 0
	s.wake()
	switch {
	case elasticity <= straight:
		s.step = max(s.step/2, s.finest)
	case s.found:
		l.base = candidate
		s.begin(changeStep, up)
	default:
		l.base = candidate
		// Larger again after small steps, but a second one like the first might go far beyond
		// what the app can take.
		s.step = min(2*s.step, changeStep)
	}
}

// fall moves the base down to where throughput is as great.
func (l *Limiter) fall(knee, elasticity float64) {
	s := &l.search
	l.reason, l.base = AppTime, bounded(knee, l.min, l.base-1)
	s.rejected = 0
	s.wake()
	if s.found && elasticity < flat {
		s.begin(changeStep, down)
	}
}

// rest returns for how long a candidate that was worse is not to be tried again, for what
// it costs.
func (t *trial) rest(base int, elasticity float64) time.Duration {
	if t.limit < base {
		loss := 1 - math.Pow(float64(t.limit)/float64(base), elasticity)
		return min(time.Duration(float64(t.lasted)*loss/maxLoss), longestRest)
	}
	if t.candidate.mean() > harm*t.base.mean() {
		return min(rareness*t.lasted, longestRest)
	}
	return 0
}
