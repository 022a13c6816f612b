package conformance

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A certificate path that is a pipe or a device would block the reader.
func TestIrregularCertificateFileFailsStart(t *testing.T) {
	for kind, put := range map[string]func(path string) error{
		"named pipe": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device":     func(path string) error { return os.Symlink("/dev/zero", path) },
		"directory":  func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(kind, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			path := filepath.Join(p.dir, "tls.crt")
			os.Remove(path)
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			p.launch()
			if got := p.code(); got != 1 {
				t.Errorf("got exit code %d, want 1", got)
			}
			if !p.out.HasLine("TLS_CERT_DIR", path+": not a regular file ("+kind+")") {
				t.Errorf("no log line with the name of the file:\n%s", p.out)
			}
		})
	}
}

// If a certificate is replaced with a pipe at run time, the sidecar logs an error, keeps the
// old certificate, and does not block at shutdown.
func TestCertificateReplacedWithPipeIsReported(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.sample()
	p.start("DRAIN_QUIET_PERIOD=100ms")
	path := filepath.Join(p.dir, "tls.crt")
	os.Remove(path)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	p.awaitLog("failed to load certificate", "named pipe")
	if m := dialTLS(t, p.tlsAddr(), "http/1.1").ask("/bytes/2"); m.status() != 200 {
		t.Errorf("request with the old certificate: got %q, want 200", m.Start)
	}
	p.signal(syscall.SIGTERM)
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}
