// Package adapt finds the concurrency limit of an app while it runs, and tells from what
// was observed which limit would have been right.
//
// [Limiter] is the first of the two. It compares two limits: the one that it has chosen,
// the base, and a candidate beside it. They are in force in turns, each for a window, and
// what decides is the app time of the requests that end meanwhile. By Little's law n
// requests in flight that take t each are a throughput of n/t, so the app times at two
// limits say what throughput the larger one gains. The better one is that with the
// greater power, throughput / time^w: as long as throughput grows with the limit the larger
// one, and where only the app time does the smaller one.
//
// The limit never drops to a few requests to measure how long they take in an app that has
// nothing else to do. Both sides of a comparison are of the same seconds, so an app
// that becomes slower or faster by itself moves nothing. A candidate that costs much, in
// throughput or in app time, is rarely in force.
//
// The ideas and where they come from:
//
//   - A limit that follows the gradient of latency over requests in flight: Netflix,
//     concurrency-limits (Vegas, Gradient2), https://github.com/Netflix/concurrency-limits.
//   - To measure again and again, with jitter, how long requests take with fewer in flight:
//     the adaptive concurrency filter of Envoy, which by default admits very few meanwhile.
//   - Power, and its greatest value as the place to be: L. Kleinrock, Power and
//     deterministic rules of thumb for probabilistic problems in computer communications,
//     1979.
//   - Probes above and below, and the product of throughput and least latency as the place
//     to look: N. Cardwell and others, BBR: congestion-based congestion control, 2016.
//   - Noticing that something has changed: E. S. Page, Continuous inspection schemes, 1954.
//
// Nothing here has a clock, a goroutine or a lock: every call brings the time.
package adapt

import (
	"math"
	"strings"
	"time"
)

// MaxLimit is the ceiling of a [Limiter] that is given none.
const MaxLimit = 1000

// firstLimit is where the search begins: few enough for any app, and enough for the next
// limits to be measured soon.
const firstLimit = 4

// Bounds of a window.
const (
	minWindow  = 250 * time.Millisecond // longer than the pauses of most garbage collectors
	maxWindow  = 5 * time.Second
	minTimes   = 2  // app times that a window lasts at least
	maxTimes   = 20 // and at most, where that is longer than maxWindow
	settleTime = 3  // app times after a change of the limit that belong to no window
	minSamples = 16
	enough     = 0.01 // variance of the mean app time, relative to it, with which a window is over
	patience   = 4    // how much longer a window lasts in which few requests of a busy app have ended
)

// fullShare is the part of requests that must have filled the app up to the limit for a
// window to say anything of it.
const fullShare = 0.3

// Settings are the bounds of a limit.
type Settings struct {
	Min  int    // less than 1 is 1
	Max  int    // the ceiling; 0 is MaxLimit
	Seed uint64 // of the jitter
}

// Ceiling returns what the limit never exceeds.
func (s Settings) Ceiling() int {
	if s.Max <= 0 {
		return MaxLimit
	}
	return s.Max
}

// A Sample is a request that the app has ended.
type Sample struct {
	Took     time.Duration // in the app, without the wait for a slot
	InFlight int           // in the app when it came, itself included
	Failed   bool          // the app answered with an error, or not at all
}

// A Reason is why the limit is what it is: a word as programs have it, with hyphens.
type Reason string

// Words returns the reason as people read it.
func (r Reason) Words() string { return strings.ReplaceAll(string(r), "-", " ") }

// The reasons.
const (
	Starting  Reason = "starting"      // the search has begun
	Growing   Reason = "growing"       // throughput grew with the limit
	AppTime   Reason = "app-time-rose" // with the limit, and throughput did not grow
	Steady    Reason = "steady"        // neither more nor less is better
	Measuring Reason = "measuring"     // a candidate is in force
	Errors    Reason = "errors"        // too many requests fail for the limit to grow
	Ceiling   Reason = "ceiling"       // the limit may not be more
	Floor     Reason = "floor"         // the limit may not be less
	Idle      Reason = "idle"          // the limit is not reached, so nothing is learnt of it
)

// Reasons returns all of them.
func Reasons() []Reason {
	return []Reason{Starting, Growing, AppTime, Steady, Measuring, Errors, Ceiling, Floor, Idle}
}

// A State is what is decided at a moment.
type State struct {
	Limit  int // in force
	Base   int // the best limit so far; the one in force differs while a candidate is
	Reason Reason
	Found  bool // more and less than Base were tried and are worse; never at a bound, where one of them cannot be tried
}

// A Limiter is a limit that adapts. Its methods must not be called concurrently.
type Limiter struct {
	min, max int
	random   uint64

	base, limit int
	reason      Reason // of base

	since   time.Time // the limit is in force
	settled bool      // and the requests that end have come under it
	from    time.Time // the window began
	stretch float64   // of the window
	window  tally
	took    float64 // seconds in the app, average of late

	search search
	trial  trial
	watch  watch
}

// New returns a limit.
func New(s Settings) *Limiter {
	// Multiplied, by 2^64 over the golden ratio, so that seeds in a row differ in the high bits.
	l := &Limiter{max: s.Ceiling(), random: max(s.Seed*0x9e3779b97f4a7c15, 1), reason: Starting}
	l.min = min(max(s.Min, 1), l.max)
	l.base = min(max(firstLimit, l.min), l.max)
	l.search.begin(firstStep, up)
	l.put(time.Time{}, l.base)
	return l
}

// Limit returns how many requests may be in the app now.
func (l *Limiter) Limit() int { return l.limit }

// State returns what is decided.
func (l *Limiter) State() State {
	s := State{Limit: l.limit, Base: l.base, Reason: l.reason}
	s.Found = l.search.found && l.reason != Errors && l.base < l.max && (l.base > l.min || l.base == 1)
	if l.limit != l.base {
		s.Reason = Measuring
	}
	return s
}

// Done notes a request that ended at now. The limit may be another one afterwards.
//
// Streams, which last as long as people like, are no samples. What else takes very
// long counts as if it took less, so that a few do not outweigh all others.
func (l *Limiter) Done(now time.Time, s Sample) {
	took := s.Took.Seconds()
	if !l.settled {
		if l.since.IsZero() {
			l.since, l.took = now, took/maxTimes
		}
		if now.Sub(l.since).Seconds() >= settleTime*l.took {
			l.settled, l.from = true, now
		}
		return
	}
	l.window.note(min(took, max(maxTimes*l.took, minWindow.Seconds())), s.InFlight >= l.limit, s.Failed)
	if l.complete(now.Sub(l.from).Seconds()) {
		l.end(now)
	}
}

// complete reports whether the window is over after so many seconds.
func (l *Limiter) complete(lasted float64) bool {
	w := &l.window
	if lasted < l.stretch*max(minWindow.Seconds(), minTimes*l.took) {
		return false
	}
	if w.good >= minSamples && w.variance() <= enough {
		return true
	}
	longest := max(maxWindow.Seconds(), maxTimes*l.took)
	slow := w.good < minSamples && w.failed < minSamples && w.isFull()
	return lasted >= longest && !slow || lasted >= patience*longest
}

// put puts a limit in force and begins a window.
func (l *Limiter) put(now time.Time, limit int) {
	if limit != l.limit {
		l.limit, l.since, l.settled = limit, now, false
	}
	l.from, l.window = now, tally{}
	// Jitter, so as not to keep step with what happens at intervals (xorshift64).
	l.random ^= l.random << 13
	l.random ^= l.random >> 7
	l.random ^= l.random << 17
	l.stretch = 0.8 + 0.4*float64(l.random>>11)/(1<<53)
}

// end ends a window.
func (l *Limiter) end(now time.Time) {
	w := l.window
	l.took += (w.time/w.all - l.took) / 2
	switch {
	case w.failed >= minSamples && w.good < minSamples:
		l.pause(now, Errors)
	case l.limit == l.base && !w.isFull():
		l.pause(now, Idle)
	case w.good < minSamples:
		l.pause(now, l.reason)
	case l.limit == l.base:
		l.endBase(now, &w)
	default:
		l.search.lowest.note(now, l.limit, &w)
		l.trial.add(&w, now.Sub(l.since))
		l.put(now, l.base)
	}
}

// pause gives a trial up that cannot go on.
func (l *Limiter) pause(now time.Time, why Reason) {
	l.reason, l.trial = why, trial{}
	l.put(now, l.base)
}

// endBase ends a window of the base.
func (l *Limiter) endBase(now time.Time, w *tally) {
	l.search.finest = min(max(stepOfSpread*w.spread(), finestStep), changeStep)
	if changed, where := l.watch.note(w); changed {
		l.search.begin(changeStep, where)
		l.trial = trial{}
		l.watch = watch{expected: w.mean()}
	} else {
		// Not the window that shows a change: with the app time before it, the first candidate
		// below is as far away as the app has become slower.
		l.search.lowest.note(now, l.limit, w)
	}
	l.trial.base.add(w)
	if l.trial.candidate.all == 0 || !l.decide(now) {
		l.next(now)
	}
}

// bounded returns the whole number next to a limit, between least and most.
func bounded(limit float64, least, most int) int {
	return min(max(int(math.Round(limit)), least), most)
}
