//go:build !race

package netconn_test

import (
	"io"
	"testing"
)

// In the steady state, a read and a write allocate no memory, except that crypto/tls allocates for
// each record that it writes.
func TestExchangeDoesNotAllocate(t *testing.T) {
	for name, c := range map[string]struct {
		kind string
		most float64
	}{"TCP": {"TCP", 0}, "TLS 1.3": {"TLS 1.3", 1}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, kinds[c.kind])
			request, response, in := make([]byte, 200), make([]byte, 1200), make([]byte, 4096)
			client := make([]byte, 4096)
			got := testing.AllocsPerRun(200, func() {
				p.client.Write(request)
				p.link.Read(in)
				p.link.Write(response)
				io.ReadFull(p.client, client[:len(response)])
			})
			if c.kind != "TCP" { // the record that the client writes also needs an allocation
				got /= 2
			}
			if got > c.most {
				t.Errorf("got %v allocations, want at most %v", got, c.most)
			}
		})
	}
}
