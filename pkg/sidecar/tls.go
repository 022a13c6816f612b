package sidecar

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/certs"
)

// openCertificates reads the TLS certificate, which may also be created later. An invalid key pair
// is an error.
func (s *sidecar) openCertificates() (*certs.Watcher, error) {
	o := s.certificateOptions("")
	o.ClientCA = s.config.TLSClientCA.V
	pair, err := certs.Open(s.config.CertDir.V, o)
	return pair, s.nameFiles(err)
}

// certificateOptions returns options that log each reload. Each log message begins
// with prefix.
func (s *sidecar) certificateOptions(prefix string) certs.Options {
	return certs.Options{
		OnReload: func(leaf *x509.Certificate) {
			s.log.Info(prefix+"certificate in use", zap.Strings("names", leaf.DNSNames), zap.Time("notAfter", leaf.NotAfter))
		},
		OnError: func(err error) { s.log.Warn(prefix+"certificate not in use", zap.Error(err)) },
	}
}

// nameFiles adds the name of the setting to each file error in err.
func (s *sidecar) nameFiles(err error) error {
	if err == nil {
		return nil
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for i, err := range all {
		variable := s.config.CertDir.Name()
		if ca := s.config.TLSClientCA.V; ca != "" && strings.Contains(err.Error(), ca) {
			variable = s.config.TLSClientCA.Name()
		}
		all[i] = fmt.Errorf("%s: %w", variable, err)
	}
	return errors.Join(all...)
}

// listenTLS listens on the TLS port if the certificate is created after startup.
func (s *sidecar) listenTLS(ctx context.Context) (net.Listener, error) {
	return s.listen(ctx, ":"+s.config.TLSPort.String(), s.trafficBuffers)
}

// serveTLS serves TLS as soon as there is a certificate.
func (s *sidecar) serveTLS(ctx context.Context, ln net.Listener) error {
	if ln == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.pair.First():
		}
		var err error
		if ln, err = s.listenTLS(ctx); err != nil {
			// A late certificate must not interrupt plain-text requests, so an error is only
			// logged.
			s.log.Error("TLS is not served", zap.Error(fmt.Errorf("%s: %w", s.config.TLSPort.Name(), err)))
			return nil
		}
	}
	c := s.config
	return s.http1.Serve(ln, s.pair.Config(&tls.Config{
		MinVersion:       c.TLSMinVersion.V,
		MaxVersion:       c.TLSMaxVersion.V,
		CipherSuites:     c.TLSCipherSuites.V,
		CurvePreferences: c.TLSCurves.V,
	}))
}
