package conformance

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// local6 is like local, but for [::1].
func local6(port int) string { return net.JoinHostPort("::1", strconv.Itoa(port)) }

// standardProbe returns the setting of a TCP probe that makes one attempt.
func (p *proxy) standardProbe() string {
	return fmt.Sprintf(`SERVING_READINESS_PROBE={"tcpSocket":{"port":%d},"periodSeconds":1}`, p.port.user)
}

// launchOnIPv6 starts an application on [::1], starts the sidecar, and waits until the sidecar
// accepts connections.
func (p *proxy) launchOnIPv6(env ...string) {
	p.t.Helper()
	ln, err := net.Listen("tcp", local6(p.port.user))
	if err != nil {
		p.t.Fatal(err)
	}
	app := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })}
	go app.Serve(ln)
	p.t.Cleanup(func() { app.Close() })
	p.launch(env...)
	p.poll("the sidecar listens", func() error {
		if p.ended() {
			p.t.Fatalf("the sidecar exited with code %d", p.code())
		}
		c, err := net.Dial("tcp", local6(p.port.serving))
		if err == nil {
			c.Close()
		}
		return err
	})
}

func TestStartWithoutIPv4Loopback(t *testing.T) {
	if !inNamespace(t, "ip link set lo up; ip address del 127.0.0.1/8 dev lo") {
		return
	}
	p := newProxy(t)
	p.launchOnIPv6("METRICS_NAMES=default")
	if m := dial(t, local6(p.port.serving)).ask("/"); m.status() != 200 || m.Body != "served" {
		t.Errorf("got %q with %q, want 200 with the body of the app", m.Start, m.Body)
	}
	for name, port := range map[string]int{"metrics": p.port.metrics, "statistics": p.port.autoscaler} {
		if m := dial(t, local6(port)).ask("/metrics"); m.status() != 200 {
			t.Errorf("%s: got %q, want 200", name, m.Start)
		}
	}
	if out, code := command(t, p.environment(), "why"); code != 0 || !strings.HasPrefix(out, "ready") {
		t.Errorf("why: got code %d and %q, want 0 and ready", code, out)
	}
	if out, code := command(t, p.environment(), "-probe-period", "1"); code != 0 {
		t.Errorf("-probe-period: got code %d and %q, want 0", code, out)
	}
	if p.out.HasLine("not served") {
		t.Error("the log contains a line about a port that is not served, want all ports on [::1]")
	}
}

// The address 127.0.0.1 does not exist, so the sidecar reports the error for [::1].
func TestReadinessWithoutIPv4LoopbackReportsRefusedPort(t *testing.T) {
	if !inNamespace(t, "ip link set lo up; ip address del 127.0.0.1/8 dev lo") {
		return
	}
	p := newProxy(t)
	p.launch(p.standardProbe())
	p.poll("the sidecar reports that nothing listens", func() error {
		if p.ended() {
			t.Fatalf("the sidecar exited with code %d", p.code())
		}
		c, err := net.Dial("tcp", local6(p.port.serving))
		if err != nil {
			return err
		}
		if m := newClient(t, c).ask("/", "K-Network-Probe: queue"); !strings.Contains(m.Body, " refused") {
			return fmt.Errorf("got %q with %q", m.Start, m.Body)
		}
		return nil
	})
}

func TestStartWithoutLoopbackAddress(t *testing.T) {
	if !inNamespace(t, "ip link set lo up; ip address flush dev lo; ip link add pod type veth; ip address add 10.1.1.1/24 dev pod; ip link set pod up") {
		return
	}
	p := newProxy(t)
	p.launch()
	p.poll("the sidecar answers a network probe", func() error {
		if p.ended() {
			t.Fatalf("the sidecar exited with code %d", p.code())
		}
		c, err := net.Dial("tcp", net.JoinHostPort("10.1.1.1", strconv.Itoa(p.port.serving)))
		if err == nil {
			c.Close()
		}
		return err
	})
	p.poll("the sidecar logs that the status page is not served", func() error {
		if !p.out.HasLine("port is not served", "STATUS_PORT") {
			return errNotYet
		}
		return nil
	})
}
