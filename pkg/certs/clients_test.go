package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestVerifyClientsLimitsChainLength(t *testing.T) {
	server := newAuthority(t, "server")
	pair := server.pair("server")
	root := newAuthority(t, "root")
	authorities := x509.NewCertPool()
	authorities.AddCert(root.cert)
	for _, optional := range []bool{false, true} {
		config := &tls.Config{Certificates: []tls.Certificate{pair}}
		VerifyClients(config, authorities, optional)
		var between [][]byte
		last := root
		for n := 1; n <= maxChain+1; n++ {
			shown := last.pair("client")
			shown.Certificate = append(shown.Certificate, between...)
			_, err := served(config, server.client(shown))
			harness.Equal(t, (err == nil), n <= maxChain, n, "certificates, optional", optional, err)
			_, rejected := errors.AsType[*tls.CertificateVerificationError](serverError(config, server.client(shown)))
			harness.Equal(t, rejected, n > maxChain, n, "certificates, type of the error")
			last = last.below(fmt.Sprint(n))
			between = append([][]byte{last.cert.Raw}, between...)
		}
		_, err := served(config, server.client())
		harness.Equal(t, err == nil, optional, "no certificate, optional", optional, err)
	}
}

// serverError performs a handshake and returns the error of the server.
func serverError(config, clientConfig *tls.Config) error {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	server.SetDeadline(time.Now().Add(harness.Patience))
	go io.Copy(io.Discard, tls.Client(client, clientConfig)) // reads the alert of the server
	return tls.Server(server, config).Handshake()
}

// A missing certificate causes the same error in a new session, which crypto/tls checks, and in a resumed
// session.
func TestMissingCertificateErrorMatchesCryptoTLS(t *testing.T) {
	server := newAuthority(t, "server")
	config := &tls.Config{Certificates: []tls.Certificate{server.pair("server")}}
	VerifyClients(config, x509.NewCertPool(), false)
	first := serverError(config, server.client())
	resumed := config.VerifyConnection(tls.ConnectionState{DidResume: true})
	if first == nil || resumed == nil || !strings.HasSuffix(first.Error(), resumed.Error()) {
		t.Errorf("got error %v for a resumed session, want the error of crypto/tls, %v", resumed, first)
	}
}

// VerifyClients applies the same rules as crypto/tls.
func TestVerifyClientsRejectsInvalidCertificate(t *testing.T) {
	a := newAuthority(t, "ours")
	pair := a.pair("server")
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
			"for servers":   {Certificate: [][]byte{forServers.Raw}, PrivateKey: clientKey},
			"past":          {Certificate: [][]byte{past.Raw}, PrivateKey: clientKey},
			"another owner": {Certificate: pair.Certificate, PrivateKey: clientKey},
			"unknown peer":  {Certificate: [][]byte{newAuthority(t, "theirs").cert.Raw}, PrivateKey: clientKey},
		} {
			client := a.client()
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
			if _, err := served(config, client); err == nil {
				t.Errorf("certificate %s, optional %v: got no error, want one", name, optional)
			}
		}
	}
}
