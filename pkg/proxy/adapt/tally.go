package adapt

import (
	"math"
	"time"
)

// A tally contains the limit and the sums of one or more windows with this limit. The fields good, failed and late
// include only responses that ended while the limit was reached, because other responses do not depend on the limit.
// Requests that ended because of a timeout are counted as responses with an error.
type tally struct {
	limit      int
	lasted     float64 // duration of the windows in seconds
	busy       float64 // seconds with at least one request
	full       float64 // seconds with the limit reached
	good       float64 // number of successful responses while the limit was reached
	failed     float64 // number of errors while the limit was reached
	late       float64 // number of responses to disconnected clients while the limit was reached
	unfinished float64 // number of requests that ended before the application responded

	responses  float64 // number of all responses, including errors
	slots      float64 // integral of the number of counted requests over time, in request-seconds
	held       float64 // sum of the application times of requests that ended or became long, in seconds
	exempt     float64 // number of requests that became long
	exemptTime float64 // sum of the application times of requests that became long, in seconds; included in the field time

	// The following fields also include errors that occurred while the limit was not reached.
	rejected     float64 // number of errors
	rejectedTime float64 // sum of the application times of the errors, in seconds

	// The following fields contain sums for all responses that are not errors, with times in seconds.
	timed               float64 // number of responses
	time, timeSquares   float64 // application times and the squares of these times, including requests that became long
	logTime, logSquares float64 // natural logarithms of the application times, and the squares of these logarithms
}

// note adds a response. took is the application time in seconds, and full reports whether the limit was reached.
func (t *tally) note(took float64, full bool, r Result) {
	t.responses++
	t.held += took
	if r == Failed || r == TimedOut {
		t.rejected++
		t.rejectedTime += took
		if full {
			t.failed++
		}
		return
	}
	t.timed++
	t.time += took
	t.timeSquares += took * took
	log := math.Log(max(took, shortestTime))
	t.logTime += log
	t.logSquares += log * log
	switch {
	case !full:
	case r == Late:
		t.late++
	default:
		t.good++
	}
}

// noteHeld adds a request that became long after an application time of held seconds.
func (t *tally) noteHeld(held float64) {
	t.held += held
	t.exempt++
	t.exemptTime += held
	t.time += held
	t.timeSquares += held * held
}

// shortestTime is the minimum application time in seconds. It replaces shorter times.
const shortestTime = 1e-5

// mostLong is the maximum share of requests that become long. Above this share, lower limits are not tried.
const mostLong = 0.2

// lateWeight is the weight of a response to a disconnected client.
const lateWeight = 0.1

func (t *tally) add(o *tally) {
	t.limit = o.limit
	t.lasted += o.lasted
	t.busy += o.busy
	t.full += o.full
	t.good += o.good
	t.failed += o.failed
	t.late += o.late
	t.unfinished += o.unfinished
	t.responses += o.responses
	t.rejected += o.rejected
	t.rejectedTime += o.rejectedTime
	t.slots += o.slots
	t.held += o.held
	t.exempt += o.exempt
	t.exemptTime += o.exemptTime
	t.timed += o.timed
	t.time += o.time
	t.timeSquares += o.timeSquares
	t.logTime += o.logTime
	t.logSquares += o.logSquares
}

// isFull reports whether the limit was reached for a large enough share of the time to compare the window with others.
// Periods without a request, such as the pauses between bursts, are ignored.
func (t *tally) isFull() bool { return t.full > 0 && t.full >= fullShare*t.busy }

// isMixed reports whether many requests became long. The limit then holds back short requests, and
// has little effect on the load of the application.
func (t *tally) isMixed() bool { return t.exempt > mostLong*(t.responses+t.exempt) }

// served returns the weighted number of responses without errors. It includes late responses,
// because a limit that results in more responses is better even if all clients disconnect.
func (t *tally) served() float64 { return t.good + lateWeight*t.late }

// samples returns the number of responses without errors that ended while the limit was reached.
func (t *tally) samples() float64 { return t.good + t.late }

// mostFailed reports whether more than half of the responses that ended while the limit was reached are errors.
func (t *tally) mostFailed() bool { return t.failed > t.samples() }

// mostRejected reports whether more than half of all responses are errors. It requires at least minSamples
// errors.
func (t *tally) mostRejected() bool {
	return t.rejected >= minSamples && t.rejectedShare() > 0.5
}

// rejectedShare returns the share of errors among all responses.
func (t *tally) rejectedShare() float64 { return t.rejected / max(t.responses, 1) }

// mean returns the slot time in seconds for each successful response. Late responses have the weight
// lateWeight. The goodput of a limit is the limit divided by this time (Little's law).
func (t *tally) mean() float64 {
	return float64(t.limit) * max(t.full, shortestTime) / max(t.served(), 0.05)
}

// work returns the slot time in seconds for each response without an error. Late responses have the
// same weight as others. Unlike mean, the result therefore does not depend on how many clients
// disconnect because of the time in the queue.
func (t *tally) work() float64 {
	return float64(t.limit) * max(t.full, shortestTime) / max(t.samples(), 0.5)
}

// success returns the share of successful responses, and the variance of the logarithm of this share. It includes
// responses that ended while the limit was not reached, because an application that rejects requests above a certain
// number rarely reaches a higher limit.
func (t *tally) success() (share, variance float64) {
	good, failed := max(t.responses-t.rejected, 0.5), t.rejected
	return good / (good + failed), failed / (good + failed) / good
}

// spread returns the standard deviation of the application time divided by its mean, or 1 if the mean is
// unknown.
func (t *tally) spread() float64 {
	mean := t.time / (t.timed + t.exempt)
	if !(mean > 0) {
		return 1
	}
	return math.Sqrt(max(t.timeSquares/(t.timed+t.exempt)/(mean*mean)-1, 0))
}

// leastSpread is the minimum spread that variance uses, because a few requests may have the same
// application time by chance.
const leastSpread = 0.1

// variance returns the variance of the mean, divided by the square of the mean.
func (t *tally) variance() float64 {
	const dependence = 1.5 // factor for the variance, because requests are not independent
	spread := max(t.spread(), leastSpread)
	return dependence * spread * spread / max(t.samples(), 0.5)
}

// typical returns the mean of the logarithm of the application time, and the variance of this mean.
// The logarithm reduces the effect of slow requests.
func (t *tally) typical() (log, variance float64) {
	n := max(t.timed, 1)
	log = t.logTime / n
	return log, max(t.logSquares/n-log*log, leastSpread*leastSpread) / n
}

// lowest holds the lowest recent mean, which estimates the mean without load, and the limit at which this mean was
// measured. A higher mean replaces it only if the higher mean was measured at a lower limit or at about the same limit.
type lowest struct {
	mean  float64   // lowest recent mean in seconds; 0 means unknown
	limit int       // the limit at which mean was measured
	at    time.Time // when mean was measured
}

// note records the mean of the window t if it replaces the known mean. t was measured at limit. The
// known mean increases with its age.
func (w *lowest) note(now time.Time, limit int, t *tally) {
	const (
		age  = 2 * time.Minute // time in which the known mean increases by the factor e
		near = 1.15            // a mean that was measured at a limit of at most near*w.limit always replaces the known mean
	)
	mean := t.mean()
	known := w.mean * math.Exp(now.Sub(w.at).Seconds()/age.Seconds())
	if w.mean == 0 || mean <= known || float64(limit) <= near*float64(w.limit) {
		w.mean, w.limit, w.at = mean, limit, now
	}
}

// A watch detects a change in the mean that work returns for the windows of one limit. For each
// direction, it sums the deviations from the expected mean, each reduced by the noise. A negative
// sum is replaced with 0 (Page, 1954).
type watch struct {
	expected        float64 // expected mean in seconds; 0 means unknown
	longer, shorter float64 // sums of the logarithmic deviations from the expected mean
}

// note adds a window. It reports whether the mean has changed, and returns the direction of the
// next candidate. The direction is down if the application became slower. Otherwise it is up.
func (w *watch) note(t *tally) (changed bool, where direction) {
	const (
		least  = 0.05 // minimum of the noise, as a difference between logarithms
		alarm  = 0.4  // minimum sum of deviations that indicates a change
		follow = 0.05 // share of a deviation that is added to the expected mean

		// The noise is at least leastErrors standard errors of a window. The sum that indicates a
		// change is at least alarmErrors standard errors.
		leastErrors = 0.7
		alarmErrors = 5
	)
	if w.expected == 0 {
		return false, up
	}
	x, sigma := math.Log(t.work()/w.expected), math.Sqrt(t.variance())
	noise, enough := max(least, leastErrors*sigma), max(alarm, alarmErrors*sigma)
	w.longer = max(0, w.longer+x-noise)
	w.shorter = max(0, w.shorter-x-noise)
	w.expected *= math.Exp(follow * x)
	if w.longer > enough {
		return true, down
	}
	return w.shorter > enough, up
}
