//go:build linux

package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// mayIsolate skips a test if namespaces are not available.
func mayIsolate(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("namespaces are not available: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestPodHasNetworkNamespace(t *testing.T) {
	p, err := launch(program{
		name: "sleep", argv: []string{"sleep", "60"}, separate: unix.CLONE_NEWNET,
		before: func(pid int) error { return insideNetwork(pid, loopbackUp) },
	})
	mayIsolate(t, err)
	defer p.stop()
	var l net.Listener
	err = insideNetwork(p.pid(), func() (err error) {
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
		if err == nil {
			c.Close()
		}
		return err
	})
	if err != nil {
		t.Fatalf("inside: got %v, want a connection", err)
	}
	defer l.Close()
	if c, err := net.DialTimeout("tcp", l.Addr().String(), patience); err == nil {
		c.Close()
		t.Errorf("outside: connected to %s, want an error", l.Addr())
	}
}

func TestProvidedFileIsVisibleToOneProcess(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(t.TempDir(), "tls.crt")
	if err := os.WriteFile(source, []byte("a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "some", "where")
	out := &harness.Buffer{}
	p, err := launch(program{
		name: "cat", argv: []string{"cat", filepath.Join(folder, "tls.crt")}, separate: unix.CLONE_NEWNS,
		before: provide(folder, source), out: out,
	})
	mayIsolate(t, err)
	defer p.stop()
	<-p.done
	if got, want := out.String(), "a certificate"; got != want {
		t.Errorf("inside: got %q, %s, want %q", got, p.output, want)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("outside: got %v, %v, want an empty directory", left, err)
	}
}

func TestMemoryShareIncludesPrivateMemory(t *testing.T) {
	p, err := launch(program{name: "sleep", argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	private, share, err := p.memoryShare()
	if err != nil {
		t.Fatal(err)
	}
	rss, err := p.memory("VmRSS")
	if err != nil {
		t.Fatal(err)
	}
	if private <= 0 || share < private || rss < share {
		t.Errorf("got %v private bytes, a proportional set size of %v and a resident set size of %v, want increasing values", private, share, rss)
	}
}
