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

// How long certificates last. What is renewed is renewed when a third of its time is
// left, so a cluster that stands still for a month loses nothing.
const (
	authorityLasts = 5 * 365 * 24 * time.Hour
	serverLasts    = 90 * 24 * time.Hour
	clockSkew      = 5 * time.Minute // clocks of API servers may be behind

	syncEvery  = time.Minute // somebody may have applied the configuration anew, without our authority
	retryAfter = 2 * time.Second
	mostTries  = 5 // of one look, against others who write at the same time
)

// Keys of the Secret. tls.crt and tls.key are those of kubernetes.io/tls.
const (
	serverCert    = "tls.crt"
	serverKey     = "tls.key"
	authorityCert = "ca.crt"
	authorityKey  = "ca.key"
	nextCert      = "next-ca.crt" // an authority that is published before it is used
	nextKey       = "next-ca.key"
)

// authorityName is the common name of our authorities, by which they are known in a
// caBundle.
const authorityName = "queue-proxy-injector-ca"

// Self makes the webhook's certificate itself, keeps it in a Secret that all replicas
// share, renews it, and publishes its authority into the webhook's configuration.
//
// There is no leader. Each replica writes the Secret and the configuration only as it
// has seen them (metadata.resourceVersion); who comes second gets a conflict, looks again, and
// finds it done. What one replica has published, another one that is behind never takes
// away: authorities leave the caBundle by running out. So the API server trusts, at any
// time, whatever any replica serves.
type Self struct {
	Kube          *Kube
	Namespace     string
	Service       string // the webhook's, in Namespace
	Secret        string // in Namespace
	Configuration string // the MutatingWebhookConfiguration
	Log           *zap.Logger
	Metrics       *AuthorityMetrics
	Now           func() time.Time // as [time.Now]

	pair atomic.Pointer[tls.Certificate]
}

// GetCertificate is for [tls.Config]. It is an error before the first successful Sync.
func (s *Self) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if p := s.pair.Load(); p != nil {
		return p, nil
	}
	return nil, errors.New("no certificate yet")
}

// NotAfter is when the certificate in use ends, the zero time if there is none.
func (s *Self) NotAfter() time.Time {
	if p := s.pair.Load(); p != nil {
		return p.Leaf.NotAfter
	}
	return time.Time{}
}

// Run looks after certificate and configuration until ctx is done; it returns nil. What
// fails is logged and tried again; meanwhile the certificate in use stays in use.
func (s *Self) Run(ctx context.Context) error {
	for {
		wait := syncEvery
		if err := s.sync(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error("the certificate could not be looked after", zap.Error(err))
			wait = retryAfter
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// sync looks, and makes, renews and publishes what is needed; again where another
// replica was faster.
func (s *Self) sync(ctx context.Context) (err error) {
	defer func() {
		if ctx.Err() == nil {
			s.Metrics.looked(s.Now(), err)
		}
	}()
	for range mostTries {
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
	// Published first, served second: nobody meets a certificate of an unknown authority.
	if err := s.publish(ctx, published, secret); err != nil {
		return fmt.Errorf("configuration %s: %w", s.Configuration, err)
	}
	pair, err := tls.X509KeyPair(secret.Data[serverCert], secret.Data[serverKey])
	if err != nil {
		return err
	}
	if old := s.pair.Load(); old == nil || !bytes.Equal(old.Leaf.Raw, pair.Leaf.Raw) {
		s.pair.Store(&pair)
		s.Log.Info("the certificate is in use", zap.Time("until", pair.Leaf.NotAfter))
	}
	return nil
}

func (s *Self) secretPath() string { return "/api/v1/namespaces/" + s.Namespace + "/secrets" }

// readSecret is the Secret, or an empty one that is not there yet.
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

// writeSecret creates or updates the Secret. The error is 409 if the Secret has changed since it was read. If the Secret
// does not exist and cannot be created, the error contains the command that creates it.
func (s *Self) writeSecret(ctx context.Context, secret *corev1.Secret) error {
	method, path := http.MethodPut, s.secretPath()+"/"+s.Secret
	if secret.ResourceVersion == "" {
		method, path = http.MethodPost, s.secretPath()
	}
	err := s.Kube.do(ctx, method, path, "application/json", secret, nil)
	if method == http.MethodPost && isStatus(err, http.StatusForbidden) {
		return fmt.Errorf("not found, and the service account is not allowed to create it; "+
			"run \"kubectl -n %s create secret generic %s\": %w", s.Namespace, s.Secret, err)
	}
	return err
}

func (s *Self) configurationPath() string {
	return "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + s.Configuration
}

// renew brings the Secret up to date and reports whether it has changed.
func (s *Self) renew(secret *corev1.Secret, published *admissionregv1.MutatingWebhookConfiguration) (changed bool, err error) {
	now := s.Now()
	authority := readPair(secret.Data[authorityCert], secret.Data[authorityKey])
	next := readPair(secret.Data[nextCert], secret.Data[nextKey])
	var instead *keyPair // the authority from now on
	switch {
	case authority == nil || now.After(authority.cert.NotAfter):
		instead, err = newAuthority(now)
	case next != nil && isPublished(published, next):
		instead = next
	case next == nil && authority.isOld(now):
		if next, err = newAuthority(now); err == nil {
			secret.Data[nextCert], secret.Data[nextKey] = next.encode()
			changed = true
		}
	}
	if err != nil {
		return false, err
	}
	if instead != nil {
		secret.Data[authorityCert], secret.Data[authorityKey] = instead.encode()
		delete(secret.Data, nextCert)
		delete(secret.Data, nextKey)
		authority, changed = instead, true
	}
	server := readPair(secret.Data[serverCert], secret.Data[serverKey])
	if server == nil || server.isOld(now) || server.cert.VerifyHostname(s.host()) != nil || server.cert.CheckSignatureFrom(authority.cert) != nil {
		if server, err = authority.sign(s.host(), now); err != nil {
			return false, err
		}
		secret.Data[serverCert], secret.Data[serverKey] = server.encode()
		changed = true
	}
	return changed, nil
}

// host is the name by which API servers call the webhook.
func (s *Self) host() string { return s.Service + "." + s.Namespace + ".svc" }

// publish puts our authorities into every caBundle that lacks one of them.
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
	if isStatus(err, http.StatusUnprocessableEntity) { // the test failed: somebody was faster
		return &statusError{http.StatusConflict, err.Error()}
	}
	if err == nil {
		s.Metrics.patches.Inc()
	}
	return err
}

// mergeBundles is the first two authorities, and those of ours that were published before
// and have not run out. Their order is fixed, so the same input gives the same bytes.
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

// isPublished reports whether every webhook of a configuration trusts an authority.
func isPublished(c *admissionregv1.MutatingWebhookConfiguration, a *keyPair) bool {
	for _, w := range c.Webhooks {
		if !slices.ContainsFunc(readCertificates(w.ClientConfig.CABundle), a.cert.Equal) {
			return false
		}
	}
	return true
}

// A keyPair is a certificate with its key.
type keyPair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// readPair is nil for what cannot be used: then it is made anew.
func readPair(cert, key []byte) *keyPair {
	pair, _ := tls.X509KeyPair(cert, key) // after an error, without a key
	private, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil
	}
	return &keyPair{pair.Leaf, private}
}

func (p *keyPair) encode() (cert, key []byte) {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		panic("webhook: a key of ours that has no form: " + err.Error())
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// isOld reports whether less than a third of its time is left.
func (p *keyPair) isOld(now time.Time) bool {
	return now.After(p.cert.NotAfter.Add(-p.cert.NotAfter.Sub(p.cert.NotBefore) / 3))
}

func newAuthority(now time.Time) (*keyPair, error) {
	return issue(&x509.Certificate{
		Subject:               pkix.Name{CommonName: authorityName},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityLasts),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}, nil)
}

// sign makes a server certificate for a host.
func (p *keyPair) sign(host string, now time.Time) (*keyPair, error) {
	until := now.Add(serverLasts)
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

// issue makes a key and a certificate for it, signed by an authority, or by itself.
func issue(template *x509.Certificate, by *keyPair) (*keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if by == nil {
		by = &keyPair{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, &key.PublicKey, by.key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &keyPair{cert, key}, nil
}
