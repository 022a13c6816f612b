// Package simulation runs synthetic apps behind a concurrency limit on a simulated
// clock: the same seed gives the same run, and a minute takes a fraction of a second.
// The tests of the adaptive limit and the plots of docs/limits.md are made with it.
package simulation

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
)

// A Limiter says how many requests may be in the app at once.
type Limiter interface {
	Limit() int

	Done(now time.Time, s adapt.Sample)
}

// Fixed is a limit that stays.
type Fixed int

// Limit returns it.
func (f Fixed) Limit() int { return int(f) }

// Done does nothing.
func (Fixed) Done(time.Time, adapt.Sample) {}

// Load is what clients do. With Clients they are so many, and each sends its next request
// as soon as it has the answer to the last; otherwise Rate requests a second arrive
// independently of one another.
type Load struct {
	Clients int
	Rate    func(at time.Duration) float64
	Depth   int // how many may wait; the rest are turned away
}

// Run is one simulation.
type Run struct {
	App     App
	Load    Load
	Limiter Limiter
	For     time.Duration
	From    time.Duration // what is measured begins here
	Seed    uint64
	Trace   func(at time.Duration) // called when the limit in force has changed; may be nil
}

// Result is what was measured from Run.From on.
type Result struct {
	Throughput float64 // requests a second that succeeded
	P99        float64 // seconds, of those, with the wait for a slot
	AppP50     float64 // seconds that the app took
	AppP99     float64
	Failed     int
	Refused    int     // that found the line full
	MaxRunning int     // in the app at once, of the whole run
	InApp      float64 // requests, on average
}

// epoch is when every simulation begins.
var epoch = time.Unix(0, 0)

// job is a request.
type job struct {
	came, started int64 // ns
	inFlight      int
	failed, hit   bool

	// Drawn when it comes, so that with any limit the requests are the same.
	luck        float64 // uniform
	first, last float64 // exponential, mean 1: how much it is of the app's mean
	next        *job
}

type event struct {
	at   int64
	seq  uint64
	job  *job // nil: an arrival
	what int
}

// world is the state of a run.
type world struct {
	run     *Run
	rng     *rand.Rand
	now     int64
	seq     uint64
	events  heap
	running int
	limit   int
	waiting int
	first   *job
	last    *job
	free    *job
	total   []float64
	app     []float64
	result  Result
}

// Do runs it.
func (r *Run) Do() Result {
	w := &world{run: r, rng: rand.New(rand.NewPCG(r.Seed, 21)), limit: -1}
	r.App.begin(w)
	if r.Load.Clients > 0 {
		for range r.Load.Clients {
			w.arrive()
		}
	} else {
		w.nextArrival()
	}
	end := int64(r.For)
	for len(w.events) > 0 {
		e := w.events.pop()
		if e.at > end {
			break
		}
		w.now = e.at
		if e.what == arrival {
			w.arrive()
			w.nextArrival()
		} else {
			r.App.event(w, e.job, e.what)
		}
	}
	return w.measure()
}

const arrival = -1

func (w *world) nextArrival() {
	rate := w.run.Load.Rate(time.Duration(w.now))
	w.after(time.Duration(w.rng.ExpFloat64()/rate*float64(time.Second)), nil, arrival)
}

// after schedules an event.
func (w *world) after(d time.Duration, j *job, what int) {
	w.seq++
	w.events.push(event{at: w.now + max(int64(d), 0), seq: w.seq, job: j, what: what})
}

// arrive makes a request.
func (w *world) arrive() {
	j := w.free
	if j == nil {
		j = &job{}
	} else {
		w.free = j.next
	}
	*j = job{came: w.now, luck: w.rng.Float64(), first: w.rng.ExpFloat64(), last: w.rng.ExpFloat64()}
	if depth := w.run.Load.Depth; depth > 0 && w.waiting >= depth {
		if w.measured() {
			w.result.Refused++
		}
		j.next, w.free = w.free, j
		return
	}
	if w.last == nil {
		w.first = j
	} else {
		w.last.next = j
	}
	w.last = j
	w.waiting++
	w.admit()
}

// admit lets in who may.
func (w *world) admit() {
	if l := w.run.Limiter.Limit(); l != w.limit {
		w.limit = l
		if w.run.Trace != nil {
			w.run.Trace(time.Duration(w.now))
		}
	}
	for w.first != nil && w.running < w.limit {
		j := w.first
		if w.first = j.next; w.first == nil {
			w.last = nil
		}
		j.next = nil
		w.waiting--
		w.running++
		w.result.MaxRunning = max(w.result.MaxRunning, w.running)
		j.started, j.inFlight = w.now, w.running
		w.run.App.start(w, j)
	}
}

// done ends a request.
func (w *world) done(j *job) {
	w.running--
	took := time.Duration(w.now - j.started)
	w.run.Limiter.Done(epoch.Add(time.Duration(w.now)), adapt.Sample{Took: took, InFlight: j.inFlight, Failed: j.failed})
	switch {
	case !w.measured():
	case j.failed:
		w.result.Failed++
	default:
		w.app = append(w.app, took.Seconds())
		w.total = append(w.total, time.Duration(w.now-j.came).Seconds())
		w.result.InApp += took.Seconds()
	}
	j.next = w.free
	w.free = j
	w.admit()
	if w.run.Load.Clients > 0 {
		w.arrive()
	}
}

func (w *world) measured() bool { return w.now >= int64(w.run.From) }

func (w *world) measure() Result {
	r := w.result
	seconds := (w.run.For - w.run.From).Seconds()
	r.Throughput = float64(len(w.total)) / seconds
	r.InApp /= seconds
	r.P99 = quantile(w.total, 0.99)
	r.AppP99 = quantile(w.app, 0.99)
	r.AppP50 = quantile(w.app, 0.50)
	return r
}

// quantile returns a quantile of values, which it sorts; 0 of none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(math.Ceil(q*float64(len(values)))), len(values))-1]
}

// heap is a queue of events, the earliest first, and those of one moment in the order in
// which they were made.
type heap []event

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

func (h *heap) push(e event) {
	*h = append(*h, e)
	s := *h
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&s[parent]) {
			break
		}
		s[i] = s[parent]
		i = parent
	}
	s[i] = e
}

func (h *heap) pop() event {
	s := *h
	top := s[0]
	last := s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	i := 0
	for len(s) > 0 {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if child+1 < len(s) && s[child+1].before(&s[child]) {
			child++
		}
		if !s[child].before(&last) {
			break
		}
		s[i] = s[child]
		i = child
	}
	if len(s) > 0 {
		s[i] = last
	}
	return top
}
