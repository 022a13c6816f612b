package conformance

import (
	"fmt"
	"net"
	"testing"
)

// docs/promises.md section 1, row 5: up to two kubelet requests run in addition to the limit,
// one per client address.

// sendFrom opens a connection from a local address and sends a GET request.
func (p *proxy) sendFrom(address, path string, fields ...string) *client {
	p.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := d.Dial("tcp", p.addr())
	if err != nil {
		p.t.Fatal(err)
	}
	w := newClient(p.t, c)
	w.send(request("GET", path, fields...))
	return w
}

const kubeletAgent = "User-Agent: kube-probe/1.31"

func TestKubeletProbesRunInAdditionToLimit(t *testing.T) {
	inParallel(t)
	for name, field := range map[string]string{"user agent": kubeletAgent, "header": "K-Kubelet-Probe: x"} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0")
			h := p.holder()
			held := []*client{p.sendGet("/traffic")}
			h.wait(t, "/traffic")
			first := p.sendFrom("127.0.0.1", "/k1", field)
			h.wait(t, "/k1")
			turnedAway := func(what, address string) {
				t.Helper()
				if m := p.sendFrom(address, "/no", field).receive("GET"); m.status() != 503 || m.Body != "pending request queue full\n" {
					t.Errorf("%s: got %q with %q, want 503", what, m.Start, m.Body)
				}
			}
			turnedAway("second probe from the same address", "127.0.0.1")
			held = append(held, p.sendFrom("127.0.0.2", "/k2", field))
			h.wait(t, "/k2")
			turnedAway("third probe", "127.0.0.3")
			h.free("/k1")
			if m := first.receive("GET"); m.status() != 200 {
				t.Errorf("first probe: got %q, want 200", m.Start)
			}
			p.poll("the probe of the first address is accepted again", func() error {
				if m := p.sendFrom("127.0.0.1", "/k1", field).receive("GET"); m.status() != 200 {
					return fmt.Errorf("got %q", m.Start)
				}
				return nil
			})
			h.free("/k2")
			h.free("/traffic")
			for _, c := range held {
				if m := c.receive("GET"); m.status() != 200 {
					t.Errorf("got %q, want 200", m.Start)
				}
			}
		})
	}
}

// Requests that can take a long time are traffic: WebSockets, requests with a body, and requests
// through a proxy, because a kubelet does not use a proxy.
func TestLongRequestIsNotKubeletProbe(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0")
	h := p.holder()
	p.sendGet("/traffic")
	h.wait(t, "/traffic")
	for what, fields := range map[string][]string{
		"a WebSocket":       {"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="},
		"upgrade to h2c":    {"Upgrade: h2c"},
		"a body":            {"Content-Length: 10"},
		"chunked body":      {"Transfer-Encoding: chunked"},
		"through a proxy":   {"X-Forwarded-For: 10.1.1.1"},
		"behind another":    {"Forwarded: for=10.1.1.1"},
		"through activator": {"K-Proxy-Request: activator"},
	} {
		if m := p.sendFrom("127.0.0.2", "/no", append(fields, kubeletAgent)...).receive("GET"); m.status() != 503 {
			t.Errorf("%s: got %q, want 503", what, m.Start)
		}
	}
}

// An open HTTP/2 request stream has an unlimited duration, so the request is traffic.
func TestOpenStreamIsNotKubeletProbe(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0")
	h := p.holder()
	p.sendGet("/traffic")
	h.wait(t, "/traffic")
	c := dialH2(t, p.addr())
	c.open(1, false, "GET", "/no", kubeletAgent)
	c.open(3, false, "GET", "/no", kubeletAgent, "Content-Length: 0")
	c.openWebSocket(5, "/no", field{"user-agent", "kube-probe/1.31"}, field{"content-length", "0"})
	for _, stream := range []uint32{1, 3, 5} {
		if a := c.answer(stream); a.status != 503 {
			t.Errorf("stream %d: got %d, want 503", stream, a.status)
		}
	}
}

// A kubelet probe does not take a slot even if slots are free.
func TestKubeletProbeDoesNotTakeSlot(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0")
	h := p.holder()
	probe := p.sendGet("/k", "User-Agent: kube-probe/1.31")
	h.wait(t, "/k")
	traffic := p.sendGet("/traffic")
	h.wait(t, "/traffic")
	for _, path := range []string{"/k", "/traffic"} {
		h.free(path)
	}
	for _, c := range []*client{probe, traffic} {
		if m := c.receive("GET"); m.status() != 200 {
			t.Errorf("got %q, want 200", m.Start)
		}
	}
}
