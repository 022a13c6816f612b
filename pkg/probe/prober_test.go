package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Errors that scripts return.
var (
	refused   = syscall.ECONNREFUSED
	status500 = &failure{word: observation.WordStatus, code: 500, err: errors.New("HTTP status 500")}
)

// A script is a user container in memory. It records the attempts, and calls s.then for the result of each attempt.
type script struct {
	mu    sync.Mutex
	begun time.Time
	tries []time.Duration // start of each attempt, relative to begun
	then  func(n int, ctx context.Context) error

	target *target
}

func (s *script) attempt(ctx context.Context) error {
	s.mu.Lock()
	n := len(s.tries)
	s.tries = append(s.tries, time.Since(s.begun))
	s.mu.Unlock()
	return s.then(n, ctx)
}

func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tries)
}

// takes returns a function that waits for d and returns err. If the context is done first, the function returns the
// error of the context.
func takes(d time.Duration, err error) func(int, context.Context) error {
	return func(_ int, ctx context.Context) error {
		select {
		case <-time.After(d):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func always(err error) func(int, context.Context) error { return takes(0, err) }

func hangs() func(int, context.Context) error {
	return func(_ int, ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
}

// sequence returns a function that returns errs one after the other, and then nil.
func sequence(errs ...error) func(int, context.Context) error {
	return func(n int, _ context.Context) error {
		if n < len(errs) {
			return errs[n]
		}
		return nil
	}
}

// aggressive returns a script for a probe in aggressive mode.
func aggressive(threshold int, then func(int, context.Context) error) *script {
	known := observation.ProbeReadiness{Kind: "httpGet", Target: "http://10.1.2.3:8080/secret"}
	return newScript(then, &target{aggressive: true, threshold: threshold, tryTime: initialTimeout, known: known})
}

func standard(then func(int, context.Context) error) *script {
	known := observation.ProbeReadiness{Kind: "tcpSocket", Target: "tcp://10.1.2.3:8080"}
	return newScript(then, &target{threshold: 1, tryTime: time.Second, known: known})
}

func newScript(then func(int, context.Context) error, of *target) *script {
	s := &script{begun: time.Now(), then: then, target: of}
	of.attempt = s.attempt
	return s
}

// start returns a Prober for scripts. It is stopped at the end of the test.
func start(t *testing.T, o Options, scripts ...*script) *Prober {
	t.Helper()
	var targets []*target
	for _, s := range scripts {
		targets = append(targets, s.target)
	}
	p := newProber(targets, o)
	t.Cleanup(func() {
		harness.Equal(t, p.Stop(context.Background()), nil, "Stop")
	})
	return p
}

// asking returns s and a Prober for it.
func asking(t *testing.T, s *script) (*script, *Prober) {
	t.Helper()
	return s, start(t, Options{}, s)
}

func wantTook(t *testing.T, since time.Time, want time.Duration) {
	t.Helper()
	harness.Equal(t, time.Since(since), want, "duration")
}

func wantWord(t *testing.T, err error, want observation.ReadinessWord) {
	t.Helper()
	var e *notReady
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an error of type *notReady", err)
	}
	harness.Equal(t, e.State.Probes[0].Word, want, "word")
}

func TestProberWithoutProbesIsReady(t *testing.T) {
	p := New(nil, Options{})
	for _, when := range []string{"before Stop", "after Stop"} {
		if err := p.Ready(context.Background()); err != nil || !p.State().Ready() {
			t.Errorf("%s: got %v and %v, want nil and ready", when, err, p.State().Phase)
		}
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

func TestAttemptsStartEvery50ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(1, always(status500)))
		wantWord(t, p.Ready(t.Context()), observation.WordStatus)
		wantTook(t, s.begun, 10*time.Second)
		harness.Equal(t, s.count(), 200, "attempts in 10 s")
		for i, at := range s.tries {
			if want := time.Duration(i) * 50 * time.Millisecond; at != want {
				t.Fatalf("attempt %d started at %v, want %v", i, at, want)
			}
		}
	})
}

func TestRefusedAttemptIsRepeatedAfter10ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(1, nil))
		s.then = func(_ int, _ context.Context) error {
			if time.Since(s.begun) < 2*time.Second+time.Millisecond {
				return refused
			}
			return nil
		}
		harness.Equal(t, p.Ready(t.Context()), nil)
		wantTook(t, s.begun, 2010*time.Millisecond)
		harness.Equal(t, s.count(), 202, "attempts")
	})
}

func TestRefusedAttemptsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(1, always(refused)))
		for begin := time.Now(); time.Since(begin) < 10*time.Minute; {
			wantWord(t, p.Ready(t.Context()), observation.WordRefused)
		}
		n := len(s.tries)
		for _, v := range []struct {
			i    int
			want time.Duration
		}{{1, minRedialInterval}, {n - 1, attemptInterval}} {
			harness.Equal(t, s.tries[v.i]-s.tries[v.i-1], v.want, "interval of attempts", v.i-1, v.i)
		}
		s.then = always(status500) // the next refused attempt starts the backoff again
		_ = p.Ready(t.Context())
		s.then = always(refused)
		_ = p.Ready(t.Context())
		s.mu.Lock()
		defer s.mu.Unlock()
		n = len(s.tries) - 400 // an attempt of the last run, whose first 250 intervals are 10 ms
		harness.Equal(t, s.tries[n+1]-s.tries[n], minRedialInterval, "interval of refused attempts after a response")
	})
}

func TestAttemptTimeoutDoublesAfterTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(1, takes(600*time.Millisecond, nil)))
		harness.Equal(t, p.Ready(t.Context()), nil, "endpoint that takes 600 ms")
		// Three attempts time out after 100, 200 and 400 ms. The fourth has a timeout of 800 ms and passes.
		wantTook(t, s.begun, 1300*time.Millisecond)

		// The timeout is kept while the endpoint is slow, and is reset when it is fast again.
		begin := time.Now()
		harness.Equal(t, p.Ready(t.Context()), nil)
		wantTook(t, begin, 600*time.Millisecond)
		s.then = always(nil)
		harness.Equal(t, p.Ready(t.Context()), nil)
		harness.Equal(t, s.target.tryTime, initialTimeout, "timeout of the next attempt")
	})
}

func TestRunWithoutResponseEndsAfter10s(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(1, hangs()))
		wantWord(t, p.Ready(t.Context()), observation.WordTimeout)
		wantTook(t, s.begun, 10*time.Second)
		// The first timeouts are 100, 200, 400 and 800 ms. All others are 1 s. The thirteenth attempt is canceled.
		harness.Equal(t, s.count(), 13, "attempts")
		harness.Equal(t, p.State().Probes[0].Tries, 12, "recorded attempts, without the canceled attempt")
	})
}

func TestSuccessThresholdCountsConsecutivePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(3, sequence(nil, status500)))
		harness.Equal(t, p.Ready(t.Context()), nil)
		wantTook(t, s.begun, 200*time.Millisecond)
		harness.Equal(t, s.count(), 5, "attempts for 200 500 200 200 200")
		harness.Equal(t, p.Ready(t.Context()), nil)
		harness.Equal(t, s.count(), 6, "attempts; the passes of the previous run are counted")
		s.then = func(n int, _ context.Context) error {
			if n == 6 {
				return status500
			}
			return nil
		}
		harness.Equal(t, p.Ready(t.Context()), nil)
		harness.Equal(t, s.count(), 10, "attempts; a failure resets the number of passes")
	})
}

func TestRunBelowThresholdFailsWithThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(1000, always(nil)))
		wantWord(t, p.Ready(t.Context()), observation.WordThreshold)
		wantTook(t, s.begun, 10*time.Second)
	})
}

func TestStandardProbeMakesOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, standard(hangs()))
		wantWord(t, p.Ready(t.Context()), observation.WordTimeout)
		wantTook(t, s.begun, time.Second)
		harness.Equal(t, s.count(), 1, "attempts")
		s.then = always(nil)
		harness.Equal(t, p.Ready(t.Context()), nil, "second run")
	})
}

func TestProbeFieldsSetTimeoutAndThreshold(t *testing.T) {
	for _, tc := range []struct {
		json      string
		tryTime   time.Duration
		threshold int
	}{
		{`{"tcpSocket":{"port":1}}`, 100 * time.Millisecond, 1},
		{`{"tcpSocket":{"port":1},"timeoutSeconds":5,"failureThreshold":1,"initialDelaySeconds":60}`, 100 * time.Millisecond, 1},
		{`{"tcpSocket":{"port":1},"successThreshold":3}`, 100 * time.Millisecond, 3},
		{`{"tcpSocket":{"port":1},"periodSeconds":1}`, time.Second, 1},
		{`{"tcpSocket":{"port":1},"periodSeconds":1,"timeoutSeconds":7}`, 7 * time.Second, 1},
		{`{"tcpSocket":{"port":1},"periodSeconds":1,"timeoutSeconds":2147483647}`, 2147483647 * time.Second, 1},
	} {
		probes, errs := Parse(tc.json, false)
		if errs != nil {
			t.Fatal(errs)
		}
		got := New(probes, Options{}).targets[0]
		if got.tryTime != tc.tryTime || got.threshold != tc.threshold {
			t.Errorf("%s: got %v and %d, want %v and %d", tc.json, got.tryTime, got.threshold, tc.tryTime, tc.threshold)
		}
	}
}

func TestConcurrentCallersShareRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, standard(takes(300*time.Millisecond, nil)))
		var callers sync.WaitGroup
		for range 50 {
			callers.Go(func() {
				harness.Equal(t, p.Ready(t.Context()), nil)
			})
		}
		callers.Wait()
		harness.Equal(t, s.count(), 1, "attempts for 50 callers")
	})
}

func TestCanceledCallerReturnsAndRunContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(1, hangs()))
		var callers sync.WaitGroup
		for i := range 5 {
			callers.Go(func() {
				ctx := t.Context()
				want := 10 * time.Second
				if i < 2 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
					defer cancel()
					want = 300 * time.Millisecond
				}
				err := p.Ready(ctx)
				wantWord(t, err, observation.WordTimeout)
				wantTook(t, s.begun, want)
				if left := errors.Is(err, context.DeadlineExceeded); left != (i < 2) {
					t.Errorf("caller %d: got context error %v, want %v", i, left, i < 2)
				}
			})
		}
		callers.Wait()
		harness.Equal(t, s.count(), 13, "attempts of one run")
	})
}

func TestCallerWithoutResultGetsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := asking(t, standard(takes(500*time.Millisecond, nil)))
		for _, want := range []string{
			"not ready: probe 0 (tcpSocket) starting: pending",
			"not ready: pending", // the result of the previous run was ready
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err := p.Ready(ctx)
			cancel()
			harness.Equal(t, fmt.Sprint(err), want)
			harness.Equal(t, p.Ready(t.Context()), nil, "caller without a timeout")
		}
	})
}

func TestCanceledContextDoesNotStartRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(1, always(nil)))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Ready(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the error of the context", err)
		}
		synctest.Wait()
		harness.Equal(t, s.count(), 0, "attempts")
	})
}

func TestProberIsIdleWithoutCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := asking(t, aggressive(1, always(status500)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_ = p.Ready(ctx)
		time.Sleep(11 * time.Second) // the run has ended
		before := s.count()
		time.Sleep(time.Hour)
		if got := s.count(); got != before {
			t.Errorf("got %d attempts in 1 h without callers, want 0", got-before)
		}
		if p.State().Asking {
			t.Error("got Asking = true without callers, want false")
		}
	})
}

func TestConsecutiveRunsKeepInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []*script{aggressive(1, always(nil)), standard(always(nil))} {
			p := start(t, Options{}, s)
			for begin := time.Now(); time.Since(begin) < time.Second; {
				harness.NoError(t, p.Ready(t.Context()))
			}
			harness.Equal(t, s.count(), 21, s.target.known.Kind, "attempts in 1 s")
		}
	})
}

func TestTooManyCallersReturnsCrowded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := asking(t, aggressive(1, always(status500)))
		ctx, leave := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for range maxCallers {
			callers.Go(func() { _ = p.Ready(ctx) })
		}
		synctest.Wait()
		harness.Equal(t, p.State().Askers, maxCallers, "callers")
		begin := time.Now()
		err := p.Ready(t.Context())
		wantTook(t, begin, 0)
		harness.Equal(t, fmt.Sprint(err), "not ready: crowded; probe 0 (httpGet) starting: status 500")
		leave()
		callers.Wait()
		harness.Equal(t, p.State().Askers, 0, "callers after cancellation")
		wantWord(t, p.Ready(t.Context()), observation.WordStatus)
		wantTook(t, begin, 10*time.Second)
	})
}

func TestReadyWaitsForAllProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		std, agg := standard(always(refused)), aggressive(1, always(status500))
		p := start(t, Options{}, std, agg)
		err := p.Ready(t.Context())
		wantTook(t, std.begun, 10*time.Second)
		harness.Equal(t, fmt.Sprint(err), "not ready: probe 0 (tcpSocket) starting: refused; probe 1 (httpGet) starting: status 500")
		if std.count() != 1 || agg.count() != 200 {
			t.Errorf("got %d and %d attempts, want 1 and 200", std.count(), agg.count())
		}

		agg.then = always(nil)
		harness.Equal(t, fmt.Sprint(p.Ready(t.Context())), "not ready: probe 0 (tcpSocket) starting: refused", "one of two probes passes")
		std.then = always(nil)
		harness.Equal(t, p.Ready(t.Context()), nil, "both probes pass")
	})
}

func TestStateDescribesCurrentRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, p := asking(t, aggressive(1, func(int, context.Context) error {
			switch since := time.Since(begin); {
			case since < 960*time.Millisecond:
				return fmt.Errorf("dial tcp 10.1.2.3:8080: %w", refused)
			case since < 2*time.Second:
				return status500
			}
			return nil
		}))
		go func() { _ = p.Ready(t.Context()) }()

		time.Sleep(1500*time.Millisecond + time.Microsecond)
		s := p.State()
		if !s.Asking || s.Askers != 1 || s.Phase != observation.PhaseStarting || s.Since != begin {
			t.Errorf("got %+v, want a run with one caller in the phase starting since the start", s)
		}
		probe := s.Probes[0]
		if probe.Word != observation.WordStatus || probe.Code != 500 || probe.Tries != 107 {
			t.Errorf("got %s %d after %d attempts, want status 500 after 107", probe.Word, probe.Code, probe.Tries)
		}
		want := []observation.ProbeTries{
			{Count: 96, From: begin, To: begin.Add(950 * time.Millisecond), Word: observation.WordRefused},
			{Count: 11, From: begin.Add(960 * time.Millisecond), To: begin.Add(1460 * time.Millisecond), Word: observation.WordStatus, Code: 500},
		}
		harness.Equal(t, probe.Last, want, "last attempts")
		harness.Equal(t, s.Detail(), "probe 0 (httpGet) starting: status 500: http://10.1.2.3:8080/secret, attempts: 107, for 1.5s: HTTP status 500", "detail")

		time.Sleep(time.Second)
		if s := p.State(); !s.Ready() || s.Asking || s.Since != begin.Add(2010*time.Millisecond) || s.Reason() != "" || s.Detail() != "" {
			t.Errorf("got %+v, want ready for 0.5 s without a reason", s)
		}
	})
}

func TestDurationOfAttemptIsInMilliseconds(t *testing.T) {
	text, err := json.Marshal(observation.ProbeTries{Count: 1, TookMs: 0.5})
	harness.NoError(t, err)
	harness.Contains(t, string(text), `"tookMs":0.5`)
}

func TestStateKeepsLastAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := asking(t, aggressive(1, func(n int, _ context.Context) error {
			return &failure{word: observation.WordStatus, code: 500 + n, err: errors.New("x")}
		}))
		_ = p.Ready(t.Context())
		last := p.State().Probes[0].Last
		if len(last) != maxLastAttempts || last[0].Code != 692 || last[7].Code != 699 {
			t.Errorf("got %v, want 8 attempts from 692 to 699", last)
		}
	})
}

func TestOnChangeIsCalledOncePerChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var changes []string
		var p *Prober
		s := aggressive(1, func(int, context.Context) error {
			switch since := time.Since(begin); {
			case since < time.Second:
				return refused
			case since < 2*time.Second:
				return status500
			case since < time.Minute:
				return nil
			}
			return &failure{word: observation.WordStatus, code: 503, err: errors.New("HTTP status 503")}
		})
		p = start(t, Options{OnChange: func(c Change) {
			_ = p.State() // must not deadlock
			changes = append(changes, fmt.Sprintf("%v %s -> %s %s", time.Since(begin), c.Before.Phase, c.Now.Phase, c.Now.Reason()))
		}}, s)
		harness.Equal(t, p.Ready(t.Context()), nil)
		time.Sleep(time.Minute)
		_ = p.Ready(t.Context())
		want := []string{
			"0s starting -> starting not ready: probe 0 (httpGet) starting: refused",
			"1s starting -> starting not ready: probe 0 (httpGet) starting: status 500",
			"2s starting -> ready ",
			"1m2s ready -> failing not ready: probe 0 (httpGet) failing: status 503",
		}
		harness.Equal(t, strings.Join(changes, "\n"), strings.Join(want, "\n"))
	})
}

func TestOnChangeRateIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int32
		var last atomic.Value
		s := aggressive(1, func(n int, _ context.Context) error {
			if n%2 == 0 {
				return status500
			}
			return refused
		})
		p := start(t, Options{OnChange: func(c Change) {
			changes.Add(1)
			last.Store(c.Now.Probes[0].Word)
		}}, s)
		_ = p.Ready(t.Context())
		if got := changes.Load(); got < 11 || got > 20 {
			t.Errorf("got %d calls in 10 s, want 10 immediate calls and one call per second", got)
		}
		time.Sleep(5 * time.Second)
		harness.Equal[any](t, last.Load(), p.State().Probes[0].Word, "word in the last call")
	})
}

func TestOnReadyIsCalledForEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const flaps = 100
		changes, lost, won := 0, 0, 0
		s := standard(func(n int, _ context.Context) error {
			if n%2 == 0 {
				return status500
			}
			return nil
		})
		p := start(t, Options{
			OnChange: func(Change) { changes++ },
			OnReady: func(ready bool) {
				if ready {
					won++
				} else {
					lost++
				}
			},
		}, s)
		for range 2 * flaps {
			_ = p.Ready(t.Context())
			time.Sleep(time.Millisecond)
		}
		if won != flaps || lost != flaps-1 { // the first attempt fails
			t.Errorf("got %d calls with true and %d calls with false, want %d and %d", won, lost, flaps, flaps-1)
		}
		if changes > 2*changeBurst {
			t.Errorf("got %d calls of OnChange, want fewer", changes)
		}
	})
}

func TestWarningPassesAndIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []string
		s := standard(sequence(warning("look here"), warning("look here")))
		p := start(t, Options{OnChange: func(c Change) { changes = append(changes, c.Now.Detail()) }}, s)
		for range 3 {
			harness.Equal(t, p.Ready(t.Context()), nil)
		}
		harness.Equal(t, changes, []string{"probe 0 (tcpSocket) ready: tcp://10.1.2.3:8080: look here", ""})
	})
}

func TestStopReleasesCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, Options{OnChange: func(Change) { t.Error("got a call of OnChange before the end of the first attempt, want none") }}, aggressive(1, hangs()))
		heard := make(chan error, 1)
		go func() { heard <- p.Ready(t.Context()) }()
		synctest.Wait()
		begin := time.Now()
		harness.Equal(t, p.Stop(t.Context()), nil, "Stop")
		harness.Equal(t, fmt.Sprint(<-heard), "not ready: stopped; probe 0 (httpGet) starting: pending", "waiting caller")
		if err := p.Ready(t.Context()); err == nil || err.(*notReady).Word != observation.WordStopped {
			t.Errorf("later caller: got %v, want stopped", err)
		}
		wantTook(t, begin, 0)
	})
}

func TestStopReturnsWhenContextIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deaf := make(chan struct{})
		_, p := asking(t, aggressive(1, func(int, context.Context) error { <-deaf; return nil }))
		go func() { _ = p.Ready(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the error of the context", err)
		}
		close(deaf)
		synctest.Wait()
	})
}

func TestErrorOmitsAddressesAndPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := asking(t, aggressive(1, always(fmt.Errorf(`Get "http://10.1.2.3:8080/secret": %w`, refused))))
		err := p.Ready(t.Context())
		if got := err.Error(); strings.ContainsAny(got, "/\n") || strings.Contains(got, "10.1.2.3") || strings.Contains(got, "8080") {
			t.Errorf("got %q, want one line without an address or a path", got)
		}
		harness.Contains(t, err.(*notReady).State.Detail(), "10.1.2.3:8080/secret", "detail")
	})
}
