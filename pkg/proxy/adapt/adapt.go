// Package adapt finds the concurrency limit of an application while it runs.
//
// A [Limiter] counts the requests that hold a slot. The adaptive limit applies to the requests that
// are running in the application. Streams, requests that wait for their client, and requests that
// take at least 10 times the typical application time count only toward the ceiling.
//
// A new limiter doubles the limit as long as the goodput grows with the limit. Then it compares
// the chosen limit, which is called the base, with a candidate. The two limits alternate, and
// each of them is in effect for one window at a time. The goodput of a limit is the number of
// successful responses per second while the limit is reached. By Little's law, the application
// time is the limit divided by the goodput. The better limit has the greater power. Without errors,
// the power is goodput / time^w. If the goodput grows with the limit, the larger limit is better. If
// only the application time grows, the smaller limit is better. Errors that depend on the load reduce
// the power of a limit.
//
// The limiter does not measure the application time without load, which would require a limit of a
// few requests. Both limits are measured at nearly the same time, so an application that becomes
// slower or faster has little effect on the result of a trial. The more a candidate reduced the
// goodput, the longer the pause before the next trial in the same direction.
//
// The ideas and their sources:
//
//   - A limit that follows the gradient of the latency over the requests in flight: Netflix,
//     concurrency-limits (Vegas, Gradient2), https://github.com/Netflix/concurrency-limits.
//   - Repeated measurements of the latency at a lower limit, with jitter: the adaptive
//     concurrency filter of Envoy, which by default measures with a limit of 3.
//   - The maximum of the power as the operating point: L. Kleinrock, Power and deterministic
//     rules of thumb for probabilistic problems in computer communications, 1979.
//   - Measurements with a higher and a lower value, and the product of the throughput and the
//     minimum latency as the operating point: N. Cardwell and others, BBR: congestion-based
//     congestion control, 2016.
//   - The detection of a change: E. S. Page, Continuous inspection schemes, 1954.
//
// The package has no clock, goroutine or lock. The caller passes the current time to each method.
package adapt

import (
	"math"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// MaxLimit is the ceiling of a [Limiter] if none is set.
const MaxLimit = 1000

// firstLimit is the default of Settings.Start. It is low enough for any application, and high
// enough that the first windows contain enough responses.
const firstLimit = 4

// Constants that determine when a window begins and ends.
const (
	minWindow  = 250 * time.Millisecond // minimum duration; longer than the pauses of most garbage collectors
	maxWindow  = 5 * time.Second        // maximum duration, unless maxTimes allows a longer window
	minTimes   = 2                      // minimum duration as a multiple of the application time; halved during startup
	maxTimes   = 20                     // maximum duration as a multiple of the application time, if this is longer than maxWindow
	settleTime = 2                      // time between a change to the limit and the next window, as a multiple of the application time; halved during startup
	minSamples = 16                     // minimum number of responses or errors in a window that ends early; lower during startup
	enough     = 0.01                   // maximum variance of the mean, divided by the square of the mean, for a window that ends early
	patience   = 4                      // factor by which the maximum duration is multiplied if the limit is reached and there are few responses
)

// fullShare is the minimum share of the busy time during which the limit is reached. Windows with a
// smaller share are not compared with others.
const fullShare = 0.05

// longestFade is the number of ticks with short waits after which controller.longest has decreased
// to about a third.
const longestFade = 32

// leastHeld is the minimum ratio of tally.held to tally.slots for a window to end early. A lower
// ratio means that many slots are held by requests that have not ended, so the window contains too
// few slow requests.
const leastHeld = 0.75

// noAnswers is the duration of a window without a response after which the limiter assumes that the
// application does not respond.
const noAnswers = time.Second

// Settings configure a [Limiter].
type Settings struct {
	Min   int    // minimum limit; values below 1 mean 1, and values above the ceiling mean the ceiling
	Max   int    // maximum limit, which is called the ceiling; 0 or less means MaxLimit
	Start int    // first limit, clamped to the range from Min to the ceiling; 0 or less means 4
	Seed  uint64 // seed of the jitter in the length of windows
}

// Ceiling returns the maximum limit, which is Max or MaxLimit.
func (s Settings) Ceiling() int {
	if s.Max <= 0 {
		return MaxLimit
	}
	return s.Max
}

// A controller chooses the limit.
type controller struct {
	min, max int
	random   uint64

	base, limit int
	reason      observation.LimitReason // reason for base, or the reason why no trial is possible

	since   time.Time // when the limit took effect; zero until the first call to settle
	settled bool      // the requests ending now were admitted with this limit
	from    time.Time // start of the window
	stretch float64   // random factor for the minimum length of the window
	window  tally
	took    float64 // moving average of the application time in seconds; 0 means unknown

	counted int           // number of requests that count toward the limit
	at      time.Time     // time of the last event; the window includes the time until then
	waited  time.Duration // how long the first queued request has waited; 0 means that the queue is empty
	longest time.Duration // recent maximum of waited

	// While lowerUnreached tries a lower limit, unreached is the last window of the base.
	// Otherwise, unreached is the zero value. lowerUnreached does not lower the limit before
	// unreachedUntil.
	unreached      tally
	unreachedUntil time.Time

	start  startup
	search search
	trial  trial
	watch  watch
}

func newController(s Settings) controller {
	// Multiply the seed by 2^64 divided by the golden ratio, so that consecutive seeds differ in the
	// high bits.
	c := controller{max: s.Ceiling(), random: max(s.Seed*0x9e3779b97f4a7c15, 1), reason: observation.LimitStarting}
	c.min = min(max(s.Min, 1), c.max)
	first := firstLimit
	if s.Start > 0 {
		first = s.Start
	}
	c.base = min(max(first, c.min), c.max)
	c.start.active = true
	c.search.begin(changeStep, up)
	c.put(time.Time{}, c.base)
	return c
}

func (c *controller) state() observation.LimitState {
	s := observation.LimitState{Limit: c.limit, Base: c.base, Reason: c.reason}
	s.Missing = c.missing()
	if s.Missing == "" {
		s.Settled = c.base
	}
	if c.limit != c.base && c.reason != observation.LimitNoAnswers {
		s.Reason = observation.LimitMeasuring
	}
	return s
}

// missing returns the reason why the base cannot be recommended yet, or an empty string if it can
// be recommended.
func (c *controller) missing() string {
	compared := &c.search.compared
	switch {
	case c.start.active && c.reason == observation.LimitIdle:
		return "the limit was not reached"
	case c.base >= c.max:
		return "no higher limit was tried because the limit is at the maximum"
	case c.base <= c.min && c.base > 1:
		return "no lower limit was tried because the limit is at the minimum"
	case c.start.active || !compared[up]:
		return "the limit was not compared with a higher limit"
	case !compared[down] && c.base > 1:
		return "the limit was not compared with a lower limit"
	case c.reason == observation.LimitNoAnswers || c.reason == observation.LimitErrors:
		return "requests fail"
	}
	return ""
}

// count records that n requests count toward the limit.
func (c *controller) count(now time.Time, n int) {
	c.advance(now)
	c.counted = n
}

// advance adds the time since the last event to the window.
func (c *controller) advance(now time.Time) {
	if c.settled {
		lasted := now.Sub(c.at).Seconds()
		c.window.slots += float64(c.counted) * lasted
		if c.counted > 0 {
			c.window.busy += lasted
		}
		if c.counted >= c.limit {
			c.window.full += lasted
		}
	}
	c.at = now
}

// done records that a request ended with the result r after the application time d. sampled is
// false if the request was a long request. Such a request is recorded only if r is Unfinished.
//
// An application time above maxTimes times the mean is reduced to this value, but not below
// minWindow. Otherwise a few slow requests could determine the result.
func (c *controller) done(now time.Time, d time.Duration, r Result, sampled bool) {
	c.advance(now)
	took := d.Seconds()
	if r == Unfinished {
		c.window.unfinished++
		if sampled {
			c.window.held += took
		}
		c.check(now)
		return
	}
	if !sampled {
		return
	}
	if c.took == 0 {
		c.took = took
	}
	if c.settle(now) {
		c.window.note(min(took, max(maxTimes*c.took, minWindow.Seconds())), c.counted >= c.limit, r)
		c.check(now)
	}
}

// exempted records that a request has become a long request and no longer counts toward the limit.
// held is the application time of the request so far.
func (c *controller) exempted(now time.Time, held time.Duration) {
	c.advance(now)
	if c.settle(now) {
		c.window.noteHeld(held.Seconds())
	}
}

// settle reports whether the requests ending now were admitted with the current limit. It returns
// true after settleTime application times since the change to the limit, and then starts the
// window.
func (c *controller) settle(now time.Time) bool {
	if !c.settled {
		if c.since.IsZero() {
			c.since, c.from, c.at = now, now, now
		}
		if now.Sub(c.since).Seconds() < settleTime*c.unit() {
			return false
		}
		c.settled, c.from, c.at = true, now, now
	}
	return true
}

// unit returns the application time in seconds, from which the length of windows is computed.
// During startup, it returns half of the application time, so that startup takes less time.
func (c *controller) unit() float64 {
	if c.start.active {
		return c.took / 2
	}
	return c.took
}

// tick records how long the first queued request has waited. It also ends the current window
// if no request does.
func (c *controller) tick(now time.Time, waited time.Duration) {
	c.advance(now)
	c.waited = waited
	c.longest = max(waited, c.longest-c.longest/longestFade)
	if c.settle(now) {
		c.check(now)
	}
}

// pressed reports whether the first queued request has waited longer than the application time.
func (c *controller) pressed() bool { return c.waited.Seconds() > c.took }

// check ends the window if it is complete.
func (c *controller) check(now time.Time) {
	if !c.settled {
		return
	}
	c.window.limit, c.window.lasted = c.limit, now.Sub(c.from).Seconds()
	if c.complete() {
		c.end(now)
	}
}

// complete reports whether the window contains enough responses or has reached its maximum duration.
func (c *controller) complete() bool {
	w := &c.window
	if w.lasted < c.stretch*max(minWindow.Seconds(), minTimes*c.unit(), c.turnover()) {
		return false
	}
	longest := max(maxWindow.Seconds(), maxTimes*c.took)
	if w.isFull() && w.lasted < longest && w.held < leastHeld*w.slots {
		return false
	}
	if w.samples() >= minSamples && (c.start.active || w.variance() <= enough) {
		return true
	}
	if c.silent() || w.failed >= minSamples && w.failed > w.samples() {
		return true
	}
	if c.start.active && w.isFull() && w.samples() >= min(minSamples, 2*float64(c.limit)) {
		return true
	}
	slow := w.samples() < minSamples && w.failed < minSamples && w.isFull()
	return w.lasted >= longest && !slow || w.lasted >= patience*longest
}

// turnover returns a lower bound on the length of a window in seconds, which depends on the recent
// time in the queue. A window should include requests from all queued clients, because clients that
// alternate between fast and slow requests may become synchronized. The queue then contains only fast
// requests at some times, and only slow requests at other times.
func (c *controller) turnover() float64 {
	return min(2*c.longest.Seconds(), max(2, minTimes*c.unit()))
}

// silent reports whether the application does not respond. This is the case if requests are queued
// and the window is long enough, has no response, and contains at least as many unfinished requests
// as the limit.
func (c *controller) silent() bool {
	w := &c.window
	return c.waited > 0 && w.responses == 0 && w.unfinished >= float64(c.limit) &&
		w.lasted >= max(noAnswers.Seconds(), minTimes*c.took)
}

// put applies the limit and begins a window.
func (c *controller) put(now time.Time, limit int) {
	if limit != c.limit {
		c.limit, c.since, c.settled = limit, now, false
	}
	c.from, c.at, c.window = now, now, tally{}
	// Jitter avoids measuring in step with periodic events (xorshift64).
	c.random ^= c.random << 13
	c.random ^= c.random >> 7
	c.random ^= c.random << 17
	c.stretch = 0.8 + 0.4*float64(c.random>>11)/(1<<53)
}

// end ends the current window, uses its result, and begins the next window.
func (c *controller) end(now time.Time) {
	w := c.window
	if w.timed > 0 {
		c.took += ((w.time-w.exemptTime)/w.timed - c.took) / 2
	}
	switch {
	case c.limit != c.base:
		c.endCandidate(now, &w)
	case c.silent():
		c.reason = observation.LimitNoAnswers
		c.endBase(now, &w)
	case !w.isFull() && w.mostRejected():
		c.lowerUnreached(now, &w)
	case !w.isFull():
		c.pause(now, observation.LimitIdle)
	case w.samples() == 0 && w.failed >= minSamples:
		c.reason = observation.LimitErrors
		c.endBase(now, &w)
	case w.samples() < 1:
		c.pause(now, c.reason)
	case c.start.active:
		c.endStart(now, &w)
	default:
		c.endBase(now, &w)
	}
}

// endCandidate ends a window in which a candidate was in effect.
func (c *controller) endCandidate(now time.Time, w *tally) {
	if before := c.unreached; before.lasted > 0 {
		c.unreached, c.unreachedUntil = tally{}, now.Add(maxRest)
		if w.rejectedShare() < before.rejectedShare()/2 {
			c.endSearchStart(now, c.limit, observation.LimitErrors)
		} else {
			c.pause(now, observation.LimitErrors)
		}
		return
	}
	if !w.isFull() && w.samples() < minSamples {
		if c.limit > c.base && w.mostRejected() && !c.trial.base.mostRejected() {
			c.reason = observation.LimitErrors
			c.search.reject(now, 0, 0)
			c.search.fail(c.limit, now.Add(maxRest))
		}
		c.pause(now, c.reason)
		return
	}
	if w.samples() > 0 {
		c.search.lowest.note(now, c.limit, w)
	}
	c.trial.add(w, now.Sub(c.since))
	c.put(now, c.base)
}

// lowerUnreached is called if most responses are errors and the limit is not reached. It sets the
// base to the average number of requests in the application, but at least to firstLimit. The load
// reaches this limit, so lower limits can then be tried. If successful requests hold most slots, the
// average number of these requests is tried as the limit for one window instead.
//
// The base does not change if it is at most firstLimit or if all responses are errors, because the
// load might not be the cause of the errors.
func (c *controller) lowerUnreached(now time.Time, w *tally) {
	limit := max(int(w.slots/w.lasted), firstLimit, c.min)
	switch {
	case limit >= c.base || w.timed == 0 || now.Before(c.unreachedUntil):
		c.pause(now, observation.LimitErrors)
	case w.rejectedTime >= w.slots/2:
		c.endSearchStart(now, limit, observation.LimitErrors)
	default:
		c.pause(now, observation.LimitErrors)
		c.unreached = *w
		c.put(now, bounded((w.slots-w.rejectedTime)/w.lasted, c.min, limit))
	}
}

// pause ends the current trial, if any, without a result. why becomes the reason for the limit.
func (c *controller) pause(now time.Time, why observation.LimitReason) {
	c.reason, c.trial = why, trial{}
	c.put(now, c.base)
}

// endBase ends a window in which the base was in effect.
func (c *controller) endBase(now time.Time, w *tally) {
	c.search.finest = min(max(stepOfSpread*w.spread(), finestStep), changeStep)
	if w.samples() > 0 && w.samples() >= w.failed {
		if changed, where := c.watch.note(w); changed {
			c.search.begin(changeStep, where)
			c.search.failing = 0
			c.trial = trial{}
			c.watch = watch{expected: w.work()}
		} else {
			// The window in which the mean changed is not recorded, because the first lower candidate
			// is computed from the mean before the change.
			c.search.lowest.note(now, c.limit, w)
		}
	}
	c.trial.addBase(w)
	if c.trial.turns > 0 {
		if c.decide(now) {
			return
		}
		if c.trial.isCostly(c.base, now) {
			c.put(now, c.base)
			return
		}
	}
	c.next(now)
}

// bounded returns the integer closest to limit in the range from least to most.
func bounded(limit float64, least, most int) int {
	return min(max(int(math.Round(limit)), least), most)
}
