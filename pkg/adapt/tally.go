package adapt

import (
	"math"
	"time"
)

// A tally sums what happened while one limit was in force.
type tally struct {
	all, good, failed, full float64 // requests
	time                    float64 // seconds that all of them took
	goodTime, goodSquares   float64 // seconds that those took that succeeded, and their squares
}

func (t *tally) note(took float64, full, failed bool) {
	t.all++
	t.time += took
	if full {
		t.full++
	}
	if failed {
		t.failed++
		return
	}
	t.good++
	t.goodTime += took
	t.goodSquares += took * took
}

func (t *tally) add(o *tally) {
	t.all += o.all
	t.good += o.good
	t.failed += o.failed
	t.full += o.full
	t.time += o.time
	t.goodTime += o.goodTime
	t.goodSquares += o.goodSquares
}

// isFull reports whether the limit was reached.
func (t *tally) isFull() bool { return t.full >= fullShare*t.all }

// mean returns the seconds in the app for each request that succeeded. Those that failed
// took up the app too.
func (t *tally) mean() float64 { return t.time / t.good }

// spread returns the standard deviation of the app time, relative to its mean.
func (t *tally) spread() float64 {
	mean := t.goodTime / t.good
	if mean <= 0 {
		return 1
	}
	return math.Sqrt(max(t.goodSquares/t.good/(mean*mean)-1, 0))
}

// variance returns that of the mean, relative to it.
func (t *tally) variance() float64 {
	const (
		dependence  = 1.5 // requests of one moment are not independent of one another
		leastSpread = 0.1 // nothing is so regular that a few requests prove it
	)
	spread := max(t.spread(), leastSpread)
	return dependence * spread * spread / t.good
}

// lowest is the app time at the lowest limit that was in force of late.
type lowest struct {
	mean  float64 // seconds; 0: not known
	limit int
	at    time.Time
}

func (w *lowest) note(now time.Time, limit int, t *tally) {
	const (
		age  = 2 * time.Minute // after which it counts for e times as much
		near = 1.15            // up to so many times the limit it is measured anew
	)
	mean := t.mean()
	known := w.mean * math.Exp(now.Sub(w.at).Seconds()/age.Seconds())
	if w.mean == 0 || mean <= known || float64(limit) <= near*float64(w.limit) {
		w.mean, w.limit, w.at = mean, limit, now
	}
}

// A watch notices that the app time at the base is no longer what it was. It sums by how
// much it is longer, or shorter, than expected, less what may be chance.
type watch struct {
	expected        float64 // seconds; 0: nothing is
	longer, shorter float64
}

// note notes the app time of a window. It reports whether that has changed, and where the
// best limit is now: below the base of an app that is slower, above that of one that is
// faster.
func (w *watch) note(t *tally) (changed bool, where direction) {
	const (
		least  = 0.05 // of the logarithm of the app time
		alarm  = 0.4
		follow = 0.05 // what part of a difference is expected the next time: slow changes need no search

		// In standard errors of a window.
		leastErrors = 0.7
		alarmErrors = 5
	)
	if w.expected == 0 {
		return false, up
	}
	x, sigma := math.Log(t.mean()/w.expected), math.Sqrt(t.variance())
	chance, enough := max(least, leastErrors*sigma), max(alarm, alarmErrors*sigma)
	w.longer = max(0, w.longer+x-chance)
	w.shorter = max(0, w.shorter-x-chance)
	w.expected *= math.Exp(follow * x)
	if w.longer > enough {
		return true, down
	}
	return w.shorter > enough, up
}
