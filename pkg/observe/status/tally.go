package status

import (
	"cmp"
	"slices"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// A tally holds event counts since the start of the process or for a period. The first entries are the counts of
// completed requests by reason. The counters wrap around, so only differences are exact.
type tally [numEvents]uint32

// Indexes in a tally after the reasons.
const (
	appErrors   = int(observation.NumReasons) + iota // complete error responses from the app; they are not counted as OK
	unanswered                                       // requests that got a slot, and whose clients disconnected before the response; also counted as ClientGone
	noResponse                                       // requests that got a slot, took at least slowTime and ended before the response because of a timeout or a disconnect; also counted by reason
	interrupted                                      // incomplete responses from the app; also counted by reason
	lostLines                                        // lines of the request log that were dropped
	lostSpans                                        // spans that were dropped
	numEvents
)

// responses returns the number of complete responses from the app.
func (t *tally) responses() uint32 { return t[observation.OK] + t[appErrors] }

// answers returns the number of complete and interrupted responses from the app.
func (t *tally) answers() uint32 { return t.responses() + t[interrupted] }

// requests returns the number of requests.
func (t *tally) requests() (n uint32) {
	for _, v := range t[:appErrors+1] {
		n += v
	}
	return n
}

func (t *tally) subtract(u *tally) {
	for i := range t {
		t[i] -= u[i]
	}
}

// tally returns the events since the start.
func (b *Board) tally() (t tally) {
	for i := range b.ended {
		t[i] = uint32(b.ended[i].Load())
	}
	lines, spans := b.sources.Lost()
	t[lostLines], t[lostSpans] = uint32(lines), uint32(spans)
	return t
}

// eventsLocked returns the events of the last n samples and of the current interval. Board.mu must be held.
func (e *evidence) eventsLocked(n int) tally {
	b, t := e.board, e.total
	if b.taken > n {
		t.subtract(&b.past[(b.taken-1-n)%len(b.past)])
	}
	return t
}

// minUsual is the minimum number of requests from which the usual time is computed.
const minUsual = 100

// usualLocked returns the median time of a request in the app since the start, or 0 if there were fewer than
// minUsual requests. b.mu must be held.
func (b *Board) usualLocked() time.Duration {
	all := b.baseline
	var n uint64
	for i := range all {
		all[i] += uint64(b.recent[0][i]) + uint64(b.recent[1][i])
		n += all[i]
	}
	if n < minUsual {
		return 0
	}
	return inMilliseconds(percentile(all[:], 0.5))
}

// recentSamples is the minimum number of samples after which the times of requests are added to the baseline.
const recentSamples = 30

// addTimesLocked adds the times of the last sample to recent, and moves older times from recent to the baseline. If
// the application becomes slow, the first slow requests are therefore not in the baseline. b.mu must be held.
func (b *Board) addTimesLocked(times *counts) {
	for i, n := range times {
		b.recent[0][i] += n
	}
	if b.taken%recentSamples != 0 {
		return
	}
	for i, n := range b.recent[1] {
		b.baseline[i] += uint64(n)
	}
	b.recent[1], b.recent[0] = b.recent[0], counts{}
}

// mayBeMixLocked reports whether a larger share of slow requests can explain the median p50 and the 99th percentile p99
// of the time in the app. It returns false if almost no earlier request took about as long as p50, or if the slowest
// requests became slower too. b.mu must be held.
func (b *Board) mayBeMixLocked(p50, p99 time.Duration) bool {
	const about = 2 // number of buckets before and after the bucket of p50
	at := bucketOf(p50)
	var near, all uint64
	for i, n := range b.baseline {
		all += n
		if i >= at-about && i <= at+about {
			near += n
		}
	}
	return all < minUsual || float64(near) >= mixShare*float64(all) && p99 < longFactor*inMilliseconds(percentile(b.baseline[:], 0.99))
}

// longestLocked returns the longest time of a request in the app in the last five minutes, or 0 if there was no
// response. It ignores the slowest 1 % of the requests in each sample. b.mu must be held.
func (b *Board) longestLocked() time.Duration {
	longest := 0.0
	for i := max(0, b.taken-samples); i < b.taken; i++ {
		longest = max(longest, b.history[i%samples].P99)
	}
	return inMilliseconds(longest)
}

// longestUsualLocked returns the longest time of a request in the app since the start. It ignores the slowest 0.1 % of
// the requests. b.mu must be held.
func (b *Board) longestUsualLocked() time.Duration {
	const share = 0.999
	return inMilliseconds(percentile(b.all[:], share))
}

// timesLocked returns the median and the 99th percentile of the time in the app for each of the last n samples. b.mu
// must be held.
func (b *Board) timesLocked(n int) (p50, p99 weighted) {
	for i := max(0, b.taken-n); i < b.taken; i++ {
		p50.add(b.history[i%samples].P50, 1)
		p99.add(b.history[i%samples].P99, 1)
	}
	return p50, p99
}

// minSamples is the minimum number of samples from which queueEffectLocked computes a median.
const minSamples = 5

// queueEffectLocked returns two median times in the app in milliseconds, one for the samples without queued requests,
// and one for the samples with queued requests. If there are fewer than minSamples samples of either kind, both values
// are 0. b.mu must be held.
func (b *Board) queueEffectLocked() (free, full float64) {
	var without, with weighted
	for i := max(0, b.taken-samples); i < b.taken; i++ {
		switch s := &b.history[i%samples]; {
		case s.P50 == 0:
		case s.Waiting > 0:
			with.add(s.P50, 1)
		default:
			without.add(s.P50, 1)
		}
	}
	if len(without) < minSamples || len(with) < minSamples {
		return 0, 0
	}
	return without.percentile(0.5), with.percentile(0.5)
}

// weighted is a list of values with weights.
type weighted []weightedValue

type weightedValue struct {
	value  float64
	weight uint32
}

// add adds a value. Values and weights of 0 are ignored.
func (w *weighted) add(value float64, weight uint32) {
	if value > 0 && weight > 0 {
		*w = append(*w, weightedValue{value, weight})
	}
}

// percentile returns the smallest value v for which the values up to v have at least the given share of the total
// weight. It returns 0 if the list is empty.
func (w weighted) percentile(share float64) float64 {
	slices.SortFunc(w, func(a, b weightedValue) int { return cmp.Compare(a.value, b.value) })
	var all, seen float64
	for _, v := range w {
		all += float64(v.weight)
	}
	for _, v := range w {
		if seen += float64(v.weight); seen >= share*all {
			return v.value
		}
	}
	return 0
}
