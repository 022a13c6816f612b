package conformance

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// settled returns when the sidecar has accepted every connection to its serving
// port and has read every byte that came on them: when the kernel holds nothing
// for it any more (/proc/net/tcp: rx_queue, which of a listening socket is the
// number of connections not yet accepted).
func settled(t *testing.T, p *pod) {
	t.Helper()
	port := fmt.Sprintf(":%04X", p.port.serving)
	p.poll("the sidecar has read what was sent", func() error {
		for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(b)) {
				f := strings.Fields(line) // sl local remote state tx:rx ...
				if len(f) < 5 || !strings.HasSuffix(f[1], port) {
					continue
				}
				if _, rx, _ := strings.Cut(f[4], ":"); strings.Trim(rx, "0") != "" {
					return fmt.Errorf("socket %s -> %s in state %s holds 0x%s", f[1], f[2], f[3], rx)
				}
			}
		}
		return nil
	})
}
