package conformance

import (
	"net"
	"strings"
	"testing"
)

// The test sends incomplete header sections to all internal ports at the same time
// (docs/bounds.md, "Internal ports"). net/http uses up to ten times as many bytes of memory as a
// header section contains.
func TestIncompleteHeadersStayWithinMemoryLimit(t *testing.T) {
	for name, rest := range map[string]string{
		"one long field":   "X: " + strings.Repeat("x", 15000),
		"many fields":      strings.Repeat("a:b\r\n", 3000),
		"many empty lines": strings.Repeat("\r\n", 7000),
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.sample()
			p.start(inSmallPod()...)
			before := p.footprint()
			ports := map[int]int{p.port.admin: 404, p.port.autoscaler: 200, p.port.metrics: 200, p.port.status: 403} // expected status for the Host of the request
			var groups []connectionGroup
			for port := range ports {
				groups = append(groups, newConnectionGroup(t, local(port), 300, func(c net.Conn) error {
					go sends("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n" + rest)(c)
					return nil
				}))
			}
			for port, want := range ports {
				if m := dialFrom(t, "127.0.1.1", local(port)).ask("/metrics"); m.status() != want {
					t.Errorf("other client on port %d: got %q, want %d", port, m.Start, want)
				}
			}
			for _, h := range groups {
				h.close()
			}
			p.checkResources(before)
		})
	}
}
