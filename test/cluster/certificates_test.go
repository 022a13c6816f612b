//go:build cluster

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// An authority signs the certificates of a run.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// makeCertificates creates the cluster's certificates and the kubeconfig files for the API
// server's clients.
func makeCertificates(dir string) error {
	ca, err := newAuthority(dir, "ca")
	if err != nil {
		return err
	}
	front, err := newAuthority(dir, "front")
	if err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	if err := writeKey(dir+"/accounts.key", key); err != nil {
		return err
	}
	for _, c := range []struct {
		name, organization, common string
		hosts                      []string
		by                         *authority
	}{
		{"apiserver", "", "kube-apiserver", []string{nodeAddress, apiService, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default",
			"kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}, ca},
		{"front-client", "", "front-client", nil, front},
		{"admin", "system:masters", "admin", nil, ca},
		{"controllers", "", "system:kube-controller-manager", nil, ca},
		{"scheduler", "", "system:kube-scheduler", nil, ca},
		{"node", "system:nodes", "system:node:" + nodeName, []string{nodeAddress, nodeName}, ca},
		{"proxy", "", "system:kube-proxy", nil, ca},
	} {
		cert, key, err := c.by.sign(c.organization, c.common, c.hosts)
		if err != nil {
			return err
		}
		if err := errors.Join(os.WriteFile(dir+"/"+c.name+".crt", cert, 0o644), os.WriteFile(dir+"/"+c.name+".key", key, 0o600)); err != nil {
			return err
		}
		if len(c.hosts) > 0 && c.name != "node" || c.by == front {
			continue
		}
		in64 := base64.StdEncoding.EncodeToString
		text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%s", certificate-authority-data: %s}}]
users: [{name: u, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, apiServer, in64(ca.pem), in64(cert), in64(key))
		if err := os.WriteFile(dir+"/"+c.name+".kubeconfig", []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// newAuthority creates a certificate authority with its certificate in dir/name.crt.
func newAuthority(dir, name string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	t := template("", name)
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = nil
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	return a, errors.Join(os.WriteFile(dir+"/"+name+".crt", a.pem, 0o644), writeKey(dir+"/"+name+".key", key))
}

// sign returns a certificate for a client and for a server with the given hosts, and its key.
func (a *authority) sign(organization, common string, hosts []string) (cert, secret []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	t := template(organization, common)
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, nil, err
	}
	b, err := x509.MarshalECPrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b}), err
}

func template(organization, common string) *x509.Certificate {
	name := pkix.Name{CommonName: common}
	if organization != "" {
		name.Organization = []string{organization}
	}
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: name,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func writeKey(file string, key *ecdsa.PrivateKey) error {
	b, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b}), 0o600)
}

func readAuthority(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate found", file)
	}
	return pool, nil
}
