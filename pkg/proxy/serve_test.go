package proxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// heard returns the response that the sidecar generated for the client of f, such as "200 queue". It
// returns "nothing" if there was no such response.
func (f *fake) heard() string {
	switch len(f.answers) {
	case 0:
		return "nothing"
	case 1:
		a := f.answers[0]
		s := fmt.Sprintf("%d %s", a.status, a.body)
		if a.grpc >= 0 {
			s += fmt.Sprintf("grpc-status %d", a.grpc)
		}
		if a.hash != "" {
			s += "hash " + a.hash
		}
		return s
	}
	return fmt.Sprintf("%d answers", len(f.answers))
}

const noHash = "400 a probe request must contain a non-empty \"K-Network-Hash\" header\n"

func TestRejectReportsOverload(t *testing.T) {
	for _, c := range []struct {
		fields []string
		reset  bool
		want   string
		status int // status of the observation; 0 if there is none
	}{
		{nil, false, "503 not enough memory for requests\n", 503},
		{[]string{"Content-Type", "application/grpc"}, false, "200 grpc-status 8", 200},
		{nil, true, "nothing", 503},
		{[]string{"User-Agent", "kube-probe/1.30"}, false, "503 not enough memory for requests\n", 503},
		{[]string{"User-Agent", "kube-probe/1.30"}, true, "nothing", 503},
		{[]string{"K-Network-Probe", "queue"}, false, "503 not enough memory for requests\n", 0},
		{[]string{"K-Network-Probe", "probe", "K-Network-Hash", "h"}, true, "nothing", 0},
	} {
		h := newTestProxy()
		h.Limit = NewLimit(1, 0)
		h.Drain.Begin(true)
		f := newFake("/", c.fields...)
		h.Reject(f, &f.state, c.reset)
		harness.Equal(t, f.heard(), c.want, c.fields)
		harness.Equal(t, f.forwarded, 0, "forwarded requests")
		switch {
		case c.status == 0:
			harness.Equal(t, len(h.seen), 0, "observations")
		case len(h.seen) != 1:
			t.Errorf("%q: got %d observations, want 1", c.fields, len(h.seen))
		default:
			harness.Equal(t, h.seen[0].Reason, observation.Overload, "reason")
			harness.Equal(t, h.seen[0].Status, c.status, "status")
		}
		running, _ := h.Limit.Load()
		harness.Equal(t, running, 0, "slots in use")
	}
}

func TestRefuseIsObserved(t *testing.T) {
	const body = "Request Header Fields Too Large\n"
	for target, excluded := range map[string]bool{"/": false, "/healthz": true} {
		h := newTestProxy()
		h.Exclude = Exclude{Paths: []string{"/healthz"}}
		f := newFake(target)
		h.Refuse(f, 431)
		harness.Equal(t, f.heard(), "431 "+body, target)
		o := h.of(t, f)
		harness.Equal(t, o.Status, 431, "status")
		harness.Equal(t, o.Reason, observation.BadRequest, "reason")
		harness.Equal(t, o.Out, int64(len(body)), "length of the response in bytes")
		harness.Equal(t, o.RPC, 0, "gRPC status")
		harness.Equal(t, o.Excluded, excluded, target, "excluded")
	}
}

func TestProbesAreNotForwarded(t *testing.T) {
	hash := strings.Repeat("h", 4096)
	for _, c := range []struct {
		fields []string
		ready  error
		want   string
		reason observation.Reason
	}{
		{[]string{"K-Network-Probe", "queue"}, nil, "200 queue", observation.OK},
		{[]string{"K-Network-Probe", "queue", "User-Agent", "curl"}, nil, "200 queue", observation.OK},
		{[]string{"K-Network-Probe", "queue"}, errors.New("probe 0: tcp: refused"), "503 probe 0: tcp: refused\n", observation.NotReady},
		{[]string{"K-Network-Probe", "queue", "Content-Type", "application/grpc"}, nil, "200 queue", observation.OK},
		{[]string{"K-Network-Probe", "probe", "K-Network-Hash", "abc"}, errors.New("not asked"), "200 hash abc", observation.OK},
		{[]string{"K-Network-Probe", "probe", "K-Network-Hash", hash}, nil, "200 hash " + hash, observation.OK},
		{[]string{"K-Network-Probe", "probe"}, nil, noHash, observation.BadRequest},
		{[]string{"K-Network-Probe", "probe", "K-Network-Hash", hash + "h"}, nil, "400 the \"K-Network-Hash\" header is longer than 4 KiB\n", observation.BadRequest},
		{[]string{"K-Network-Probe", "Queue"}, nil, "400 unexpected probe header value: Queue\n", observation.BadRequest},
		{[]string{"K-Network-Probe", "<b>\xe9"}, nil, "400 unexpected probe header value: <b>\xe9\n", observation.BadRequest},
		{[]string{"K-Network-Probe", hash}, nil, "400 unexpected probe header value: " + hash[:256] + "\n", observation.BadRequest},
		{[]string{"User-Agent", "Knative-Activator-Probe"}, nil, "400 unexpected probe header value: \n", observation.BadRequest},
		{[]string{"User-Agent", "Knative-Autoscaling-Probe/9"}, nil, "400 unexpected probe header value: \n", observation.BadRequest},
	} {
		for _, draining := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				h := newTestProxy()
				h.Limit = NewLimit(1, 0)
				busy := newFake("/busy")
				h.Limit.acquire(busy, &busy.state)
				h.Ready = func(context.Context) error { return c.ready }
				want, reason := c.want, c.reason
				if draining {
					h.Drain.Begin(true)
					want, reason = "503 shutting down\n", observation.Draining
				}
				began := h.Drain.arrived
				time.Sleep(time.Second / 2)

				f := h.serve(newFake("/any", c.fields...))
				if got := f.heard(); got != want || f.answers[0].reason != reason {
					t.Errorf("%.60q, draining %t: got %.80q, want %.80q, why %v", c.fields, draining, got, want, reason)
				}
				time.Sleep(time.Second / 2)
				r := h.Stats.Report(time.Now())
				if f.forwarded != 0 || len(h.seen) != 0 || r.Last.Requests != 0 || r.Last.Concurrency != 0 || !h.Drain.arrived.Equal(began) {
					t.Errorf("%.60q, draining %t: got forwarded %d, observed %d, counted %v, quiet since %v, want none and %v",
						c.fields, draining, f.forwarded, len(h.seen), r.Last, h.Drain.arrived, began)
				}
			})
		}
	}
}

func TestDrainDuringReadinessCheckReturns503(t *testing.T) {
	for _, ready := range []error{nil, errors.New("the app has gone")} {
		h := newTestProxy()
		h.Ready = func(context.Context) error {
			h.Drain.Begin(true)
			return ready
		}
		f := h.serve(newFake("/", "K-Network-Probe", "queue"))
		harness.Equal(t, f.heard(), "503 shutting down\n", fmt.Sprint("user container ", ready))
	}
}

func TestReadinessCheckEndsOnDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Ready = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		f := newFake("/", "K-Network-Probe", "queue")
		done := h.begin(f)
		harness.Equal(t, f.heard(), "nothing", "response during the readiness check")
		f.hangUp()
		<-done
		h.empty(t)
	})
}

func TestTrafficIsForwardedCountedAndObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit = NewLimit(1, 1)
		start := time.Now()
		free := make(chan struct{})
		one, two := newFake("/one").worksUntil(free), newFake("/two", "K-Proxy-Request", "activator").worksUntil(free)
		done := h.begin(one)
		doneToo := h.begin(two)
		harness.Equal(t, h.Limit.String(), "1 running, 1 waiting", "limit")
		n, _ := h.Drain.Flights()
		harness.Equal(t, n, 2, "in flight")
		time.Sleep(time.Second)
		r := h.Stats.Report(time.Now())
		harness.Equal(t, fmt.Sprint(r.InFlight, r.ProxiedInFlight, r.Last), "2 1 {2 1 2 1}", "statistics, including queued requests")
		time.Sleep(time.Second)
		close(free)
		<-done
		<-doneToo
		h.empty(t)
		harness.Equal(t, len(h.seen), 2, "observations")
		first, second := h.of(t, one), h.of(t, two)
		harness.Equal(t, first.Slot.Sub(start), time.Duration(0), "slot of the first request")
		harness.Equal(t, first.End.Sub(start), 2*time.Second, "end of the first request")
		harness.Equal(t, first.Status, 200, "status of the first request")
		harness.Equal(t, first.Phase, observation.Waiting, "phase of the first request")
		harness.Equal(t, first.Kind, observation.Traffic, "kind of the first request")
		harness.Equal(t, first.Proxied, false, "first request is from the activator")
		harness.Equal(t, second.Start.Sub(start), time.Duration(0), "start of the second request")
		harness.Equal(t, second.Slot.Sub(start), 2*time.Second, "slot of the second request")
		harness.Equal(t, second.Proxied, true, "second request is from the activator")
		harness.Equal(t, one.heard()+two.heard(), "nothingnothing", "responses of the sidecar")
	})
}

func TestProxiedRequiresActivatorValue(t *testing.T) {
	for value, want := range map[string]bool{"": false, "activator": true, "Activator": false, "activator2": false} {
		h := newTestProxy()
		h.serve(newFake("/", "K-Proxy-Request", value))
		harness.Equal(t, h.seen[0].Proxied, want, value)
	}
}

func TestServeQueueFullReturns503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit = NewLimit(1, 1)
		free := make(chan struct{})
		h.begin(newFake("/").worksUntil(free))
		waits := h.begin(newFake("/").worksUntil(free))
		full := h.serve(newFake("/"))
		harness.Equal(t, full.heard(), "503 pending request queue full\n", "response")
		harness.Equal(t, full.forwarded, 0, "forwarded")
		o := h.seen[0]
		harness.Equal(t, fmt.Sprint(o.Status, o.Reason, o.Phase, o.Slot.IsZero()), "503 queue-full queued true", "observed")
		close(free)
		<-waits
		synctest.Wait()
		h.empty(t)
	})
}

func TestQueuedClientDisconnectIsLogged499(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit = NewLimit(1, 1)
		free := make(chan struct{})
		busy := h.begin(newFake("/").worksUntil(free))
		leaver := newFake("/")
		left := h.begin(leaver)
		leaver.hangUp()
		<-left
		harness.Equal(t, leaver.heard(), "nothing", "response")
		harness.Equal(t, leaver.forwarded, 0, "forwarded")
		o := h.seen[0]
		harness.Equal(t, fmt.Sprint(o.Status, o.Reason, o.Phase), "499 client-gone queued", "observed")
		harness.Equal(t, h.Limit.String(), "1 running, 0 waiting", "limit")
		close(free)
		<-busy
		h.empty(t)
	})
}

func TestServeTimeoutReturnsErrorBeforeResponse(t *testing.T) {
	for _, c := range []struct {
		clocks Clocks
		queued bool
		want   string
		seen   string
	}{
		{Clocks{Request: time.Second}, true, "504 request timeout", "504 request-timeout queued"},
		{Clocks{Request: time.Second}, false, "504 request timeout", "504 request-timeout waiting"},
		{Clocks{ResponseStart: time.Second}, true, "504 request timeout", "504 response-start-timeout queued"},
		{Clocks{ResponseStart: time.Second}, false, "504 request timeout", "504 response-start-timeout waiting"},
		{Clocks{Idle: time.Second}, true, "504 request timeout", "504 idle-timeout queued"},
		{Clocks{Idle: time.Second}, false, "504 request timeout", "504 idle-timeout waiting"},
		{Clocks{Queue: time.Second}, true, "503 pending request queue full\n", "503 queue-timeout queued"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newTestProxy()
			h.Limit = NewLimit(1, 1)
			busy := newFake("/")
			if c.queued {
				h.Limit.acquire(busy, &busy.state)
			}
			h.Clocks = c.clocks
			start := time.Now()
			f := h.serve(newFake("/").worksUntil(make(chan struct{})))
			o := h.seen[0]
			what := fmt.Sprintf("%+v, queued %t: ", c.clocks, c.queued)
			harness.Equal(t, f.heard(), c.want, what+"response")
			harness.Equal(t, fmt.Sprint(o.Status, o.Reason, o.Phase), c.seen, what+"observed")
			harness.Equal(t, o.End.Sub(start), time.Second, what+"duration")
			if c.queued {
				h.Limit.release()
			}
			h.empty(t)
		})
	}
}

func TestServeAnswersIfForwardSentNothing(t *testing.T) {
	for _, c := range []struct {
		result transport.Result
		heard  string
		status int
	}{
		{transport.Result{Status: 200, Begun: true}, "nothing", 200},
		{transport.Result{Status: 404, Begun: true}, "nothing", 404},
		{transport.Result{Status: 101, Begun: true, Upgraded: true}, "nothing", 101},
		{transport.Result{Status: 200, Begun: true, Err: reasonError(observation.IdleTimeout)}, "nothing", 200}, // the engine aborted the stream
		{transport.Result{Status: 200, Begun: true, Err: transport.FaultClientGone}, "nothing", 200},
		{transport.Result{Err: transport.FaultClientGone}, "nothing", 499},
		{transport.Result{Err: transport.FaultUnreachable}, "502 the app cannot be reached\n", 502},
		{transport.Result{Err: transport.FaultReset}, "502 connection to the app closed unexpectedly\n", 502},
		{transport.Result{Status: 200, Err: transport.FaultGarbage}, "502 invalid HTTP response of the app\n", 502},
		{transport.Result{Err: reasonError(observation.RequestTimeout)}, "504 request timeout", 504},
		{transport.Result{Err: reasonError(observation.Draining)}, "503 shutting down\n", 503},
		{transport.Result{Err: transport.FaultBadRequest}, "400 bad request\n", 400},
		{transport.Result{Err: transport.FaultTooLarge}, "413 request body too large\n", 413},
	} {
		h := newTestProxy()
		h.Limit = NewLimit(1, 0)
		f := newFake("/")
		f.app = func(*RequestState) transport.Result { return c.result }
		f.onAnswer = func() {
			harness.Equal(t, h.Limit.String(), "0 running, 0 waiting", "limit while the response is sent")
		}
		h.serve(f)
		what := fmt.Sprintf("%+v: ", c.result)
		harness.Equal(t, f.heard(), c.heard, what+"response")
		harness.Equal(t, h.seen[0].Status, c.status, what+"status")
		harness.Equal(t, h.seen[0].Reason, reasonOf(c.result.Err), what+"reason")
		h.empty(t)
	}
}

func TestQuietPeriodIgnoresKubeletProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Exclude = Exclude{Paths: []string{"/healthz"}}
		start := time.Now()
		for _, c := range []struct {
			f    *fake
			want time.Duration
		}{
			{newFake("/"), 1 * time.Second},
			{newFake("/live", "User-Agent", "kube-probe/1.31"), 1 * time.Second},
			{newFake("/live", "K-Kubelet-Probe", "x"), 1 * time.Second},
			{newFake("/", "K-Network-Probe", "queue"), 1 * time.Second},
			{newFake("/healthz"), 1 * time.Second},
			{newFake("/"), 6 * time.Second},
		} {
			time.Sleep(time.Second)
			h.serve(c.f)
			harness.Equal(t, h.Drain.arrived.Sub(start), c.want, fmt.Sprint(c.f.fields))
		}
	})
}

func TestExcludedRequestsAreLimitedButNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit = NewLimit(1, 0)
		h.Exclude = Exclude{Paths: []string{"/healthz", "/admin/*"}, UserAgents: []string{"Prometheus/", "curl"}}
		for _, c := range []struct {
			f    *fake
			want bool
		}{
			{newFake("/"), false},
			{newFake("/healthz"), true},
			{newFake("/healthz/"), false},
			{newFake("/healthz2"), false},
			{newFake("/Healthz"), false},
			{newFake("/admin/"), true},
			{newFake("/admin/x/y"), true},
			{newFake("/admin"), false},
			{newFake("/x/admin/"), false},
			{newFake("/", "User-Agent", "Prometheus/2.1"), true},
			{newFake("/", "User-Agent", "curl"), true},
			{newFake("/", "User-Agent", "prometheus/2.1"), false},
			{newFake("/", "User-Agent", "x curl"), false},
			{newFake("/", "User-Agent", ""), false},
		} {
			free := make(chan struct{})
			done := h.begin(c.f.worksUntil(free))
			what := fmt.Sprint(c.f.request.URL.Path, c.f.fields, ": ")
			harness.Equal(t, h.Limit.String(), "1 running, 0 waiting", what+"limit")
			counted := 1
			if c.want {
				counted = 0
			}
			harness.Equal(t, h.Stats.Report(time.Now()).InFlight, counted, what+"counted")
			n, _ := h.Drain.Flights()
			harness.Equal(t, n, 1, what+"in flight")
			turnedAway := h.serve(newFake(c.f.request.URL.Path, "User-Agent", c.f.fields["User-Agent"]))
			harness.Equal(t, turnedAway.heard(), "503 pending request queue full\n", what+"request to a full queue")
			close(free)
			<-done
			harness.Equal(t, h.seen[len(h.seen)-1].Excluded, c.want, what+"excluded")
		}
		h.empty(t)
	})
}

func TestLinePathForEachTargetForm(t *testing.T) {
	for target, want := range map[string]string{
		"/":                   "/",
		"/a/b?c=/d":           "/a/b",
		"/a?b?c":              "/a",
		"/a%2fb;c//":          "/a%2fb;c//",
		"http://h:80/a/b?c":   "/a/b",
		"http://h":            "/",
		"http://h?http://x/y": "/",
		"/x://y/z":            "/x://y/z",
		"*":                   "*",
		"h:443":               "h:443",
		"":                    "",
	} {
		l := transport.Line{Target: target}
		harness.Equal(t, l.Path(), want, target)
	}
}

func TestExcludeStarMatchesAllPaths(t *testing.T) {
	h := newTestProxy()
	h.Exclude = Exclude{Paths: []string{"*"}}
	h.serve(newFake("/x"))
	h.serve(newFake("*"))
	harness.Equal(t, h.seen[0].Excluded && h.seen[1].Excluded, true, "excluded")
}

func TestForwardPanicReleasesResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fields := range [][]string{nil, {"K-Proxy-Request", "activator"}, {"User-Agent", "kube-probe/1.31"}} {
			h := newTestProxy()
			h.Limit = NewLimit(1, 1)
			goOn := make(chan struct{})
			f := newFake("/", fields...)
			f.app = func(*RequestState) transport.Result {
				<-goOn
				panic("the engine")
			}
			recovered := make(chan any)
			go func() {
				defer func() { recovered <- recover() }()
				h.serve(f)
			}()
			synctest.Wait()
			next := newFake("/")
			done := h.begin(next)
			close(goOn)
			harness.Equal(t, <-recovered, any("the engine"), "panic")
			<-done
			harness.Equal(t, next.forwarded, 1, "forwarded requests after the panic")
			h.empty(t)
		}
	})
}

func TestDrainDeadlineEndsQueuedAndRunningRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit = NewLimit(1, 1)
		served, waiting := newFake("/").worksUntil(nil), newFake("/")
		servedDone := h.begin(served)
		waitingDone := h.begin(waiting)
		h.Drain.Begin(true)
		harness.Equal(t, h.Drain.Wait(context.Background()), Deadline, "outcome")
		h.Drain.Abort()
		<-servedDone
		<-waitingDone
		harness.Equal(t, served.heard(), "503 shutting down\n", "served")
		harness.Equal(t, waiting.heard(), "503 shutting down\n", "waiting")
		harness.Equal(t, waiting.forwarded, 0, "forwarded requests after the queue")
		late := h.serve(newFake("/").worksUntil(nil))
		harness.Equal(t, late.heard(), "503 shutting down\n", "late")
		h.empty(t)
	})
}

func TestRequestStateIsReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit = NewLimit(1, 1)
		h.Clocks = Clocks{Request: time.Second, Idle: time.Second}
		busy := newFake("/")
		h.Limit.acquire(busy, &busy.state)
		state := &RequestState{} // memory of a connection
		for i, want := range []string{"504 request timeout", "nothing", "504 request timeout", "nothing"} {
			f := newFake("/")
			if want == "nothing" {
				go func() {
					time.Sleep(time.Second / 2)
					h.Limit.release()
				}()
			}
			h.Serve(f, state)
			harness.Equal(t, f.heard(), want, fmt.Sprint("request ", i))
			if want == "nothing" {
				harness.Equal(t, h.seen[i].Status, 200, "status")
				h.Limit.acquire(busy, &busy.state)
			}
		}
		h.Limit.release()
		h.empty(t)
	})
}

// trace records the phases of a request.
type trace struct{ told []string }

func (t *trace) ID() string                { return "id" }
func (t *trace) Sampled() bool             { return true }
func (t *trace) Enter(p observation.Phase) { t.told = append(t.told, p.String()) }
func (t *trace) Drop(string) bool          { return false }
func (t *trace) Fields() []transport.Field { return nil }
func (t *trace) End(o *observation.Observation) {
	t.told = append(t.told, fmt.Sprint(o.TraceID, " ", o.Status))
}

func TestOnlyCountedRequestsAreTraced(t *testing.T) {
	h := newTestProxy()
	h.Exclude = Exclude{Paths: []string{"/healthz"}}
	seen := &trace{}
	h.Trace = func(transport.Exchange) Trace { return seen }
	state := &RequestState{}
	for _, f := range []*fake{
		newFake("/"),
		newFake("/healthz"),
		newFake("/", "User-Agent", "kube-probe/1.31"),
		newFake("/", "K-Network-Probe", "queue"),
	} {
		h.Serve(f, state)
	}
	harness.Equal(t, fmt.Sprint(seen.told), "[dialling id 200]", "calls to Trace")
	harness.Equal(t, h.seen[1].TraceID, "", "trace of the excluded request")
	h.Trace = func(transport.Exchange) Trace { return nil }
	h.Serve(newFake("/"), state)
	harness.Equal(t, fmt.Sprint(seen.told), "[dialling id 200]", "calls to Trace without a trace")
}

func TestServeDoesNotAllocate(t *testing.T) {
	for name, change := range map[string]func(*testProxy){
		"bare":     func(*testProxy) {},
		"limit":    func(h *testProxy) { h.Limit = NewLimit(1, 1) },
		"adaptive": func(h *testProxy) { h.Limit = NewAdaptiveLimit(adapt.Settings{}, 1) },
		"clocks":   func(h *testProxy) { h.Clocks = Clocks{Request: time.Hour, ResponseStart: time.Hour, Idle: time.Hour} },
		"exclude":  func(h *testProxy) { h.Exclude = Exclude{Paths: []string{"/x", "/y/*"}, UserAgents: []string{"curl"}} },
		"draining": func(h *testProxy) { h.Drain.Begin(true) },
	} {
		h := newTestProxy()
		h.Observe = func(*observation.Observation) {}
		change(h)
		f := newFake("/")
		harness.Equal(t, testing.AllocsPerRun(200, func() { h.Serve(f, &f.state) }), 0, name, "allocations")
		if f.forwarded == 0 || len(f.answers) != 0 {
			t.Errorf("%s: got %d forwarded, %d answered, want all forwarded", name, f.forwarded, len(f.answers))
		}
	}
}

func BenchmarkServe(b *testing.B) { benchmarkServe(b, NewLimit(100, 100)) }

func BenchmarkServeAdaptive(b *testing.B) {
	benchmarkServe(b, NewAdaptiveLimit(adapt.Settings{Max: 100}, 100))
}

func BenchmarkServeUnlimited(b *testing.B) { benchmarkServe(b, nil) }

func benchmarkServe(b *testing.B, limit *Limit) {
	h := newTestProxy()
	h.Limit = limit
	h.Clocks = Clocks{Request: time.Hour, ResponseStart: time.Hour, Idle: time.Hour}
	h.Observe = func(*observation.Observation) {}
	f := newFake("/")
	for b.Loop() {
		h.Serve(f, &f.state)
	}
}

func TestGRPCStatusOfSidecarIsObserved(t *testing.T) {
	for mediaType, want := range map[string]string{transport.GRPC: "RESOURCE_EXHAUSTED", "text/plain": ""} {
		h := newTestProxy()
		f := newFake("/", "Content-Type", mediaType)
		h.Reject(f, &f.state, false)
		harness.Equal(t, h.seen[0].RPC.String(), want, mediaType)
	}
}

func TestGRPCStatusOfTextResponseIsIgnored(t *testing.T) {
	for mediaType, want := range map[string]string{transport.GRPC: "UNAVAILABLE", "text/plain": ""} {
		h := newTestProxy()
		f := newFake("/")
		f.app = func(state *RequestState) transport.Result {
			state.Respond(mediaType)
			state.EndRPC("14")
			return transport.Result{Status: 200, Begun: true}
		}
		h.serve(f)
		harness.Equal(t, h.seen[0].RPC.String(), want, mediaType)
	}
}
