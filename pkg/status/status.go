// Package status is the sidecar as one page: is the pod ready and why not, what
// runs and what waits, how long things took over the last minutes, the last
// failures, the settings in force. It is served to people on this host alone,
// who come by `kubectl port-forward`, as a page and as JSON.
package status

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

const (
	// History is how far back the samples reach.
	History = 5 * time.Minute
	// Interval is how far they are apart.
	Interval = time.Second

	samples  = int(History / Interval)
	failures = 20 // the last failures that are kept
)

// Sources are where the page's facts come from. All funcs may be called at any
// time from any goroutine.
type Sources struct {
	Version   string
	Started   time.Time
	Limit     int // requests at once; 0: no limit
	Depth     int // that may wait
	Settings  func() []Setting
	Warnings  []string
	Readiness func() probe.State
	Ask       func(context.Context) error // asks the user container now; the answer is in Readiness
	Load      func() (running, waiting int)
	Drain     func() Drain
}

// Setting is one setting in force. A secret one has its value hidden already.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Drain is how far the end of the pod is.
type Drain struct {
	Draining bool       `json:"draining"`
	Deadline *time.Time `json:"deadline,omitempty"` // absent while not draining
	InFlight int        `json:"inFlight"`
	Oldest   *time.Time `json:"oldest,omitempty"` // since when the oldest request is in flight
}

// Sample is what happened in one interval, and the load at its end. Times are in
// milliseconds.
type Sample struct {
	Running  int     `json:"running"`
	Waiting  int     `json:"waiting"`
	Requests uint32  `json:"requests"`
	Failures uint32  `json:"failures"`
	P50      float64 `json:"p50"`
	P99      float64 `json:"p99"`
}

// Failure is a request that did not go through.
type Failure struct {
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
	Status int       `json:"status"`
	Phase  string    `json:"phase"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Took   float64   `json:"tookMs"`
	Queued float64   `json:"queuedMs"`
	Detail string    `json:"detail,omitempty"`
}

// Snapshot is all that the page shows.
type Snapshot struct {
	Now       time.Time   `json:"now"`
	Version   string      `json:"version"`
	Started   time.Time   `json:"started"`
	Ready     bool        `json:"ready"` // and not draining
	Reason    string      `json:"reason,omitempty"`
	Readiness probe.State `json:"readiness"`
	Drain     Drain       `json:"drain"`
	Running   int         `json:"running"`
	Waiting   int         `json:"waiting"`
	Limit     int         `json:"limit"`
	Depth     int         `json:"depth"`
	Interval  float64     `json:"intervalSeconds"`
	History   []Sample    `json:"history"`  // the oldest first
	Failures  []Failure   `json:"failures"` // the newest first
	Settings  []Setting   `json:"settings"`
	Warnings  []string    `json:"warnings"`
}

// Board keeps what the page shows. Its methods may be called concurrently.
type Board struct {
	sources Sources
	took    histogram
	failed  atomic.Uint32

	mu       sync.Mutex
	history  [samples]Sample
	taken    int // samples ever taken
	failures [failures]Failure
	noted    int // failures ever noted
}

// New returns a board.
func New(s Sources) *Board { return &Board{sources: s} }

// Observe notes a request. One that went through costs two atomic additions.
func (b *Board) Observe(o *queue.Observation) {
	if o.Excluded {
		return
	}
	b.took.add(o.End.Sub(o.Start))
	if o.Why == queue.OK {
		return
	}
	b.failed.Add(1)
	f := Failure{
		Time:   o.End,
		Reason: o.Why.String(),
		Status: o.Status,
		Phase:  o.Phase.String(),
		Method: queue.Shown(o.Method),
		Path:   queue.Shown(o.Path()),
		Took:   milliseconds(o.End.Sub(o.Start)),
		Queued: milliseconds(o.Queued()),
	}
	if o.Err != nil {
		f.Detail = o.Err.Error()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures[b.noted%failures] = f
	b.noted++
}

// Run takes a sample at each interval until the context ends.
func (b *Board) Run(ctx context.Context) error {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			b.sample()
		}
	}
}

func (b *Board) sample() {
	var s Sample
	s.Running, s.Waiting = b.sources.Load()
	s.Requests, s.P50, s.P99 = b.took.take()
	s.Failures = b.failed.Swap(0)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.history[b.taken%samples] = s
	b.taken++
}

// Snapshot returns what is known now.
func (b *Board) Snapshot() Snapshot {
	s := &b.sources
	readiness, drain := s.Readiness(), s.Drain()
	snap := Snapshot{
		Now:       time.Now(),
		Version:   s.Version,
		Started:   s.Started,
		Ready:     readiness.Ready() && !drain.Draining,
		Reason:    readiness.Reason(),
		Readiness: readiness,
		Drain:     drain,
		Limit:     s.Limit,
		Depth:     s.Depth,
		Interval:  Interval.Seconds(),
		Settings:  s.Settings(),
		Warnings:  s.Warnings,
	}
	if drain.Draining {
		snap.Reason = "draining: the pod is ending"
	}
	snap.Running, snap.Waiting = s.Load()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := max(0, b.taken-samples); i < b.taken; i++ {
		snap.History = append(snap.History, b.history[i%samples])
	}
	for i := b.noted - 1; i >= max(0, b.noted-failures); i-- {
		snap.Failures = append(snap.Failures, b.failures[i%failures])
	}
	return snap
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// A histogram has four buckets for each doubling, from 1/16 ms to about 18
// hours, which is near enough for a chart.
type histogram struct{ buckets [96]atomic.Uint32 }

const perDoubling = 4

func (h *histogram) add(d time.Duration) {
	i := int(math.Ceil(perDoubling * (math.Log2(max(milliseconds(d), 1.0/16)) + 4)))
	h.buckets[min(i, len(h.buckets)-1)].Add(1)
}

// take returns the number of values and two percentiles in milliseconds, and
// empties the histogram.
func (h *histogram) take() (n uint32, p50, p99 float64) {
	var counts [len(h.buckets)]uint32
	for i := range h.buckets {
		counts[i] = h.buckets[i].Swap(0)
		n += counts[i]
	}
	at := func(share float64) float64 {
		var seen uint32
		for i, c := range counts {
			if seen += c; seen > 0 && float64(seen) >= share*float64(n) {
				return math.Exp2(float64(i)/perDoubling - 4)
			}
		}
		return 0
	}
	return n, at(0.50), at(0.99)
}
