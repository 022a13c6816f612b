package queue

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var phases = []Phase{Queued, Dialling, Waiting, Streaming, Tunnelled}

// alive returns the life of a request that has come to a phase at once.
func alive(c *Clocks, p Phase) *Life {
	l := &Life{}
	l.begin(c, time.Now())
	l.Enter(p)
	return l
}

func TestEachClockRunsOnlyInItsPhases(t *testing.T) {
	const d = 10 * time.Second
	for _, c := range []struct {
		name   string
		clocks Clocks
		why    Why
		runs   [5]bool // in queued, dialling, waiting, streaming, a tunnel
	}{
		{"none", Clocks{}, OK, [5]bool{}},
		{"scope alone", Clocks{FirstByteOnly: true}, OK, [5]bool{}},
		{"request", Clocks{Request: d}, RequestTimeout, [5]bool{true, true, true, true, false}},
		{"request until the first byte", Clocks{Request: d, FirstByteOnly: true}, RequestTimeout, [5]bool{true, true, true, false, false}},
		{"response start", Clocks{ResponseStart: d}, ResponseStartTimeout, [5]bool{true, true, true, false, false}},
		{"idle", Clocks{Idle: d}, IdleTimeout, [5]bool{true, true, true, true, true}},
		{"queue", Clocks{Queue: d}, QueueTimeout, [5]bool{true, false, false, false, false}},
	} {
		for i, phase := range phases {
			t.Run(fmt.Sprintf("%s, phase %d", c.name, phase), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := alive(&c.clocks, phase)
					if !c.runs[i] {
						expect(t, "next", l.Next(), time.Time{})
						time.Sleep(1000 * d)
						expect(t, "over, much later", l.Over(), OK)
						return
					}
					expect(t, "next", l.Next(), time.Now().Add(d))
					time.Sleep(d - 1)
					expect(t, "over, just before", l.Over(), OK)
					time.Sleep(1 * time.Nanosecond)
					expect(t, "over", l.Over(), c.why)
				})
			})
		}
	}
}

func TestWaitingInTheQueueCountsForEveryClock(t *testing.T) {
	for _, c := range []struct {
		clocks Clocks
		why    Why
	}{
		{Clocks{Request: 10 * time.Second}, RequestTimeout},
		{Clocks{Request: 10 * time.Second, FirstByteOnly: true}, RequestTimeout},
		{Clocks{ResponseStart: 10 * time.Second}, ResponseStartTimeout},
		{Clocks{Idle: 10 * time.Second}, IdleTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := alive(&c.clocks, Queued)
			time.Sleep(6 * time.Second)
			l.Enter(Dialling)
			time.Sleep(3 * time.Second)
			expect(t, "over after 9 s", l.Over(), OK)
			time.Sleep(time.Second)
			expect(t, "over after 10 s", l.Over(), c.why)
		})
	}
}

func TestTheClockThatRunsOutFirstIsTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Clocks{Queue: 1 * time.Second, Idle: 2 * time.Second, ResponseStart: 3 * time.Second, Request: 4 * time.Second}
		queued, waiting, streaming, tunnel := alive(&c, Queued), alive(&c, Waiting), alive(&c, Streaming), alive(&c, Tunnelled)
		time.Sleep(time.Hour) // all have run out long ago
		expect(t, "queued", queued.Over(), QueueTimeout)
		expect(t, "waiting", waiting.Over(), IdleTimeout)
		expect(t, "streaming", streaming.Over(), IdleTimeout)
		expect(t, "tunnel", tunnel.Over(), IdleTimeout)
		waiting.Touch()
		streaming.Touch()
		tunnel.Touch()
		expect(t, "waiting, touched", waiting.Over(), ResponseStartTimeout)
		expect(t, "streaming, touched", streaming.Over(), RequestTimeout)
		expect(t, "tunnel, touched", tunnel.Over(), OK)
	})
}

func TestEachByteRestartsTheIdleClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, phase := range phases[2:] {
			l := alive(&Clocks{Idle: time.Second}, phase)
			for range 10 {
				time.Sleep(time.Second - 1)
				expect(t, "over between bytes", l.Over(), OK)
				l.Touch()
				expect(t, "next", l.Next(), time.Now().Add(time.Second))
			}
			time.Sleep(time.Second)
			expect(t, "over", l.Over(), IdleTimeout)
		}
	})
}

func TestTheBodyClockRunsOnlyWhileAByteIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Clocks{Body: 10 * time.Second}
		l := alive(&c, Waiting)
		l.AwaitBody() // of a request whose body may be silent
		time.Sleep(time.Hour)
		expect(t, "a body that owes nothing", l.Over(), OK)
		expect(t, "next", l.Next(), time.Time{})

		l = alive(&c, Waiting)
		l.OwesBody()
		time.Sleep(time.Hour)
		expect(t, "nobody reads, the user container is slow", l.Over(), OK)
		for range 10 {
			l.AwaitBody()
			time.Sleep(10*time.Second - 1)
			expect(t, "over, between bytes", l.Over(), OK)
			l.GotBody()
			time.Sleep(time.Minute)
			expect(t, "over, while they are written", l.Over(), OK)
		}
		l.AwaitBody()
		time.Sleep(10 * time.Second)
		expect(t, "over", l.Over(), IdleTimeout)
		l.Enter(Streaming)
		expect(t, "over, when the response has begun", l.Over(), OK)
		l.begin(&c, time.Now())
		time.Sleep(time.Hour)
		expect(t, "the next request in the same memory", l.Over(), OK)
	})
}

func TestAForcedEndWinsOverClocksAndTheFirstOneStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, phase := range phases {
			l := alive(&Clocks{Request: time.Second, Idle: time.Second}, phase)
			l.End(Draining)
			expect(t, "over", l.Over(), Draining)
			l.End(ClientGone)
			expect(t, "over, ended twice", l.Over(), Draining)
			time.Sleep(time.Minute)
			expect(t, "over, when a clock has run out as well", l.Over(), Draining)
			l.begin(&Clocks{}, time.Now())
			expect(t, "over, the next request in the same memory", l.Over(), OK)
			expect(t, "its phase", l.Phase(), Queued)
		}
	})
}

// A clocksModel is docs/promises.md 3.2, written naively.
type clocksModel struct {
	Clocks
	start, active time.Time
	phase         Phase
	owes          bool      // the request has a body
	owed          time.Time // since when a byte of it is waited for; zero: it is not
}

// next returns which clock runs out next, and when; OK and zero: none.
func (m *clocksModel) next() (why Why, at time.Time) {
	due := map[Why]time.Time{}
	if m.Idle > 0 {
		due[IdleTimeout] = m.active.Add(m.Idle)
	}
	if m.Body > 0 && m.owes && m.phase < Streaming {
		when := time.Now().Add(m.Body) // at the earliest
		if !m.owed.IsZero() {
			when = m.owed.Add(m.Body)
		}
		if idle := due[IdleTimeout]; idle.IsZero() || when.Before(idle) {
			due[IdleTimeout] = when
		}
	}
	if m.Queue > 0 && m.phase == Queued {
		due[QueueTimeout] = m.start.Add(m.Queue)
	}
	if m.ResponseStart > 0 && m.phase < Streaming {
		due[ResponseStartTimeout] = m.start.Add(m.ResponseStart)
	}
	if m.Request > 0 && (m.phase < Streaming || m.phase == Streaming && !m.FirstByteOnly) {
		due[RequestTimeout] = m.start.Add(m.Request)
	}
	for w, when := range due {
		if at.IsZero() || when.Before(at) {
			why, at = w, when
		}
	}
	return why, at
}

// step lets something happen to the request, or lets time pass.
func (m *clocksModel) step(l *Life, random *rand.Rand) {
	switch random.IntN(6) {
	case 0:
		time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
	case 1:
		if next := l.Next(); !next.IsZero() && time.Until(next) > 0 {
			time.Sleep(time.Until(next) - time.Duration(random.IntN(2))) // the moment, or just before
		}
	case 2:
		l.Touch()
		m.active = time.Now()
	case 3:
		l.AwaitBody()
		m.owed = time.Now()
	case 4:
		l.GotBody()
		m.owed, m.active = time.Time{}, time.Now()
	case 5:
		if m.phase < Tunnelled {
			m.phase += Phase(1 + random.IntN(int(Tunnelled-m.phase)))
			l.Enter(m.phase)
			if m.phase != Dialling { // which moves no byte
				m.active = time.Now()
			}
		}
	}
}

// By chance: any clocks, any way through the phases, bytes at any time.
func TestOverAndNextAgreeWithTheClocksWhateverHappens(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	some := func() time.Duration {
		if random.IntN(2) == 0 {
			return 0
		}
		return time.Duration(1 + random.Int64N(int64(10*time.Second)))
	}
	synctest.Test(t, func(t *testing.T) {
		for round := range 2000 {
			m := &clocksModel{start: time.Now(), active: time.Now(), phase: Queued, owes: random.IntN(2) == 0, Clocks: Clocks{
				Request: some(), FirstByteOnly: random.IntN(2) == 0, ResponseStart: some(), Idle: some(), Body: some(), Queue: some(),
			}}
			l := alive(&m.Clocks, Queued)
			if m.owes {
				l.OwesBody()
			}
			time.Sleep(1 * time.Nanosecond) // nobody waits for a body in the nanosecond of the request
			var before time.Time            // Next, the last time
			for range 20 {
				want, at := m.next()
				next := l.Next()
				if !next.Equal(at) {
					t.Fatalf("seed %d, round %d: %+v: got next %v, want %v", seed, round, m, next, at)
				}
				if !before.IsZero() && !next.IsZero() && next.Before(before) {
					t.Fatalf("seed %d, round %d: %+v: next moved from %v to %v, want never nearer", seed, round, m, before, next)
				}
				before = next
				if at.IsZero() || time.Now().Before(at) {
					want = OK
				}
				if over := l.Over(); over != want {
					t.Fatalf("seed %d, round %d: %+v: got over %v, want %v", seed, round, m, over, want)
				}
				m.step(l, random)
			}
		}
	})
}

func TestALifeMayBeAskedWhileItGoesOn(t *testing.T) {
	l := alive(&Clocks{Request: time.Hour, Idle: time.Hour, ResponseStart: time.Hour}, Queued)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 1000 {
				l.Touch()
			}
		})
		all.Go(func() {
			for range 1000 {
				if why := l.Over(); why != OK && why != Draining {
					t.Errorf("got %v, want ok or draining", why)
				}
				l.Next()
			}
		})
	}
	for _, phase := range phases {
		l.Enter(phase)
	}
	l.End(Draining)
	all.Wait()
	expect(t, "over", l.Over(), Draining)
	expect(t, "phase", l.Phase(), Tunnelled)
}

func TestPhasesHaveTheWordsOfTheLog(t *testing.T) {
	for i, want := range []string{"queued", "dialling", "waiting", "streaming", "streaming"} {
		expect(t, fmt.Sprint("phase ", i), phases[i].String(), want)
	}
}

func TestTheSendClockRunsOnlyWhileAPieceOfTheResponseWaitsForItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Clocks{Send: 10 * time.Second}
		l := alive(&c, Streaming)
		time.Sleep(time.Hour)
		expect(t, "nothing is offered: over", l.Over(), OK)
		expect(t, "next", l.Next(), time.Time{})
		for range 10 {
			l.offered()
			expect(t, "next", l.Next(), time.Now().Add(10*time.Second))
			time.Sleep(10*time.Second - 1)
			expect(t, "over, before it is taken", l.Over(), OK)
			l.Taken()
			time.Sleep(time.Minute)
			expect(t, "over, between two pieces", l.Over(), OK)
		}
		l.offered()
		time.Sleep(10 * time.Second)
		expect(t, "over", l.Over(), IdleTimeout)
		l.Enter(Tunnelled)
		expect(t, "over, in a tunnel", l.Over(), OK)
		l.begin(&c, time.Now())
		time.Sleep(time.Hour)
		expect(t, "over, the next request in the same memory", l.Over(), OK)
	})
}

func TestAnAlarmThatWatchesAnewRingsEarlierThanItWasToBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := alive(&Clocks{Request: time.Hour, Send: time.Second}, Streaming)
		a := NewAlarm(func() bool { return false })
		defer a.Stop()
		var aborted atomic.Int64
		began := time.Now()
		a.Watch(l)
		a.Abortable(func() { aborted.Store(int64(time.Since(began))) })
		time.Sleep(time.Minute)
		l.offered()
		a.Watch(l)
		time.Sleep(time.Minute)
		expect(t, "aborted after", time.Duration(aborted.Load()), time.Minute+time.Second)
	})
}
