package top

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// percentile is the quantile of the durations that is shown.
const percentile = 0.99

// startsDiffer is by how many seconds two starts of one process may differ.
const startsDiffer = 1

// A Watch makes rows out of the samples of sidecars. It is used by one goroutine at a time.
type Watch struct {
	// Window is what rates and durations are of: the time between the newest sample and the
	// oldest that is not older.
	Window time.Duration

	seen map[key]*history
}

type key struct{ namespace, pod string }

// A history is what is known of one sidecar.
type history struct {
	sidecar Sidecar
	samples []Sample // of the window, oldest first; those of the process that runs now
	err     error    // of the last attempt, nil if it went well

	reason    string // of the failure that came last
	failed    time.Time
	restarted time.Time // when it was noticed
}

// List says which sidecars there are. Others are forgotten.
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

// Add takes what one attempt to ask a sidecar has brought: a sample, or an error.
func (w *Watch) Add(of Sidecar, s Sample, err error) {
	h := w.seen[key{of.Namespace, of.Pod}]
	if h == nil {
		return // it is gone
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

// restartedSince reports whether another process has said the older sample: its start was
// another, or a counter was higher.
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

// newest is the reason of which there were most new failures between two samples.
func newest(old, now map[string]float64) string {
	more := map[string]float64{}
	for reason, n := range now {
		more[reason] = n - old[reason]
	}
	return most(more)
}

// most is the reason with the highest number, "" if all are 0.
func most(counts map[string]float64) string {
	reason := ""
	for _, r := range slices.Sorted(maps.Keys(counts)) {
		if counts[r] > 0 && counts[r] > counts[reason] {
			reason = r
		}
	}
	return reason
}

// Rows has one for each sidecar, in the order of namespaces and pods.
func (w *Watch) Rows() []Row {
	rows := make([]Row, 0, len(w.seen))
	for _, h := range w.seen {
		rows = append(rows, h.row(w.Window))
	}
	slices.SortFunc(rows, byName)
	return rows
}

func byName(a, b Row) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
}

func (h *history) row(window time.Duration) Row {
	r := Row{Namespace: h.sidecar.Namespace, Pod: h.sidecar.Pod, State: Unknown, Failures: map[string]int{}}
	switch {
	case h.sidecar.Absent != "":
		r.Note = h.sidecar.Absent
		return r
	case h.err != nil:
		r.Note = h.err.Error()
		return r
	case len(h.samples) == 0:
		return r // it has not been asked yet
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
	// Of what failed before the first sample nothing tells the order.
	if r.Failure = cmp.Or(h.reason, most(s.Failures)); h.reason != "" {
		at := h.failed.UTC().Truncate(time.Millisecond)
		r.FailedAt = &at
	}
	if !h.restarted.IsZero() && s.At.Sub(h.restarted) < window && r.Note == "" {
		r.Note = "restarted"
	}
	return r
}

// state is the state of a sidecar that answers, and why it is that one.
func (h *history) state(s *Sample) (_ State, why string) {
	switch {
	case s.Draining:
		return Draining, ""
	case s.Ready == nil && h.sidecar.Ready:
		return Ready, "metrics are off: statistics only"
	case s.Ready == nil:
		return NotReady, "metrics are off: statistics only"
	case *s.Ready:
		return Ready, ""
	case s.Reason != "":
		return NotReady, "not ready: " + s.Reason
	}
	return NotReady, ""
}

// maxNumber is the maximum absolute value of a number in a row. A larger number from a pod is not
// shown, because it would fill the table, or its conversion would overflow.
const maxNumber = math.MaxInt32

// shown reports whether n is a number that a row can contain. It is false for NaN and infinities.
func shown(n *float64) bool { return n != nil && math.Abs(*n) <= maxNumber }

// rounded returns n with six decimal places, which are microseconds, or nil if n is not shown.
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

// quantile is a quantile of what came between two states of a histogram, as Prometheus works
// it out: within a bucket all lie evenly. Above the highest bound that is the bound. It is nil
// if nothing came.
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
