package conformance

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Handshakes on the TLS port for requests have the same size limit as handshakes on the metrics
// port.
func TestRequestPortLimitsHandshakeSize(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.sample()
	p.start("QUEUE_PROXY_TLS_CLIENT_CA=" + filepath.Join(p.dir, "tls.crt"))
	long := longCertificate(t, 250<<10)
	before := p.memory("VmRSS")
	newConnectionGroup(t, p.tlsAddr(), 250, func(c net.Conn) error {
		c.SetDeadline(time.Now().Add(patience))
		tls.Client(&limitedConn{c, 250 << 10}, &tls.Config{
			InsecureSkipVerify:   true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &long, nil },
		}).Handshake()
		return nil
	})
	grown := p.memory("VmHWM") - before
	t.Logf("memory grew by %d KB", grown>>10)
	if most := int64(32 << 20); grown > most && os.Getenv("QUEUE_PROXY_RACE") == "" {
		t.Errorf("memory grew by %d KB, want at most %d", grown>>10, most>>10)
	}
}
