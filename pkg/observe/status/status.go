// Package status serves the status page of the sidecar, and implements the command `queue-proxy why`. The page
// contains the readiness, the running and queued requests, the latency of the last few minutes, the failures and the
// settings. The data of the page is also served as JSON. The page is served only to local clients, for example
// through `kubectl port-forward`.
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

	// Maximum numbers of stored failures. Failures of each reason are stored separately, so that a frequent
	// reason does not replace the failures of a rare reason.
	lastFailures = 20
	ofEachReason = 5
)

// Sources contains data for the page, and functions that return such data. The functions must be safe for concurrent
// use.
type Sources struct {
	Version   string
	Pod       string // "" if unknown
	Namespace string // "" if unknown
	Started   time.Time
	Limit     func() (running, waiting int)         // maximum numbers of running and queued requests; running is 0 without a limit
	Adaptive  func() (observation.LimitState, bool) // state of an adaptive limit; false if the limit is fixed
	Settings  func() []Setting
	Warnings  func() []string // warnings about settings
	Readiness func() observation.Readiness
	Check     func(context.Context) observation.Readiness // probes the user container, but does not change the result of Readiness
	Load      func() (running, waiting int)
	Waiter    func() time.Time                                 // arrival time of the first request in the queue; zero if the queue is empty
	Slots     func() (holders []observation.Holder, held int)  // the oldest requests that hold a slot, and the number of slots held for aborted requests
	App       func(long time.Duration) observation.AppRequests // iterates over the requests in the user container; Board calls it only if there may be a problem
	Drain     func() Drain
	Memory    func() (used, limit int64)   // memory of requests and its budget, in bytes; limit is 0 without a budget
	Lost      func() (lines, spans uint64) // lines of the request log and spans that were dropped
	SpanError func() string                // last error of the span export; "" if there is none
	Bounds    *bound.Recorder              // events of bounds and client errors; may be nil

	Connections func() Connections
	TLS         func() TLS
}

// A Setting contains the name and the value of a setting. A secret value must already be hidden.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Drain describes the state of the drain.
type Drain struct {
	Draining bool      `json:"draining"`
	Since    time.Time `json:"since,omitzero"`    // start of the drain; zero if the drain has not started
	Deadline time.Time `json:"deadline,omitzero"` // zero if the drain has not started, or if it has no deadline
	InFlight int       `json:"inFlight"`
	Oldest   time.Time `json:"oldest,omitzero"` // start time of the oldest request in flight; zero if there is none
}

// sample contains the requests of one interval, and the load at the end of the interval.
//
// P50 and P99 are percentiles of the time from when a request gets a slot until it ends, in milliseconds. They include
// only requests with a response from the app. QueuedP99 is a percentile of the time in the queue, in milliseconds. It
// also includes requests that left the queue without a slot. A percentile is 0 if there are no such requests. Upgraded
// connections are excluded, because their duration does not depend on the load.
type sample struct {
	Running   int     `json:"running"`
	Waiting   int     `json:"waiting"`
	Requests  uint32  `json:"requests"`
	Failures  uint32  `json:"failures"`
	Errors    uint32  `json:"errors"` // responses from the app that are errors
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

	number     uint64 // sequence number
	unanswered bool   // result of isUnanswered
}

// request returns the method and the path for display.
func (f *failure) request() string { return shorten(f.Method+" "+f.Path, maxRequest) }

// report contains the data that the command `queue-proxy why -o json` prints.
type report struct {
	Pod       string                  `json:"pod"`
	Namespace string                  `json:"namespace"`
	Ready     bool                    `json:"ready"` // the user container is ready and the pod is not draining
	Reason    string                  `json:"reason,omitempty"`
	Unprobed  bool                    `json:"unprobed,omitempty"` // no probe has a result, so the readiness is unknown
	Problem   string                  `json:"problem,omitempty"`  // the first of Problems
	Problems  []problem               `json:"problems,omitempty"` // current problems, the cause first
	Readiness observation.Readiness   `json:"readiness"`
	Drain     Drain                   `json:"drain"`
	Running   int                     `json:"running"`
	Waiting   int                     `json:"waiting"`
	Limit     int                     `json:"limit"`
	Depth     int                     `json:"depth"`
	Adaptive  *observation.LimitState `json:"adaptive,omitempty"` // absent if the limit is fixed
	Totals    totals                  `json:"totals"`
	AppErrors uint64                  `json:"appErrors"` // number of error responses from the app since the start; Totals counts them as "ok"
	Latest    summary                 `json:"latest"`
	Slots     []observation.Holder    `json:"slots"`            // the oldest requests that hold a slot
	Held      int                     `json:"held"`             // number of slots held for aborted requests
	Bounds    []bound.State           `json:"bounds,omitempty"` // bounds with events, sorted by the count of the last hour
	Warnings  []string                `json:"warnings,omitempty"`

	Connections Connections `json:"connections"`
	TLS         TLS         `json:"tls"`
}

// snapshot contains the data of the page.
type snapshot struct {
	report

	Now      time.Time    `json:"now"`
	Version  string       `json:"version"`
	Started  time.Time    `json:"started"`
	Heading  string       `json:"heading"`
	Level    level        `json:"level"`
	Memory   *memoryState `json:"memory,omitempty"` // absent without a budget
	Interval float64      `json:"intervalSeconds"`
	History  []sample     `json:"history"`  // sorted from the oldest to the newest
	Failures []failure    `json:"failures"` // latest failures, overall and for each reason, sorted from the newest to the oldest
	Settings []Setting    `json:"settings"`
}

// memoryState describes the memory of requests that are being received or are queued.
type memoryState struct {
	Used  int64 `json:"used"`  // bytes
	Limit int64 `json:"limit"` // bytes of the budget
}

// totals contains request counts by reason, including "ok". Reasons without requests are absent. Kubelet probes are not
// included.
type totals map[string]uint64

// The problems that [Board.FirstProblem] can return. Each of these problems makes all requests fail.
const (
	// NotHTTP means that the port of the user container accepts TCP connections, but does not support HTTP.
	NotHTTP = "the user container is not an HTTP server"

	// NotListening means that connections to localhost are refused, although a probe of another address
	// or port passes.
	NotListening = "the user container does not listen on localhost"
)

// problems lists all problems.
var problems = [...]string{NotHTTP, NotListening}

// A Board collects the data of the page. Its methods are safe for concurrent use.
type Board struct {
	sources Sources
	ended   [interrupted + 1]atomic.Uint64 // event counts since the start, with the same indexes as in a tally
	took    histogram                      // time of requests in the app
	queued  histogram                      // time of requests in the queue
	waited  histogram                      // time in the app of requests whose clients disconnected before the response
	refused atomic.Bool                    // a connection to the app was refused
	probed  atomic.Bool                    // the app responded to a kubelet probe
	hangs   atomic.Bool                    // result of Hangs
	logged  [len(problems)]atomic.Bool     // problems that FirstProblem has returned

	checking chan struct{} // limits the number of concurrent checks

	mu       sync.Mutex // guards the following fields
	history  [samples]sample
	times    [samples]narrow    // times of requests in the app, for each sample
	queues   [samples]narrow    // times of requests in the queue, for each sample
	waits    [samples]float64   // median of waited in milliseconds, for each sample; 0 if there are no values
	past     [samples + 1]tally // event counts since the start, at the times of the last samples
	taken    int                // number of samples since the start
	noted    uint64             // number of failures since the start
	active   []time.Time        // for each rule, start time of the problem at the last sample; zero if there is no problem
	baseline [numBuckets]uint64 // times of requests in the app since the start, excluding recent and the periods in which the app was slow
	recent   [2]counts          // times of the newest samples (see addTimesLocked)
	all      [numBuckets]uint64 // times of requests in the app since the start, excluding the periods in which the app hung

	lastResponse time.Time   // time of the last sample with responses from the app, or of the call to New if there is no such sample
	unready      []time.Time // times at which the user container became unready, sorted from the oldest to the newest

	last ring
	rare [observation.NumReasons]ring
}

// New returns a new Board.
func New(s Sources) *Board {
	return &Board{sources: s, checking: make(chan struct{}, 1), active: make([]time.Time, len(rules)), lastResponse: time.Now()}
}

// Observe records a completed request. For a successful request, it does three atomic additions and does not
// allocate. Kubelet probes are not counted, so that a successful probe does not hide an application that does not
// respond to clients.
func (b *Board) Observe(o *observation.Observation) {
	if !counted(o) {
		if o.Kind == observation.KubeletRequest && o.Reason == observation.OK {
			b.probed.Store(true)
		}
		return
	}
	event := int(o.Reason)
	if o.Reason == observation.OK && o.AppFailed() {
		event = appErrors
	}
	b.ended[event].Add(1)
	switch {
	case o.Reason == observation.OK:
	case o.Begun:
		b.ended[interrupted].Add(1)
	case o.Uploading || o.Slot.IsZero():
	case o.Reason == observation.ClientGone || o.Reason == observation.RequestTimeout || o.Reason == observation.ResponseStartTimeout:
		if isUnanswered(o) {
			b.ended[unanswered].Add(1)
			b.waited.add(o.End.Sub(o.Slot))
		}
		if o.End.Sub(o.Start) >= slowTime {
			b.ended[noResponse].Add(1)
		}
	}
	if o.Reason == observation.AppUnreachable && errors.Is(o.Err, syscall.ECONNREFUSED) {
		b.refused.Store(true)
	}
	if !o.Slot.IsZero() && !o.Upgraded || leftQueue(o) {
		b.queued.add(o.Queued())
	}
	if o.Begun && !o.Slot.IsZero() && !o.Upgraded {
		b.took.add(o.End.Sub(o.Slot))
	}
	if o.Reason != observation.OK {
		b.note(o)
	}
}

// leftQueue reports whether the request was queued and did not get a slot.
func leftQueue(o *observation.Observation) bool {
	switch o.Reason {
	case observation.ClientGone, observation.QueueTimeout, observation.RequestTimeout, observation.ResponseStartTimeout:
		return o.Slot.IsZero()
	}
	return false
}

// isUnanswered reports whether the client disconnected while it waited for the application to respond. It returns false if
// the client waited longer in the queue than for the application.
func isUnanswered(o *observation.Observation) bool {
	return o.Reason == observation.ClientGone && !o.Begun && !o.Uploading && !o.Slot.IsZero() && o.End.Sub(o.Slot) >= o.Queued()
}

// counted reports whether a request is included in the data of the page.
func counted(o *observation.Observation) bool { return o.Kind == observation.Traffic && !o.Excluded }

// FirstProblem returns the problem that explains why the request failed. It returns "" if no problem is known for the
// request, or if the problem was returned before. FirstProblem must be called after Observe.
func (b *Board) FirstProblem(o *observation.Observation) string {
	if !counted(o) || o.Reason != observation.AppGarbage && o.Reason != observation.AppUnreachable {
		return ""
	}
	readiness := b.sources.Readiness()
	problem := b.problem(readiness.Ready())
	if i := slices.Index(problems[:], problem); i < 0 || !b.logged[i].CompareAndSwap(false, true) {
		return ""
	}
	return problem
}

// problem describes why all requests fail. It returns "" if the reason is not known, or if the application has
// sent a complete response, even to a kubelet probe.
func (b *Board) problem(ready bool) string {
	switch {
	case b.probed.Load() || b.ended[observation.OK].Load() > 0 || b.ended[appErrors].Load() > 0:
		return ""
	case b.ended[observation.AppGarbage].Load() > 0:
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

		unanswered: isUnanswered(o),
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

// newest returns the newest failure, or the zero value if there is none.
func (r *ring) newest() (f failure) {
	for i := range r.kept {
		if r.kept[i].number > f.number {
			f = r.kept[i]
		}
	}
	return f
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

// maxPaths is the maximum number of paths that unansweredPathsLocked returns.
const maxPaths = 3

// unansweredPathsLocked returns the paths of the last requests without a response whose clients disconnected after the
// given time. The newest path is first. b.mu must be held.
func (b *Board) unansweredPathsLocked(after time.Time) (paths []string) {
	for _, f := range b.failuresLocked() {
		path := shorten(f.Path, maxRequest)
		if f.unanswered && f.Time.After(after) && !slices.Contains(paths, path) && len(paths) < maxPaths {
			paths = append(paths, path)
		}
	}
	return paths
}

// newTotals converts event counts to totals. events returns the count for an index of a tally.
func newTotals(events func(i int) uint64) totals {
	t := totals{}
	for i := range appErrors + 1 {
		reason := observation.Reason(i)
		if i == appErrors {
			reason = observation.OK
		}
		if n := events(i); n > 0 {
			t[reason.String()] += n // some reasons have the same word
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

// Hangs reports whether the application hung at the last sample, with medium or high confidence.
func (b *Board) Hangs() bool { return b.hangs.Load() }

func (b *Board) sample() {
	e := b.evidence(b.sources.Readiness())
	times, queued, waited := b.took.take(), b.queued.take(), b.waited.take()

	b.mu.Lock()
	defer b.mu.Unlock()
	events := e.eventsLocked(0)
	b.history[b.taken%samples] = sample{
		Running: e.running, Waiting: e.waiting,
		Requests: events.requests(), Failures: events.requests() - events.responses(), Errors: events[appErrors],
		P50: times.percentile(0.50), P99: times.percentile(0.99), QueuedP99: queued.percentile(0.99),
	}
	b.times[b.taken%samples], b.queues[b.taken%samples] = times.narrow(), queued.narrow()
	b.waits[b.taken%samples] = waited.percentile(0.50)
	b.past[b.taken%len(b.past)] = e.total
	b.taken++
	if events.answers() > 0 {
		b.lastResponse = e.now
	}
	e.latest = e.latestLocked()
	if !b.hangs.Load() {
		for i, n := range times {
			b.all[i] += uint64(n)
		}
	}
	wasSlow := b.existsLocked(slow)
	b.updateLocked(e)
	switch isSlow := b.existsLocked(slow); {
	case wasSlow && !isSlow:
		b.recent = [2]counts{} // discard the times from the beginning of the slow period
	case !isSlow:
		b.addTimesLocked(&times)
	}
}

// evidence returns the current evidence without the values of the last samples.
func (b *Board) evidence(readiness observation.Readiness) *evidence {
	s := &b.sources
	e := &evidence{
		now: time.Now(), board: b, problem: b.problem(readiness.Ready()), readiness: readiness,
		connections: s.Connections(), tls: s.TLS(), total: b.tally(), drain: s.Drain(),
	}
	e.bounds = s.Bounds.States(e.now)
	slices.SortStableFunc(e.bounds, func(a, b bound.State) int {
		return cmp.Or(cmp.Compare(b.Recent, a.Recent), cmp.Compare(b.Count, a.Count))
	})
	e.running, e.waiting = s.Load()
	e.limit, e.depth = s.Limit()
	if since := s.Waiter(); !since.IsZero() {
		e.waitingFor = e.now.Sub(since)
	}
	if used, limit := s.Memory(); limit > 0 {
		e.memory = &memoryState{Used: used, Limit: limit}
	}
	if state, ok := s.Adaptive(); ok {
		e.adaptive = &state
	}
	return e
}

// snapshot returns the current data. It does not change the state.
func (b *Board) snapshot() snapshot { return b.snapshotWith(b.sources.Readiness()) }

// snapshotWith returns the current data with the given readiness.
func (b *Board) snapshotWith(readiness observation.Readiness) snapshot {
	s := &b.sources
	e := b.evidence(readiness)
	drain := e.drain
	e.tls.describe(e.now)
	snap := snapshot{
		Now:      e.now,
		Version:  s.Version,
		Started:  s.Started,
		Memory:   e.memory,
		Interval: Interval.Seconds(),
		Settings: s.Settings(),
		report: report{
			Pod:       s.Pod,
			Namespace: s.Namespace,
			Ready:     readiness.Ready() && !drain.Draining,
			Reason:    readiness.Reason(),
			Unprobed:  !readiness.Probed(),
			Readiness: readiness,
			Drain:     drain,
			Running:   e.running,
			Waiting:   e.waiting,
			Limit:     e.limit,
			Depth:     e.depth,
			Adaptive:  e.adaptive,
			Totals:    newTotals(func(i int) uint64 { return b.ended[i].Load() }),
			AppErrors: b.ended[appErrors].Load(),
			Bounds:    e.bounds,
			Warnings:  s.Warnings(),

			Connections: e.connections,
			TLS:         e.tls,
		},
	}
	if drain.Draining {
		snap.Reason = "draining: the pod is terminating"
	}
	snap.Slots, snap.Held = e.slots().holders, e.slots().held
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := max(0, b.taken-samples); i < b.taken; i++ {
		snap.History = append(snap.History, b.history[i%samples])
	}
	snap.Failures = b.failuresLocked()
	e.latest = e.latestLocked()
	snap.Latest = e.summary()
	if snap.Problems = b.problemsLocked(e); len(snap.Problems) > 0 {
		snap.Problem = snap.Problems[0].Problem
	}
	snap.setHeading(e.rejectedLocked(observation.QueueFull, observation.QueueTimeout, observation.Overload))
	return snap
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// A histogram has four buckets for each power of two, from 1/16 ms to about 15 minutes. This precision is
// sufficient for a chart.
type histogram struct{ buckets [numBuckets]atomic.Uint32 }

const (
	numBuckets  = 96
	perDoubling = 4                     // number of buckets per power of two
	shortest    = time.Millisecond / 16 // upper bound of the first bucket
)

func (h *histogram) add(d time.Duration) { h.buckets[bucketOf(d)].Add(1) }

// bucketOf returns the index of the bucket for a duration.
func bucketOf(d time.Duration) int {
	if d <= shortest { // most requests do not wait for a slot
		return 0
	}
	i := int(math.Ceil(perDoubling * math.Log2(float64(d)/float64(shortest))))
	return min(i, numBuckets-1)
}

// counts contains the number of values in each bucket of a histogram.
type counts [numBuckets]uint32

// take returns the values and resets the histogram.
func (h *histogram) take() (c counts) {
	for i := range h.buckets {
		c[i] = h.buckets[i].Swap(0)
	}
	return c
}

// narrow stores counts with 16 bits each. Higher counts are stored as 65535.
type narrow [numBuckets]uint16

func (c *counts) narrow() (n narrow) {
	for i, v := range c {
		n[i] = uint16(min(v, math.MaxUint16))
	}
	return n
}

// percentile returns a percentile in milliseconds, or 0 if there are no values.
func (c *counts) percentile(share float64) float64 { return percentile(c[:], share) }

func percentile[N uint32 | uint64](counts []N, share float64) float64 {
	var n, seen N
	for _, c := range counts {
		n += c
	}
	for i, c := range counts {
		if seen += c; seen > 0 && float64(seen) >= share*float64(n) {
			return math.Round(100*milliseconds(shortest)*math.Exp2(float64(i)/perDoubling)) / 100
		}
	}
	return 0
}
