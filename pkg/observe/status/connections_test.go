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

func TestClientsProblemNamesSourceOfLimit(t *testing.T) {
	for source, want := range map[LimitSource][2]string{ // end of the numbers, and action
		SourceSetting: {"; source of the limit: MAX_CONNECTIONS", "Idle connections are closed. Increase MAX_CONNECTIONS."},
		SourceMemory:  {"; source of the limit: memory limit", "Idle connections are closed. Increase the memory limit of the sidecar, or set MAX_CONNECTIONS."},
		SourceFiles:   {"; limit on open files: 1024", "Idle connections are closed. Increase the limit on open files."},
	} {
		b := limited(time.Second)
		c := b.sources.Connections()
		b.sources.Connections = func() Connections {
			return Connections{OpenFilesLimit: c.OpenFilesLimit, Clients: c.Clients, ClientsLimit: source}
		}
		problems := b.snapshot().Problems
		harness.Equal(t, len(problems), 1, "problems")
		if p := problems[0]; !strings.HasSuffix(p.Numbers, want[0]) || p.Action != want[1] {
			t.Errorf("%s: got numbers %q and action %q, want %q", source, p.Numbers, p.Action, want)
		}
	}
}

func TestOldLimitsAreNoProblem(t *testing.T) {
	s := limited(2 * time.Hour).snapshot()
	harness.Equal(t, len(s.Problems), 0, "problems")
	harness.Equal(t, s.Ready, true, "ready")
	text, err := json.Marshal(s.Connections.Clients)
	harness.NoError(t, err)
	harness.Equal(t, strings.HasPrefix(string(text), `{"open":345,"limit":345,"waiting":1,"reached":"`), true, string(text))
}
