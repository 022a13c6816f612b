package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	"knative.dev/networking/pkg/client/clientset/versioned"
)

// An issuer creates the Secrets of Knative Certificates. It creates a new certificate
// authority each time the process starts.
type issuer struct {
	ctx       context.Context
	kube      *kubernetes.Clientset
	knative   *versioned.Clientset
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
	authority *x509.CertPool
}

func newIssuer(ctx context.Context, kube *kubernetes.Clientset, knative *versioned.Clientset) (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := template()
	t.Subject, t.IsCA, t.BasicConstraintsValid, t.KeyUsage = pkix.Name{CommonName: "test"}, true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &issuer{ctx, kube, knative, cert, key, pool}, nil
}

// update issues a certificate unless the Certificate is ready.
func (s *issuer) update(c *v1alpha1.Certificate) {
	if c.Annotations["networking.knative.dev/certificate.class"] != class || c.IsReady() {
		return
	}
	if err := s.issue(c); err != nil {
		log.Printf("certificate %s/%s: %v", c.Namespace, c.Name, err)
	}
}

func (s *issuer) issue(c *v1alpha1.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := template()
	t.DNSNames = c.Spec.DNSNames
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, t, s.cert, &key.PublicKey, s.key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	block := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	o := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: c.Spec.SecretName, Namespace: c.Namespace,
			Labels: map[string]string{"networking.internal.knative.dev/certificate-uid": string(c.UID)}},
		Data: map[string][]byte{
			corev1.TLSCertKey: block("CERTIFICATE", der), corev1.TLSPrivateKeyKey: block("EC PRIVATE KEY", secret),
			corev1.ServiceAccountRootCAKey: block("CERTIFICATE", s.cert.Raw),
		},
	}
	secrets := s.kube.CoreV1().Secrets(c.Namespace)
	// The controller creates an empty Secret, which must be updated.
	old, err := secrets.Get(s.ctx, o.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = secrets.Create(s.ctx, o, metav1.CreateOptions{})
	case err == nil:
		old.Data = o.Data
		_, err = secrets.Update(s.ctx, old, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	now, err := s.knative.NetworkingV1alpha1().Certificates(c.Namespace).Get(s.ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	now.Status.InitializeConditions()
	now.Status.MarkReady()
	now.Status.NotAfter = &metav1.Time{Time: t.NotAfter}
	now.Status.ObservedGeneration = now.Generation
	_, err = s.knative.NetworkingV1alpha1().Certificates(c.Namespace).UpdateStatus(s.ctx, now, metav1.UpdateOptions{})
	return err
}

func template() *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour)}
}
