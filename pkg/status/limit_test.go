package status

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// observeWorkers has the board observe an app with 8 workers, 10 ms each, and up to 16
// requests in flight.
func observeWorkers(b *Board, change func(*queue.Observation)) {
	for n := 1; n <= 16; n++ {
		for range 600 {
			o := observation(queue.OK, 10*time.Millisecond*time.Duration(max(n, 8))/8)
			o.InFlight = n
			change(o)
			b.Observe(o)
		}
	}
}

// askLimit returns what `queue-proxy why --limit` prints.
func askLimit(t *testing.T, b *Board, asJSON bool) string {
	t.Helper()
	server := httptest.NewServer(b.Handler(http.NotFoundHandler(), false))
	defer server.Close()
	var out strings.Builder
	harness.NoError(t, WhyLimit(t.Context(), server.Listener.Addr().String(), asJSON, &out))
	return out.String()
}

func TestFixedLimitHasNoAdvice(t *testing.T) {
	b := board(probe.State{}, Drain{})
	harness.Equal(t, askLimit(t, b, false), "limit in force: 2\nsettled limit: unknown\n  the limit is fixed, so that no other limit was tried\n", "at first")
	observeWorkers(b, func(*queue.Observation) {})
	got := askLimit(t, b, false)
	for _, want := range []string{
		"settled limit: unknown\n",
		"          1        600     10.0 ms     100.0/s\n",
		"          8        600     10.0 ms     800.0/s\n",
		"         16        600     20.0 ms     800.0/s\n",
	} {
		harness.Contains(t, got, want)
	}
	var answer struct{ Advice adapt.Advice }
	harness.NoError(t, json.Unmarshal([]byte(askLimit(t, b, true)), &answer))
	if got := answer.Advice; got.Limit != 0 || got.Reason == "" || len(got.Seen) != 16 {
		t.Errorf("got %+v, want no limit, and 16 places", got)
	}
}

func TestWhatSaysNothingOfTheAppIsNoPartOfTheAdvice(t *testing.T) {
	for name, change := range map[string]func(*queue.Observation){
		"streams":        func(o *queue.Observation) { o.Stream = true },
		"tunnels":        func(o *queue.Observation) { o.Upgraded = true },
		"errors":         func(o *queue.Observation) { o.Status = 503 },
		"broken off":     func(o *queue.Observation) { o.Reason = queue.ClientGone },
		"kubelet probes": func(o *queue.Observation) { o.InFlight = 0 },
		"health checks":  func(o *queue.Observation) { o.Excluded = true },
	} {
		b := board(probe.State{}, Drain{})
		observeWorkers(b, change)
		harness.Equal(t, b.Advice().Seen, nil, name, "seen")
	}
}

func TestAdviceIsSettledLimit(t *testing.T) {
	b := board(probe.State{}, Drain{})
	state := adapt.State{Limit: 9, Base: 8, Reason: adapt.Measuring, Missing: "a comparison"}
	b.sources.Adaptive = func() (adapt.State, bool) { return state, true }
	harness.Contains(t, askLimit(t, b, false), "settled limit: unknown\n  a comparison\n")
	state.Settled = 8
	harness.Contains(t, askLimit(t, b, false), "settled limit: 8\n  a lower and a higher limit were tried, and both are worse\n")
	state.Reason = adapt.NoAnswers // a word for programs, and words for people
	for text, want := range map[string]string{
		askLimit(t, b, false): "adaptive: no answers\n",
		b.text():              "; the limit is adaptive: no answers\n",
		askLimit(t, b, true):  `"reason": "no-answers"`,
	} {
		harness.Contains(t, text, want)
	}
}

func TestWhyListsRequestsWithSlots(t *testing.T) {
	b := board(probe.State{}, Drain{})
	b.sources.Adaptive = func() (adapt.State, bool) { return adapt.State{}, true }
	b.sources.Load = func() (int, int) { return 5, 0 }
	b.sources.Slots = func() ([]queue.Holder, int) {
		return []queue.Holder{{Method: "GET", Path: "/poll", Phase: "waiting", Since: time.Now().Add(time.Hour), Counted: "long"}}, 1
	}
	harness.Contains(t, b.text(), "\n  GET /poll: waiting for 0s, long\n  3 more requests\n  1 slots of disconnected clients, whose requests the application still processes\n")
}

// text is what `queue-proxy why` prints.
func (b *Board) text() string {
	s := b.snapshot()
	return s.text()
}
