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

// NewCertificate makes a certificate that signs itself, and its key. change may alter what
// it says; nil: it is valid for an hour, and has no name.
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

// TLS returns the configuration of a server with a certificate made for the test, and
// of its clients, which do not verify it.
func TLS(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	certificate, err := NewCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}}, &tls.Config{InsecureSkipVerify: true}
}
