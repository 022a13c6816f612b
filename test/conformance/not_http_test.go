package conformance

import (
	"io"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A Redis behind the sidecar passes a TCP probe: the pod is ready and serves nobody. The log
// says why, once.
func TestAnAppThatDoesNotSpeakHTTPIsNamedInTheLogOnce(t *testing.T) {
	p := newProxy(t)
	p.bare(func(c *bareConn, m *message) bool {
		io.WriteString(c, "-ERR Protocol error, got \"H\" from client\r\n")
		return false
	})
	p.start()
	for range 3 {
		if m := dial(t, p.addr()).ask("/"); m.status() != 502 || word(m.get("Proxy-Status")) != "app-garbage" {
			t.Errorf("got %q with %q, want 502 app-garbage", m.Start, m.get("Proxy-Status"))
		}
	}
	lines := func() int { return strings.Count(p.out.String(), `"the user container does not speak HTTP"`) }
	harness.Until(t, "line about the app", func() bool { return lines() > 0 })
	if got := lines(); got != 1 {
		t.Errorf("got %d lines, want 1", got)
	}
}
