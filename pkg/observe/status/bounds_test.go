package status

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func boundedBoard(readiness observation.Readiness) (*Board, *bound.Recorder) {
	b := board(readiness, Drain{})
	b.sources.Bounds = bound.NewRecorder()
	return b, b.sources.Bounds
}

func TestWhyReturnsReadinessWithBounds(t *testing.T) {
	for _, ready := range []bool{true, false} {
		phase := observation.PhaseReady
		if !ready {
			phase = observation.PhaseStarting
		}
		b, bounds := boundedBoard(observation.Readiness{Phase: phase})
		bounds.Hit(bound.ControlFrames, "10.0.0.1:1234")
		server := httptest.NewServer(b.Handler(http.NotFoundHandler(), false))
		defer server.Close()
		var out bytes.Buffer
		got, err := Why(t.Context(), netconn.LoopbackClient(), server.Listener.Addr().(*net.TCPAddr).Port, true, &out)
		harness.NoError(t, err)
		harness.Equal(t, got, ready, "ready")
		harness.Contains(t, out.String(), `"bound": "h2-control-frames"`)
	}
}

func TestStatusJSONContainsBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, bounds := boundedBoard(observation.Readiness{Phase: observation.PhaseReady})
		for range 2 {
			bounds.Hit(bound.ConcurrentStreams, "10.0.0.1:1234")
		}
		text, err := json.Marshal(b.snapshot().Bounds)
		harness.NoError(t, err)
		var got []bound.State
		harness.NoError(t, json.Unmarshal(text, &got))
		harness.Equal(t, len(got), 1, "bounds")
		got[0].First, got[0].Last = got[0].First.Local(), got[0].Last.Local()
		harness.Equal(t, got[0], bound.State{
			Label: "h2-concurrent-streams", Closes: "stream", Count: 2, Recent: 2,
			First: time.Now().Local().Round(0), Last: time.Now().Local().Round(0), Peer: "10.0.0.1:1234", Cause: bound.ConcurrentStreams.Text(),
		}, "state")
	})
}
