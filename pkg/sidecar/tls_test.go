package sidecar

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// withPair returns a sidecar with the certificate in a directory, and its log.
func withPair(t *testing.T, dir string) (*sidecar, *observer.ObservedLogs) {
	t.Helper()
	core, log := observer.New(zap.InfoLevel)
	c := config.Default()
	c.CertDir.V = dir
	s := &sidecar{config: c, log: zap.New(core)}
	var err error
	s.pair, err = s.openCertificates()
	harness.NoError(t, err)
	return s, log
}

func TestExpiredCertificateIsLoggedAsInUse(t *testing.T) {
	dir := t.TempDir()
	harness.WriteCertificate(t, dir, func(c *x509.Certificate) {
		c.DNSNames = []string{"app.example"}
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	})
	s, log := withPair(t, dir)
	if got := log.FilterMessage("failed to load certificate").Len(); got != 0 {
		t.Errorf("got %d log lines \"certificate not in use\", want none", got)
	}
	lines := log.FilterMessage("the certificate in use is invalid").All()
	if len(lines) != 1 || lines[0].Level != zapcore.WarnLevel || !strings.Contains(lines[0].ContextMap()["error"].(string), "tls.crt: expired at") {
		t.Errorf("got %v, want one warning that the certificate in use has expired", log.All())
	}
	state := s.tlsState()
	if !state.On || state.Error != "" || len(state.Names) != 1 || state.Names[0] != "app.example" || time.Until(state.NotAfter) > 0 {
		t.Errorf("got the state %+v, want on with an expired certificate for app.example", state)
	}
}

// The warning about the missing files must disappear if the files are created after startup.
func TestWarningIsRemovedAfterCertificateIsLoaded(t *testing.T) {
	t.Setenv("TLS_CERT_DIR", t.TempDir())
	c, err := config.Load()
	harness.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		s, _ := withPair(t, c.CertDir.V)
		s.config = c
		s.settingWarnings = []string{"other"}
		harness.Equal(t, len(s.warnings()), 2, "warnings without a certificate")
		go func() { _ = s.pair.Run(t.Context()) }()
		harness.WriteCertificate(t, c.CertDir.V, nil)
		<-s.pair.First()
		harness.Equal(t, s.warnings(), []string{"other"}, "warnings with a certificate")
	})
}

func TestTLSStateIsBounded(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 4096)
	harness.WriteCertificate(t, dir, func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: long}
		for range 100 {
			c.DNSNames = append(c.DNSNames, long)
			c.IPAddresses = append(c.IPAddresses, net.IPv4(10, 0, 0, 1))
		}
	})
	s, _ := withPair(t, dir)
	unserved := errors.New(long)
	s.noTLS.Store(&unserved)
	state := s.tlsState()
	if len(state.Names) != maxNames+1 || state.Names[maxNames] != "192 more names" {
		t.Errorf("got %d names, the last %q, want %d names and their number", len(state.Names), state.Names[len(state.Names)-1], maxNames)
	}
	const most = 512
	for _, value := range append(state.Names, state.Subject, state.Error) {
		if len(value) > most || value == "" {
			t.Errorf("got a value of %d bytes, want 1 to %d", len(value), most)
		}
	}
}

func TestTLSStateContainsPortError(t *testing.T) {
	dir := t.TempDir()
	s, _ := withPair(t, dir)
	if state := s.tlsState(); state.On || state.Error != "" {
		t.Errorf("without a certificate: got %+v, want off without an error", state)
	}
	harness.WriteCertificate(t, dir, nil)
	s, log := withPair(t, dir)
	s.config.TLSPort.V = harness.Listen(t).Addr().(*net.TCPAddr).Port // a port in use
	harness.NoError(t, s.serveTLS(t.Context(), nil))
	if state := s.tlsState(); state.On || !strings.Contains(state.Error, "QUEUE_SERVING_TLS_PORT: port") {
		t.Errorf("port in use: got %+v, want TLS off and an error that names the port", state)
	}
	harness.Equal(t, log.FilterMessage("TLS is not served").Len(), 1, "log lines \"TLS is not served\"")
}
