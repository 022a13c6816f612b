package harness

import (
	"net"
	"os"
	"syscall"
	"testing"
)

// ClosedPort returns a port of the loopback address that refuses connections until open is called.
// The port stays bound to a socket that does not listen, so no other process can use it before the
// end of the test.
func ClosedPort(t testing.TB) (port int, open func() net.Listener) {
	t.Helper()
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	NoError(t, err)
	f := os.NewFile(uintptr(fd), "closed port")
	t.Cleanup(func() { f.Close() })
	NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := syscall.Getsockname(fd)
	NoError(t, err)
	return name.(*syscall.SockaddrInet4).Port, func() net.Listener {
		NoError(t, syscall.Listen(fd, 16))
		ln, err := net.FileListener(f)
		NoError(t, err)
		return ln
	}
}
