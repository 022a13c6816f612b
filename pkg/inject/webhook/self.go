package webhook

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Validity of certificates. A certificate is renewed when less than a third of its
// validity remains. Therefore, no certificate expires during an outage of one month.
const (
	authorityValidity = 5 * 365 * 24 * time.Hour
	serverValidity    = 90 * 24 * time.Hour
	clockSkew         = 5 * time.Minute // maximum delay of an API server's clock

	syncInterval  = time.Minute // also the maximum time until the webhook detects that another program has overwritten the configuration
	retryInterval = 2 * time.Second
	maxAttempts   = 5 // maximum number of attempts after write conflicts
)

// Keys of the Secret. tls.crt and tls.key are defined by the type kubernetes.io/tls.
const (
	serverCert    = "tls.crt"
	serverKey     = "tls.key"
	authorityCert = "ca.crt"
	authorityKey  = "ca.key"
	nextCert      = "next-ca.crt" // the next authority, which is published before it is used
	nextKey       = "next-ca.key"
)

// authorityName is the common name of the authorities, which identifies them in a caBundle.
const authorityName = "queue-proxy-injector-ca"

// Self creates and renews the certificate of the webhook, stores it in a Secret that all replicas
// share, and publishes its authority in the configuration of the webhook.
//
// There is no leader. Each replica only writes a Secret or a configuration that has not changed
// since it was read (metadata.resourceVersion). After a conflict, the replica starts again. Until an
// authority expires, no replica removes it from the configuration, even if another replica published
// it. Therefore, the API server always trusts the certificates of all replicas.
type Self struct {
	Kube          *Kube
	Namespace     string
	Service       string // name of the webhook's Service in Namespace
	Secret        string // name of the Secret in Namespace
	Configuration string // name of the MutatingWebhookConfiguration
	Log           *zap.Logger
	Metrics       *AuthorityMetrics
	Now           func() time.Time // Now returns the current time, like [time.Now]

	pair atomic.Pointer[tls.Certificate]
}

// GetCertificate can be used as the field of the same name in a [tls.Config]. It returns an
// error until the first sync succeeds.
func (s *Self) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if p := s.pair.Load(); p != nil {
		return p, nil
	}
	return nil, errors.New("no certificate yet")
}

// NotAfter returns the expiry time of the certificate in use, or the zero time if there is none.
func (s *Self) NotAfter() time.Time {
	if p := s.pair.Load(); p != nil {
		return p.Leaf.NotAfter
	}
	return time.Time{}
}

// Run syncs the certificate and the configuration until ctx is done. It always returns nil. Errors
// are logged, and the sync is repeated. The current certificate stays in use.
func (s *Self) Run(ctx context.Context) error {
	for {
		wait := syncInterval
		if err := s.sync(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error("certificate sync failed", zap.Error(err))
			wait = retryInterval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// sync renews and publishes the certificate if necessary. It starts again if another replica has
// written an object concurrently.
func (s *Self) sync(ctx context.Context) (err error) {
	defer func() {
		if ctx.Err() == nil {
			s.Metrics.countSync(s.Now(), err)
		}
	}()
	for range maxAttempts {
		if err = s.syncOnce(ctx); !isStatus(err, http.StatusConflict) {
			return err
		}
	}
	return err
}

func (s *Self) syncOnce(ctx context.Context) error {
	secret, err := s.readSecret(ctx)
	if err != nil {
		return fmt.Errorf("secret %s: %w", s.Secret, err)
	}
	published := new(admissionregv1.MutatingWebhookConfiguration)
	if err := s.Kube.do(ctx, http.MethodGet, s.configurationPath(), "", nil, published); err != nil {
		return fmt.Errorf("configuration %s: %w", s.Configuration, err)
	}
	changed, err := s.renew(secret, published)
	if err != nil {
		return err
	}
	if changed {
		if err := s.writeSecret(ctx, secret); err != nil {
			return fmt.Errorf("secret %s: %w", s.Secret, err)
		}
	}
	// Publish before serving, so that API servers trust the certificate.
	if err := s.publish(ctx, published, secret); err != nil {
		return fmt.Errorf("configuration %s: %w", s.Configuration, err)
	}
	pair, err := tls.X509KeyPair(secret.Data[serverCert], secret.Data[serverKey])
	if err != nil {
		return err
	}
	if old := s.pair.Load(); old == nil || !bytes.Equal(old.Leaf.Raw, pair.Leaf.Raw) {
		s.pair.Store(&pair)
		s.Log.Info("loaded certificate", zap.Time("until", pair.Leaf.NotAfter))
	}
	return nil
}

func (s *Self) secretPath() string { return "/api/v1/namespaces/" + s.Namespace + "/secrets" }

// readSecret returns the Secret, or a new Secret without data if it does not exist.
func (s *Self) readSecret(ctx context.Context) (*corev1.Secret, error) {
	secret := new(corev1.Secret)
	err := s.Kube.do(ctx, http.MethodGet, s.secretPath()+"/"+s.Secret, "", nil, secret)
	if isStatus(err, http.StatusNotFound) {
		*secret, err = corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Name: s.Secret, Namespace: s.Namespace},
		}, nil
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	return secret, err
}

// writeSecret creates or updates the Secret. The error has status 409 if the Secret has changed
// since it was read. If the Secret does not exist and cannot be created, the error contains the
// command that creates it.
func (s *Self) writeSecret(ctx context.Context, secret *corev1.Secret) error {
	method, path := http.MethodPut, s.secretPath()+"/"+s.Secret
	if secret.ResourceVersion == "" {
		method, path = http.MethodPost, s.secretPath()
	}
	err := s.Kube.do(ctx, method, path, "application/json", secret, nil)
	if method == http.MethodPost && isStatus(err, http.StatusForbidden) {
		return fmt.Errorf("not found, and the service account cannot create the Secret; "+
			"run \"kubectl -n %s create secret generic %s\": %w", s.Namespace, s.Secret, err)
	}
	return err
}

func (s *Self) configurationPath() string {
	return "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + s.Configuration
}

// renew updates the data of the Secret, and reports whether it has changed.
func (s *Self) renew(secret *corev1.Secret, published *admissionregv1.MutatingWebhookConfiguration) (changed bool, err error) {
	now := s.Now()
	authority := readPair(secret.Data[authorityCert], secret.Data[authorityKey])
	next := readPair(secret.Data[nextCert], secret.Data[nextKey])
	var replacement *keyPair // certificate that replaces the authority; nil if it is not replaced
	switch {
	case authority == nil || now.After(authority.cert.NotAfter):
		replacement, err = newAuthority(now)
	case next != nil && isPublished(published, next):
		replacement = next
	case next == nil && authority.needsRenewal(now):
		if next, err = newAuthority(now); err == nil {
			secret.Data[nextCert], secret.Data[nextKey] = next.encode()
			changed = true
		}
	}
	if err != nil {
		return false, err
	}
	if replacement != nil {
		secret.Data[authorityCert], secret.Data[authorityKey] = replacement.encode()
		delete(secret.Data, nextCert)
		delete(secret.Data, nextKey)
		authority, changed = replacement, true
	}
	server := readPair(secret.Data[serverCert], secret.Data[serverKey])
	if server == nil || server.needsRenewal(now) || server.cert.VerifyHostname(s.host()) != nil || server.cert.CheckSignatureFrom(authority.cert) != nil {
		if server, err = authority.sign(s.host(), now); err != nil {
			return false, err
		}
		secret.Data[serverCert], secret.Data[serverKey] = server.encode()
		changed = true
	}
	return changed, nil
}

// host returns the DNS name of the webhook.
func (s *Self) host() string { return s.Service + "." + s.Namespace + ".svc" }

// publish adds the authorities of the Secret to each caBundle in which one of them is missing.
func (s *Self) publish(ctx context.Context, c *admissionregv1.MutatingWebhookConfiguration, secret *corev1.Secret) error {
	patch := []map[string]any{{"op": "test", "path": "/metadata/resourceVersion", "value": c.ResourceVersion}}
	for i, w := range c.Webhooks {
		bundle := mergeBundles(s.Now(), secret.Data[authorityCert], secret.Data[nextCert], w.ClientConfig.CABundle)
		if !bytes.Equal(bundle, w.ClientConfig.CABundle) {
			patch = append(patch, map[string]any{"op": "add", "path": fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), "value": bundle})
		}
	}
	if len(patch) == 1 {
		return nil
	}
	err := s.Kube.do(ctx, http.MethodPatch, s.configurationPath(), "application/json-patch+json", patch, nil)
	if isStatus(err, http.StatusUnprocessableEntity) { // the test operation failed, because the object has changed
		return &statusError{http.StatusConflict, err.Error()}
	}
	if err == nil {
		s.Metrics.patches.Inc()
	}
	return err
}

// mergeBundles returns the certificates in authority and next, followed by the certificates in
// published that are authorities of the injector. Expired certificates and duplicates are removed.
// The order is deterministic.
func mergeBundles(now time.Time, authority, next, published []byte) []byte {
	var bundle []byte
	seen := map[string]bool{}
	ours := slices.DeleteFunc(readCertificates(published), func(c *x509.Certificate) bool { return !c.IsCA || c.Subject.CommonName != authorityName })
	for _, c := range slices.Concat(readCertificates(authority), readCertificates(next), ours) {
		if !seen[string(c.Raw)] && now.Before(c.NotAfter) {
			seen[string(c.Raw)] = true
			bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
	}
	return bundle
}

func readCertificates(text []byte) []*x509.Certificate {
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return all
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, c)
		}
	}
}

// isPublished reports whether the caBundle of each webhook in a configuration contains an
// authority.
func isPublished(c *admissionregv1.MutatingWebhookConfiguration, a *keyPair) bool {
	for _, w := range c.Webhooks {
		if !slices.ContainsFunc(readCertificates(w.ClientConfig.CABundle), a.cert.Equal) {
			return false
		}
	}
	return true
}

// A keyPair is a certificate and its private key.
type keyPair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// readPair parses a certificate and its key. It returns nil if one of them is invalid, so
// that the caller creates a new pair.
func readPair(cert, key []byte) *keyPair {
	pair, _ := tls.X509KeyPair(cert, key) // the private key of the result is nil after an error
	private, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil
	}
	return &keyPair{pair.Leaf, private}
}

func (p *keyPair) encode() (cert, key []byte) {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		panic("webhook: encode private key: " + err.Error())
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// needsRenewal reports whether less than a third of the validity remains.
func (p *keyPair) needsRenewal(now time.Time) bool {
	return now.After(p.cert.NotAfter.Add(-p.cert.NotAfter.Sub(p.cert.NotBefore) / 3))
}

func newAuthority(now time.Time) (*keyPair, error) {
	return issue(&x509.Certificate{
		Subject:               pkix.Name{CommonName: authorityName},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityValidity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}, nil)
}

// sign returns a new server certificate for a host, signed by p.
func (p *keyPair) sign(host string, now time.Time) (*keyPair, error) {
	until := now.Add(serverValidity)
	if until.After(p.cert.NotAfter) {
		until = p.cert.NotAfter
	}
	return issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: host},
		DNSNames:    []string{host},
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    until,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, p)
}

// issue returns a new key with a certificate. The certificate is signed by issuer, or self-signed
// if issuer is nil.
func issue(template *x509.Certificate, issuer *keyPair) (*keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if issuer == nil {
		issuer = &keyPair{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer.cert, &key.PublicKey, issuer.key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &keyPair{cert, key}, nil
}
