package adapt

import (
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// serve has an app with so many workers, 10 ms each, work for a while with as many requests
// as the limit lets in, and returns when that ends.
func serve(l *Limiter, now time.Time, lasts time.Duration, workers int, failed bool) time.Time {
	for end := now.Add(lasts); now.Before(end); {
		n := l.Limit()
		took := 10 * time.Millisecond * time.Duration(max(n, workers)) / time.Duration(workers)
		now = now.Add(took / time.Duration(n))
		l.Done(now, Sample{Took: took, InFlight: n, Failed: failed})
	}
	return now
}

func TestTheLimitFollowsTheApp(t *testing.T) {
	l, now := New(Settings{Max: 50}), time.Unix(0, 0)
	for _, workers := range []int{10, 20, 5, 1, 30} {
		now = serve(l, now, time.Minute, workers, false)
		if got := l.State(); got.Base < workers || got.Base > workers+workers/5+1 {
			t.Errorf("%d workers: got %+v, want that or little more", workers, got)
		}
	}
	if got := l.State().Reason; got != Steady && got != Measuring {
		t.Errorf("in the end got %q, want steady", got)
	}
}

func TestAfterASlowdownTheFirstCandidateIsAsFarBelowAsAStepGoes(t *testing.T) {
	l := New(Settings{Max: 50})
	now := serve(l, time.Unix(0, 0), time.Minute, 10, false)
	was := l.State().Base
	for end := now.Add(3 * time.Second); now.Before(end) && (l.Limit() >= was || l.State().Found); {
		now = serve(l, now, 10*time.Millisecond, 5, false)
	}
	if want := int(math.Round(float64(was) * math.Exp(-changeStep))); l.Limit() != want {
		t.Errorf("from %d, for half as many workers: got %d first, want %d", was, l.Limit(), want)
	}
}

func TestATrialForgetsWhatWasBeforeAChange(t *testing.T) {
	window := func(took float64) *tally {
		w := &tally{}
		for range 200 {
			w.note(took, true, false)
		}
		return w
	}
	c := trial{limit: 12}
	c.base.add(window(0.010))
	for range 10 {
		c.add(window(0.012), time.Second)
	}
	harness.Equal(t, c.candidate.all, 2000, "requests with the candidate, as long as nothing changes")
	for range 10 {
		c.add(window(0.008), time.Second)
	}
	if c.candidate.mean() > 0.0081 || c.base.all != 0 {
		t.Errorf("after a change: got %v s with the candidate, %v requests at the base, want 0.008, 0", c.candidate.mean(), c.base.all)
	}
	harness.Equal(t, c.lasted, 20*time.Second, "time with the candidate in force")
}

func TestAReasonIsOneWordForPrograms(t *testing.T) {
	for _, r := range Reasons() {
		if word := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`); !word.MatchString(string(r)) || strings.Contains(r.Words(), "-") {
			t.Errorf("got %q, in words %q, want a word with hyphens, and words without", r, r.Words())
		}
	}
}

func TestALimitAtItsBoundIsNotFound(t *testing.T) {
	for name, c := range map[string]struct {
		settings Settings
		want     State
	}{
		"between the bounds": {Settings{Max: 50}, State{Base: 10, Found: true}},
		"at the ceiling":     {Settings{Max: 6}, State{Base: 6}},
		"at the floor":       {Settings{Min: 20, Max: 50}, State{Base: 20}},
	} {
		l := New(c.settings)
		serve(l, time.Unix(0, 0), time.Minute, 10, false)
		got := l.State()
		if near := got.Base >= c.want.Base && got.Base <= c.want.Base+2; !near || got.Found != c.want.Found {
			t.Errorf("%s: got %+v, want about %+v", name, got, c.want)
		}
	}
}

func TestAnAppThatFailsAlwaysMovesNothing(t *testing.T) {
	l := New(Settings{Max: 50})
	now := serve(l, time.Unix(0, 0), time.Minute, 10, false)
	want := l.State().Base
	serve(l, now, time.Minute, 10, true)
	if got := l.State(); got.Base != want || got.Reason != Errors {
		t.Errorf("got %+v, want %d, errors", got, want)
	}
}

func TestALimitWithoutACeilingHasOneOfItsOwn(t *testing.T) {
	l := New(Settings{})
	serve(l, time.Unix(0, 0), 20*time.Second, 5000, false)
	if got := l.State(); got.Base != MaxLimit || got.Reason != Ceiling && got.Reason != Measuring {
		t.Errorf("got %+v, want %d, ceiling", got, MaxLimit)
	}
}

func TestWhateverIsMeasuredTheLimitStaysWithinItsBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		s := Settings{Min: rng.IntN(20), Max: rng.IntN(40), Seed: rng.Uint64()}
		l, now := New(s), time.Unix(0, 0)
		least, most := max(s.Min, 1), s.Max
		if most == 0 {
			most = MaxLimit
		}
		least = min(least, most)
		for range 5000 {
			now = now.Add(time.Duration(rng.IntN(int(20 * time.Millisecond))))
			took := time.Duration(rng.ExpFloat64() * float64(time.Duration(rng.IntN(3))*50*time.Millisecond))
			l.Done(now, Sample{Took: took, InFlight: rng.IntN(2 * most), Failed: rng.IntN(10) == 0})
			if got := l.State(); got.Limit < least || got.Limit > most || got.Base < least || got.Base > most {
				t.Fatalf("%+v: got %+v", s, got)
			}
		}
	}
}

func TestARequestThatLastsForHoursMovesNothing(t *testing.T) {
	l := New(Settings{Max: 50})
	now := serve(l, time.Unix(0, 0), time.Minute, 10, false)
	want := l.State().Base
	for range 20 {
		l.Done(now, Sample{Took: 3 * time.Hour, InFlight: l.Limit()})
		now = serve(l, now, 2*time.Second, 10, false)
	}
	if got := l.State().Base; got < want-1 || got > want+1 {
		t.Errorf("got %d, want %d as before", got, want)
	}
}

func TestEachRequestCostsNoMemory(t *testing.T) {
	l, now, c := New(Settings{}), time.Unix(0, 0), &Curve{}
	got := testing.AllocsPerRun(10000, func() {
		now = now.Add(time.Millisecond)
		l.Done(now, Sample{Took: 4 * time.Millisecond, InFlight: l.Limit()})
		c.Note(l.Limit(), time.Millisecond)
	})
	harness.Equal(t, got, 0, "allocations")
}

func BenchmarkDone(b *testing.B) {
	l, now := New(Settings{}), time.Unix(0, 0)
	for b.Loop() {
		now = now.Add(100 * time.Microsecond)
		l.Done(now, Sample{Took: 4 * time.Millisecond, InFlight: l.Limit()})
	}
}

func BenchmarkNote(b *testing.B) {
	var c Curve
	for b.Loop() {
		c.Note(20, 4*time.Millisecond)
	}
}
