// Package simulation runs synthetic applications behind a concurrency limit with a simulated
// clock. Runs with the same seed are identical, and a simulated minute takes a fraction of a second.
// The tests of the adaptive limit and the command measure use this package.
package simulation

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
)

// Load describes the clients. If Clients is set, each client sends a request as soon as its
// previous request is complete. If Rate is set, requests arrive independently.
type Load struct {
	Clients int
	Rate    func(at time.Duration) float64
	Depth   int                            // maximum number of queued requests; 0 means no limit
	Kind    func(client, number int) *Kind // returns the kind of a client's next request; may be nil or return nil

	Change  func(at time.Duration, k *Kind) *Kind // replaces the kind k of a request that is sent at a given time; nil means no replacement
	Backoff time.Duration                         // time that a client waits after an error
}

// A Kind describes the behavior of a request and its client. The zero value describes a usual
// request.
type Kind struct {
	Upload   time.Duration // the client sends the request body for this time
	Read     time.Duration // the client reads the response for this time
	Hold     time.Duration // the application responds after this time without using a worker; 0 if the request uses a worker
	Fails    bool          // the response is an error
	Scale    float64       // factor of the time in the application; 0 means 1
	Stream   bool          // the connections are upgraded
	Patience time.Duration // the client disconnects after this time; 0 means never
	Aside    bool          // the requests are not included in the result
	Path     uint32        // hash of the path; 0 means unknown
	Every    time.Duration // the application responds at the next multiple of this time without using a worker; 0 means that Hold applies
}

var usualKind Kind

// grace is the time that a request holds its slot after its client disconnects.
const grace = 10 * time.Second

// tickInterval is the interval of [adapt.Limiter.Tick].
const tickInterval = 50 * time.Millisecond

// Run is one simulation.
type Run struct {
	App   App
	Load  Load
	Gate  Gate
	For   time.Duration
	From  time.Duration // start of the measurement
	Seed  uint64
	Trace func(at time.Duration) // called after each change of the current limit; may be nil
}

// A Result contains the results of the measurement, which starts at Run.From.
type Result struct {
	Throughput float64 // successful requests per second
	P99        float64 // 99th percentile of the time of successful requests in seconds, including the time in the queue
	AppP50     float64 // median of the time in the application in seconds
	AppP99     float64
	Failed     int
	Refused    int     // number of requests that were rejected because the queue was full
	MaxRunning int     // maximum number of requests in the application during the whole run
	InApp      float64 // mean number of requests in the application
}

// epoch is the start time of each simulation.
var epoch = time.Unix(0, 0)

// job is a request.
type job struct {
	came, started int64 // times in nanoseconds
	slot          *adapt.Slot
	inFlight      int
	failed, hit   bool
	kind          *Kind
	client        int
	queued, gone  bool // the request is in the queue; the client has disconnected
	ended         bool // the application has responded

	// The random values are chosen on arrival, so that the requests do not depend on the limit.
	luck        float64 // uniformly distributed random value
	first, last float64 // exponentially distributed random values with mean 1, which are multiplied by the application's mean time
	next        *job
}

type event struct {
	at   int64
	seq  uint64
	job  *job // nil if the event is the arrival of a request
	what int
}

// world is the state of a simulation.
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
	sent    []int // number of sent requests by client
	total   []float64
	app     []float64
	result  Result
}

// Do runs the simulation.
func (r *Run) Do() Result {
	w := &world{run: r, rng: rand.New(rand.NewPCG(r.Seed, 21)), limit: -1}
	r.App.begin(w)
	if r.Load.Clients > 0 {
		w.sent = make([]int, r.Load.Clients)
		for client := range r.Load.Clients {
			w.arrive(client)
		}
	} else {
		w.sent = make([]int, 1)
		w.nextArrival()
	}
	w.after(tickInterval, nil, tick)
	end := int64(r.For)
	for len(w.events) > 0 {
		e := w.events.pop()
		if e.at > end {
			break
		}
		w.now = e.at
		w.handle(e)
	}
	return w.measure()
}

// Events outside of the application.
const (
	arrival  = -1 - iota
	tick     // the periodic event of the gate
	uploaded // the request body is complete
	held     // the application responds after Kind.Hold or Kind.Every
	read     // the client has read the response
	leaves   // the client disconnects
	released // the slot of a disconnected client is released
	returns  // a client sends its next request after an error
)

func (w *world) handle(e event) {
	switch e.what {
	case arrival:
		w.arrive(0)
		w.nextArrival()
	case tick:
		if w.waiting > 0 {
			w.run.Gate.Tick(w.time(), time.Duration(w.now-w.oldest()))
			w.admit()
		}
		w.after(tickInterval, nil, tick)
	case uploaded:
		if e.job.slot != nil {
			w.run.Gate.ClientReady(w.time(), e.job.slot)
		}
		w.start(e.job)
	case held:
		w.done(e.job)
	case read:
		w.run.Gate.ClientReady(w.time(), e.job.slot)
		w.finish(e.job)
	case leaves:
		w.leave(e.job)
	case released:
		w.release(e.job, adapt.Unfinished)
	case returns:
		w.arrive(e.job.client)
	default:
		w.run.App.event(w, e.job, e.what)
	}
}

func (w *world) time() time.Time { return epoch.Add(time.Duration(w.now)) }

func (w *world) nextArrival() {
	rate := w.run.Load.Rate(time.Duration(w.now))
	w.after(time.Duration(w.rng.ExpFloat64()/rate*float64(time.Second)), nil, arrival)
}

// after schedules an event.
func (w *world) after(d time.Duration, j *job, what int) {
	w.seq++
	w.events.push(event{at: w.now + max(int64(d), 0), seq: w.seq, job: j, what: what})
}

// arrive creates a request.
func (w *world) arrive(client int) {
	j := w.free
	if j == nil {
		j = &job{}
	} else {
		w.free = j.next
	}
	*j = job{came: w.now, luck: w.rng.Float64(), first: w.rng.ExpFloat64(), last: w.rng.ExpFloat64(), client: client, kind: &usualKind}
	if f := w.run.Load.Kind; f != nil {
		if k := f(client, w.sent[client]); k != nil {
			j.kind = k
		}
	}
	if f := w.run.Load.Change; f != nil {
		j.kind = f(time.Duration(w.now), j.kind)
	}
	if k := j.kind; k.Scale > 0 {
		j.first, j.last = j.first*k.Scale, j.last*k.Scale
	}
	w.sent[client]++
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
	j.queued = true
	w.waiting++
	if p := j.kind.Patience; p > 0 {
		w.after(p, j, leaves)
	}
	w.admit()
}

// oldest returns the arrival time of the first queued request, or the current time if no request is
// queued.
func (w *world) oldest() int64 {
	w.skip()
	if w.first == nil {
		return w.now
	}
	return w.first.came
}

// skip removes requests of disconnected clients from the front of the queue.
func (w *world) skip() {
	for w.first != nil && w.first.gone {
		w.pop()
	}
}

func (w *world) pop() *job {
	j := w.first
	if w.first = j.next; w.first == nil {
		w.last = nil
	}
	j.next = nil
	return j
}

// admit gives slots to queued requests.
func (w *world) admit() {
	if l := w.run.Gate.State().Limit; l != w.limit {
		w.limit = l
		if w.run.Trace != nil {
			w.run.Trace(time.Duration(w.now))
		}
	}
	for w.skip(); w.first != nil && w.run.Gate.Free(); w.skip() {
		j := w.pop()
		j.queued = false
		w.waiting--
		w.running++
		w.result.MaxRunning = max(w.result.MaxRunning, w.running)
		j.started, j.inFlight = w.now, w.running
		j.slot = &adapt.Slot{}
		w.run.Gate.Admit(w.time(), j.slot, j.kind.Path)
		switch k := j.kind; {
		case k.Stream:
			w.run.Gate.Stream(w.time(), j.slot)
			w.start(j)
		case k.Upload > 0:
			w.run.Gate.AwaitClient(w.time(), j.slot)
			w.after(k.Upload, j, uploaded)
		default:
			w.start(j)
		}
	}
}

// start passes a request to the application.
func (w *world) start(j *job) {
	hold := j.kind.Hold
	if every := j.kind.Every; every > 0 {
		hold = every - time.Duration(w.now)%every
	}
	if hold > 0 {
		w.after(hold, j, held)
		return
	}
	w.run.App.start(w, j)
}

// leave disconnects a client, which immediately sends its next request.
func (w *world) leave(j *job) {
	if j.ended {
		return
	}
	j.gone = true
	if w.measured() && !j.kind.Aside {
		w.result.Failed++
	}
	if j.queued {
		w.waiting--
		j.queued = false
	} else {
		w.after(grace, j, released)
	}
	if w.run.Load.Clients > 0 {
		w.arrive(j.client)
	}
}

// release ends the exchange with the application.
func (w *world) release(j *job, r adapt.Result) {
	if j.slot == nil {
		return
	}
	w.running--
	w.run.Gate.End(w.time(), j.slot, r)
	j.slot = nil
	w.admit()
}

// done records the response from the application.
func (w *world) done(j *job) {
	if j.ended {
		return
	}
	j.ended = true
	if !j.gone && j.kind.Read > 0 {
		w.run.Gate.AwaitClient(w.time(), j.slot)
		w.admit()
		w.after(j.kind.Read, j, read)
		return
	}
	w.finish(j)
}

// finish ends a request.
func (w *world) finish(j *job) {
	took := time.Duration(w.now - j.started)
	j.failed = j.failed || j.kind.Fails
	switch {
	case !w.measured() || j.kind.Aside || j.gone:
	case j.failed:
		w.result.Failed++
	default:
		w.app = append(w.app, took.Seconds())
		w.total = append(w.total, time.Duration(w.now-j.came).Seconds())
		w.result.InApp += took.Seconds()
	}
	result := adapt.Answered
	switch {
	case j.failed:
		result = adapt.Failed
	case j.gone:
		result = adapt.Late
	}
	w.release(j, result)
	if w.run.Load.Clients > 0 && !j.gone {
		w.next(j)
	}
	if j.kind.Patience == 0 { // skip other jobs, because a pending event can refer to them
		j.next, w.free = w.free, j
	}
}

// next sends the next request of j's client.
func (w *world) next(j *job) {
	if pause := w.run.Load.Backoff; j.failed && pause > 0 {
		w.after(pause, &job{client: j.client}, returns)
		return
	}
	w.arrive(j.client)
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

// quantile sorts the values and returns a quantile, or 0 if there are no values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(math.Ceil(q*float64(len(values)))), len(values))-1]
}

// heap is a queue of events that are ordered by time. Events with the same time keep the order of
// their creation.
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
