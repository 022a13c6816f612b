package netconn_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// socketPair returns two connected nonblocking sockets.
func socketPair(t *testing.T) (a, b uintptr) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	harness.NoError(t, err)
	for _, fd := range fds {
		harness.NoError(t, syscall.SetNonblock(fd, true))
		t.Cleanup(func() { syscall.Close(fd) })
	}
	return uintptr(fds[0]), uintptr(fds[1])
}

func TestReadReturnsWrittenBytes(t *testing.T) {
	a, b := socketPair(t)
	buf := make([]byte, 16)
	if n, err := netconn.Read(b, buf); n != 0 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("no input: got %d, %v, want 0, EAGAIN", n, err)
	}
	if n, err := netconn.Write(a, []byte("hello")); n != 5 || err != nil {
		t.Errorf("got %d, %v, want 5, nil", n, err)
	}
	if n, err := netconn.Read(b, buf[:2]); string(buf[:n]) != "he" || err != nil {
		t.Errorf("got %q, %v, want he, nil", buf[:n], err)
	}
	if n, err := netconn.Read(b, buf); string(buf[:n]) != "llo" || err != nil {
		t.Errorf("got %q, %v, want llo, nil", buf[:n], err)
	}
	syscall.Shutdown(int(a), syscall.SHUT_WR)
	if n, err := netconn.Read(b, buf); n != 0 || err != nil {
		t.Errorf("at the end: got %d, %v, want 0, nil", n, err)
	}
}

func TestWriteToFullSocketReturnsEAGAIN(t *testing.T) {
	a, b := socketPair(t)
	much := make([]byte, 64<<10)
	var sent, came int
	n, err := 0, error(nil)
	for ; err == nil; n, err = netconn.Write(a, much) {
		sent += n
	}
	if n != 0 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("got %d, %v, want 0, EAGAIN", n, err)
	}
	for n, err = netconn.Read(b, much); err == nil; n, err = netconn.Read(b, much) {
		came += n
	}
	harness.Equal(t, came, sent, "bytes")
}

func TestWriteTwoWritesInOrder(t *testing.T) {
	a, b := socketPair(t)
	if n, err := netconn.WriteTwo(a, []byte("hello, "), []byte("world")); n != 12 || err != nil {
		t.Errorf("got %d, %v, want 12, nil", n, err)
	}
	buf := make([]byte, 512<<10)
	if n, err := netconn.Read(b, buf); string(buf[:n]) != "hello, world" || err != nil {
		t.Errorf("got %q, %v, want both", buf[:n], err)
	}

	// The data exceeds the socket buffer, and each partial write returns the correct count.
	p, q := bytes.Repeat([]byte("p"), 100<<10), bytes.Repeat([]byte("q"), 1<<20)
	sent, err := netconn.WriteTwo(a, p, q)
	if err != nil || sent < 1 || sent >= len(p)+len(q) {
		t.Fatalf("got %d, %v, want some of %d", sent, err, len(p)+len(q))
	}
	if n, err := netconn.WriteTwo(a, p, q); n != 0 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("full socket: got %d, %v, want 0, EAGAIN", n, err)
	}
	if n, err := netconn.WriteTwo(a, nil, q); n != 0 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("full socket, empty p: got %d, %v, want 0, EAGAIN", n, err)
	}
	var came []byte
	for n, err := netconn.Read(b, buf); err == nil; n, err = netconn.Read(b, buf) {
		came = append(came, buf[:n]...)
	}
	if want := append(p, q...)[:sent]; !bytes.Equal(came, want) {
		t.Errorf("got %d bytes, want the first %d", len(came), sent)
	}
}

func TestWriteAfterPeerShutdownReturnsEPIPE(t *testing.T) {
	a, b := socketPair(t)
	syscall.Shutdown(int(b), syscall.SHUT_RD)
	if n, err := netconn.Write(a, []byte("x")); n != 0 || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got %d, %v, want 0, EPIPE", n, err)
	}
}

func TestSilentReturnsFalseAfterInput(t *testing.T) {
	a, b := socketPair(t)
	if !netconn.Silent(b) {
		t.Error("no input: got false, want true")
	}
	netconn.Write(a, []byte("x"))
	for range 2 { // Silent does not consume the byte
		if netconn.Silent(b) {
			t.Error("after a byte: got true, want false")
		}
	}
	netconn.Read(b, make([]byte, 1))
	syscall.Shutdown(int(a), syscall.SHUT_WR)
	if netconn.Silent(b) {
		t.Error("at the end of the input: got true, want false")
	}
}

func TestReadAndWriteDoNotAllocate(t *testing.T) {
	a, b := socketPair(t)
	buf := make([]byte, 8)
	if got := testing.AllocsPerRun(100, func() {
		netconn.Silent(b)
		netconn.Read(b, buf) // no input
		netconn.WriteTwo(a, buf[:4], buf[4:])
		netconn.Read(b, buf)
	}); got != 0 {
		t.Errorf("got %v allocations, want 0", got)
	}
}
