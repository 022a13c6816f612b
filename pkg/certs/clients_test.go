package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// below returns an authority that a signs.
func (a *authority) below(name string) *authority {
	b := &authority{t: a.t}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harness.NoError(a.t, err)
	b.key = key
	b.cert = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, &key.PublicKey)
	b.pem = certPEM(b.cert)
	return b
}

func TestChainsOfAFewCertificatesAloneAreVerified(t *testing.T) {
	server := newAuthority(t, "server")
	cert, key := server.issue("server")
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	harness.NoError(t, err)
	root := newAuthority(t, "root")
	authorities := x509.NewCertPool()
	authorities.AddCert(root.cert)
	for _, optional := range []bool{false, true} {
		config := &tls.Config{Certificates: []tls.Certificate{pair}}
		VerifyClients(config, authorities, optional)
		chain, last := "", root
		for n := 1; n <= maxChain+1; n++ {
			cert, key := last.issue("client")
			_, err := served(config, server.client(cert+chain, key))
			harness.Equal(t, (err == nil), n <= maxChain, n, "certificates, optional", optional, err)
			last = last.below(fmt.Sprint(n))
			chain = last.pem + chain
		}
		if _, err := served(config, server.client()); (err == nil) != optional {
			t.Errorf("no certificate, optional %v: got %v", optional, err)
		}
	}
}

// The rules are those of crypto/tls.
func TestACertificateThatIsNotForClientsOrNotTheirsIsRefused(t *testing.T) {
	a := newAuthority(t, "ours")
	cert, key := a.issue("server")
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	harness.NoError(t, err)
	authorities := x509.NewCertPool()
	authorities.AddCert(a.cert)
	clientKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harness.NoError(t, err)
	forServers := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &clientKey.PublicKey)
	past := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, &clientKey.PublicKey)
	for _, optional := range []bool{false, true} {
		config := &tls.Config{Certificates: []tls.Certificate{pair}}
		VerifyClients(config, authorities, optional)
		for name, shown := range map[string]tls.Certificate{
			"for servers":       {Certificate: [][]byte{forServers.Raw}, PrivateKey: clientKey},
			"past":              {Certificate: [][]byte{past.Raw}, PrivateKey: clientKey},
			"of somebody else":  {Certificate: pair.Certificate, PrivateKey: clientKey},
			"of nobody we know": {Certificate: [][]byte{newAuthority(t, "theirs").cert.Raw}, PrivateKey: clientKey},
		} {
			client := a.client()
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
			if _, err := served(config, client); err == nil {
				t.Errorf("a certificate %s, optional %v: got it served, want it refused", name, optional)
			}
		}
	}
}
