package conformance

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"testing"
)

// A target is a running sidecar that the tests did not start.
type target struct {
	addr string
	tls  bool
}

// parseTarget parses the URL of a running sidecar.
func parseTarget(text string) (target, error) {
	u, err := url.Parse(text)
	if err != nil {
		return target{}, fmt.Errorf("-url: %w", err)
	}
	port := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	if port == "" || u.Hostname() == "" {
		return target{}, fmt.Errorf("-url %q: want http://HOST:PORT or https://HOST:PORT", text)
	}
	if u.Port() != "" {
		port = u.Port()
	}
	return target{net.JoinHostPort(u.Hostname(), port), u.Scheme == "https"}, nil
}

// runningSidecar returns the sidecar of -url, and the protocols that it supports. Without -url, it
// starts a sidecar. The test must not depend on the response from the application.
func runningSidecar(t *testing.T) (p *proxy, supported []string) {
	t.Helper()
	text := os.Getenv(urlVariable)
	if text == "" {
		p = newProxy(t)
		writeCertificate(t, p.dir)
		p.start()
		p.sample()
		return p, protocols
	}
	running, err := parseTarget(text)
	if err != nil {
		t.Fatal(err)
	}
	supported = []string{"HTTP/1.0", "HTTP/1.1", "h2c"}
	if running.tls {
		supported = []string{"TLS HTTP/1.1", "TLS h2"}
	}
	return &proxy{t: t, remote: running.addr}, supported
}

// The sidecar responds to probes. If the application is not ready, the queue probe fails.
func TestProbesOfRunningSidecar(t *testing.T) {
	p, supported := runningSidecar(t)
	for _, r := range rows(t) {
		if r.kind == "traffic" || r.kind == "kubelet probe" {
			continue // skip this probe, because the response depends on the application
		}
		for _, protocol := range supported {
			if !r.supports(protocol) {
				continue
			}
			t.Run(r.title+"/"+protocol, func(t *testing.T) {
				m, err := r.ask(t, p, protocol, newID())
				if err != nil {
					t.Fatalf("no response: %v", err)
				}
				r.check(t, m, false, protocol)
			})
		}
	}
}

// The sidecar rejects invalid requests.
func TestInvalidRequestsToRunningSidecar(t *testing.T) {
	p, supported := runningSidecar(t)
	protocol := "HTTP/1.1"
	if !slices.Contains(supported, protocol) {
		protocol = "TLS HTTP/1.1"
	}
	for _, file := range []string{"fields.txt", "smuggling.txt", "targets.txt"} {
		for _, v := range vectors(t, file) {
			pl, err := v.play()
			if err != nil {
				t.Fatalf("%s:%d: %v", file, v.line, err)
			}
			if pl.atMost > 0 {
				continue // skip this request, because the application receives it
			}
			t.Run(v.title, func(t *testing.T) {
				c := dialProtocol(t, p, protocol)
				c.send(pl.send)
				m := c.receive("GET")
				if !slices.Contains(pl.status, m.status()) || word(m.get("Proxy-Status")) != "bad-request" {
					t.Errorf("got %q with Proxy-Status %q, want %d with bad-request", m.Start, m.get("Proxy-Status"), pl.status)
				}
				if pl.ends {
					c.closed()
				}
			})
		}
	}
}
