package webhook

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"net/http"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// pairOf converts p to a tls.Certificate.
func pairOf(t *testing.T, p *keyPair) *tls.Certificate {
	t.Helper()
	certificate, err := tls.X509KeyPair(p.encode())
	harness.NoError(t, err)
	return &certificate
}

// clientOf returns a client certificate that an authority signed.
func clientOf(t *testing.T, by *keyPair, until time.Time, usage x509.ExtKeyUsage) *tls.Certificate {
	t.Helper()
	pair, err := issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, by)
	harness.NoError(t, err)
	return pairOf(t, pair)
}

// authorityOf returns a new authority and a server certificate for a name.
func authorityOf(t *testing.T, name string, now time.Time) (*keyPair, *tls.Certificate) {
	t.Helper()
	made, err := newAuthority(now)
	harness.NoError(t, err)
	served, err := made.sign(name, now)
	harness.NoError(t, err)
	return made, pairOf(t, served)
}

// trusting returns a pool with one authority.
func trusting(p *keyPair) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(p.cert)
	return pool
}

// newServer returns a Server with the fields for TLS.
func newServer(certificate *tls.Certificate, clients *x509.CertPool, log *zap.Logger) *Server {
	return &Server{Log: log, Metrics: NewMetrics("", ""), Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil }, ClientCAs: clients}
}

// listen starts a server for reviews over TLS and returns its address. The server stops at the end
// of the test.
func listen(t *testing.T, s *Server) string {
	t.Helper()
	l := harness.Listen(t)
	server, done := s.server(newReviewer(nil), maxConnections), make(chan error, 1)
	go func() { done <- s.serveTLS(server, l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return l.Addr().String()
}

func TestClientCAsRejectOtherClients(t *testing.T) {
	const name = "127.0.0.1.test"
	ours, certificate := authorityOf(t, name, time.Now())
	clients, _ := authorityOf(t, name, time.Now())
	others, _ := authorityOf(t, name, time.Now())
	pool, err := ParseAuthorities(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: clients.cert.Raw}))
	harness.NoError(t, err)
	address := listen(t, newServer(certificate, pool, zap.NewNop()))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, c := range []struct {
			fact string
			with *tls.Certificate
			want int
		}{
			{"no certificate", new(tls.Certificate), 0},
			{"certificate of another CA", clientOf(t, others, time.Now().Add(time.Hour), x509.ExtKeyUsageClientAuth), 0},
			{"expired certificate", clientOf(t, clients, time.Now().Add(-time.Minute), x509.ExtKeyUsageClientAuth), 0},
			{"server certificate", clientOf(t, clients, time.Now().Add(time.Hour), x509.ExtKeyUsageServerAuth), 0},
			{"certificate of the CA of the server", clientOf(t, ours, time.Now().Add(time.Hour), x509.ExtKeyUsageClientAuth), 0},
			{"valid certificate", clientOf(t, clients, time.Now().Add(time.Hour), x509.ExtKeyUsageClientAuth), http.StatusOK},
		} {
			sends := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.with, nil } // the client sends its certificate even if the server requests other authorities
			client := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{
				RootCAs: trusting(ours), ServerName: name, MaxVersion: version, GetClientCertificate: sends}}}
			for range 2 { // the second connection can resume the session
				got := 0
				if r, err := client.Post("https://"+address+reviewPath, "application/json", bytes.NewReader(question([]byte(goodPod), nil))); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					r.Body.Close()
					got = r.StatusCode
				}
				client.CloseIdleConnections()
				harness.Equal(t, got, c.want, "TLS", version, c.fact, "status")
			}
		}
	}
}

// The limit for handshakes includes the certificates of the client.
func TestClientCertificateSizeIsLimited(t *testing.T) {
	clients, served := authorityOf(t, "a", time.Now())
	good := clientOf(t, clients, time.Now().Add(time.Hour), x509.ExtKeyUsageClientAuth)
	address := listen(t, newServer(served, trusting(clients), zap.NewNop()))
	for more, want := range map[int]bool{2: true, 200: false} {
		shown := *good
		for range more {
			shown.Certificate = append(shown.Certificate, clients.cert.Raw)
		}
		client := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			InsecureSkipVerify:   true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
		}}}
		r, err := client.Get("https://" + address + "/none")
		if err == nil {
			r.Body.Close()
		}
		harness.Equal(t, (err == nil), want, 1+more, "certificates", err)
	}
}
