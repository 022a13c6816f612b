package proxy

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

var phases = []observation.Phase{observation.Queued, observation.Dialling, observation.Waiting, observation.Streaming, observation.Tunnelled}

// alive returns the state of a request that is in the given phase.
func alive(c *Clocks, p observation.Phase) *RequestState {
	state := &RequestState{}
	state.begin(c, time.Now())
	state.enter(p)
	return state
}

func TestTimeoutsApplyInTheirPhases(t *testing.T) {
	const d = 10 * time.Second
	for _, c := range []struct {
		name   string
		clocks Clocks
		reason observation.Reason
		runs   [5]bool // whether the timeout applies in each phase
	}{
		{"none", Clocks{}, observation.OK, [5]bool{}},
		{"FirstByteOnly without a timeout", Clocks{FirstByteOnly: true}, observation.OK, [5]bool{}},
		{"request", Clocks{Request: d}, observation.RequestTimeout, [5]bool{true, true, true, true, false}},
		{"request until the first byte", Clocks{Request: d, FirstByteOnly: true}, observation.RequestTimeout, [5]bool{true, true, true, false, false}},
		{"response start", Clocks{ResponseStart: d}, observation.ResponseStartTimeout, [5]bool{true, true, true, false, false}},
		{"idle", Clocks{Idle: d}, observation.IdleTimeout, [5]bool{true, true, true, true, true}},
		{"queue", Clocks{Queue: d}, observation.QueueTimeout, [5]bool{true, false, false, false, false}},
	} {
		for i, phase := range phases {
			t.Run(fmt.Sprintf("%s, phase %d", c.name, phase), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					state := alive(&c.clocks, phase)
					if !c.runs[i] {
						harness.Equal(t, state.NextExpiry(), time.Time{}, "next expiry")
						time.Sleep(1000 * d)
						harness.Equal(t, state.expired(), observation.OK, "expiry much later")
						return
					}
					harness.Equal(t, state.NextExpiry(), time.Now().Add(d), "next expiry")
					time.Sleep(d - 1)
					harness.Equal(t, state.expired(), observation.OK, "expiry just before the timeout")
					time.Sleep(1 * time.Nanosecond)
					harness.Equal(t, state.expired(), c.reason, "expiry")
				})
			})
		}
	}
}

func TestTimeoutsIncludeQueueTime(t *testing.T) {
	for _, c := range []struct {
		clocks Clocks
		reason observation.Reason
	}{
		{Clocks{Request: 10 * time.Second}, observation.RequestTimeout},
		{Clocks{Request: 10 * time.Second, FirstByteOnly: true}, observation.RequestTimeout},
		{Clocks{ResponseStart: 10 * time.Second}, observation.ResponseStartTimeout},
		{Clocks{Idle: 10 * time.Second}, observation.IdleTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			state := alive(&c.clocks, observation.Queued)
			time.Sleep(6 * time.Second)
			state.enter(observation.Dialling)
			time.Sleep(3 * time.Second)
			harness.Equal(t, state.expired(), observation.OK, "expiry after 9 s")
			time.Sleep(time.Second)
			harness.Equal(t, state.expired(), c.reason, "expiry after 10 s")
		})
	}
}

func TestFirstExpiredTimeoutIsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Clocks{Queue: 1 * time.Second, Idle: 2 * time.Second, ResponseStart: 3 * time.Second, Request: 4 * time.Second}
		queued, waiting, streaming, tunnel := alive(&c, observation.Queued), alive(&c, observation.Waiting), alive(&c, observation.Streaming), alive(&c, observation.Tunnelled)
		time.Sleep(time.Hour) // all timeouts have expired
		harness.Equal(t, queued.expired(), observation.QueueTimeout, "queued")
		harness.Equal(t, waiting.expired(), observation.IdleTimeout, "waiting")
		harness.Equal(t, streaming.expired(), observation.IdleTimeout, "streaming")
		harness.Equal(t, tunnel.expired(), observation.IdleTimeout, "tunnel")
		waiting.Touch()
		streaming.Touch()
		tunnel.Touch()
		harness.Equal(t, waiting.expired(), observation.ResponseStartTimeout, "waiting, after Touch")
		harness.Equal(t, streaming.expired(), observation.RequestTimeout, "streaming, after Touch")
		harness.Equal(t, tunnel.expired(), observation.OK, "tunnel, after Touch")
	})
}

func TestIdleTimeoutRestartsOnEachByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, phase := range phases[2:] {
			state := alive(&Clocks{Idle: time.Second}, phase)
			for range 10 {
				time.Sleep(time.Second - 1)
				harness.Equal(t, state.expired(), observation.OK, "expiry between bytes")
				state.Touch()
				harness.Equal(t, state.NextExpiry(), time.Now().Add(time.Second), "next expiry")
			}
			time.Sleep(time.Second)
			harness.Equal(t, state.expired(), observation.IdleTimeout, "expiry")
		}
	})
}

func TestBodyTimeoutRunsOnlyWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Clocks{Body: 10 * time.Second}
		state := alive(&c, observation.Waiting)
		state.AwaitBody() // the request may have a body that does not arrive
		time.Sleep(time.Hour)
		harness.Equal(t, state.expired(), observation.OK, "expiry without ExpectBody")
		harness.Equal(t, state.NextExpiry(), time.Time{}, "next expiry")

		state = alive(&c, observation.Waiting)
		state.ExpectBody()
		time.Sleep(time.Hour)
		harness.Equal(t, state.expired(), observation.OK, "expiry while the engine does not wait for the body")
		for range 10 {
			state.AwaitBody()
			time.Sleep(10*time.Second - 1)
			harness.Equal(t, state.expired(), observation.OK, "expiry just before the body timeout")
			state.GotBody(false)
			time.Sleep(time.Minute)
			harness.Equal(t, state.expired(), observation.OK, "expiry after the bytes have arrived")
		}
		state.AwaitBody()
		time.Sleep(10 * time.Second)
		harness.Equal(t, state.expired(), observation.ClientSlow, "expiry")
		state.enter(observation.Streaming)
		harness.Equal(t, state.expired(), observation.OK, "expiry after the response has begun")
		state.begin(&c, time.Now())
		time.Sleep(time.Hour)
		harness.Equal(t, state.expired(), observation.OK, "expiry of the next request")
	})
}

func TestForcedEndPrecedesTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, phase := range phases {
			state := alive(&Clocks{Request: time.Second, Idle: time.Second}, phase)
			state.end(observation.Draining)
			harness.Equal(t, state.expired(), observation.Draining, "expiry")
			state.end(observation.ClientGone)
			harness.Equal(t, state.expired(), observation.Draining, "expiry after a second end")
			time.Sleep(time.Minute)
			harness.Equal(t, state.expired(), observation.Draining, "expiry after a timeout has also expired")
			state.begin(&Clocks{}, time.Now())
			harness.Equal(t, state.expired(), observation.OK, "expiry of the next request")
			harness.Equal(t, state.Phase(), observation.Queued, "phase of the next request")
		}
	})
}

// A clocksModel is a simple model of docs/promises.md 3.2.
type clocksModel struct {
	Clocks
	start, active time.Time
	phase         observation.Phase
	owes          bool      // the request has a body
	owed          time.Time // start of the wait for a body byte; zero if none is awaited
}

// next returns the timeout that expires next and its time, or OK and the zero time.
func (m *clocksModel) next() (reason observation.Reason, at time.Time) {
	due := map[observation.Reason]time.Time{}
	if m.Idle > 0 {
		due[observation.IdleTimeout] = m.active.Add(m.Idle)
	}
	if m.Body > 0 && m.owes && m.phase < observation.Streaming {
		when := time.Now().Add(m.Body) // the earliest possible time
		if !m.owed.IsZero() {
			when = m.owed.Add(m.Body)
		}
		due[observation.ClientSlow] = when
	}
	if m.Queue > 0 && m.phase == observation.Queued {
		due[observation.QueueTimeout] = m.start.Add(m.Queue)
	}
	if m.ResponseStart > 0 && m.phase < observation.Streaming {
		due[observation.ResponseStartTimeout] = m.start.Add(m.ResponseStart)
	}
	if m.Request > 0 && (m.phase < observation.Streaming || m.phase == observation.Streaming && !m.FirstByteOnly) {
		due[observation.RequestTimeout] = m.start.Add(m.Request)
	}
	for r, when := range due {
		if at.IsZero() || when.Before(at) {
			reason, at = r, when
		}
	}
	if reason != observation.OK && !m.owed.IsZero() && m.owes && m.phase > observation.Queued && m.phase < observation.Streaming {
		reason = observation.ClientSlow // replaces the reason of any timeout
	}
	return reason, at
}

// step changes the request, or sleeps for some time.
func (m *clocksModel) step(state *RequestState, random *rand.Rand) {
	switch random.IntN(6) {
	case 0:
		time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
	case 1:
		if next := state.NextExpiry(); !next.IsZero() && time.Until(next) > 0 {
			time.Sleep(time.Until(next) - time.Duration(random.IntN(2))) // the time of the expiry, or 1 ns earlier
		}
	case 2:
		state.Touch()
		m.active = time.Now()
	case 3:
		state.AwaitBody()
		m.owed = time.Now()
	case 4:
		state.GotBody(false)
		m.owed, m.active = time.Time{}, time.Now()
	case 5:
		if m.phase < observation.Tunnelled {
			m.phase += observation.Phase(1 + random.IntN(int(observation.Tunnelled-m.phase)))
			state.enter(m.phase)
			if m.phase != observation.Dialling { // Dialling transfers no byte
				m.active = time.Now()
			}
		}
	}
}

// TestExpiryMatchesModelForRandomEvents uses random timeouts, phases and bytes.
func TestExpiryMatchesModelForRandomEvents(t *testing.T) {
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
			m := &clocksModel{start: time.Now(), active: time.Now(), phase: observation.Queued, owes: random.IntN(2) == 0, Clocks: Clocks{
				Request: some(), FirstByteOnly: random.IntN(2) == 0, ResponseStart: some(), Idle: some(), Body: some(), Queue: some(),
			}}
			state := alive(&m.Clocks, observation.Queued)
			if m.owes {
				state.ExpectBody()
			}
			time.Sleep(1 * time.Nanosecond) // the wait for a body does not begin in the same nanosecond as the request
			var before time.Time            // the previous value
			for range 20 {
				want, at := m.next()
				next := state.NextExpiry()
				if !next.Equal(at) {
					t.Fatalf("seed %d, round %d: %+v: got next %v, want %v", seed, round, m, next, at)
				}
				if !before.IsZero() && !next.IsZero() && next.Before(before) {
					t.Fatalf("seed %d, round %d: %+v: next changed from %v to %v, want no earlier time", seed, round, m, before, next)
				}
				before = next
				if at.IsZero() || time.Now().Before(at) {
					want = observation.OK
				}
				if over := state.expired(); over != want {
					t.Fatalf("seed %d, round %d: %+v: got expired %v, want %v", seed, round, m, over, want)
				}
				m.step(state, random)
			}
		}
	})
}

func TestRequestStateIsSafeForConcurrentReads(t *testing.T) {
	state := alive(&Clocks{Request: time.Hour, Idle: time.Hour, ResponseStart: time.Hour}, observation.Queued)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 1000 {
				state.Touch()
			}
		})
		all.Go(func() {
			for range 1000 {
				if reason := state.expired(); reason != observation.OK && reason != observation.Draining {
					t.Errorf("got %v, want ok or draining", reason)
				}
				state.NextExpiry()
			}
		})
	}
	for _, phase := range phases {
		state.enter(phase)
	}
	state.end(observation.Draining)
	all.Wait()
	harness.Equal(t, state.expired(), observation.Draining, "expiry")
	harness.Equal(t, state.Phase(), observation.Tunnelled, "phase")
}

func TestPhaseStrings(t *testing.T) {
	for i, want := range []string{"queued", "dialling", "waiting", "streaming", "streaming"} {
		harness.Equal(t, phases[i].String(), want, fmt.Sprint("phase ", i))
	}
}

func TestSendTimeoutRunsOnlyDuringWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Clocks{Send: 10 * time.Second}
		state := alive(&c, observation.Streaming)
		time.Sleep(time.Hour)
		harness.Equal(t, state.expired(), observation.OK, "expiry without a write")
		harness.Equal(t, state.NextExpiry(), time.Time{}, "next expiry")
		for range 10 {
			state.WriteStarted()
			harness.Equal(t, state.NextExpiry(), time.Now().Add(10*time.Second), "next expiry")
			time.Sleep(10*time.Second - 1)
			harness.Equal(t, state.expired(), observation.OK, "expiry just before the send timeout")
			state.WriteDone()
			time.Sleep(time.Minute)
			harness.Equal(t, state.expired(), observation.OK, "expiry between two writes")
		}
		state.WriteStarted()
		time.Sleep(10 * time.Second)
		harness.Equal(t, state.expired(), observation.ClientSlow, "expiry")
		state.enter(observation.Tunnelled)
		harness.Equal(t, state.expired(), observation.OK, "expiry in a tunnel")
		state.begin(&c, time.Now())
		time.Sleep(time.Hour)
		harness.Equal(t, state.expired(), observation.OK, "expiry of the next request")
	})
}

func TestCancelerWatchSetsEarlierTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := alive(&Clocks{Request: time.Hour, Send: time.Second}, observation.Streaming)
		a := transport.NewCanceler(func() bool { return false })
		defer a.Stop()
		var aborted atomic.Int64
		began := time.Now()
		a.Watch(state)
		a.Abortable(func() { aborted.Store(int64(time.Since(began))) })
		time.Sleep(time.Minute)
		state.WriteStarted()
		a.Watch(state)
		time.Sleep(time.Minute)
		harness.Equal(t, time.Duration(aborted.Load()), time.Minute+time.Second, "aborted after")
	})
}
