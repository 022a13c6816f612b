// Package status serves the status page of the sidecar and its data as JSON, and implements the command
// `queue-proxy why`. The page contains the readiness, the running and queued requests, the latency of the last
// minutes, the failures and the settings. It is only served to local clients, for example through `kubectl
// port-forward`.
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

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

const (
	// History is the time that the samples cover.
	History = 5 * time.Minute
	// Interval is the time between two samples.
	Interval = time.Second

	samples = int(History / Interval)

	// Numbers of failures that are stored. Failures of each reason are stored separately, so that a frequent
	// reason does not replace the failures of a rare reason.
	lastFailures = 20
	ofEachReason = 5
)

// Sources contains the data of the page and functions that return it. The functions must be safe for concurrent
// use.
type Sources struct {
	Version   string
	Pod       string // "" if unknown
	Namespace string // "" if unknown
	Started   time.Time
	Limit     func() (running, waiting int)         // maximum numbers of running and queued requests; running is 0 without a limit
	Adaptive  func() (observation.LimitState, bool) // state of an adaptive limit; false if the limit is fixed
	Settings  func() []Setting
	Warnings  []string
	Readiness func() observation.Readiness
	Ask       func(context.Context) error // probes the user container; Readiness then returns the result
	Load      func() (running, waiting int)
	Slots     func() (holders []observation.Holder, held int) // requests that hold a slot, and the number of slots whose clients have disconnected
	Drain     func() Drain
	Memory    func() (used, limit int64) // memory of requests and its budget, in bytes; limit is 0 without a budget
	Bounds    *bound.Recorder            // events at bounds on the behavior of peers; can be nil

	Connections func() Connections
	TLS         func() TLS
}

// Setting is the value of a setting. Secrets are already hidden.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Drain is the state of the drain.
type Drain struct {
	Draining bool      `json:"draining"`
	Deadline time.Time `json:"deadline,omitzero"` // zero if the drain has not started, or without a deadline
	InFlight int       `json:"inFlight"`
	Oldest   time.Time `json:"oldest,omitzero"` // start time of the oldest request in flight; zero if there is none
}

// sample contains the requests of one interval, and the load at the end of the interval.
//
// P50 and P99 are percentiles of the time from the slot to the end of a request, in milliseconds. QueuedP99 is a
// percentile of the time until the slot. They include only requests with a response of the app, and are 0 if
// there are none. Upgraded connections are excluded, because their duration does not depend on the load.
type sample struct {
	Running   int     `json:"running"`
	Waiting   int     `json:"waiting"`
	Requests  uint32  `json:"requests"`
	Failures  uint32  `json:"failures"`
	P50       float64 `json:"p50"`
	P99       float64 `json:"p99"`
	QueuedP99 float64 `json:"queuedP99"`
}

// failure describes a failed request.
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

	number uint64 // sequence number
}

// snapshot contains the data of the page.
type snapshot struct {
	Now       time.Time             `json:"now"`
	Version   string                `json:"version"`
	Pod       string                `json:"pod"`
	Namespace string                `json:"namespace"`
	Started   time.Time             `json:"started"`
	Ready     bool                  `json:"ready"` // and not draining
	Reason    string                `json:"reason,omitempty"`
	Problem   string                `json:"problem,omitempty"`   // problem of a pod that is ready although all requests fail
	Rejecting *rejecting            `json:"rejecting,omitempty"` // absent without rejected requests in the last samples
	Readiness observation.Readiness `json:"readiness"`
	Drain     Drain                 `json:"drain"`
	Running   int                   `json:"running"`
	Waiting   int                   `json:"waiting"`
	Slots     []observation.Holder  `json:"slots"` // the oldest requests that hold a slot
	Held      int                   `json:"held"`  // slots whose clients have disconnected
	Limit     int                   `json:"limit"`
	Depth     int                   `json:"depth"`
	Memory    *memoryState          `json:"memory,omitempty"`   // absent without a budget
	Adaptive  *adaptive             `json:"adaptive,omitempty"` // absent if the limit is fixed
	Interval  float64               `json:"intervalSeconds"`
	Totals    totals                `json:"totals"`
	History   []sample              `json:"history"`  // sorted from the oldest to the newest
	Failures  []failure             `json:"failures"` // last failures, and last failures of each reason, sorted from the newest to the oldest
	Bounds    []boundState          `json:"bounds"`   // bounds with events, sorted by the count of the last hour
	Settings  []Setting             `json:"settings"`
	Warnings  []string              `json:"warnings"`

	Connections Connections `json:"connections"`
	TLS         TLS         `json:"tls"`
}

// rejectingSamples is the number of samples for which rejected requests are counted.
const rejectingSamples = 10

// rejections are the reasons of requests that the sidecar rejects because of the load.
var rejections = [...]observation.Reason{observation.QueueFull, observation.QueueTimeout, observation.Overload}

// rejecting describes the requests that were rejected in the last rejectingSamples samples.
type rejecting struct {
	Reason    string  `json:"reason"`    // the most frequent reason
	PerSecond float64 `json:"perSecond"` // requests of all reasons
}

// memoryState is the memory of requests that are being read or are queued.
type memoryState struct {
	Used  int64 `json:"used"`  // bytes
	Limit int64 `json:"limit"` // bytes of the budget
}

// totals contains the number of requests since the start of the process, by reason. It includes "ok". Reasons
// without requests are absent.
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

// A Board collects the data of the page. Its methods are safe for concurrent use.
type Board struct {
	sources Sources
	ended   [observation.NumReasons]atomic.Uint64 // requests since the start, by reason
	took    histogram                             // time of requests in the app
	queued  histogram                             // time of requests in the queue
	refused atomic.Bool                           // a connection to the app was refused
	logged  [len(problems)]atomic.Bool            // problems that FirstProblem has returned

	mu       sync.Mutex // guards the following fields
	history  [samples]sample
	taken    int                                       // number of samples since the start
	requests uint64                                    // number of requests at the last sample
	failed   uint64                                    // number of failures at the last sample
	noted    uint64                                    // number of failures since the start
	rejected [rejectingSamples][len(rejections)]uint64 // rejected requests since the start, at the last samples
	last     ring
	rare     [observation.NumReasons]ring
}

// New returns a new Board.
func New(s Sources) *Board { return &Board{sources: s} }

// Observe records a completed request. For a successful request, it does three atomic additions and does not
// allocate.
func (b *Board) Observe(o *observation.Observation) {
	if o.Excluded {
		return
	}
	b.ended[o.Reason].Add(1)
	if o.Reason == observation.AppUnreachable && errors.Is(o.Err, syscall.ECONNREFUSED) {
		b.refused.Store(true)
	}
	if o.Begun && !o.Slot.IsZero() && !o.Upgraded {
		b.took.add(o.End.Sub(o.Slot))
		b.queued.add(o.Queued())
	}
	if o.Reason != observation.OK {
		b.note(o)
	}
}

// FirstProblem returns the problem of the pod, or "" if there is none or if it was returned before. It
// must be called after Observe.
func (b *Board) FirstProblem(o *observation.Observation) string {
	if o.Excluded || o.Reason != observation.AppGarbage && o.Reason != observation.AppUnreachable {
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
	case t[observation.OK.String()] > 0:
		return ""
	case t[observation.AppGarbage.String()] > 0:
		return NotHTTP
	case ready && b.refused.Load():
		return NotListening
	}
	return ""
}

// note stores a failure.
func (b *Board) note(o *observation.Observation) {
	f := failure{
		Time:   o.End,
		Reason: o.Reason.String(),
		Status: o.Status,
		Phase:  o.Phase.String(),
		Method: observation.Shown(o.Method),
		Path:   observation.Shown(o.Path()),
		Took:   milliseconds(o.End.Sub(o.Start)),
		Queued: milliseconds(o.Queued()),
	}
	if o.Err != nil {
		f.Detail = observation.Shown(o.Err.Error())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noted++
	f.number = b.noted
	b.last.add(&f, lastFailures)
	b.rare[o.Reason].add(&f, ofEachReason)
}

// A ring stores the last failures.
type ring struct {
	kept []failure
	next int // index of the oldest failure if the ring is full
}

func (r *ring) add(f *failure, size int) {
	if len(r.kept) < size {
		r.kept = append(r.kept, *f)
		return
	}
	r.kept[r.next] = *f
	r.next = (r.next + 1) % size
}

// failuresLocked returns the stored failures without duplicates, sorted from the newest to the oldest. b.mu must
// be held.
func (b *Board) failuresLocked() []failure {
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
			t[observation.Reason(i).String()] += n // some reasons have the same word
		}
	}
	return t
}

// sum returns the number of all requests and the number of failed requests.
func (t totals) sum() (requests, failed uint64) {
	for word, n := range t {
		requests += n
		if word != observation.OK.String() {
			failed += n
		}
	}
	return requests, failed
}

// Run takes a sample in each interval until ctx is done. It returns nil.
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
	b.rejected[b.taken%rejectingSamples] = b.rejections()
	b.taken++
}

// rejections returns the number of rejected requests since the start, by the index in rejections.
func (b *Board) rejections() (all [len(rejections)]uint64) {
	for i, reason := range rejections {
		all[i] = b.ended[reason].Load()
	}
	return all
}

// rejectingLocked returns the requests that were rejected since the oldest sample in b.rejected, or nil. b.mu must be
// held.
func (b *Board) rejectingLocked() *rejecting {
	var sum, most uint64
	r := &rejecting{}
	oldest := b.rejected[b.taken%rejectingSamples]
	for i, n := range b.rejections() {
		n -= oldest[i]
		if sum += n; n > most {
			most, r.Reason = n, rejections[i].String()
		}
	}
	if sum == 0 {
		return nil
	}
	r.PerSecond = float64(sum) / (rejectingSamples * Interval.Seconds())
	return r
}

// snapshot returns the current data.
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
		TLS:         s.TLS(),
	}
	snap.TLS.describe(snap.Now)
	snap.Connections.Problems = snap.Connections.problems(snap.Now)
	snap.Problem = b.problem(snap.Totals, readiness.Ready())
	if drain.Draining {
		snap.Reason = "draining: the pod is terminating"
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
	snap.Failures = b.failuresLocked()
	snap.Rejecting = b.rejectingLocked()
	return snap
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// A histogram has four buckets for each power of two, from 1/16 ms to about 15 minutes. This is precise enough
// for a chart.
type histogram struct{ buckets [96]atomic.Uint32 }

const (
	perDoubling = 4                     // number of buckets per power of two
	shortest    = time.Millisecond / 16 // upper bound of the first bucket
)

func (h *histogram) add(d time.Duration) {
	i := 0
	if d > shortest { // most requests do not wait for a slot
		i = int(math.Ceil(perDoubling * math.Log2(float64(d)/float64(shortest))))
	}
	h.buckets[min(i, len(h.buckets)-1)].Add(1)
}

// take returns two percentiles in milliseconds and resets the histogram. It returns 0 if there are no values.
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
