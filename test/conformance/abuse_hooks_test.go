package conformance

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// This file contains floods of preStop hooks on the admin port (docs/bounds.md, "Internal
// ports").

// dialFrom opens a connection from a loopback address.
func dialFrom(t *testing.T, client, addr string) *client {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}).Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, c)
}

// floodHooks opens n connections from an address and sends 600 hook requests on each
// connection.
func floodHooks(t *testing.T, p *proxy, client string, n int) connectionGroup {
	t.Helper()
	text := strings.Repeat(request("GET", "/wait-for-drain"), 600)
	h := make(connectionGroup, n)
	t.Cleanup(h.close)
	for i := range n {
		w := dialFrom(t, client, local(p.port.admin))
		h[i] = w.Conn.(*net.TCPConn)
		go io.WriteString(h[i], text) // the sidecar may not read all of the input
	}
	return h
}

// If the kubelet receives no response to a hook, the hook fails, and the kubelet
// terminates the user container immediately.
func TestPreStopHookFloodDoesNotEndOtherHooks(t *testing.T) {
	p := newProxy(t)
	app := p.holder()
	p.start("DRAIN_QUIET_PERIOD=100ms", "SERVING_READINESS_PROBE=")
	running := p.sendGet("/long")
	app.wait(t, "/long")
	var hooks []*client
	for i := range 12 { // each attacker uses a different address
		floodHooks(t, p, fmt.Sprintf("127.0.0.%d", 2+i), 100)
		if i == 0 {
			p.signal(syscall.SIGTERM)
			p.draining()
		}
		hook := dialFrom(t, fmt.Sprintf("127.0.1.%d", 1+i/6), local(p.port.admin)) // one address sends several hooks, as a kubelet does
		hook.send(request("GET", "/wait-for-drain", "Connection: close"))
		hooks = append(hooks, hook)
	}
	for i, hook := range hooks {
		hook.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if b, err := hook.r.Peek(1); !isTimeout(err) {
			t.Errorf("hook %d during a flood: got %q, %v, want no response yet", i+1, b, err)
		}
	}
	app.free("/long")
	running.receive("GET")
	for i, hook := range hooks {
		hook.SetDeadline(time.Now().Add(patience))
		if m := hook.receive("GET"); m.status() != 200 {
			t.Errorf("hook %d during a flood: got %q, want 200", i+1, m.Start)
		}
	}
}

// The limit applies to each client address. All hook requests for a pod come from the
// address of its node.
func TestPreStopHooksPerClientAreLimited(t *testing.T) {
	p := newProxy(t)
	app := p.holder()
	p.start("DRAIN_QUIET_PERIOD=100ms")
	running := p.sendGet("/long")
	app.wait(t, "/long")
	answers := make(chan int)
	for range 17 {
		hook := p.preStop("/wait-for-drain")
		go func() {
			m, err := readResponse(hook.r, "GET")
			if err != nil {
				t.Errorf("hook: got %v, want a response", err)
				m = &message{}
			}
			answers <- m.status()
		}()
	}
	p.signal(syscall.SIGTERM)
	p.draining()
	if got := receive(t, "one hook is answered immediately", answers); got != 429 {
		t.Errorf("first response: got %d, want 429", got)
	}
	app.free("/long")
	running.receive("GET")
	for i := range 16 {
		if got := receive(t, "a hook returns", answers); got != 200 {
			t.Errorf("hook %d: got %d, want 200", i+1, got)
		}
	}
}

func TestAdminPortClosesConnectionAfterOneRequest(t *testing.T) {
	p := newProxy(t)
	p.start()
	for _, path := range []string{"/", "/wait-for-drain"} {
		w := dial(t, local(p.port.admin))
		w.send(strings.Repeat(request("GET", path), 5))
		if m := w.receive("GET"); m.get("Connection") != "close" {
			t.Errorf("%s: got %q with %q, want Connection: close", path, m.Start, m.Fields)
		}
		w.closed()
	}
}

// A hook request with an incomplete body must not keep the connection open for an
// unlimited time.
func TestPreStopHookWithIncompleteBodyIsClosed(t *testing.T) {
	p := newProxy(t)
	p.start()
	for name, half := range map[string]string{
		"a length": "Content-Length: 10\r\n\r\nhalf",
		"chunks":   "Transfer-Encoding: chunked\r\n\r\n5\r\nhal",
		"Expect":   "Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",
	} {
		w := dial(t, local(p.port.admin))
		w.send("GET /wait-for-drain HTTP/1.1\r\nHost: a.test\r\n" + half)
		if m := w.receive("GET"); m.status() != 200 {
			t.Errorf("%s: got %q, want 200", name, m.Start)
		}
		w.closed()
	}
}

// The sidecar must not follow redirects of probes. Otherwise, an app whose health
// endpoint redirects to the admin port would start the drain with each probe.
func TestProbeRedirectDoesNotStartDrain(t *testing.T) {
	p := newProxy(t)
	var asked atomic.Int32
	p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, "http://"+local(p.port.admin)+"/wait-for-drain", http.StatusFound)
	}))
	p.start(fmt.Sprintf(`SERVING_READINESS_PROBE={"httpGet":{"path":"/","port":%d}}`, p.port.user))
	for range 5 {
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 200 {
			t.Fatalf("got %q with %q, want 200 because the app is ready", m.Start, m.Body)
		}
	}
	if asked.Load() == 0 {
		t.Error("the app received no probe")
	}
	p.awaitLog("the user container is ready", "the redirect to a port of the queue-proxy was not followed")
}
