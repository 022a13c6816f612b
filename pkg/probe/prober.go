package probe

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// How often and how long a probe is asked (docs/promises.md 2.2).
const (
	runTime       = 10 * time.Second       // of a run in aggressive mode
	askEvery      = 50 * time.Millisecond  // from try to try, for an app that answers
	redialEvery   = 10 * time.Millisecond  // from try to try, while nothing listens ...
	redialShare   = 250                    // ... growing up to askEvery: a 250th of the time that this has lasted
	firstTryTime  = 100 * time.Millisecond // of a try in aggressive mode ...
	longestTry    = time.Second            // ... doubling up to this while tries time out
	leastStandard = time.Second            // of a try in standard mode, when timeoutSeconds says nothing
)

const (
	maxCallers = 512 // who wait for one run; more get at once what is known
	lastTries  = 8   // entries of [ProbeState.Last]
)

// Changes that are announced: so many at once, and one more for every such time. An
// app that flaps at every try must not fill the log.
const (
	changesAtOnce = 10
	changeEvery   = time.Second
)

// Options are the parts of a [Prober] that are not in a Probe.
type Options struct {
	// AutoDetectHTTP2 asks httpGet probes over h2c too (ENABLE_HTTP2_AUTO_DETECTION).
	AutoDetectHTTP2 bool

	// OwnPorts are those of the sidecar. A redirect to one of them is not followed.
	OwnPorts []int

	// OnChange is called once for each change of readiness or of the words that say
	// why not, not for each try, and while a run is going on too. Calls never
	// overlap and come in order. An app that flaps is announced ten times in a row,
	// then once a second, with the newest state. OnChange must return soon and may
	// call State, but not Ready or Stop. nil: nobody is notified.
	OnChange func(Change)

	// OnReady is called each time that the user container becomes ready or is no
	// longer, however often that is, in order and before anybody is notified: it
	// counts. It must not wait nor call the Prober. nil: nobody counts.
	OnReady func(ready bool)
}

// A Change is what was announced last, and what is known now.
type Change struct{ Before, Now State }

// A Prober asks the user container whether it may serve. Its methods may be called
// by many goroutines at once.
//
// It asks only when it is asked: nothing runs while nobody calls Ready, except
// that a run which has begun is finished.
type Prober struct {
	targets  []*target
	onChange func(Change)
	onReady  func(bool)
	life     context.Context // ends with Stop
	end      context.CancelFunc

	mu      sync.Mutex // protects what follows, and what is known in targets
	run     *run       // the run that is going on, or nil
	phase   Phase
	since   time.Time // of phase
	stopped bool

	telling   sync.Mutex  // held while OnChange runs; taken before mu
	announced State       // protected by telling
	paid      time.Time   // until when the changes that were announced use up what is allowed, protected by telling
	later     *time.Timer // tells what had to wait, protected by telling
}

// A target is one probe and what is known of it.
type target struct {
	ask        ask
	aggressive bool
	threshold  int           // passes in a row, in aggressive mode
	tryTime    time.Duration // of the next try
	next       time.Time     // no try before this
	row        int           // passes in a row; kept from run to run, as Knative does
	refused    time.Time     // since when nothing listens; zero: something does

	// Protected by Prober.mu; the rest belongs to the run that is going on.
	known  ProbeState // without the texts, which are made of err when somebody looks
	err    error      // of the last try, for Detail or, when warned, for Warning
	warned bool
}

// A run asks every probe until the answer is known. All callers that come during the run share it. Their
// number is limited and reported, so the run is not a general type that the detection of HTTP/2 in
// package upstream could use.
type run struct {
	askers int           // protected by Prober.mu
	done   chan struct{} // closed when err is set
	err    error         // a *notReady; nil: ready
}

// New returns a Prober for probes that [Probe.validate] has no complaint about. All
// of them are asked, and all must pass; with none of them the user container is
// always ready.
func New(probes []Probe, o Options) *Prober {
	var targets []*target
	for _, p := range probes {
		t := &target{aggressive: p.PeriodSeconds == 0, threshold: max(1, int(p.SuccessThreshold))}
		switch {
		case p.HTTPGet != nil:
			t.known.Kind = "httpGet"
			t.ask, t.known.Target = askHTTP(p.HTTPGet, o.AutoDetectHTTP2, o.OwnPorts...)
		case p.TCPSocket != nil:
			t.known.Kind = "tcpSocket"
			t.ask, t.known.Target = askTCP(p.TCPSocket)
		case p.GRPC != nil:
			t.known.Kind = "grpc"
			t.ask, t.known.Target = askGRPC(p.GRPC)
		}
		if t.tryTime = firstTryTime; !t.aggressive {
			t.tryTime = max(leastStandard, time.Duration(p.TimeoutSeconds)*time.Second)
		}
		targets = append(targets, t)
	}
	return newProber(targets, o)
}

func newProber(targets []*target, o Options) *Prober {
	now := time.Now()
	p := &Prober{targets: targets, onChange: o.OnChange, onReady: o.OnReady, phase: Starting, since: now}
	if len(targets) == 0 {
		p.phase = Ready
	}
	for i, t := range targets {
		t.known.Index, t.known.Aggressive = i, t.aggressive
		t.known.Phase, t.known.Since, t.known.Word = Starting, now, wordPending
	}
	p.life, p.end = context.WithCancel(context.Background())
	p.announced = p.state(now)
	return p
}

// Ready asks and waits for the answer: nil, or a [*NotReady] that says why not.
// When ctx ends it returns at once with what is known so far, and the run goes on
// for the others. A run ends after one try of each standard probe, and after at
// most 10 s of each aggressive one.
func (p *Prober) Ready(ctx context.Context) error {
	if len(p.targets) == 0 {
		return nil
	}
	p.mu.Lock()
	switch {
	case p.stopped:
		defer p.mu.Unlock()
		return p.notReady(wordStopped, nil)
	case ctx.Err() != nil:
		defer p.mu.Unlock()
		return p.notReady("", context.Cause(ctx))
	case p.run == nil:
		p.run = &run{done: make(chan struct{})}
		go p.answer(p.run)
	case p.run.askers >= maxCallers:
		defer p.mu.Unlock()
		return p.notReady(wordCrowded, nil)
	}
	r := p.run
	r.askers++
	p.mu.Unlock()

	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		r.askers--
		return p.notReady("", context.Cause(ctx))
	}
}

// State is what is known now, also during a run, without asking anybody.
func (p *Prober) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state(time.Now())
}

// Stop ends the run that is going on; its callers and all later ones get
// [wordStopped]. It waits for the run, and OnChange is not called after that; or, when
// ctx is done before, it returns ctx's error. With no probes Ready stays nil.
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
	p.telling.Lock()
	defer p.telling.Unlock()
	p.onChange = nil
	if p.later != nil {
		p.later.Stop()
	}
	return nil
}

// answer asks every probe, all at the same time, and waits for all: a run that
// ended with the first bad answer would be begun again at once by whoever asks next.
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
		r.err = p.notReady(wordStopped, nil)
	case slices.Contains(ready, false):
		r.err = p.notReady("", nil)
	}
	p.mu.Unlock()
	close(r.done)
}

// settle asks one probe until it is ready or has had its time.
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
		err := t.ask(tryCtx)
		cancel()
		if !passes(err) && ctx.Err() != nil {
			return false // cut short by us: says nothing about the app
		}
		if ready := p.record(t, start, time.Now(), err); ready || !t.aggressive {
			return ready
		}
	}
	return false
}

// record notes a try, sets the clock for the next, and tells who wants to know. It
// reports whether the probe is ready now.
func (p *Prober) record(t *target, start, end time.Time, err error) bool {
	var f *failure // nil: ready
	t.next = start.Add(askEvery)
	if passes(err) {
		t.row++
		if t.row < t.threshold && t.aggressive {
			f = &failure{word: wordThreshold, err: errors.New("passes, but not yet often enough in a row")}
		}
	} else {
		t.row = 0
		f = failed(err)
	}
	if f == nil || f.word != wordRefused {
		t.refused = time.Time{}
	} else {
		if t.refused.IsZero() {
			t.refused = start
		}
		lasted := start.Sub(t.refused)
		t.next = start.Add(min(max(redialEvery, lasted/redialShare), askEvery))
	}
	if t.aggressive {
		switch {
		case f != nil && f.word == wordTimeout:
			t.tryTime = min(2*t.tryTime, longestTry)
		case end.Sub(start) < firstTryTime:
			t.tryTime = firstTryTime
		}
	}

	p.mu.Lock()
	changed := t.note(start, end, f, err)
	if changed {
		p.rephase(end)
	}
	p.mu.Unlock()
	if changed {
		p.tell()
	}
	return f == nil
}

// note adds a try to what is known, and reports whether there is something new to
// tell. f is nil when the probe is ready after it. The caller holds mu.
func (t *target) note(start, end time.Time, f *failure, err error) bool {
	k := &t.known
	phase, word, code := Ready, Word(""), 0
	t.err = err
	if f != nil {
		phase, word, code = k.Phase, f.word, f.code
		t.err = f
		if phase == Ready {
			phase = Failing
		}
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
		last.Count, last.To, last.Took = last.Count+1, end, end.Sub(start)
		return changed
	}
	if len(k.Last) == lastTries {
		k.Last = k.Last[:copy(k.Last, k.Last[1:])]
	}
	k.Last = append(k.Last, Tries{Count: 1, From: start, To: end, Took: end.Sub(start), Word: word, Code: code})
	return changed
}

// rephase draws the whole from the parts. The caller holds mu.
func (p *Prober) rephase(now time.Time) {
	phase := Ready
	if slices.ContainsFunc(p.targets, func(t *target) bool { return t.known.Phase != Ready }) {
		phase = Failing
		if p.phase == Starting {
			phase = Starting
		}
	}
	if phase == p.phase {
		return
	}
	if ready := phase == Ready; p.onReady != nil && ready != (p.phase == Ready) {
		p.onReady(ready)
	}
	p.phase, p.since = phase, now
}

// state copies what is known. The caller holds mu.
func (p *Prober) state(now time.Time) State {
	s := State{At: now, Phase: p.phase, Since: p.since, Asking: p.run != nil, Probes: make([]ProbeState, len(p.targets))}
	if p.run != nil {
		s.Askers = p.run.askers
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

// notReady is the answer from what is known. The caller holds mu.
func (p *Prober) notReady(word Word, cause error) *notReady {
	if word == "" && p.phase == Ready {
		word = wordPending // the asker left before this run knew anything
	}
	return &notReady{Word: word, State: p.state(time.Now()), cause: cause}
}

// sameAnnouncement reports whether two states differ in nothing that is announced.
func sameAnnouncement(a, b State) bool {
	return slices.EqualFunc(a.Probes, b.Probes, func(a, b ProbeState) bool {
		return a.Phase == b.Phase && a.Word == b.Word && (a.Warning == "") == (b.Warning == "")
	})
}

// tell calls OnChange when there is something new to tell, at once or, where there were
// too many changes of late, later.
func (p *Prober) tell() {
	p.telling.Lock()
	defer p.telling.Unlock()
	if p.onChange == nil {
		return
	}
	state := p.State()
	if sameAnnouncement(state, p.announced) {
		return
	}
	if p.paid.Before(state.At) {
		p.paid = state.At
	}
	if wait := p.paid.Sub(state.At) - (changesAtOnce-1)*changeEvery; wait > 0 {
		if p.later == nil {
			p.later = time.AfterFunc(wait, p.tellLater)
		}
		return
	}
	p.paid = p.paid.Add(changeEvery)
	before := p.announced
	p.announced = state
	p.onChange(Change{Before: before, Now: state})
}

func (p *Prober) tellLater() {
	p.telling.Lock()
	p.later = nil
	p.telling.Unlock()
	p.tell()
}

// sleepUntil reports whether the time came before the end of ctx, and leaves some.
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
