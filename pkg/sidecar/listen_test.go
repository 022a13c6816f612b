package sidecar

import (
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// stuff writes to c until a write times out, and returns the number of written bytes.
func stuff(t *testing.T, c net.Conn) (n int) {
	t.Helper()
	b := make([]byte, 16<<10)
	for n < 64<<20 {
		_ = c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		m, err := c.Write(b)
		n += m
		if err != nil {
			return n
		}
	}
	return n
}

// By default, the kernel buffers megabytes for each connection whose peer does not read. This
// memory counts as container memory.
func TestSmallPortSocketBuffersAreLimited(t *testing.T) {
	small := func(bytes int) func(_, _ string, c syscall.RawConn) error {
		return func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, bytes) })
		}
	}
	s := &sidecar{log: zap.NewNop()}
	ln, err := listenTCP(t.Context(), "127.0.0.1:0", s.smallBuffers)
	harness.NoError(t, err)
	defer ln.Close()
	d := net.Dialer{Control: small(4096)}
	client, err := d.Dial("tcp", ln.Addr().String())
	harness.NoError(t, err)
	defer client.Close()
	server, err := ln.Accept()
	harness.NoError(t, err)
	defer server.Close()
	const most = 128 << 10
	if got := stuff(t, server); got > most {
		t.Errorf("response without a reader: got %d buffered bytes, want at most %d", got, most)
	}
	_ = client.(*net.TCPConn).SetWriteBuffer(4096)
	if got := stuff(t, client); got > most {
		t.Errorf("request without a reader: got %d buffered bytes, want at most %d", got, most)
	}
}

// Bytes that are buffered for clients count as container memory.
func TestLowMemoryLimitsClientBuffers(t *testing.T) {
	for limit, want := range map[int64]int{0: 0, 32 << 20: 64 << 10, 64 << 20: 64 << 10, 256 << 20: 256 << 10, 257 << 20: 0, 1 << 40: 0} {
		harness.Equal(t, trafficBuffer(limit), want, "bytes of a buffer for a limit of", limit)
	}
	s := &sidecar{log: zap.NewNop(), memoryLimit: 64 << 20}
	ln, err := listenTCP(t.Context(), "127.0.0.1:0", s.trafficBuffers)
	harness.NoError(t, err)
	wantClientBuffers(t, ln)
}

// If the certificate is created after startup, listenTLS opens the port.
func TestLowMemoryLimitsLateTLSPortBuffers(t *testing.T) {
	s := &sidecar{log: zap.NewNop(), memoryLimit: 64 << 20, config: config.Default()}
	s.config.TLSPort.V = 0
	ln, err := s.listenTLS(t.Context())
	harness.NoError(t, err)
	wantClientBuffers(t, ln)
}

// wantClientBuffers checks the buffer sizes of a connection that ln accepts, and closes ln.
func wantClientBuffers(t *testing.T, ln net.Listener) {
	t.Helper()
	defer ln.Close()
	client, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)))
	harness.NoError(t, err)
	defer client.Close()
	server, err := ln.Accept()
	harness.NoError(t, err)
	defer server.Close()
	wantTrafficBuffers(t, server)
}

// A user container that does not read must not fill 4 MiB of container memory for each request.
func TestLowMemoryLimitsUserContainerBuffers(t *testing.T) {
	app := harness.Listen(t)
	defer app.Close()
	s := built(t, func(c *config.Config) { c.UserPort.V = app.Addr().(*net.TCPAddr).Port })
	s.memoryLimit = 64 << 20
	conn, err := s.app.Dial(t.Context())
	harness.NoError(t, err)
	defer conn.Close()
	wantTrafficBuffers(t, conn)
}

// wantTrafficBuffers checks the buffer sizes of a connection for a memory limit of 64 MiB.
func wantTrafficBuffers(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	harness.NoError(t, err)
	harness.NoError(t, raw.Control(func(fd uintptr) {
		for _, option := range []int{syscall.SO_RCVBUF, syscall.SO_SNDBUF} {
			got, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, option)
			harness.NoError(t, err)
			harness.Equal(t, got, 2*64<<10, "bytes of the buffer") // the kernel doubles the value; see socket(7)
		}
	}))
}

// noOptions is a socket on a platform that does not support the socket options.
type noOptions struct{ syscall.RawConn }

func (noOptions) Control(f func(fd uintptr)) error {
	f(^uintptr(0))
	return nil
}

func TestUnsupportedSocketOptionsLogOnce(t *testing.T) {
	c := config.Default()
	c.LoggingConfig.V = `{"outputPaths":["OUT"]}`
	lines := logged(t, c, func(l *zap.Logger) {
		s := &sidecar{log: l}
		for range 3 { // for several listeners
			harness.NoError(t, s.smallBuffers("", "", noOptions{}))
		}
	})
	harness.Equal(t, len(lines), 1, "warnings")
}

func TestListenDisablesMultipathTCP(t *testing.T) {
	ln, err := listenTCP(t.Context(), "127.0.0.1:0", nil)
	harness.NoError(t, err)
	defer ln.Close()
	raw, err := ln.(*net.TCPListener).SyscallConn()
	harness.NoError(t, err)
	err = raw.Control(func(fd uintptr) {
		got, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_PROTOCOL)
		if err != nil || got != syscall.IPPROTO_TCP {
			t.Errorf("got socket protocol %d, %v, want %d", got, err, syscall.IPPROTO_TCP)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
