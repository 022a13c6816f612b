package probe

import (
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestWordOfDialErrors(t *testing.T) {
	for _, c := range []struct {
		host string
		err  error
		want observation.ReadinessWord
	}{
		{"127.0.0.1", syscall.ECONNREFUSED, observation.WordRefused},
		{"127.0.0.1", syscall.EMFILE, observation.WordLocal},
		{"::1", syscall.ENOBUFS, observation.WordLocal},
		{"127.0.0.1", syscall.EADDRNOTAVAIL, observation.WordLocal}, // no local port
		{"::1", syscall.EADDRNOTAVAIL, observation.WordUnreachable}, // no IPv6
		{"127.0.0.1", syscall.ENETUNREACH, observation.WordUnreachable},
	} {
		err := &net.OpError{
			Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(c.host), Port: 8080},
			Err: os.NewSyscallError("connect", c.err),
		}
		harness.Equal(t, wordOf(err), c.want, c.host, c.err)
	}
}
