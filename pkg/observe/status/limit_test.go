package status

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestWhyPrintsSettledLimit(t *testing.T) {
	b := board(observation.Readiness{}, Drain{})
	harness.Equal(t, b.snapshot().Adaptive, nil, "adaptive state of a fixed limit")
	state := observation.LimitState{Limit: 9, Base: 8, Reason: observation.LimitMeasuring, Missing: "a comparison"}
	b.sources.Adaptive = func() (observation.LimitState, bool) { return state, true }
	checkScreen(t, b.text(), "; the limit is adaptive: measuring; not settled because a comparison")
	state.Settled, state.Missing = 8, ""
	state.Reason = observation.LimitNoAnswers // the text differs from the JSON value
	checkScreen(t, b.text(), "; the limit is adaptive: no answers; settled at 8")
	harness.Equal(t, *b.snapshot().Adaptive, observation.LimitState{Limit: 9, Base: 8, Reason: observation.LimitNoAnswers, Settled: 8}, "settled")
}

func TestWhyAsJSONContainsLimit(t *testing.T) {
	b := board(observation.Readiness{}, Drain{})
	state := observation.LimitState{Limit: 2, Base: 8, Reason: observation.LimitSteady, Settled: 8}
	b.sources.Adaptive = func() (observation.LimitState, bool) { return state, true }
	server := httptest.NewServer(b.Handler(http.NotFoundHandler(), false))
	defer server.Close()
	var out bytes.Buffer
	_, err := Why(t.Context(), netconn.LoopbackClient(), server.Listener.Addr().(*net.TCPAddr).Port, true, &out)
	harness.NoError(t, err)
	var got struct {
		Limit, Depth int
		Adaptive     *observation.LimitState
	}
	harness.NoError(t, json.Unmarshal(out.Bytes(), &got))
	harness.Equal(t, got.Limit, 2, "limit")
	harness.Equal(t, got.Depth, 20, "depth")
	harness.Equal(t, *got.Adaptive, observation.LimitState{Base: 8, Reason: observation.LimitSteady, Settled: 8}, "adaptive")
}

func TestWhyPrintsRequestsWithSlots(t *testing.T) {
	b := board(observation.Readiness{}, Drain{})
	b.sources.Adaptive = func() (observation.LimitState, bool) { return observation.LimitState{}, true }
	b.sources.Load = func() (int, int) { return 5, 0 }
	for phase, want := range map[observation.Phase]string{
		observation.Dialling: "connecting", observation.Waiting: "no response", observation.Streaming: "streaming",
	} {
		b.sources.Slots = func() ([]observation.Holder, int) {
			return []observation.Holder{{Method: "GET", Path: "/poll", Phase: phase.String(), Slot: time.Now().Add(time.Hour), Counted: "long"}}, 1
		}
		harness.Contains(t, b.text(), "\n  oldest request: "+want+" for 0s (long), GET /poll\n  1 slot used by requests of disconnected clients\n")
	}
}

// text returns the output of `queue-proxy why`.
func (b *Board) text() string {
	s := b.snapshot()
	return s.text()
}
