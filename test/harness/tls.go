package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"testing"
	"time"
)

// NewCertificate returns a self-signed certificate with its key. The certificate is valid for
// one hour and has no name. If change is not nil, it can modify the template.
func NewCertificate(change func(*x509.Certificate)) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// TLS returns the configuration of a server with a new certificate, and the configuration of
// its clients, which do not verify the certificate.
func TLS(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	certificate, err := NewCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}}, &tls.Config{InsecureSkipVerify: true}
}
