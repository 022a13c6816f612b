package adapt

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// serve simulates an application that has the given number of workers, takes 10 ms per request, and
// always receives as many requests as the limit admits. It returns the time after the simulation.
func serve(l *Limiter, now time.Time, lasts time.Duration, workers int, failed bool) time.Time {
	result := Answered
	if failed {
		result = Failed
	}
	var line []*Slot
	admit := func() {
		for l.Free() {
			s := &Slot{}
			l.Admit(now, s, 0)
			line = append(line, s)
		}
	}
	for end := now.Add(lasts); now.Before(end); {
		admit()
		now = now.Add(10 * time.Millisecond / time.Duration(min(len(line), workers)))
		l.End(now, line[0], result)
		line = line[1:]
		l.Tick(now, 10*time.Millisecond)
	}
	for _, s := range line {
		l.End(now, s, Unknown)
	}
	return now
}

func TestLimitFollowsAppCapacity(t *testing.T) {
	l, now := New(Settings{Max: 50}), time.Unix(0, 0)
	for _, workers := range []int{10, 20, 5, 1, 30} {
		now = serve(l, now, time.Minute, workers, false)
		if got := l.State(); got.Base < workers || got.Base > workers+workers/2+1 {
			t.Errorf("%d workers: got %+v, want a base equal to or slightly above the number of workers", workers, got)
		}
	}
}

func TestTrialDiscardsWindowsBeforeChange(t *testing.T) {
	window := func(took float64) *tally {
		w := &tally{limit: 12, lasted: 1, full: 200 * took / 12}
		for range 200 {
			w.note(took, true, Answered)
		}
		return w
	}
	c := trial{limit: 12}
	c.base.add(window(0.010))
	for range 10 {
		c.add(window(0.012), time.Second)
	}
	harness.Equal(t, c.candidate.good, 2000, "responses with the candidate without a change")
	for range 10 {
		c.add(window(0.008), time.Second)
	}
	if c.candidate.mean() > 0.0081 || c.base.good != 0 {
		t.Errorf("after a change: got %v s with the candidate, %v responses at the base, want 0.008, 0", c.candidate.mean(), c.base.good)
	}
	harness.Equal(t, c.lasted, 20*time.Second, "time with the candidate in effect")
}

func TestManyErrorsPreventHigherLimit(t *testing.T) {
	window := func(limit, good, failed int) tally {
		w := tally{limit: limit, lasted: 1, full: 1}
		for range good {
			w.note(0.02, true, Answered)
		}
		for range failed {
			w.note(0.0003, true, Failed)
		}
		return w
	}
	for name, c := range map[string]struct {
		base, candidate tally
		better          bool
	}{
		"higher with rejections":      {window(13, 580, 0), window(14, 625, 3000), false},
		"lower without rejections":    {window(14, 625, 3000), window(13, 580, 0), true},
		"higher with unrelated error": {window(13, 600, 100), window(15, 692, 120), true},
		"much higher goodput":         {window(8, 400, 3000), window(16, 800, 12000), true},
	} {
		trial := trial{limit: c.candidate.limit, base: c.base, candidate: c.candidate}
		if got := trial.outcome(c.base.limit); got.better != c.better {
			t.Errorf("%s: got %+v, want better %v", name, got, c.better)
		}
	}
}

func TestReasonIsOneWord(t *testing.T) {
	for _, r := range []observation.LimitReason{observation.LimitStarting, observation.LimitGrowing, observation.LimitAppTime, observation.LimitSteady, observation.LimitMeasuring, observation.LimitErrors, observation.LimitNoAnswers, observation.LimitCeiling, observation.LimitFloor, observation.LimitIdle} {
		if word := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`); !word.MatchString(string(r)) || strings.Contains(r.Words(), "-") {
			t.Errorf("got reason %q, in words %q, want hyphens only in the reason", r, r.Words())
		}
	}
}

func TestSettledLimitNeedsBothComparisons(t *testing.T) {
	for name, c := range map[string]struct {
		settings Settings
		least    int
		missing  string // substring of State.Missing; empty if the limit is settled
	}{
		"between the bounds": {Settings{Max: 50}, 10, ""},
		"at the ceiling":     {Settings{Max: 6}, 6, "maximum"},
		"at the minimum":     {Settings{Min: 20, Max: 50}, 20, "minimum"},
	} {
		l := New(c.settings)
		now := serve(l, time.Unix(0, 0), time.Minute, 10, false)
		for range 100 { // a comparison may be running
			if c.missing != "" || l.State().Settled > 0 {
				break
			}
			now = serve(l, now, time.Second, 10, false)
		}
		got := l.State()
		if got.Base < c.least || got.Base > c.least*3/2 || (got.Settled > 0) != (c.missing == "") || !strings.Contains(got.Missing, c.missing) {
			t.Errorf("%s: got %+v, want at least %d, missing %q", name, got, c.least, c.missing)
		}
	}
	if got := New(Settings{}).State(); got.Settled != 0 || got.Missing == "" {
		t.Errorf("at first: got %+v, want the missing comparison", got)
	}
}

func TestLimitRecoversAfterAllRequestsFailed(t *testing.T) {
	l := New(Settings{Max: 50})
	now := serve(l, time.Unix(0, 0), time.Minute, 10, false)
	want := l.State().Base
	now = serve(l, now, time.Minute, 10, true)
	if got := l.State(); got.Base != want || got.Reason != observation.LimitErrors && got.Reason != observation.LimitMeasuring {
		t.Errorf("got %+v, want %d, errors", got, want)
	}
	serve(l, now, time.Minute, 10, false)
	if got := l.State(); got.Base < 10 || got.Base > 16 || got.Reason == observation.LimitErrors {
		t.Errorf("after the errors: got %+v, want about %d", got, want)
	}
}

func TestLimitDoesNotExceedMaxLimit(t *testing.T) {
	l := New(Settings{})
	serve(l, time.Unix(0, 0), 20*time.Second, 5000, false)
	if got := l.State(); got.Base != MaxLimit || got.Reason != observation.LimitCeiling && got.Reason != observation.LimitMeasuring {
		t.Errorf("got %+v, want %d, ceiling", got, MaxLimit)
	}
}

func TestLimitStaysWithinBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		s := Settings{Min: rng.IntN(20), Max: rng.IntN(40), Start: rng.IntN(60), Seed: rng.Uint64()}
		l, now := New(s), time.Unix(0, 0)
		most := s.Ceiling()
		least := min(max(s.Min, 1), most)
		var running []*Slot
		for range 5000 {
			now = now.Add(time.Duration(rng.ExpFloat64() * float64(20*time.Millisecond)))
			actOnLimiter(l, now, rng, &running)
			if got := l.State(); got.Limit < least || got.Limit > most || got.Base < least || got.Base > most || len(running) > most {
				t.Fatalf("%+v: got %+v, %d running", s, got, len(running))
			}
		}
		for _, slot := range running {
			l.End(now, slot, Unknown)
		}
		all, counted := l.Load()
		harness.Equal(t, all, 0, "running at the end")
		harness.Equal(t, counted, 0, "counted at the end")
		harness.Equal(t, l.oldest, nil, "listed at the end")
	}
}

// actOnLimiter calls random methods of l and updates running, which contains the slots of the running requests.
func actOnLimiter(l *Limiter, now time.Time, rng *rand.Rand, running *[]*Slot) {
	if l.Free() && rng.IntN(3) > 0 {
		s := &Slot{}
		l.Admit(now, s, 0)
		*running = append(*running, s)
	}
	l.Tick(now, time.Duration(rng.IntN(3))*time.Second)
	if len(*running) == 0 {
		return
	}
	i := rng.IntN(len(*running))
	s := (*running)[i]
	switch rng.IntN(12) {
	case 0:
		l.AwaitClient(now, s)
	case 1:
		l.ClientReady(now, s)
	case 2:
		l.Stream(now, s)
	case 3:
		(*running)[i] = &Slot{}
		l.Move(s, (*running)[i])
		l.AwaitClient(now, s) // late calls have no effect
		l.ClientReady(now, s)
	default:
		l.End(now, s, Result(rng.IntN(int(Unknown)+1)))
		*running = append((*running)[:i], (*running)[i+1:]...)
		l.ClientReady(now, s)
	}
}

func TestLongRequestsDoNotChangeLimit(t *testing.T) {
	l := New(Settings{Max: 50})
	now := serve(l, time.Unix(0, 0), time.Minute, 10, false)
	want := l.State().Base
	for range 20 {
		s := &Slot{}
		l.Admit(now.Add(-3*time.Hour), s, 0)
		l.End(now, s, Answered)
		now = serve(l, now, 2*time.Second, 10, false)
	}
	if got := l.State().Base; got < 10 || got > want+4 {
		t.Errorf("got %d, want about %d as before", got, want)
	}
}

func TestOpenRequestsDoNotCountTowardAdaptiveLimit(t *testing.T) {
	for name, hold := range map[string]func(l *Limiter, now time.Time, s *Slot){
		"long":   func(*Limiter, time.Time, *Slot) {},
		"stream": (*Limiter).Stream,
		"client": (*Limiter).AwaitClient,
	} {
		l, now := New(Settings{Max: 6}), time.Unix(0, 0)
		var open [6]Slot
		for i := range 4 {
			l.Admit(now, &open[i], 0)
			hold(l, now, &open[i])
		}
		now = now.Add(shortestLong)
		l.Tick(now, shortestLong)
		for i := 4; i < 6; i++ {
			harness.Equal(t, l.Free(), true, name, "below the ceiling")
			l.Admit(now, &open[i], 0)
		}
		harness.Equal(t, l.Free(), false, name, "at the ceiling")
		harness.Equal(t, open[0].Exemption().String(), map[string]string{"long": "long", "stream": "stream", "client": "waits for the client"}[name], name)
		l.ClientReady(now, &open[0])
		for i := range open {
			l.End(now, &open[i], Unknown)
		}
		harness.Equal(t, l.Free(), true, name, "at the end")
	}
}

func TestTimeoutOfUploadIsUnknown(t *testing.T) {
	l, now := New(Settings{}), time.Unix(0, 0)
	for range 200 {
		s := &Slot{}
		l.Admit(now, s, 0)
		l.AwaitClient(now, s)
		now = now.Add(time.Second)
		l.End(now, s, TimedOut)
	}
	harness.Equal(t, l.controller.window.failed, 0, "failures")
	harness.Equal(t, l.State().Base, firstLimit, "limit")
}

func TestTimeoutAfterSlowUploadIsUnknown(t *testing.T) {
	for upload, want := range map[time.Duration]bool{8 * time.Second: false, 2 * time.Second: true} {
		l, now := New(Settings{}), time.Unix(0, 0)
		s := &Slot{}
		l.Admit(now, s, 0)
		l.AwaitClient(now, s)
		l.ClientReady(now.Add(upload), s)
		l.End(now.Add(10*time.Second), s, TimedOut)
		harness.Equal(t, l.responded, want, "the timeout is counted after an upload of", upload)
	}
}

func TestErrorsReduceUnreachedLimit(t *testing.T) {
	for name, c := range map[string]struct {
		requests, failed int
		want             observation.LimitState
	}{
		"most requests fail": {10, 9, observation.LimitState{Base: 10, Reason: observation.LimitErrors}},
		"few requests":       {3, 2, observation.LimitState{Base: firstLimit, Reason: observation.LimitErrors}},
		"all requests fail":  {10, 10, observation.LimitState{Base: 50, Reason: observation.LimitErrors}},
		"successes":          {10, 0, observation.LimitState{Base: 50, Reason: observation.LimitIdle}},
	} {
		l, now := New(Settings{Max: 100, Start: 50}), time.Unix(0, 0)
		slots := make([]Slot, c.requests)
		for range 650 {
			for i := range slots {
				l.Admit(now, &slots[i], 0)
			}
			now = now.Add(10 * time.Millisecond)
			for i := range slots {
				result := Answered
				if i < c.failed {
					result = Failed
				}
				l.End(now, &slots[i], result)
			}
		}
		if got := l.State(); got.Base != c.want.Base || got.Reason != c.want.Reason && got.Reason != observation.LimitMeasuring {
			t.Errorf("%s: got %+v, want the limit %d, %s", name, got, c.want.Base, c.want.Reason)
		}
	}
}

func TestRequestDoesNotAllocate(t *testing.T) {
	l, now, s := New(Settings{}), time.Unix(0, 0), &Slot{}
	got := testing.AllocsPerRun(10000, func() {
		l.Admit(now, s, 0)
		now = now.Add(time.Millisecond)
		l.End(now, s, Answered)
	})
	harness.Equal(t, got, 0, "allocations")
}

func BenchmarkRequest(b *testing.B) {
	l, now, s := New(Settings{}), time.Unix(0, 0), &Slot{}
	for b.Loop() {
		l.Admit(now, s, 0)
		now = now.Add(100 * time.Microsecond)
		l.End(now, s, Answered)
	}
}

// poll runs 20 clients, each of which sends n polls of 4 s, and a client with requests of 10 ms.
func poll(l *Limiter, now time.Time, n int) time.Time {
	const polls, other = 1, 2 // hashes of the paths
	slots := make([]Slot, 20)
	for range n {
		for i := range slots {
			l.Admit(now, &slots[i], polls)
		}
		for end := now.Add(4 * time.Second); now.Before(end); {
			var s Slot
			l.Admit(now, &s, other)
			now = now.Add(10 * time.Millisecond)
			l.End(now, &s, Answered)
			l.Tick(now, 10*time.Millisecond)
		}
		for i := range slots {
			l.End(now, &slots[i], Answered)
		}
	}
	return now
}

func TestRepeatedPollsAreNotCounted(t *testing.T) {
	l, now := New(Settings{Max: 50}), time.Unix(0, 0)
	var s Slot
	l.Admit(now, &s, 1)
	harness.Equal(t, s.Exemption(), Counted, "first poll")
	l.End(now, &s, Unknown)
	now = poll(l, now, 2)
	l.Admit(now, &s, 1)
	harness.Equal(t, s.Exemption(), Long, "poll after 40 polls")
	l.End(now.Add(4*time.Second), &s, Answered)
	for range 300 {
		l.Admit(now, &s, 1)
		l.End(now.Add(time.Millisecond), &s, Answered)
	}
	l.Admit(now, &s, 1)
	harness.Equal(t, s.Exemption(), Counted, "request after 300 short requests of the same path")
}

func TestLongPathStaysLong(t *testing.T) {
	for name, requests := range map[string]func(l *Limiter, now time.Time) time.Time{
		"early responses": func(l *Limiter, now time.Time) time.Time {
			for range 50 {
				for range 60 {
					now = send(l, now, time.Millisecond, Answered)
				}
				now = poll(l, now, 3)
			}
			return now
		},
		"errors": func(l *Limiter, now time.Time) time.Time {
			for range 2000 {
				now = send(l, now, time.Millisecond, Failed)
			}
			return now
		},
	} {
		l := New(Settings{Max: 50})
		now := requests(l, poll(l, time.Unix(0, 0), 2))
		var s Slot
		l.Admit(now, &s, 1)
		harness.Equal(t, s.Exemption(), Long, name)
	}
}

// send sends a request for the path of polls. It returns the time of the response.
func send(l *Limiter, now time.Time, took time.Duration, r Result) time.Time {
	var s Slot
	l.Admit(now, &s, 1)
	now = now.Add(took)
	l.End(now, &s, r)
	return now
}

func TestSlowPhaseDoesNotMakePathLong(t *testing.T) {
	l, now := New(Settings{Max: 50}), time.Unix(0, 0)
	var s, fast Slot
	for i := range 3000 {
		l.Admit(now, &s, 1)
		now = now.Add(10 * time.Millisecond)
		if i >= 2000 && i < 2200 { // the application is slow
			now = now.Add(5 * time.Second)
			l.Admit(now, &fast, 2)
			l.End(now.Add(time.Millisecond), &fast, Answered)
			l.Tick(now, time.Second)
		}
		l.End(now, &s, Answered)
		l.Admit(now, &s, 1)
		harness.Equal(t, s.Exemption(), Counted, "request", i)
		l.End(now, &s, Unknown)
	}
}

func TestLimitIsNotSettledBetweenPolls(t *testing.T) {
	l := New(Settings{Max: 50})
	now := serve(l, time.Unix(0, 0), time.Minute, 10, false)
	for range 100 { // a comparison may be running
		if l.State().Settled > 0 {
			break
		}
		now = serve(l, now, time.Second, 10, false)
	}
	poll(l, now, 3)
	all, counted := l.Load()
	harness.Equal(t, all, counted, "requests that are not counted after the polls")
	harness.Equal(t, l.State().Settled, 0, "settled limit")
}

func TestTrialAfterSilentTrialLimitsLoss(t *testing.T) {
	window := func(limit int, r Result) *tally {
		w := &tally{limit: limit, lasted: 1, busy: 1, full: 1}
		for i := range 4 * limit {
			w.note([]float64{0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 2}[i%8], true, r)
		}
		return w
	}
	now := time.Unix(1000, 0)
	c := newController(Settings{Max: 100, Start: 16})
	c.start, c.reason = startup{}, observation.LimitErrors
	c.trial = trial{limit: 8, turns: 1, began: now, base: *window(16, Failed), candidate: *window(8, Failed)}
	harness.Equal(t, c.decide(now), true, "the silent trial has ended")
	harness.Equal(t, c.limit, 4, "next candidate")

	// The application recovers. The candidate reduces the goodput by three quarters, but the spread of the
	// application times is too large for a decision.
	now = now.Add(time.Second)
	c.endCandidate(now, window(4, Answered))
	now = now.Add(time.Second)
	c.endBase(now, window(16, Answered))
	harness.Equal(t, c.trial.limit, 4, "the trial continues with the candidate")
	harness.Equal(t, c.limit, 16, "limit in effect after the candidate has reduced the goodput")
}
