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

func TestTheRightLimitIsToldWithTheReason(t *testing.T) {
	b := board(probe.State{}, Drain{})
	harness.Equal(t, askLimit(t, b, false), "limit in force: 2\nwould have been right: it cannot be told\n  too few requests were seen\n", "at first")
	observeWorkers(b, func(*queue.Observation) {})
	got := askLimit(t, b, false)
	for _, want := range []string{
		"would have been right: 8, sure: high\n  at 8 in flight throughput stopped growing\n",
		"          1        600     10.0 ms     100.0/s\n",
		"          8        600     10.0 ms     800.0/s\n",
		"         16        600     20.0 ms     800.0/s\n",
	} {
		harness.Contains(t, got, want)
	}
	var answer struct{ Advice adapt.Advice }
	harness.NoError(t, json.Unmarshal([]byte(askLimit(t, b, true)), &answer))
	if got := answer.Advice; got.Limit != 8 || got.Sure != adapt.High || len(got.Seen) != 16 {
		t.Errorf("got %+v, want 8, sure: high, and 16 places", got)
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

func TestTheAdviceOfAnAdaptiveLimitIsWhatItHasFound(t *testing.T) {
	b := board(probe.State{}, Drain{})
	state := adapt.State{Limit: 9, Base: 8, Reason: adapt.Measuring}
	b.sources.Adaptive = func() (adapt.State, bool) { return state, true }
	harness.Equal(t, b.Advice().Limit, 0, "while it is searching")
	state.Found = true
	if got := b.Advice(); got.Limit != 8 || got.Sure != adapt.High {
		t.Errorf("got %+v, want 8, sure: high", got)
	}
	state.Reason = adapt.AppTime // a word for programs, and words for people
	for text, want := range map[string]string{
		askLimit(t, b, false): "adaptive: app time rose\n",
		b.text():              "; the limit is adaptive: app time rose\n",
		askLimit(t, b, true):  `"reason": "app-time-rose"`,
	} {
		harness.Contains(t, text, want)
	}
}

// text is what `queue-proxy why` prints.
func (b *Board) text() string {
	s := b.snapshot()
	return s.text()
}
