package proxy

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// kubeletProbe returns a request that looks like a probe of the kubelet. remote is an address and a
// port.
func kubeletProbe(remote string, fields ...string) *fake {
	f := newFake("/live", append([]string{"User-Agent", "kube-probe/1.31"}, fields...)...)
	f.remote = remote
	return f
}

func TestKubeletSlotsAdmitTwoProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit = NewLimit(1, 10)
		free := make(chan struct{})
		busy := h.begin(newFake("/").worksUntil(free))

		probed := make(chan struct{})
		forged := newFake("/", "K-Kubelet-Probe", "x").worksUntil(probed)
		forged.remote = "10.0.0.2:1"
		first, second := h.start(kubeletProbe("10.0.0.1:1").worksUntil(probed)), h.start(forged)
		third := kubeletProbe("10.0.0.3:1").worksUntil(free)
		synctest.Wait()
		thirdDone := h.begin(third)
		harness.Equal(t, forged.forwarded, 1, "forwarded requests of a client that imitates the kubelet")
		harness.Equal(t, third.forwarded, 0, "forwarded requests of the third probe")
		harness.Equal(t, h.Limit.String(), "1 running, 1 waiting", "limit")
		harness.Equal(t, h.Stats.Report(time.Now()).InFlight, 2, "counted")
		n, _ := h.Drain.Flights()
		harness.Equal(t, n, 4, "in flight")

		close(probed)
		<-first
		<-second
		again := h.serve(kubeletProbe("10.0.0.1:1"))
		harness.Equal(t, again.forwarded, 1, "forwarded requests of a probe with a free slot")
		close(free)
		<-busy
		<-thirdDone
		h.empty(t)
		kinds := map[observation.Kind]int{}
		for _, o := range h.seen {
			kinds[o.Kind]++
		}
		harness.Equal(t, fmt.Sprint(kinds), fmt.Sprint(map[observation.Kind]int{observation.Traffic: 2, observation.KubeletRequest: 3}), "observed")
	})
}

// One client address must not hold both slots, even with different connections.
func TestKubeletSlotsAdmitOneProbePerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestProxy()
		h.Limit = NewLimit(1, 0)
		free := make(chan struct{})
		busy := h.begin(newFake("/").worksUntil(free))
		first := h.begin(kubeletProbe("[fe80::1]:1").worksUntil(free))
		second := h.serve(kubeletProbe("[fe80::1]:2"))
		harness.Equal(t, second.heard(), "503 pending request queue full\n", "second probe of the same address")
		other := h.serve(kubeletProbe("10.0.0.1:1"))
		harness.Equal(t, other.forwarded, 1, "forwarded requests of another address")
		close(free)
		<-busy
		<-first
		h.empty(t)
	})
}

func TestKubeletProbeWithOtherFieldsIsTraffic(t *testing.T) {
	for _, draining := range []bool{false, true} {
		unfinished, doubled := kubeletProbe("10.0.0.1:1"), kubeletProbe("10.0.0.1:1")
		unfinished.open, doubled.repeated = true, "X-Forwarded-For"
		for name, f := range map[string]*fake{
			"open":            unfinished,
			"Upgrade":         kubeletProbe("10.0.0.1:1", "Upgrade", "websocket"),
			"X-Forwarded-For": kubeletProbe("10.0.0.1:1", "X-Forwarded-For", "10.1.1.1"),
			"Forwarded":       kubeletProbe("10.0.0.1:1", "Forwarded", "for=10.1.1.1"),
			"K-Proxy-Request": kubeletProbe("10.0.0.1:1", "K-Proxy-Request", "activator"),
			"two lines":       doubled,
			"no address":      kubeletProbe("@"),
		} {
			h := newTestProxy()
			h.Limit = NewLimit(1, 1)
			if draining {
				h.Drain.Begin(true)
			}
			h.serve(f)
			harness.Equal(t, f.forwarded, 1, fmt.Sprint(name, ", draining ", draining, ", forwarded"))
			harness.Equal(t, h.of(t, f).Kind, observation.Traffic, name+", observed")
			h.empty(t)
		}
	}
}

func TestKubeletProbeTimeoutIsOneMinute(t *testing.T) {
	for _, c := range []struct {
		clocks Clocks
		phase  observation.Phase // the phase that does not end
		want   string
		after  time.Duration
	}{
		{Clocks{}, observation.Waiting, "504 request timeout", time.Minute},
		{Clocks{Request: time.Hour}, observation.Waiting, "504 request timeout", time.Minute},
		{Clocks{Request: time.Second}, observation.Waiting, "504 request timeout", time.Second},
		{Clocks{Request: time.Hour, FirstByteOnly: true}, observation.Streaming, "nothing", time.Minute},
		{Clocks{Request: time.Hour}, observation.Tunnelled, "nothing", time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newTestProxy()
			h.Clocks = c.clocks
			start := time.Now()
			f := kubeletProbe("10.0.0.1:1").worksUntil(make(chan struct{}))
			if c.phase > observation.Waiting {
				f.app = func(state *RequestState) transport.Result {
					state.enter(c.phase)
					_, err := f.sleepUntil(state, make(chan struct{}))
					return transport.Result{Status: 200, Begun: true, Err: err}
				}
			}
			h.serve(f)
			o, what := h.seen[0], fmt.Sprintf("%+v, %d: ", c.clocks, c.phase)
			harness.Equal(t, f.heard(), c.want, what+"response")
			harness.Equal(t, time.Since(start), c.after, what+"duration")
			harness.Equal(t, fmt.Sprint(o.Kind, " ", o.Reason), "kubelet probe request-timeout", what+"observed")
			again := newFake("/").worksUntil(nil) // the timeout does not apply to the next request of the connection
			time.AfterFunc(2*time.Minute, func() { h.Drain.Abort() })
			if c.clocks.Request == 0 {
				h.Serve(again, &f.state)
				harness.Equal(t, time.Since(start), 3*time.Minute, what+"duration of the next request")
			}
			h.empty(t)
		})
	}
}

func TestKubeletProbeDuringDrainReturns503(t *testing.T) {
	h := newTestProxy()
	h.Drain.Begin(true)
	for range 3 {
		f := h.serve(kubeletProbe("10.0.0.1:1"))
		harness.Equal(t, f.heard(), "503 shutting down\n", "response")
		harness.Equal(t, f.forwarded, 0, "forwarded")
	}
	f := h.serve(newFake("/"))
	harness.Equal(t, f.forwarded, 1, "traffic, forwarded")
	harness.Equal(t, len(h.seen), 1, "observed")
	h.empty(t)
}
