//go:build linux && !race

package netconn_test

import (
	"syscall"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestWriteNowFillsPipe(t *testing.T) {
	var fds [2]int
	harness.NoError(t, syscall.Pipe(fds[:]))
	for _, fd := range fds {
		t.Cleanup(func() { syscall.Close(fd) })
	}
	n := netconn.WriteNow(uintptr(fds[1]), []byte("hello"))
	buf := make([]byte, 1<<20)
	if m, err := syscall.Read(fds[0], buf); n != 5 || m != 5 || err != nil {
		t.Errorf("got %d written and %d read, %v, want 5 and 5", n, m, err)
	}
	n = netconn.WriteNow(uintptr(fds[1]), buf)
	if n == 0 || n == len(buf) {
		t.Errorf("got %d of %d bytes, want some", n, len(buf))
	}
	if n := netconn.WriteNow(uintptr(fds[1]), buf); n != 0 { // WriteNow must not block if the pipe is full
		t.Errorf("full pipe: got %d, want 0", n)
	}
	syscall.Close(fds[0])
	harness.Equal(t, netconn.WriteNow(uintptr(fds[1]), buf), 0, "result for a pipe without a reader")
}
