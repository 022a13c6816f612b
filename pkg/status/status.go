// Package status is the sidecar as one page: is the pod ready and why not, what
// runs and what waits, how long the app took over the last minutes, how many
// requests failed and why, the settings in force. It is served to people on this
// host alone, who come by `kubectl port-forward`, as a page and as JSON.
package status

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

const (
	// History is how far back the samples reach.
	History = 5 * time.Minute
	// Interval is how far they are apart.
	Interval = time.Second

	samples = int(History / Interval)

	// The failures that are kept: the last ones, and of each reason the last ones, so
	// that many of one reason do not push out the few of another.
	lastFailures = 20
	ofEachReason = 5
)

// Sources are where the page's facts come from. All funcs may be called at any
// time from any goroutine.
type Sources struct {
	Version   string
	Pod       string // "": not known
	Namespace string // "": not known
	Started   time.Time
	Limit     func() (running, waiting int) // how many of each may be; 0 running: no limit
	Adaptive  func() (adapt.State, bool)    // what an adaptive limit has decided; false: it is fixed
	Settings  func() []Setting
	Warnings  []string
	Readiness func() probe.State
	Ask       func(context.Context) error // asks the user container now; the answer is in Readiness
	Load      func() (running, waiting int)
	Slots     func() (holders []queue.Holder, held int) // requests that hold a slot, and slots whose clients have disconnected
	Drain     func() Drain
	Memory    func() (used, limit int64) // memory of requests and its budget, in bytes; limit 0: there is no budget
	Bounds    *bound.Recorder            // of bounds on the behavior of peers; nil: there are no events

	Connections func() Connections
}

// Setting is one setting in force. A secret one has its value hidden already.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Drain is how far the end of the pod is.
type Drain struct {
	Draining bool      `json:"draining"`
	Deadline time.Time `json:"deadline,omitzero"` // zero if the pod is not draining or there is no deadline
	InFlight int       `json:"inFlight"`
	Oldest   time.Time `json:"oldest,omitzero"` // arrival of the oldest request in flight; zero if there is none
}

// sample is what happened in one interval, and the load at its end.
//
// P50 and P99 are milliseconds that the app took, from the slot to the end, of the
// requests that the app answered; 0 if there was none. QueuedP99 is how long those
// had waited for the slot. Requests that got no slot or no answer of the app are not
// among them, nor are upgraded connections, which last as long as people like.
type sample struct {
	Running   int     `json:"running"`
	Waiting   int     `json:"waiting"`
	Requests  uint32  `json:"requests"`
	Failures  uint32  `json:"failures"`
	P50       float64 `json:"p50"`
	P99       float64 `json:"p99"`
	QueuedP99 float64 `json:"queuedP99"`
}

// failure is a request that did not go through.
type failure struct {
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
	Status int       `json:"status"`
	Phase  string    `json:"phase"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Took   float64   `json:"tookMs"`
	Queued float64   `json:"queuedMs"`
	Detail string    `json:"detail,omitempty"`

	number uint64 // in the order in which they were noted
}

// snapshot is all that the page shows.
type snapshot struct {
	Now       time.Time      `json:"now"`
	Version   string         `json:"version"`
	Pod       string         `json:"pod"`
	Namespace string         `json:"namespace"`
	Started   time.Time      `json:"started"`
	Ready     bool           `json:"ready"` // and not draining
	Reason    string         `json:"reason,omitempty"`
	Problem   string         `json:"problem,omitempty"` // of a pod that is ready, and serves nobody
	Readiness probe.State    `json:"readiness"`
	Drain     Drain          `json:"drain"`
	Running   int            `json:"running"`
	Waiting   int            `json:"waiting"`
	Slots     []queue.Holder `json:"slots"` // the oldest requests that hold a slot
	Held      int            `json:"held"`  // slots whose clients have disconnected
	Limit     int            `json:"limit"`
	Depth     int            `json:"depth"`
	Memory    *memoryState   `json:"memory,omitempty"`   // absent: there is no budget
	Adaptive  *adaptive      `json:"adaptive,omitempty"` // absent: the limit is fixed
	Interval  float64        `json:"intervalSeconds"`
	Totals    totals         `json:"totals"`
	History   []sample       `json:"history"`  // the oldest first
	Failures  []failure      `json:"failures"` // the newest first: the last ones, and the last of each reason
	Bounds    []boundState   `json:"bounds"`   // bounds with events, sorted by the count of the last hour
	Settings  []Setting      `json:"settings"`
	Warnings  []string       `json:"warnings"`

	Connections Connections `json:"connections"`
}

// memoryState is the memory of requests that are being read or wait.
type memoryState struct {
	Used  int64 `json:"used"`  // bytes
	Limit int64 `json:"limit"` // bytes of the budget
}

// totals are the requests since the start by reason, "ok" among them. What never
// happened is absent.
type totals map[string]uint64

// The problems of a pod that is ready although all requests fail.
const (
	// NotHTTP is the problem of a port that passes a TCP probe and does not support HTTP.
	NotHTTP = "the user container does not speak HTTP"

	// NotListening is the problem of a probe that passes at another address or port, although
	// connections to localhost are refused.
	NotListening = "the user container does not listen on localhost, where requests are sent"
)

// problems lists all problems.
var problems = [...]string{NotHTTP, NotListening}

// Board keeps what the page shows. Its methods may be called concurrently.
type Board struct {
	sources Sources
	ended   [queue.NumReasons]atomic.Uint64 // requests since the start
	took    histogram                       // by the app
	queued  histogram                       // before that
	refused atomic.Bool                     // a connection to the app was refused
	logged  [len(problems)]atomic.Bool      // problems that FirstProblem has returned

	mu       sync.Mutex // protects what follows
	history  [samples]sample
	taken    int    // samples ever taken
	requests uint64 // up to the last sample
	failed   uint64 // up to the last sample
	noted    uint64 // failures ever noted
	last     ring
	rare     [queue.NumReasons]ring
}

// New returns a board.
func New(s Sources) *Board { return &Board{sources: s} }

// Observe notes a request. One that went through costs three atomic additions and
// no memory.
func (b *Board) Observe(o *queue.Observation) {
	if o.Excluded {
		return
	}
	b.ended[o.Reason].Add(1)
	if o.Reason == queue.AppUnreachable && errors.Is(o.Err, syscall.ECONNREFUSED) {
		b.refused.Store(true)
	}
	if o.Begun && !o.Slot.IsZero() && !o.Upgraded {
		b.took.add(o.End.Sub(o.Slot))
		b.queued.add(o.Queued())
	}
	if o.Reason != queue.OK {
		b.note(o)
	}
}

// FirstProblem returns the problem of the pod, or "" if there is none or if it was returned before. It
// must be called after Observe.
func (b *Board) FirstProblem(o *queue.Observation) string {
	if o.Excluded || o.Reason != queue.AppGarbage && o.Reason != queue.AppUnreachable {
		return ""
	}
	readiness := b.sources.Readiness()
	problem := b.problem(b.totals(), readiness.Ready())
	if i := slices.Index(problems[:], problem); i < 0 || !b.logged[i].CompareAndSwap(false, true) {
		return ""
	}
	return problem
}

// problem returns the problem of a pod, or "". A request that succeeded excludes all problems.
func (b *Board) problem(t totals, ready bool) string {
	switch {
	case t[queue.OK.String()] > 0:
		return ""
	case t[queue.AppGarbage.String()] > 0:
		return NotHTTP
	case ready && b.refused.Load():
		return NotListening
	}
	return ""
}

// note keeps a failure.
func (b *Board) note(o *queue.Observation) {
	f := failure{
		Time:   o.End,
		Reason: o.Reason.String(),
		Status: o.Status,
		Phase:  o.Phase.String(),
		Method: queue.Shown(o.Method),
		Path:   queue.Shown(o.Path()),
		Took:   milliseconds(o.End.Sub(o.Start)),
		Queued: milliseconds(o.Queued()),
	}
	if o.Err != nil {
		f.Detail = queue.Shown(o.Err.Error())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noted++
	f.number = b.noted
	b.last.add(&f, lastFailures)
	b.rare[o.Reason].add(&f, ofEachReason)
}

// A ring keeps the last failures.
type ring struct {
	kept []failure
	next int // the place of the oldest, once it is full
}

func (r *ring) add(f *failure, size int) {
	if len(r.kept) < size {
		r.kept = append(r.kept, *f)
		return
	}
	r.kept[r.next] = *f
	r.next = (r.next + 1) % size
}

// failures returns those that are kept, each once, the newest first. The caller holds
// mu.
func (b *Board) failures() []failure {
	all := slices.Clone(b.last.kept)
	for i := range b.rare {
		all = append(all, b.rare[i].kept...)
	}
	slices.SortFunc(all, func(f, g failure) int { return cmp.Compare(g.number, f.number) })
	return slices.CompactFunc(all, func(f, g failure) bool { return f.number == g.number })
}

// totals returns the requests since the start.
func (b *Board) totals() totals {
	t := totals{}
	for i := range b.ended {
		if n := b.ended[i].Load(); n > 0 {
			t[queue.Reason(i).String()] += n // some reasons share a word
		}
	}
	return t
}

// sum returns the number of all requests and of those that failed.
func (t totals) sum() (requests, failed uint64) {
	for word, n := range t {
		requests += n
		if word != queue.OK.String() {
			failed += n
		}
	}
	return requests, failed
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
	var s sample
	s.Running, s.Waiting = b.sources.Load()
	s.P50, s.P99 = b.took.take()
	_, s.QueuedP99 = b.queued.take()
	requests, failed := b.totals().sum()
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Requests, s.Failures = uint32(requests-b.requests), uint32(failed-b.failed)
	b.requests, b.failed = requests, failed
	b.history[b.taken%samples] = s
	b.taken++
}

// snapshot returns what is known now.
func (b *Board) snapshot() snapshot {
	s := &b.sources
	readiness, drain := s.Readiness(), s.Drain()
	snap := snapshot{
		Now:       time.Now(),
		Version:   s.Version,
		Pod:       s.Pod,
		Namespace: s.Namespace,
		Started:   s.Started,
		Ready:     readiness.Ready() && !drain.Draining,
		Reason:    readiness.Reason(),
		Readiness: readiness,
		Drain:     drain,
		Interval:  Interval.Seconds(),
		Totals:    b.totals(),
		Bounds:    boundStates(s.Bounds.States(time.Now())),
		Settings:  s.Settings(),
		Warnings:  s.Warnings,

		Connections: s.Connections(),
	}
	snap.Connections.Problems = snap.Connections.problems(snap.Now)
	snap.Problem = b.problem(snap.Totals, readiness.Ready())
	if drain.Draining {
		snap.Reason = "draining: the pod is ending"
	}
	snap.Running, snap.Waiting = s.Load()
	snap.Slots, snap.Held = s.Slots()
	snap.Limit, snap.Depth = s.Limit()
	if used, limit := s.Memory(); limit > 0 {
		snap.Memory = &memoryState{Used: used, Limit: limit}
	}
	if state, ok := s.Adaptive(); ok {
		snap.Adaptive = &adaptive{Base: state.Base, Reason: state.Reason, Settled: state.Settled, Missing: state.Missing}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := max(0, b.taken-samples); i < b.taken; i++ {
		snap.History = append(snap.History, b.history[i%samples])
	}
	snap.Failures = b.failures()
	return snap
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// A histogram has four buckets for each doubling, from 1/16 ms to about 18
// hours, which is near enough for a chart.
type histogram struct{ buckets [96]atomic.Uint32 }

const (
	perDoubling = 4
	shortest    = time.Millisecond / 16
)

func (h *histogram) add(d time.Duration) {
	i := 0
	if d > shortest { // most requests do not wait for a slot
		i = int(math.Ceil(perDoubling * math.Log2(float64(d)/float64(shortest))))
	}
	h.buckets[min(i, len(h.buckets)-1)].Add(1)
}

// take returns two percentiles in milliseconds, 0 without values, and empties the
// histogram.
func (h *histogram) take() (p50, p99 float64) {
	var counts [len(h.buckets)]uint32
	var n uint32
	for i := range h.buckets {
		counts[i] = h.buckets[i].Swap(0)
		n += counts[i]
	}
	at := func(share float64) float64 {
		var seen uint32
		for i, c := range counts {
			if seen += c; seen > 0 && float64(seen) >= share*float64(n) {
				return math.Round(100*milliseconds(shortest)*math.Exp2(float64(i)/perDoubling)) / 100
			}
		}
		return 0
	}
	return at(0.50), at(0.99)
}
