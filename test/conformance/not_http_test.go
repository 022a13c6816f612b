package conformance

import (
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// An app that listens only on the address of the pod is ready if its probe names this address.
// The sidecar reports the cause at startup, at the first request, and in the output of "why".
func TestAppNotListeningOnLocalhostIsReported(t *testing.T) {
	p := newProxy(t)
	const podIP = "127.0.0.2"
	l, err := net.Listen("tcp", net.JoinHostPort(podIP, strconv.Itoa(p.port.user)))
	if err != nil {
		t.Fatal(err)
	}
	(&bareApp{t: t, script: answers(ok)}).serve(l, true)
	p.start("CONNECT_RETRY=10ms", fmt.Sprintf(`SERVING_READINESS_PROBE={"tcpSocket":{"port":%d,"host":%q}}`, p.port.user, podIP))
	p.poll("the pod is ready", func() error {
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 200 {
			return fmt.Errorf("got %q", m.Start)
		}
		return nil
	})
	warning := fmt.Sprintf("SERVING_READINESS_PROBE: tcpSocket.host: %q: the host of a probe must be a loopback address", podIP)
	harness.Until(t, "warning about the host of the probe", func() bool {
		return strings.Contains(strings.ReplaceAll(p.out.String(), `\"`, `"`), warning)
	})
	const problem = "the user container does not listen on localhost"
	for range 3 {
		if m := dial(t, p.addr()).ask("/"); m.status() != 502 || word(m.get("Proxy-Status")) != "app-unreachable" {
			t.Errorf("got %q with %q, want 502 app-unreachable", m.Start, m.get("Proxy-Status"))
		}
	}
	lines := func() int { return strings.Count(p.out.String(), `"`+problem+`"`) }
	harness.Until(t, "line about the app", func() bool { return lines() > 0 })
	if got := lines(); got != 1 {
		t.Errorf("got %d lines, want 1", got)
	}
	why := run(t, append(os.Environ(), fmt.Sprint("STATUS_PORT=", p.port.status)), "why")
	code := why.code()
	out := regexp.MustCompile(`\n +`).ReplaceAllString(why.out.String(), " ") // join the lines of a message
	if code != 0 || !strings.Contains(out, "problem: "+problem+" since: ") || !strings.Contains(out, "warning: "+warning) {
		t.Errorf("got %s, want the problem and the warning", why.out.String())
	}
}

// A Redis server passes a TCP probe, so the pod is ready, but all requests fail. The log
// contains the cause once.
func TestAppThatIsNotHTTPIsLoggedOnce(t *testing.T) {
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
	lines := func() int { return strings.Count(p.out.String(), `"the user container is not an HTTP server"`) }
	harness.Until(t, "line about the app", func() bool { return lines() > 0 })
	if got := lines(); got != 1 {
		t.Errorf("got %d lines, want 1", got)
	}
}
