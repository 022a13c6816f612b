package admission

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
)

// clientFiles writes the certificate of an authority, and the certificate and the key of a client.
// The authority has signed the client certificate.
func clientFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keys := [2]*ecdsa.PrivateKey{}
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "callers"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	client := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for i, template := range []*x509.Certificate{authority, client} {
		der, err := x509.CreateCertificate(rand.Reader, template, authority, &keys[i].PublicKey, keys[0])
		if err != nil {
			t.Fatal(err)
		}
		write([]string{"ca.crt", "client.crt"}[i], "CERTIFICATE", der)
	}
	der, err := x509.MarshalPKCS8PrivateKey(keys[1])
	if err != nil {
		t.Fatal(err)
	}
	write("client.key", "PRIVATE KEY", der)
	return dir
}

// The configuration in docs/injection.md makes an API server send a client certificate to the
// webhook. The webhook rejects clients without a certificate.
func TestWebhookRequiresClientCertificate(t *testing.T) {
	dir := clientFiles(t)
	w := start(t, "--client-ca="+filepath.Join(dir, "ca.crt"))
	doc, err := os.ReadFile(root + "/docs/injection.md")
	if err != nil {
		t.Fatal(err)
	}
	user := "name: " + service
	if !strings.Contains(string(doc), "- "+user) || !strings.Contains(string(doc), "kind: WebhookAdmissionConfiguration") {
		t.Fatalf("docs/injection.md: no user with %s found", user)
	}
	kubeconfig := filepath.Join(dir, "webhooks.yaml")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nusers:\n  - %s\n    user:\n      client-certificate: %s/client.crt\n      client-key: %s/client.key\n", user, dir, dir)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	known, err := mutating.NewMutatingWebhook(strings.NewReader("apiVersion: apiserver.config.k8s.io/v1\nkind: WebhookAdmissionConfiguration\nkubeConfigFile: " + kubeconfig + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	known.SetServiceResolver(w)
	made, err := newCluster(t, append(objects(t, nil), configuration(t, "ha", w.authority)), known).create("chosen", plainPod(""))
	if err != nil || sidecars(made) != 1 {
		t.Errorf("with a client certificate: got %v, want a sidecar", err)
	}
	if _, err := withWebhook(t, w, "ha").create("chosen", plainPod("")); err == nil {
		t.Error("without a client certificate: got no error")
	}
}
