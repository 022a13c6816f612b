package status

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// limited returns a Board with limits that were reached the given time ago.
func limited(ago time.Duration) *Board {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	at := time.Now().Add(-ago)
	b.sources.Connections = func() Connections {
		return Connections{
			OpenFilesLimit: 1024,
			Clients:        bound.Pool{Open: 345, Limit: 345, Waiting: 1, Reached: at},
			App:            bound.Pool{Open: 300, Limit: 345, Waiting: 7, Reached: at},
			Shortage: Shortage{
				Count: 3, Time: at, Operation: "connection to the user container", Resource: "local ports",
				Error: "cannot assign requested address", Hint: "Extend the range.",
			},
		}
	}
	return b
}

func TestOldLimitsAreNoProblem(t *testing.T) {
	s := limited(2 * time.Hour).snapshot()
	harness.Equal(t, len(s.Problems), 0, "problems")
	harness.Equal(t, s.Ready, true, "ready")
	text, err := json.Marshal(s.Connections.Clients)
	harness.NoError(t, err)
	harness.Equal(t, strings.HasPrefix(string(text), `{"open":345,"limit":345,"waiting":1,"reached":"`), true, string(text))
}
