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

func TestWhyPrintsReachedLimits(t *testing.T) {
	s := limited(5 * time.Second).snapshot()
	for _, want := range []string{
		"not enough resources for connections: 3 times since the start, most recently 5s ago: no local ports left " +
			"(connection to the user container: cannot assign requested address). Extend the range.\n",
		"client connections: limit of 345 reached 5s ago, 345 open, 1 waiting, 0 evicted, total wait 0.0 s (limit on open files: 1024).",
		"connections to the user container: limit of 345 reached 5s ago, 300 open, 7 requests waiting (limit on open files: 1024).",
	} {
		if got := s.text(); !strings.Contains(got, want) {
			t.Errorf("got\n%swant a line with %q", got, want)
		}
	}
	harness.Equal(t, s.Ready, true, "ready")
}

func TestWhyOmitsOldLimits(t *testing.T) {
	s := limited(2 * time.Hour).snapshot()
	harness.Equal(t, len(s.Connections.Problems), 0, "problems")
	text, err := json.Marshal(s.Connections.Clients)
	harness.NoError(t, err)
	harness.Equal(t, strings.HasPrefix(string(text), `{"open":345,"limit":345,"waiting":1,"reached":"`), true, string(text))
}
