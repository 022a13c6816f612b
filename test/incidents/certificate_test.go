package incidents

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A validity is the period when a certificate is valid, relative to the current time.
type validity struct{ from, until time.Duration }

// valid is the validity of a certificate that does not expire soon.
var valid = validity{-time.Hour, 72 * time.Hour}

// withCertificate returns settings that serve requests over TLS with a self-signed certificate for a.test.
func withCertificate(v validity) func(*pod) []string {
	return func(p *pod) []string {
		p.writeCertificate(v)
		return []string{"TLS_CERT_DIR=" + p.dir}
	}
}

// writeCertificate writes a certificate for a.test and its key to the directory of the pod.
func (p *pod) writeCertificate(v validity) {
	p.t.Helper()
	p.roots = harness.WriteCertificate(p.t, p.dir, func(c *x509.Certificate) {
		c.DNSNames = []string{"a.test"}
		c.NotBefore, c.NotAfter = time.Now().Add(v.from), time.Now().Add(v.until)
		c.IsCA, c.BasicConstraintsValid = true, true
	})
}

// handshake opens a TLS connection and waits until it is closed.
func (p *pod) handshake(config *tls.Config) {
	defer p.sleep(20 * time.Millisecond)
	c, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Second}, Config: config}).DialContext(p.ctx, "tcp", "127.0.0.1:"+p.tls)
	if err != nil {
		return
	}
	p.with(c, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }) // read, because with TLS 1.3 a server rejects a client certificate only after the client's handshake
}
