package simulation

import (
	"math"
	"time"
)

// An App is a synthetic application, which processes the requests that were admitted. Each run
// needs a new App.
type App interface {
	begin(*world)
	start(*world, *job)
	event(w *world, j *job, what int)
}

// Events of the applications.
const (
	served = iota // a worker has processed a request
	onCPU         // a request has received its CPU time
	local         // the part of a request that needs no worker is complete
	batch         // the device has completed a batch
	gather        // the device stops waiting for a full batch, or the available share of the cores is read
	grown         // the pool receives more workers
)

// A station is a pool of workers. Each worker processes one request at a time. If no worker is
// free, requests wait in the application in the order of their arrival. A station with one
// worker is a lock.
type station struct {
	workers int
	busy    int
	line    []*job
}

// enter assigns a worker to a request. It reports whether a worker was free.
func (s *station) enter(j *job) bool {
	if s.busy < s.workers {
		s.busy++
		return true
	}
	s.line = append(s.line, j)
	return false
}

// leave frees a worker and returns the next request of this worker, or nil if no request waits.
func (s *station) leave() *job {
	if len(s.line) == 0 {
		s.busy--
		return nil
	}
	j := s.line[0]
	s.line = s.line[1:]
	return j
}

// Pool is an application with a fixed number of workers, for example threads or connections to a
// database. Each request first spends the duration Local without a worker.
type Pool struct {
	Workers int
	Time    time.Duration // mean time with a worker
	Spread  float64       // distribution of Time: 0 means constant, 1 means exponential
	Local   time.Duration
	Factor  func(at time.Duration) float64                    // factor of Time at a given time; nil means 1
	Convoy  float64                                           // relative increase in the time with a worker, per waiting request
	Hits    func(served int) float64                          // share of requests that need no worker after the given number of processed requests; nil means 0
	Errors  func(at time.Duration, inApp int) (share float64) // share of requests that fail immediately; nil means 0

	Reject int // maximum number of busy workers; further requests fail immediately; 0 means no limit

	// More is the number of workers that are added at the time MoreAt. From the time Stop, no
	// worker makes progress for the duration StopFor; 0 means that the workers never stop.
	More          int
	MoreAt        time.Duration
	Stop, StopFor time.Duration

	station station
	inApp   int
	served  int
}

func (p *Pool) begin(w *world) {
	p.station.workers = p.Workers
	if p.More > 0 {
		w.after(p.MoreAt, nil, grown)
	}
}

func (p *Pool) start(w *world, j *job) {
	p.inApp++
	if p.Errors != nil && j.luck < p.Errors(time.Duration(w.now), p.inApp) {
		j.failed = true
		w.after(fast, j, local)
		return
	}
	if p.Reject > 0 && p.station.busy >= p.Reject {
		j.failed = true
		w.after(rejection, j, local)
		return
	}
	if p.Hits != nil && j.luck < p.Hits(p.served) {
		j.hit = true
		w.after(time.Duration(float64(fast)*j.first), j, local)
		return
	}
	if p.Local > 0 {
		w.after(time.Duration(float64(p.Local)*j.last), j, local)
		return
	}
	p.queue(w, j)
}

// fast is the response time of a cache hit or an immediate failure.
const fast = 2 * time.Millisecond

// rejection is the response time of a rejected request.
const rejection = 300 * time.Microsecond

func (p *Pool) queue(w *world, j *job) {
	if p.station.enter(j) {
		w.after(p.time(w, j), j, served)
	}
}

func (p *Pool) time(w *world, j *job) time.Duration {
	t := float64(p.Time) * (1 - p.Spread + p.Spread*j.first)
	if p.Factor != nil {
		t *= p.Factor(time.Duration(w.now))
	}
	t *= 1 + p.Convoy*float64(len(p.station.line))
	if now := time.Duration(w.now); p.StopFor > 0 && now+time.Duration(t) > p.Stop && now < p.Stop+p.StopFor {
		t += float64(p.StopFor - max(now-p.Stop, 0))
	}
	return time.Duration(t)
}

func (p *Pool) event(w *world, j *job, what int) {
	if what == grown {
		p.station.workers += p.More
		for range min(p.More, len(p.station.line)) {
			next := p.station.line[0]
			p.station.line = p.station.line[1:]
			p.station.busy++
			w.after(p.time(w, next), next, served)
		}
		return
	}
	if what == local && !j.failed && !j.hit {
		p.queue(w, j)
		return
	}
	if what == served {
		if next := p.station.leave(); next != nil {
			w.after(p.time(w, next), next, served)
		}
	}
	p.inApp--
	p.served++
	w.done(j)
}

// CPU is an application whose requests share the cores equally. After a request has received its
// CPU time, it waits for the duration Wait.
type CPU struct {
	Cores  float64
	Time   time.Duration                  // mean CPU time of a request, exponentially distributed
	Wait   time.Duration                  // mean wait of a request, exponentially distributed
	Factor func(at time.Duration) float64 // factor of Time; nil means 1
	Share  func(at time.Duration) float64 // available share of the cores, read every 100 ms; nil means 1
	Switch float64                        // relative slowdown for each request that exceeds the number of cores

	share   float64
	virtual float64 // CPU time, in ns, that a request would have received since the start of the simulation
	at      int64   // time at which virtual was computed
	version int
	ready   heap // requests in progress, sorted by the value of virtual at which a request has received its CPU time
}

func (c *CPU) begin(w *world) {
	c.share = 1
	if c.Share != nil {
		w.after(0, nil, gather)
	}
}

// rate returns the CPU time that each request receives per second, in seconds.
func (c *CPU) rate() float64 {
	n := float64(len(c.ready))
	if n == 0 {
		return 0
	}
	cores := c.Cores * c.share
	return min(1, cores/n) / (1 + c.Switch*max(0, n-cores))
}

func (c *CPU) advance(w *world) {
	c.virtual += float64(w.now-c.at) * c.rate()
	c.at = w.now
}

// plan schedules the onCPU event of the request that will be the first to use up its CPU time.
func (c *CPU) plan(w *world) {
	c.version++
	if len(c.ready) > 0 {
		left := (float64(c.ready[0].at) - c.virtual) / c.rate()
		w.after(time.Duration(math.Ceil(max(left, 0))), nil, onCPU+16*c.version)
	}
}

func (c *CPU) start(w *world, j *job) {
	c.advance(w)
	t := float64(c.Time) * j.first
	if c.Factor != nil {
		t *= c.Factor(time.Duration(w.now))
	}
	w.seq++
	c.ready.push(event{at: int64(c.virtual + t), seq: w.seq, job: j})
	c.plan(w)
}

func (c *CPU) event(w *world, j *job, what int) {
	switch {
	case what == gather:
		c.advance(w)
		c.share = c.Share(time.Duration(w.now))
		c.plan(w)
		w.after(100*time.Millisecond, nil, gather)
	case what == local:
		w.done(j)
	case what>>4 == c.version:
		c.advance(w)
		j := c.ready.pop().job
		c.plan(w)
		if c.Wait > 0 {
			w.after(time.Duration(float64(c.Wait)*j.last), j, local)
		} else {
			w.done(j)
		}
	}
}

// Batch is a device that processes up to Size requests as one batch. It waits for a batch to
// fill.
type Batch struct {
	Size   int
	Gather time.Duration // maximum time to wait for a full batch
	Fixed  time.Duration // time per batch
	Each   time.Duration // additional time per request

	line    []*job
	current []*job
	version int
}

func (b *Batch) begin(*world) {}

func (b *Batch) start(w *world, j *job) {
	b.line = append(b.line, j)
	b.next(w, false)
}

// next starts a batch if possible.
func (b *Batch) next(w *world, now bool) {
	switch {
	case len(b.current) > 0 || len(b.line) == 0:
	case len(b.line) >= b.Size || now:
		n := min(len(b.line), b.Size)
		b.current = append(b.current, b.line[:n]...)
		b.line = b.line[n:]
		b.version++
		w.after(b.Fixed+time.Duration(n)*b.Each, nil, batch)
	case len(b.line) == 1:
		b.version++
		w.after(b.Gather, nil, gather+16*b.version)
	}
}

func (b *Batch) event(w *world, _ *job, what int) {
	if what != batch {
		if what>>4 == b.version {
			b.next(w, true)
		}
		return
	}
	over := b.current
	b.current = nil
	rest := len(b.line) > 0
	if rest {
		b.version++
		w.after(b.Gather, nil, gather+16*b.version)
		b.next(w, false)
	}
	for _, j := range over {
		w.done(j)
	}
}
