package conformance

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A socket is what the kernel tells of one in /proc/net/tcp: the addresses and
// numbers are hexadecimal.
type socket struct{ local, remote, state, received string }

// sockets returns all of this host that have, as their local or as their remote
// one, this port.
func sockets(port int) (all []socket, err error) {
	suffix := fmt.Sprintf(":%04X", port)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line) // sl local remote state tx:rx ...
			if len(f) < 5 || !strings.HasSuffix(f[1], suffix) && !strings.HasSuffix(f[2], suffix) {
				continue
			}
			_, rx, _ := strings.Cut(f[4], ":")
			all = append(all, socket{f[1], f[2], f[3], strings.TrimLeft(rx, "0")})
		}
	}
	return all, nil
}

func (s socket) isAt(port int) bool { return strings.HasSuffix(s.local, fmt.Sprintf(":%04X", port)) }

// settled returns when the sidecar has accepted every connection to its serving
// port and has read every byte that came on them: when the kernel holds nothing
// for it any more (rx_queue, which of a listening socket is the number of
// connections not yet accepted).
func settled(t *testing.T, p *pod) {
	t.Helper()
	p.poll("the sidecar has read what was sent", func() error {
		all, err := sockets(p.port.serving)
		for _, s := range all {
			if s.isAt(p.port.serving) && s.received != "" {
				return fmt.Errorf("socket %+v has bytes to be read", s)
			}
		}
		return err
	})
}

// forgotten returns when the sidecar has had a chance to see that its connections
// to the user container have ended: those of HTTP/1.1 have their FIN, of which it
// takes notice before it uses them, and those of HTTP/2 are closed (01 is
// ESTABLISHED, 08 CLOSE_WAIT).
func (p *pod) forgotten(protocol string) {
	p.t.Helper()
	p.poll("the sidecar's connections have ended", func() error {
		all, err := sockets(p.port.user)
		for _, s := range all {
			if !s.isAt(p.port.user) && (s.state == "01" || s.state == "08" && protocol == "h2c") {
				return fmt.Errorf("socket %+v is open", s)
			}
		}
		return err
	})
}
