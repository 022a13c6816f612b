package conformance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// This file contains attacks on the metrics port (docs/bounds.md, "Internal ports").

// secured returns the settings for metrics over TLS with optional client certificates.
func (p *proxy) secured() []string {
	writeCertificate(p.t, p.dir)
	cert := filepath.Join(p.dir, "tls.crt")
	return inSmallPod(
		"METRICS_PROMETHEUS_TLS_CERT="+cert, "METRICS_PROMETHEUS_TLS_KEY="+filepath.Join(p.dir, "tls.key"),
		"METRICS_PROMETHEUS_TLS_CLIENT_AUTH=optional", "METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE="+cert,
	)
}

// securedScrape scrapes the metrics over TLS on a new connection and returns the status.
func (p *proxy) securedScrape() int {
	p.t.Helper()
	w := dialTLS(p.t, local(p.port.metrics), "http/1.1")
	defer w.Close()
	return w.ask("/metrics", "Connection: close").status()
}

// longCertificate returns a certificate of at least size bytes.
func longCertificate(t *testing.T, size int) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	for n := 0; n < size; n += 200 {
		template.DNSNames = append(template.DNSNames, strings.Repeat("x", 198)+".a")
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// limitedConn is a connection that discards written data after the given number of bytes.
type limitedConn struct {
	net.Conn
	left int
}

func (s *limitedConn) Write(b []byte) (int, error) {
	n := min(len(b), s.left)
	s.left -= n
	if n > 0 {
		if _, err := s.Conn.Write(b[:n]); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// 250 clients begin a handshake with a certificate of 250 KB and stop before the certificate is complete.
func TestMetricsPortLimitsHandshakeSize(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start(p.secured()...)
	if got := p.securedScrape(); got != 200 {
		t.Fatalf("got %d before the handshakes, want 200", got)
	}
	long := longCertificate(t, 250<<10)
	before, lines := p.memory("VmRSS"), strings.Count(p.out.String(), "\n")
	newConnectionGroup(t, local(p.port.metrics), 250, func(c net.Conn) error {
		c.SetDeadline(time.Now().Add(patience))
		tls.Client(&limitedConn{c, 250 << 10}, &tls.Config{
			InsecureSkipVerify:   true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &long, nil },
		}).Handshake()
		return nil
	})
	if got := p.securedScrape(); got != 200 {
		t.Errorf("honest scrape: got %d, want 200", got)
	}
	grown := p.memory("VmHWM") - before
	t.Logf("memory grew by %d KB", grown>>10)
	if most := int64(16 << 20); grown > most && os.Getenv("QUEUE_PROXY_RACE") == "" {
		t.Errorf("memory grew by %d KB, want at most %d", grown>>10, most>>10)
	}
	p.awaitLog("TLS handshakes failed", "the handshake exceeds 32768 bytes")
	if got := strings.Count(p.out.String(), "\n") - lines; got > 10 {
		t.Errorf("got %d new log lines, want at most 10", got)
	}
	p.logIsJSON()
}

// With 250 connections and 250 streams per connection, the responses would exceed the memory of
// a small pod.
func TestMetricsPortDoesNotOfferHTTP2(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start(p.secured()...)
	c, err := tls.Dial("tcp", local(p.port.metrics), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("got %q, want http/1.1", got)
	}
	if _, err := tls.Dial("tcp", local(p.port.metrics), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}); err == nil {
		t.Error("client that offers only h2: got no error")
	}
	w := newClient(t, c)
	w.send(http2.ClientPreface)
	if m := w.receive("PRI"); m.status() < 400 {
		t.Errorf("HTTP/2 preface: got %q, want an error", m.Start)
	}
}
