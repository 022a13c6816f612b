package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// clientOf makes a client's certificate, signed by an authority.
func clientOf(t *testing.T, by *keyPair, until time.Time, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	pair, err := issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, by)
	harness.NoError(t, err)
	certificate, err := tls.X509KeyPair(pair.encode())
	harness.NoError(t, err)
	return certificate
}

// authorityOf makes an authority.
func authorityOf(t *testing.T) *keyPair {
	t.Helper()
	made, err := newAuthority(time.Now())
	harness.NoError(t, err)
	return made
}

func TestWithClientAuthoritiesOnlyTheirClientsAreAnswered(t *testing.T) {
	ours, clients, others := authorityOf(t), authorityOf(t), authorityOf(t)
	served, err := ours.sign("127.0.0.1.test", time.Now())
	harness.NoError(t, err)
	certificate, err := tls.X509KeyPair(served.encode())
	harness.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	pool, err := ParseAuthorities(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: clients.cert.Raw}))
	harness.NoError(t, err)
	s := &Server{Log: zap.NewNop(), Metrics: NewMetrics("", ""), Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil }, ClientCAs: pool}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	server := s.server(newReviewer(nil), mostConnections)
	done := make(chan error, 1)
	go func() { done <- s.serveTLS(server, l) }()
	defer func() { server.Close(); <-done }()

	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, c := range []struct {
			fact string
			with []tls.Certificate
			want int
		}{
			{"no certificate", nil, 0},
			{"one of another authority", []tls.Certificate{clientOf(t, others, time.Now().Add(time.Hour), x509.ExtKeyUsageClientAuth)}, 0},
			{"one that ran out", []tls.Certificate{clientOf(t, clients, time.Now().Add(-time.Minute), x509.ExtKeyUsageClientAuth)}, 0},
			{"one for servers", []tls.Certificate{clientOf(t, clients, time.Now().Add(time.Hour), x509.ExtKeyUsageServerAuth)}, 0},
			{"one that the server signed", []tls.Certificate{clientOf(t, ours, time.Now().Add(time.Hour), x509.ExtKeyUsageClientAuth)}, 0},
			{"a good one", []tls.Certificate{clientOf(t, clients, time.Now().Add(time.Hour), x509.ExtKeyUsageClientAuth)}, http.StatusOK},
		} {
			sends := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // whatever is asked for
				if len(c.with) == 0 {
					return new(tls.Certificate), nil
				}
				return &c.with[0], nil
			}
			client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{
				RootCAs: roots, ServerName: "127.0.0.1.test", MaxVersion: version, GetClientCertificate: sends}}}
			for range 2 { // the second time, a session may be taken up again
				got := 0
				if r, err := client.Post("https://"+l.Addr().String()+reviewPath, "application/json", strings.NewReader(string(question([]byte(goodPod), nil)))); err == nil {
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

// A client's certificates are part of its handshake, which is bounded.
func TestAClientsCertificatesAreBounded(t *testing.T) {
	clients := authorityOf(t)
	pool := x509.NewCertPool()
	pool.AddCert(clients.cert)
	good := clientOf(t, clients, time.Now().Add(time.Hour), x509.ExtKeyUsageClientAuth)
	served, err := tls.X509KeyPair(authorityOf(t).encode())
	harness.NoError(t, err)
	s := &Server{Log: zap.NewNop(), Metrics: NewMetrics("", ""), Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &served, nil }, ClientCAs: pool}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	server := s.server(newReviewer(nil), mostConnections)
	done := make(chan error, 1)
	go func() { done <- s.serveTLS(server, l) }()
	defer func() { server.Close(); <-done }()
	for more, want := range map[int]bool{2: true, 200: false} {
		shown := good
		for range more {
			shown.Certificate = append(shown.Certificate, clients.cert.Raw)
		}
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			InsecureSkipVerify:   true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
		}}}
		r, err := client.Get("https://" + l.Addr().String() + "/none")
		if err == nil {
			r.Body.Close()
		}
		harness.Equal(t, (err == nil), want, 1+more, "certificates", err)
	}
}
