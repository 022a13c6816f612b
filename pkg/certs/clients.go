package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// maxChain is the maximum number of certificates that a client may send, including its own. Most
// clients send at most three.
const maxChain = 5

// errNoCertificate is returned if the client resumes a session that has no certificate. In a full handshake,
// crypto/tls returns its own error. Both errors have the same text, by which package netconn recognizes them.
var errNoCertificate = errors.New("client didn't provide a certificate")

// VerifyClients configures a server to request client certificates and to verify them against
// authorities. If optional is true, clients without a certificate are accepted.
//
// The checks are the same as in crypto/tls for [tls.RequireAndVerifyClientCert] and
// [tls.VerifyClientCertIfGiven], but a chain may have at most 5 certificates. crypto/tls accepts
// chains of any length and checks up to 100 signatures. By sending such a chain of 28 KB, a client without
// a private key can use 0.2 s of CPU time.
func VerifyClients(c *tls.Config, authorities *x509.CertPool, optional bool) {
	c.ClientCAs = authorities
	c.ClientAuth = tls.RequireAnyClientCert
	if optional {
		c.ClientAuth = tls.RequestClientCert
	}
	c.VerifyConnection = func(s tls.ConnectionState) error { // also called for resumed sessions
		if len(s.PeerCertificates) == 0 {
			if optional {
				return nil
			}
			return errNoCertificate
		}
		return verify(s.PeerCertificates, authorities)
	}
}

// verify verifies a certificate chain. The first certificate is the client certificate.
func verify(chain []*x509.Certificate, authorities *x509.CertPool) error {
	if len(chain) > maxChain {
		err := fmt.Errorf("the number of client certificates (%d) exceeds %d", len(chain), maxChain)
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	return nil
}
