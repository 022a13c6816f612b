package plugin

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// percentile is the quantile of durations that a row shows.
const percentile = 0.99

// startsDiffer is the maximum difference in seconds between two start times of the same
// process.
const startsDiffer = 1

// A Watch computes rows from the samples of sidecars. It is not safe for concurrent use.
type Watch struct {
	// Window is the period for which rates and durations are computed. They are computed from the newest sample and
	// the oldest sample in the window.
	Window time.Duration

	seen map[key]*history
}

type key struct{ namespace, pod string }

// A history contains the samples of one sidecar.
type history struct {
	sidecar Sidecar
	samples []Sample // samples in the window from the current process, sorted from the oldest to the newest
	err     error    // error of the last attempt to get a sample, or nil

	reason    string    // reason of the last failure
	failed    time.Time // time of the sample with the last failure
	restarted time.Time // time of the first sample after a restart
}

// List sets the current sidecars. The samples of other sidecars are removed.
func (w *Watch) List(all []Sidecar) {
	seen := map[key]*history{}
	for _, s := range all {
		k := key{s.Namespace, s.Pod}
		h := w.seen[k]
		if h == nil {
			h = new(history)
		}
		h.sidecar = s
		seen[k] = h
	}
	w.seen = seen
}

// Add adds a sample of a sidecar, or the error if the sample could not be read.
func (w *Watch) Add(of Sidecar, s Sample, err error) {
	h := w.seen[key{of.Namespace, of.Pod}]
	if h == nil {
		return // the sidecar was removed
	}
	h.err = err
	if err != nil {
		return
	}
	if n := len(h.samples); n > 0 {
		last := &h.samples[n-1]
		if s.restartedSince(last) {
			h.samples, h.restarted, h.reason, h.failed = nil, s.At, "", time.Time{}
		} else if reason := newest(last.Failures, s.Failures); reason != "" {
			h.reason, h.failed = reason, s.At
		}
	}
	h.samples = append(h.samples, s)
	for len(h.samples) > 2 && s.At.Sub(h.samples[1].At) >= w.Window {
		h.samples = h.samples[1:]
	}
}

// restartedSince reports whether the older sample is from another process. It compares the start times, and the
// counters, which only decrease after a restart.
func (s *Sample) restartedSince(old *Sample) bool {
	if math.Abs(s.Start-old.Start) > startsDiffer {
		return true
	}
	if s.Requests != nil && old.Requests != nil && *s.Requests < *old.Requests {
		return true
	}
	for reason, n := range old.Failures {
		if s.Failures[reason] < n {
			return true
		}
	}
	return false
}

// newest returns the most frequent reason of the failures between two samples, or "" if there were no failures.
func newest(old, now map[string]float64) string {
	more := map[string]float64{}
	for reason, n := range now {
		more[reason] = n - old[reason]
	}
	return mostFrequent(more)
}

// mostFrequent returns the reason with the highest count, or "" if all counts are 0.
func mostFrequent(counts map[string]float64) string {
	reason := ""
	for _, r := range slices.Sorted(maps.Keys(counts)) {
		if counts[r] > 0 && counts[r] > counts[reason] {
			reason = r
		}
	}
	return reason
}

// Rows returns a row for each sidecar, sorted by namespace and pod.
func (w *Watch) Rows() []Row {
	rows := make([]Row, 0, len(w.seen))
	for _, h := range w.seen {
		rows = append(rows, h.row(w.Window))
	}
	slices.SortFunc(rows, byName)
	return rows
}

func byName(a, b Row) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Workload, b.Workload))
}

func (h *history) row(window time.Duration) Row {
	r := Row{Namespace: h.sidecar.Namespace, Pod: h.sidecar.Pod, Workload: h.sidecar.Workload, State: Unknown, Failures: map[string]int{}}
	switch {
	case h.sidecar.Absent != "":
		r.Note = h.sidecar.Absent
		return r
	case h.err != nil:
		r.Note = h.err.Error()
		return r
	case len(h.samples) == 0:
		return r // there is no sample yet
	}
	oldest, s := &h.samples[0], &h.samples[len(h.samples)-1]
	r.State, r.Note = h.state(s)
	r.Running, r.Waiting, r.Limit, r.QueueLimit = whole(s.Running), whole(s.Waiting), whole(s.Limit), whole(s.QueueLimit)
	r.Rate = s.Rate
	if took := s.At.Sub(oldest.At).Seconds(); took > 0 && s.Requests != nil && oldest.Requests != nil {
		rate := (*s.Requests - *oldest.Requests) / took
		r.Rate = &rate
		r.P99 = quantile(percentile, oldest.Buckets, s.Buckets)
	}
	for reason, n := range s.Failures {
		if n := whole(&n); n != nil && *n > 0 {
			r.Failures[reason] = *n
		}
	}
	r.Rate, r.P99 = rounded(r.Rate), rounded(r.P99)
	// The order of failures before the first sample is unknown, so the most frequent reason is used.
	if r.Failure = cmp.Or(h.reason, mostFrequent(s.Failures)); h.reason != "" {
		at := h.failed.UTC().Truncate(time.Millisecond)
		r.FailedAt = &at
	}
	if !h.restarted.IsZero() && s.At.Sub(h.restarted) < window && r.Note == "" {
		r.Note = "restarted"
	}
	return r
}

// state returns the state of a sidecar that responds, and the note for the row.
func (h *history) state(s *Sample) (_ State, why string) {
	switch {
	case s.Draining:
		return Draining, ""
	case s.Ready == nil:
		if !s.Unprobed {
			why = "metrics are disabled; only statistics are shown"
		}
		if h.sidecar.Ready {
			return Ready, why
		}
		return NotReady, why
	case *s.Ready:
		return Ready, ""
	case s.Reason != "":
		return NotReady, "not ready: " + s.Reason
	}
	return NotReady, ""
}

// maxNumber is the maximum absolute value of a number in a row. A larger number from a pod is not
// shown, because it would not fit in the table, or the conversion to an integer would overflow.
const maxNumber = math.MaxInt32

// shown reports whether n is a number that a row can contain. It is false for NaN and infinities.
func shown(n *float64) bool { return n != nil && math.Abs(*n) <= maxNumber }

// rounded returns n rounded to six decimal places, or nil if n is not shown.
func rounded(n *float64) *float64 {
	if !shown(n) {
		return nil
	}
	r := math.Round(*n*1e6) / 1e6
	return &r
}

// whole returns n as an integer, or nil if n is not shown.
func whole(n *float64) *int {
	if !shown(n) {
		return nil
	}
	i := int(math.Round(*n))
	return &i
}

// quantile returns a quantile of the values that were observed between two states of a histogram. As in Prometheus,
// the values in a bucket are assumed to be evenly distributed, and a value above the highest bound is replaced with
// this bound. The result is nil if there are no values.
func quantile(q float64, old, now map[float64]float64) *float64 {
	bounds := slices.Sorted(maps.Keys(now))
	if len(bounds) < 2 {
		return nil
	}
	n := func(bound float64) float64 { return max(0, now[bound]-old[bound]) }
	total := n(bounds[len(bounds)-1])
	if total == 0 {
		return nil
	}
	rank := q * total
	i := slices.IndexFunc(bounds, func(bound float64) bool { return n(bound) >= rank })
	if i < 0 || i == len(bounds)-1 {
		return &bounds[len(bounds)-2]
	}
	lower, below := 0.0, 0.0
	if i > 0 {
		lower, below = bounds[i-1], n(bounds[i-1])
	}
	value := lower + (bounds[i]-lower)*(rank-below)/(n(bounds[i])-below)
	return &value
}
