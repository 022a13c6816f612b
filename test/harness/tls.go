package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
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

// WriteCertificate writes a new certificate and its key to tls.crt and tls.key in a directory. It
// returns a pool that contains the certificate. For change, see NewCertificate.
func WriteCertificate(t testing.TB, dir string, change func(*x509.Certificate)) *x509.CertPool {
	t.Helper()
	pair, err := NewCertificate(change)
	NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	NoError(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	NoError(t, os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600))
	NoError(t, os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return roots
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
