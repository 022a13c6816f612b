package probe

import (
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestWordOfDialErrors(t *testing.T) {
	for _, c := range []struct {
		host string
		err  error
		want Word
	}{
		{"127.0.0.1", syscall.ECONNREFUSED, wordRefused},
		{"127.0.0.1", syscall.EMFILE, wordLocal},
		{"::1", syscall.ENOBUFS, wordLocal},
		{"127.0.0.1", syscall.EADDRNOTAVAIL, wordLocal}, // no local port
		{"::1", syscall.EADDRNOTAVAIL, wordUnreachable}, // no IPv6
		{"127.0.0.1", syscall.ENETUNREACH, wordUnreachable},
	} {
		err := &net.OpError{
			Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(c.host), Port: 8080},
			Err: os.NewSyscallError("connect", c.err),
		}
		harness.Equal(t, wordOf(err), c.want, c.host, c.err)
	}
}
