package probe

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// Durations of runs and attempts (docs/promises.md 2.2).
const (
	runTime            = 10 * time.Second       // maximum duration of a run in aggressive mode
	attemptInterval    = 50 * time.Millisecond  // interval between attempts if the app responds
	minRedialInterval  = 10 * time.Millisecond  // minimum interval between attempts if the connection is refused
	redialShare        = 250                    // the interval is 1/redialShare of the time since the first refused attempt, and at most attemptInterval
	initialTimeout     = 100 * time.Millisecond // initial timeout of an attempt in aggressive mode
	maxTimeout         = time.Second            // maximum timeout in aggressive mode; the timeout is doubled after each timeout
	minStandardTimeout = time.Second            // minimum timeout of an attempt in standard mode
)

const (
	maxCallers      = 512 // maximum number of callers that wait for a run; additional callers get an error immediately
	maxLastAttempts = 8   // maximum length of observation.ProbeReadiness.Last
)

// Rate limit for calls to OnChange. It prevents an app with frequent changes from filling the log.
const (
	changeBurst    = 10          // number of calls without a delay
	changeInterval = time.Second // minimum interval between calls after the burst
)

// Options are the options of [New].
type Options struct {
	// AutoDetectHTTP2 enables the detection of h2c for httpGet probes (ENABLE_HTTP2_AUTO_DETECTION).
	AutoDetectHTTP2 bool

	// OwnPorts contains the ports of the sidecar. Redirects to them are not followed.
	OwnPorts []int

	// OnChange is called when the readiness or its reason changes, even during a run. Calls are
	// sequential. After 10 calls in quick succession, OnChange is called at most once per second with the
	// latest state. OnChange must not block. It may call State, but not Ready or Stop. It may be nil.
	OnChange func(Change)

	// OnReady is called each time the user container becomes ready or stops being ready, before OnChange.
	// Calls are sequential and have no rate limit. OnReady must not block or call methods of the Prober. It may
	// be nil.
	OnReady func(ready bool)
}

// A Change contains the state at the previous call to OnChange and the current state.
type Change struct{ Before, Now observation.Readiness }

// A Prober runs the readiness probes of the user container. Its methods are safe for concurrent use.
//
// Probes run only after a call to Ready. A run is completed even if all callers have returned.
type Prober struct {
	targets  []*target
	onChange func(Change)
	onReady  func(bool)
	life     context.Context // canceled by Stop
	end      context.CancelFunc

	mu      sync.Mutex // guards the following fields and some fields of the targets
	run     *run       // current run, or nil
	phase   observation.ReadinessPhase
	since   time.Time // start time of phase
	stopped bool

	notifyMu   sync.Mutex            // held during OnChange; locked before mu
	announced  observation.Readiness // state in the last call to OnChange; guarded by notifyMu
	nextChange time.Time             // state of the rate limit (generic cell rate algorithm); guarded by notifyMu
	later      *time.Timer           // calls OnChange when the rate limit allows it; guarded by notifyMu
}

// A target is a probe and its state.
type target struct {
	attempt    attemptFunc
	aggressive bool
	threshold  int           // required number of consecutive passes in aggressive mode
	tryTime    time.Duration // timeout of the next attempt
	next       time.Time     // earliest start of the next attempt
	row        int           // number of consecutive passes; kept between runs, as in Knative
	refused    time.Time     // time of the first of several consecutive refused attempts; zero if the last attempt was not refused

	// The following fields are guarded by Prober.mu. The fields above are owned by the current run.
	known  observation.ProbeReadiness // Detail and Warning are not set, because state derives them from err
	err    error                      // error of the last attempt for Detail, or for Warning if warned is true
	warned bool                       // the last attempt passed with a warning
}

// A run executes all probes until the result is known. All callers that arrive during the run share the result.
// The number of callers is limited and reported. The HTTP/2 detection in package http1client does not use this type,
// because it does not need a limit or a report.
type run struct {
	callers int           // number of waiting callers; guarded by Prober.mu
	done    chan struct{} // closed when err is set
	err     error         // a *notReady, or nil if all probes passed
}

// New returns a Prober for valid probes. The user container is ready if all probes pass, and always ready if there are
// no probes.
func New(probes []Probe, o Options) *Prober {
	var targets []*target
	for _, p := range probes {
		t := &target{aggressive: p.PeriodSeconds == 0, threshold: max(1, int(p.SuccessThreshold))}
		switch {
		case p.HTTPGet != nil:
			t.known.Kind = "httpGet"
			t.attempt, t.known.Target = newHTTPAttempt(p.HTTPGet, o.AutoDetectHTTP2, o.OwnPorts...)
		case p.TCPSocket != nil:
			t.known.Kind = "tcpSocket"
			t.attempt, t.known.Target = newTCPAttempt(p.TCPSocket)
		case p.GRPC != nil:
			t.known.Kind = "grpc"
			t.attempt, t.known.Target = newGRPCAttempt(p.GRPC)
		}
		if t.tryTime = initialTimeout; !t.aggressive {
			t.tryTime = max(minStandardTimeout, time.Duration(p.TimeoutSeconds)*time.Second)
		}
		targets = append(targets, t)
	}
	return newProber(targets, o)
}

func newProber(targets []*target, o Options) *Prober {
	now := time.Now()
	p := &Prober{targets: targets, onChange: o.OnChange, onReady: o.OnReady, phase: observation.PhaseStarting, since: now}
	if len(targets) == 0 {
		p.phase = observation.PhaseReady
	}
	for i, t := range targets {
		t.known.Index, t.known.Aggressive = i, t.aggressive
		t.known.Phase, t.known.Since, t.known.Word = observation.PhaseStarting, now, observation.WordPending
	}
	p.life, p.end = context.WithCancel(context.Background())
	p.announced = p.state(now)
	return p
}

// Ready runs the probes and returns nil if all of them pass. Otherwise it returns an error that contains the reasons.
// If ctx is done first, Ready returns an error with the current state immediately, and the run continues. A run makes
// one attempt for each probe in standard mode, and takes at most 10 s for probes in aggressive mode.
func (p *Prober) Ready(ctx context.Context) error {
	if len(p.targets) == 0 {
		return nil
	}
	p.mu.Lock()
	switch {
	case p.stopped:
		defer p.mu.Unlock()
		return p.notReady(observation.WordStopped, nil)
	case ctx.Err() != nil:
		defer p.mu.Unlock()
		return p.notReady("", context.Cause(ctx))
	case p.run == nil:
		p.run = &run{done: make(chan struct{})}
		go p.answer(p.run)
	case p.run.callers >= maxCallers:
		defer p.mu.Unlock()
		return p.notReady(observation.WordCrowded, nil)
	}
	r := p.run
	r.callers++
	p.mu.Unlock()

	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		r.callers--
		return p.notReady("", context.Cause(ctx))
	}
}

// State returns the current state. It does not start a run.
func (p *Prober) State() observation.Readiness {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state(time.Now())
}

// Stop cancels the current run. Waiting and later calls to Ready return an error with [observation.WordStopped]. Stop
// waits until the run has ended, and OnChange is not called after Stop has returned nil. If ctx is done first, Stop
// returns the cancellation cause of ctx. If there are no probes, Ready still returns nil after Stop.
func (p *Prober) Stop(ctx context.Context) error {
	p.mu.Lock()
	p.stopped = true
	r := p.run
	p.mu.Unlock()
	p.end()
	if r != nil {
		select {
		case <-r.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	p.notifyMu.Lock()
	defer p.notifyMu.Unlock()
	p.onChange = nil
	if p.later != nil {
		p.later.Stop()
	}
	return nil
}

// answer runs all probes concurrently, waits for all results, and sets the result of r. It does not return after the
// first failure, because the next caller would then immediately start a new run.
func (p *Prober) answer(r *run) {
	ready := make([]bool, len(p.targets))
	var others sync.WaitGroup
	for i, t := range p.targets[1:] {
		others.Go(func() { ready[i+1] = p.settle(t) })
	}
	ready[0] = p.settle(p.targets[0])
	others.Wait()

	p.mu.Lock()
	p.run = nil
	switch {
	case p.stopped:
		r.err = p.notReady(observation.WordStopped, nil)
	case slices.Contains(ready, false):
		r.err = p.notReady("", nil)
	}
	p.mu.Unlock()
	close(r.done)
}

// settle makes one attempt in standard mode. In aggressive mode, it makes attempts until the probe is ready or runTime
// has passed. It reports whether the probe is ready.
func (p *Prober) settle(t *target) bool {
	ctx := p.life
	if t.aggressive {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, runTime)
		defer cancel()
	}
	for sleepUntil(ctx, t.next) {
		start := time.Now()
		tryCtx, cancel := context.WithTimeout(ctx, t.tryTime)
		err := t.attempt(tryCtx)
		cancel()
		if !passes(err) && ctx.Err() != nil {
			return false // the attempt was canceled, so its error does not describe the app
		}
		if ready := p.record(t, start, time.Now(), err); ready || !t.aggressive {
			return ready
		}
	}
	return false
}

// record stores the result of an attempt, sets the start time and the timeout of the next attempt, and calls OnReady
// and OnChange if the readiness or its reason has changed. It reports whether the probe is ready.
func (p *Prober) record(t *target, start, end time.Time, err error) bool {
	var f *failure // nil if the probe is ready
	t.next = start.Add(attemptInterval)
	if passes(err) {
		t.row++
		if t.row < t.threshold && t.aggressive {
			f = &failure{word: observation.WordThreshold, err: errors.New("not enough consecutive passes")}
		}
	} else {
		t.row = 0
		f = failed(err)
	}
	if f == nil || f.word != observation.WordRefused {
		t.refused = time.Time{}
	} else {
		if t.refused.IsZero() {
			t.refused = start
		}
		lasted := start.Sub(t.refused)
		t.next = start.Add(min(max(minRedialInterval, lasted/redialShare), attemptInterval))
	}
	if t.aggressive {
		switch {
		case f != nil && f.word == observation.WordTimeout:
			t.tryTime = min(2*t.tryTime, maxTimeout)
		case end.Sub(start) < initialTimeout:
			t.tryTime = initialTimeout
		}
	}

	p.mu.Lock()
	changed := t.noteLocked(start, end, f, err)
	if changed {
		p.updatePhaseLocked(end)
	}
	p.mu.Unlock()
	if changed {
		p.notify()
	}
	return f == nil
}

// noteLocked stores the result of an attempt in the state of the target. f is nil if the probe is ready. It reports
// whether the state must be announced. Prober.mu must be held.
func (t *target) noteLocked(start, end time.Time, f *failure, err error) bool {
	k := &t.known
	phase, word, code := k.Phase.Next(f == nil), observation.ReadinessWord(""), 0
	t.err = err
	if f != nil {
		word, code = f.word, f.code
		t.err = f
	}
	warned := f == nil && err != nil
	changed := phase != k.Phase || word != k.Word || warned != t.warned
	if phase != k.Phase {
		k.Phase, k.Since = phase, end
	}
	k.Word, k.Code, t.warned = word, code, warned

	k.Tries++
	if n := len(k.Last); n > 0 && k.Last[n-1].Word == word && k.Last[n-1].Code == code {
		last := &k.Last[n-1]
		last.Count, last.To, last.TookMs = last.Count+1, end, float64(end.Sub(start))/float64(time.Millisecond)
		return changed
	}
	if len(k.Last) == maxLastAttempts {
		k.Last = k.Last[:copy(k.Last, k.Last[1:])]
	}
	k.Last = append(k.Last, observation.ProbeTries{Count: 1, From: start, To: end, TookMs: float64(end.Sub(start)) / float64(time.Millisecond), Word: word, Code: code})
	return changed
}

// updatePhaseLocked derives the phase from the phases of the targets. p.mu must be held.
func (p *Prober) updatePhaseLocked(now time.Time) {
	ready := !slices.ContainsFunc(p.targets, func(t *target) bool { return t.known.Phase != observation.PhaseReady })
	phase := p.phase.Next(ready)
	if phase == p.phase {
		return
	}
	if p.onReady != nil && ready != (p.phase == observation.PhaseReady) {
		p.onReady(ready)
	}
	p.phase, p.since = phase, now
}

// state returns a copy of the state. p.mu must be held.
func (p *Prober) state(now time.Time) observation.Readiness {
	s := observation.Readiness{At: now, Phase: p.phase, Since: p.since, Asking: p.run != nil, Probes: make([]observation.ProbeReadiness, len(p.targets))}
	if p.run != nil {
		s.Askers = p.run.callers
	}
	for i, t := range p.targets {
		k := t.known
		k.Last = slices.Clone(k.Last)
		switch {
		case t.warned:
			k.Warning = detail(t.err)
		case t.err != nil:
			k.Detail = detail(t.err)
		}
		s.Probes[i] = k
	}
	return s
}

// notReady returns a *notReady with the current state. p.mu must be held.
func (p *Prober) notReady(word observation.ReadinessWord, cause error) *notReady {
	if word == "" && p.phase == observation.PhaseReady {
		word = observation.WordPending // ctx was done before the first result of this run
	}
	return &notReady{Word: word, State: p.state(time.Now()), cause: cause}
}

// sameAnnouncement reports whether a and b differ only in details for which OnChange is not called.
func sameAnnouncement(a, b observation.Readiness) bool {
	return slices.EqualFunc(a.Probes, b.Probes, func(a, b observation.ProbeReadiness) bool {
		return a.Phase == b.Phase && a.Word == b.Word && (a.Warning == "") == (b.Warning == "")
	})
}

// notify calls OnChange if the state has changed. If the rate limit is exceeded, it calls OnChange later.
func (p *Prober) notify() {
	p.notifyMu.Lock()
	defer p.notifyMu.Unlock()
	if p.onChange == nil {
		return
	}
	state := p.State()
	if sameAnnouncement(state, p.announced) {
		return
	}
	if p.nextChange.Before(state.At) {
		p.nextChange = state.At
	}
	if wait := p.nextChange.Sub(state.At) - (changeBurst-1)*changeInterval; wait > 0 {
		if p.later == nil {
			p.later = time.AfterFunc(wait, p.notifyLater)
		}
		return
	}
	p.nextChange = p.nextChange.Add(changeInterval)
	before := p.announced
	p.announced = state
	p.onChange(Change{Before: before, Now: state})
}

func (p *Prober) notifyLater() {
	p.notifyMu.Lock()
	p.later = nil
	p.notifyMu.Unlock()
	p.notify()
}

// sleepUntil waits until t and returns true. If ctx is done before t, it returns false. If ctx has a
// deadline that is not after t, it waits until ctx is done and returns false.
func sleepUntil(ctx context.Context, t time.Time) bool {
	if end, ok := ctx.Deadline(); ok && !t.Before(end) {
		<-ctx.Done()
		return false
	}
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
